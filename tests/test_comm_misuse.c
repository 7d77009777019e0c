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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_handles),
        cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
