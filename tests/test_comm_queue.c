/* Started operations, threads, times, and the checks of arguments. */
#include "ranks.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* Hundreds in flight, of all kinds and sizes, blocking ones between them. */
static void many_in_flight(int rank, ls_job *job, void *context) {
    (void)context;
    enum { N = 300, LARGE = 60000 };
    ls_group *world = ls_job_world(job);
    int size = ls_group_size(world);
    static float small[N][4], large[LARGE];
    ls_work *work[N];
    for (int i = 0; i < LARGE; i++)
        large[i] = (float)rank;
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 4; k++)
            small[i][k] = (float)(i + k);
        if (i % 100 == 50)
            CHECK_OK(ls_all_reduce_start(world, large, large, LARGE, LS_F32, LS_MAX, &work[i]));
        else if (i % 10 == 3)
            CHECK_OK(ls_barrier_start(world, &work[i]));
        else if (i % 10 == 5)
            CHECK_OK(ls_broadcast_start(world, small[i], 4, LS_F32, i % size, &work[i]));
        else
            CHECK_OK(ls_all_reduce_start(world, small[i], small[i], 4, LS_F32, LS_SUM, &work[i]));
        if (i % 97 == 0)
            CHECK_OK(ls_barrier(world));
    }
    for (int i = N - 1; i >= 0; i--) /* handles may be waited for in any order */
        CHECK_OK(ls_work_wait(work[i], NULL));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 4; k++) {
            bool reduced = i % 100 != 50 && i % 10 != 3 && i % 10 != 5;
            CHECK(small[i][k] == (float)(i + k) * (float)(reduced ? size : 1));
        }
    CHECK(large[0] == (float)(size - 1) && large[LARGE - 1] == (float)(size - 1));
}

/* Point to point in both directions at once, started on both sides. */
static void started_messages(int rank, ls_job *job, void *context) {
    (void)context;
    enum { N = 40 };
    ls_group *world = ls_job_world(job);
    int size = ls_group_size(world), peer = size - 1 - rank;
    int64_t out[N], in[N];
    ls_work *send[N], *recv[N];
    if (peer == rank)
        return;
    for (int i = 0; i < N; i++) {
        out[i] = rank * 1000 + i;
        CHECK_OK(ls_send_start(world, &out[i], 1, LS_I64, peer, &send[i]));
        CHECK_OK(ls_recv_start(world, &in[i], 1, LS_I64, peer, &recv[i]));
    }
    for (int i = 0; i < N; i++) {
        CHECK_OK(ls_work_wait(recv[i], NULL));
        CHECK_OK(ls_work_wait(send[i], NULL));
        CHECK(in[i] == peer * 1000 + i);
    }
}

/* Another thread of the rank may wait for what this one started, and polls see the end. */
static void *wait_elsewhere(void *argument) {
    ls_work *work = argument;
    while (!ls_work_done(work))
        usleep(100);
    CHECK_OK(ls_work_wait(work, NULL));
    return NULL;
}

static void threads(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    ls_group *world = ls_job_world(job);
    for (int i = 0; i < 20; i++) {
        double value = 1;
        ls_work *work;
        pthread_t thread;
        CHECK_OK(ls_all_reduce_start(world, &value, &value, 1, LS_F64, LS_SUM, &work));
        CHECK(pthread_create(&thread, NULL, wait_elsewhere, work) == 0);
        CHECK_OK(ls_barrier(world));
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(value == ls_group_size(world));
    }
}

/* ls_job_finish runs what was started and not waited for. */
static void finish_with_started(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    enum { N = 10 };
    static float value[N];
    static ls_work *kept[N]; /* never waited for; static, so no leak to the leak checker */
    CHECK_OK(ls_job_init(&job, NULL));
    int size = ls_job_world_size(job);
    for (int i = 0; i < N; i++) {
        value[i] = 1;
        CHECK_OK(ls_all_reduce_start(ls_job_world(job), &value[i], &value[i], 1, LS_F32, LS_SUM,
                                     &kept[i]));
    }
    ls_job_finish(job);
    for (int i = 0; i < N; i++)
        CHECK(value[i] == (float)size);
}

