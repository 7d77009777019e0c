/* Mistakes of callers that no other test makes: handles that are NULL, a process forked from a rank. */
#include "ranks.h"

#include <lockstep/reducer.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_null_handles(void **state) {
    (void)state;
    float x = 0;
    size_t order = 0;
    assert_int_equal(ls_job_rank(NULL), -1);
    assert_int_equal(ls_job_local_rank(NULL), -1);
    assert_int_equal(ls_job_world_size(NULL), 0);
    assert_int_equal(ls_job_local_world_size(NULL), 0);
    assert_null(ls_job_transport(NULL));
    assert_null(ls_job_world(NULL));
    assert_int_equal(ls_group_rank(NULL), -1);
    assert_int_equal(ls_group_size(NULL), 0);
    assert_int_equal(ls_work_done(NULL), 0);
    assert_int_equal(ls_all_reduce(NULL, &x, &x, 1, LS_F32, LS_SUM), LS_ERR_ARGUMENT);
    assert_int_equal(ls_barrier(NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_work_wait(NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_reducer_begin(NULL, 1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_reducer_ready(NULL, 0), LS_ERR_ARGUMENT);
    assert_int_equal(ls_reducer_wait(NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_reducer_set_order(NULL, &order), LS_ERR_ARGUMENT);
    assert_null(ls_reducer_gradient(NULL, 0));
    assert_false(ls_reducer_reduced(NULL));
    assert_false(ls_reducer_used(NULL, 0));
    ls_job_finish(NULL);
    ls_reducer_destroy(NULL);
}

/* What the child of a rank sends or takes would be missing in the rank: it must not get that far. */
static void fork_inside(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    ls_work *work;
    float sum = 1;
    CHECK_OK(ls_all_reduce_start(world, &sum, &sum, 1, LS_F32, LS_SUM, &work));
    CHECK_OK(ls_work_wait(work, NULL)); /* the group has its thread now */
    pid_t child = fork();
    if (child == 0) {
        CHECK(ls_barrier(world) == LS_ERR_STATE);
        CHECK(strstr(ls_error_text(), "forked from rank") != NULL);
        CHECK(ls_barrier_start(world, &work) == LS_ERR_STATE);
        ls_job_finish(job); /* as a handler of exit would: no goodbye to the peers */
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < 3; i++) {
        sum = (float)rank;
        CHECK_OK(ls_all_reduce(world, &sum, &sum, 1, LS_F32, LS_SUM));
        CHECK(sum == 3);
    }
}

static void test_fork(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, ranks_transport(), fork_inside, NULL), 0);
}

/* What was made of a job's groups, destroyed after the job. */
static void finish_first(int rank, ls_job *none, void *context) {
    (void)none;
    const bool in_step = *(bool *)context;
    const size_t shape[1] = {1000};
    const ls_reducer_param params[2] = {{.name = "a", .dtype = LS_F32, .shape = shape, .dims = 1},
                                        {.name = "b", .dtype = LS_F32, .shape = shape, .dims = 1}};
    ls_job *job;
    CHECK_OK(ls_job_init(&job, NULL));
    ls_group *world = ls_job_world(job), *part;
    const int size = ls_group_size(world);
    ls_reducer *of_world, *of_part, *hooked;
    ls_reducer_hook *hook;
    CHECK_OK(ls_hook_create(&hook, "bf16"));
    CHECK_OK(ls_group_split(world, 0, rank, &part));
    CHECK_OK(ls_reducer_create(&of_world, world, params, 2, NULL));
    CHECK_OK(ls_reducer_create(&of_part, part, params, 2, NULL));
    CHECK_OK(ls_reducer_create(&hooked, part, params, 2, &(ls_reducer_options){.hook = hook}));
    if (in_step) {
        CHECK_OK(ls_reducer_begin(of_part, 1));
        CHECK_OK(ls_reducer_ready(of_part, 1));
        CHECK_OK(ls_reducer_ready(of_part, 0));
    }
    float sum = 1;
    ls_work *work;
    CHECK_OK(ls_all_reduce_start(world, &sum, &sum, 1, LS_F32, LS_SUM, &work));
    ls_job_finish(job);

    CHECK_OK(ls_work_wait(work, NULL)); /* started before, so it was made */
    CHECK(sum == (float)size);
    CHECK(ls_reducer_begin(of_world, 1) == LS_ERR_STATE);
    CHECK(strstr(ls_error_text(), "group world has ended"));
    CHECK(ls_reducer_set_order(of_world, (size_t[]){0, 1}) == LS_ERR_STATE);
    ls_reducer_destroy(hooked);
    ls_reducer_destroy(of_part);
    ls_reducer_destroy(of_world);
}

static void test_job_finished_first(void **state) {
    (void)state;
    for (int size = 1; size <= 3; size++)
        for (int in_step = 0; in_step < 2; in_step++)
            assert_int_equal(
                ranks_run_no_job(size, ranks_transport(), finish_first, &(bool){in_step}), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_handles),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_job_finished_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
