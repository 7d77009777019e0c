/* A rank dies or leaves in the middle of a step: the others learn of it in bounded time, no thread uses
 * the gradients any more once wait returned, and destroy returns. */
#include "ranks.h"
#include <lockstep/reducer.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { PARAMS = 4, ELEMENTS = 20000, VICTIM = 2 };

typedef struct fault {
    ls_progress progress;
    bool early;  /* dies before its first gradient is ready, else after */
    bool leaves; /* gives up instead: destroys the reducer and leaves the job */
} fault;

static void victim(ls_reducer *r, const fault *f) {
    if (!f->early)
        CHECK(ls_reducer_ready(r, PARAMS - 1) == LS_OK);
    if (!f->leaves)
        raise(SIGKILL);
}

static void body(int rank, ls_job *job, void *context) {
    const fault *f = context;
    const size_t shape[1] = {ELEMENTS};
    ls_reducer_param params[PARAMS];
    char names[PARAMS][8];
    for (size_t i = 0; i < PARAMS; i++) {
        snprintf(names[i], sizeof names[i], "p%zu", i);
        params[i] = (ls_reducer_param){names[i], LS_F32, shape, 1, false, false};
    }
    const ls_reducer_options options = {
        .first_bucket_bytes = 4096, .bucket_bytes = 4096, .progress = f->progress};
    ls_reducer *r;
    CHECK(ls_reducer_create(&r, ls_job_world(job), params, PARAMS, &options) == LS_OK);
    CHECK(ls_reducer_begin(r, 1) == LS_OK);
    CHECK(ls_reducer_wait(r, NULL) == LS_OK);

    CHECK(ls_reducer_begin(r, 1) == LS_OK);
    if (rank == VICTIM) {
        victim(r, f);
        ls_reducer_destroy(r);
        return;
    }
    for (size_t i = PARAMS; i-- > 0;) {
        ls_status status = ls_reducer_ready(r, i);
        CHECK(status == LS_OK || status == LS_ERR_PEER);
    }
    ls_status status = ls_reducer_wait(r, NULL);
    ranks_note(status);
    CHECK(status == LS_ERR_PEER);
    CHECK(!ls_reducer_reduced(r));
    for (size_t i = 0; i < PARAMS;
         i++) /* ours again: a race here is one for the thread sanitizer */
        memset(ls_reducer_gradient(r, i), 1, ELEMENTS * sizeof(float));
    /* The error stays: a step can be begun and ended, but not reduced. */
    CHECK(ls_reducer_begin(r, 1) == LS_OK);
    CHECK(ls_reducer_wait(r, NULL) == LS_ERR_PEER);
    CHECK(!ls_reducer_reduced(r));
    ls_reducer_destroy(r);
}

static void run(fault f) {
    ranks r = {.size = 4,
               .transport = ranks_transport(),
               .body = body,
               .context = &f,
               .limit_s = 20,
               .watch = true};
    ranks_start(&r);
    int failed = ranks_wait(&r);
    assert_false(r.overrun);
    assert_int_equal(failed, f.leaves ? 0 : 1);
    for (int rank = 0; rank < 4; rank++) {
        if (rank == VICTIM)
            continue;
        assert_int_equal(r.report[rank].status, LS_ERR_PEER);
        assert_non_null(strstr(r.report[rank].text, "rank 2"));
        /* Far below the job's timeout of 20 s, also on a busy machine. */
        assert_true(r.report[rank].at_ns - r.start_ns < 5000000000u);
    }
    ranks_free(&r);
}

static void test_killed_before_its_first_gradient(void **state) {
    (void)state;
    run((fault){LS_PROGRESS_THREAD, true, false});
    run((fault){LS_PROGRESS_INLINE, true, false});
}

static void test_killed_after_some_gradients(void **state) {
    (void)state;
    run((fault){LS_PROGRESS_THREAD, false, false});
}

static void test_left_in_the_middle(void **state) {
    (void)state;
    run((fault){LS_PROGRESS_THREAD, true, true});
    run((fault){LS_PROGRESS_INLINE, true, true});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_before_its_first_gradient),
        cmocka_unit_test(test_killed_after_some_gradients),
        cmocka_unit_test(test_left_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
