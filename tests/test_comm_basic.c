/* The first things every user of comm needs: joining, all_reduce, broadcast, barrier, memory. */
#include "ranks.h"
#include <math.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void check_sum(ls_group *group, float *buffer, size_t count) {
    int rank = ls_group_rank(group), size = ls_group_size(group);
    int ranks_sum = size * (size + 1) / 2;
    for (size_t i = 0; i < count; i++)
        buffer[i] = (float)(rank + 1) * (float)(i % 100);
    CHECK_OK(ls_all_reduce(group, buffer, buffer, count, LS_F32, LS_SUM));
    for (size_t i = 0; i < count; i++)
        CHECK(buffer[i] == (float)ranks_sum * (float)(i % 100));
}

static void basics(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    static float plain[100000];
    float *mapped;
    CHECK(ls_group_rank(world) == rank && ls_job_rank(job) == rank);
    CHECK_OK(ls_group_alloc(world, sizeof plain, (void **)&mapped));
    for (size_t i = 0; i < 100000; i++)
        CHECK(mapped[i] == 0);
    for (int i = 0; i < 3; i++) {
        check_sum(world, plain, 3);
        check_sum(world, plain, 100000);
        check_sum(world, mapped, 100000);
    }
    int root = ls_group_size(world) - 1;
    plain[99999] = (float)rank;
    CHECK_OK(ls_broadcast(world, plain, 100000, LS_F32, root));
    CHECK(plain[99999] == (float)root);
    CHECK_OK(ls_barrier(world));
    CHECK_OK(ls_group_free(world, mapped));
}

static void started(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    enum { N = 50 };
    ls_group *world = ls_job_world(job);
    int size = ls_group_size(world);
    ls_work *work[N];
    int64_t value[N];
    for (int i = 0; i < N; i++) {
        value[i] = i;
        CHECK_OK(ls_all_reduce_start(world, &value[i], &value[i], 1, LS_I64, LS_SUM, &work[i]));
    }
    CHECK_OK(ls_barrier(world)); /* runs in its turn: after all of them */
    for (int i = 0; i < N; i++) {
        ls_work_times times;
        CHECK(ls_work_done(work[i]));
        CHECK_OK(ls_work_wait(work[i], &times));
        CHECK(value[i] == (int64_t)i * size);
        CHECK(times.queued_ns <= times.begin_ns && times.begin_ns <= times.ready_ns &&
              times.ready_ns <= times.end_ns && times.last_rank >= 0 && times.last_rank < size);
    }
}

static void on_all_worlds(ranks_body body) {
    for (int i = 0; i < RANKS_WORLDS; i++)
        assert_int_equal(ranks_run(ranks_worlds[i], ranks_transport(), body, NULL), 0);
}

static void test_basics(void **state) {
    (void)state;
    on_all_worlds(basics);
}

static void test_started(void **state) {
    (void)state;
    on_all_worlds(started);
}

/* Without any variable: a world of one. */
static void test_world_of_one(void **state) {
    (void)state;
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("LOCKSTEP_SHM_FD");
    unsetenv("LOCKSTEP_TRANSPORT");
    ls_job *job;
    assert_int_equal(ls_job_init(&job, NULL), LS_OK);
    assert_string_equal(ls_job_transport(job), "self");
    assert_int_equal(ls_job_world_size(job), 1);
    basics(0, job, NULL);
    started(0, job, NULL);
    /* nobody has samples: zeros, not what 0 * inf gives */
    float x[2] = {5, INFINITY};
    double total = -1;
    assert_int_equal(ls_all_reduce_weighted(ls_job_world(job), x, x, 2, LS_F32, 0, &total), LS_OK);
    assert_true(x[0] == 0 && x[1] == 0 && total == 0);
    ls_job_finish(job);
}

/* Who is not told its place on the machine is alone there, unless the ranks share memory. */
static void local_place(int rank, ls_job *job, void *context) {
    (void)context;
    bool shared = strcmp(ranks_transport(), "shm") == 0;
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    CHECK_OK(ls_job_init(&job, NULL));
    CHECK(ls_job_local_rank(job) == (shared ? rank : 0));
    CHECK(ls_job_local_world_size(job) == (shared ? 3 : 1));
    CHECK_OK(ls_barrier(ls_job_world(job)));
    ls_job_finish(job);
}

static void test_local_place(void **state) {
    (void)state;
    ranks r = {.size = 3, .transport = ranks_transport(), .body = local_place, .no_job = true};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_world_of_one),
        cmocka_unit_test(test_basics),
        cmocka_unit_test(test_started),
        cmocka_unit_test(test_local_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