/* The rank that comes late is named, and waiting is told apart from work. */
static void late_rank(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    float value = 1;
    ls_work *work;
    ls_work_times times;
    int late = ls_group_size(world) - 1;
    CHECK_OK(ls_barrier(world));
    if (rank == late)
        usleep(300000);
    CHECK_OK(ls_all_reduce_start(world, &value, &value, 1, LS_F32, LS_SUM, &work));
    CHECK_OK(ls_work_wait(work, &times));
    int64_t late_begin = (int64_t)times.begin_ns;
    CHECK_OK(ls_broadcast(world, &late_begin, 1, LS_I64, late));
    CHECK(times.last_rank == late || times.last_rank == -1);
    if (times.last_rank == late)
        CHECK((int64_t)times.ready_ns >= late_begin && times.ready_ns >= times.begin_ns);
}

static void arguments(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    int size = ls_group_size(world);
    float values[64] = {0};
    ls_work *work;
    CHECK(ls_all_reduce(NULL, values, values, 1, LS_F32, LS_SUM) == LS_ERR_ARGUMENT);
    CHECK(ls_all_reduce(world, NULL, values, 1, LS_F32, LS_SUM) == LS_ERR_ARGUMENT);
    CHECK(ls_all_reduce(world, values, NULL, 1, LS_F32, LS_SUM) == LS_ERR_ARGUMENT);
    CHECK(ls_all_reduce(world, values, values, 1, LS_DTYPE_COUNT, LS_SUM) == LS_ERR_ARGUMENT);
    CHECK(ls_all_reduce(world, values, values, 1, LS_F32, LS_OP_COUNT) == LS_ERR_ARGUMENT);
    CHECK(ls_all_reduce(world, values, values, SIZE_MAX / 2, LS_F32, LS_SUM) == LS_ERR_ARGUMENT);
    CHECK(ls_all_reduce(world, values, values + 1, 8, LS_F32, LS_SUM) == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_text(), "overlap"));
    CHECK(ls_all_reduce_weighted(world, values, values, 1, LS_I32, 1, NULL) == LS_ERR_ARGUMENT);
    CHECK(ls_all_reduce_weighted(world, values, values, 1, LS_F32, -1, NULL) == LS_ERR_ARGUMENT);
    CHECK(ls_all_reduce_weighted(world, values, values, 1, LS_F32, NAN, NULL) == LS_ERR_ARGUMENT);
    CHECK(ls_broadcast(world, values, 1, LS_F32, size) == LS_ERR_ARGUMENT);
    CHECK(ls_broadcast(world, values, 1, LS_F32, -1) == LS_ERR_ARGUMENT);
    CHECK(ls_send(world, values, 1, LS_F32, rank) == LS_ERR_ARGUMENT);
    CHECK(ls_recv(world, values, 1, LS_F32, size) == LS_ERR_ARGUMENT);
    CHECK(ls_barrier_start(world, NULL) == LS_ERR_ARGUMENT);
    CHECK(ls_barrier_start(NULL, &work) == LS_ERR_ARGUMENT && work == NULL);
    CHECK(ls_group_alloc(world, 1, NULL) == LS_ERR_ARGUMENT);
    CHECK(ls_work_wait(NULL, NULL) == LS_ERR_ARGUMENT);
    /* none of these broke the group, or took a number on one rank only */
    CHECK_OK(ls_all_reduce(world, NULL, NULL, 0, LS_F32, LS_SUM));
    CHECK_OK(ls_barrier(world));
}

static void on_worlds(ranks_body body) {
    static const int sizes[] = {1, 2, 3, 8};
    for (int i = 0; i < 4; i++)
        assert_int_equal(ranks_run(sizes[i], ranks_transport(), body, NULL), 0);
}

static void test_many_in_flight(void **state) {
    (void)state;
    on_worlds(many_in_flight);
}

static void test_started_messages(void **state) {
    (void)state;
    on_worlds(started_messages);
}

static void test_threads(void **state) {
    (void)state;
    on_worlds(threads);
}

static void test_finish(void **state) {
    (void)state;
    ranks r = {
        .size = 4, .transport = ranks_transport(), .body = finish_with_started, .no_job = true};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

static void test_late_rank(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, ranks_transport(), late_rank, NULL), 0);
}

static void test_arguments(void **state) {
    (void)state;
    on_worlds(arguments);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_in_flight), cmocka_unit_test(test_started_messages),
        cmocka_unit_test(test_threads),        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_late_rank),      cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
