/* Ranks that describe different models are told so, on all ranks, in the same words. */
#include "ranks.h"
#include <lockstep/reducer.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Changes the description on one rank. */
typedef void (*change_fn)(ls_reducer_param *params, size_t *count, ls_reducer_options *options);

typedef struct mismatch {
    change_fn change;
    int rank;                    /* the one that is different */
    const char *want;            /* part of the message on every rank */
    ls_status status_of_changed; /* on that rank; LS_OK: as all */
} mismatch;

static const size_t wide[2] = {10, 100}, other_wide[2] = {10, 101}, narrow[1] = {10};

static void change_name(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)count, (void)options;
    p[1].name = "fc1.offset";
}
static void change_shape(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)count, (void)options;
    p[2].shape = other_wide;
}
static void change_dims(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)count, (void)options;
    p[3].dims = 0;
}
static void change_dtype(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)count, (void)options;
    p[0].dtype = LS_BF16;
}
static void change_frozen(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)count, (void)options;
    p[3].frozen = true;
}
static void change_order(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)count, (void)options;
    ls_reducer_param keep = p[0];
    p[0] = p[2];
    p[2] = keep;
}
static void drop_last(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)p, (void)options;
    *count = 3;
}
static void drop_all(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)p, (void)options;
    *count = 0;
}
static void change_bucket(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)p, (void)count;
    options->bucket_bytes = 4096;
}
static void break_dtype(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)count, (void)options;
    p[1].dtype = LS_I32;
}
static void break_bucket(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)p, (void)count;
    options->bucket_bytes = 63;
}
static void change_progress(ls_reducer_param *p, size_t *count, ls_reducer_options *options) {
    (void)p, (void)count;
    options->progress = LS_PROGRESS_INLINE;
}

static void body(int rank, ls_job *job, void *context) {
    (void)rank;
    ls_group *group = ls_job_world(job);
    const mismatch *m = context;
    ls_reducer_param params[] = {{"fc1.weight", LS_F32, wide, 2, false, false},
                                 {"fc1.bias", LS_F32, narrow, 1, false, false},
                                 {"fc2.weight", LS_F32, wide, 2, false, false},
                                 {"fc2.bias", LS_F32, narrow, 1, false, false}};
    size_t count = 4;
    ls_reducer_options options = {0};
    bool changed = ls_group_rank(group) == m->rank;
    if (changed)
        m->change(params, &count, &options);
    ls_reducer *r = (ls_reducer *)&count; /* must become NULL */
    ls_status status = ls_reducer_create(&r, group, params, count, &options);
    if (m->want == NULL) {
        CHECK(status == LS_OK);
        ls_reducer_destroy(r);
        return;
    }
    ls_status want = LS_ERR_MISMATCH;
    if (m->status_of_changed != LS_OK)
        want = changed ? m->status_of_changed : LS_ERR_PEER;
    CHECK(status == want);
    CHECK(r == NULL);
    CHECK(strstr(ls_error_text(), m->want) != NULL);
    CHECK(ls_barrier(group) == LS_OK); /* the group can still be used */
}

static void run(change_fn change, int world, int rank, const char *want, ls_status of_changed) {
    mismatch m = {change, rank, want, of_changed};
    assert_int_equal(ranks_run(world, ranks_transport(), body, &m), 0);
}

static void test_each_field_is_named(void **state) {
    (void)state;
    run(change_name, 2, 1,
        "parameter 1 differs: rank 0 has fc1.bias F32 [10], rank 1 has fc1.offset F32 [10]", LS_OK);
    run(change_shape, 2, 1,
        "parameter 2 differs: rank 0 has fc2.weight F32 [10, 100], rank 1 has fc2.weight F32 "
        "[10, 101]",
        LS_OK);
    run(change_dims, 2, 1, "rank 0 has fc2.bias F32 [10], rank 1 has fc2.bias F32 []", LS_OK);
    run(change_dtype, 2, 1,
        "rank 0 has fc1.weight F32 [10, 100], rank 1 has fc1.weight BF16 [10, 100]", LS_OK);
    run(change_frozen, 2, 1, "rank 0 has fc2.bias F32 [10], rank 1 has fc2.bias F32 [10] frozen",
        LS_OK);
    run(change_order, 2, 1, "parameter 0 differs: rank 0 has fc1.weight", LS_OK);
    run(change_bucket, 2, 1,
        "rank 0 has first_bucket_bytes 1048576 and bucket_bytes 4194304, rank 1 has "
        "first_bucket_bytes 1048576 and bucket_bytes 4096",
        LS_OK);
}

static void test_missing_parameters_are_named(void **state) {
    (void)state;
    run(drop_last, 2, 1, "rank 1 has no parameter 3, rank 0 has fc2.bias F32 [10]", LS_OK);
    run(drop_last, 2, 0, "rank 0 has no parameter 3, rank 1 has fc2.bias F32 [10]", LS_OK);
    run(drop_all, 2, 1, "rank 1 has no parameter 0, rank 0 has fc1.weight", LS_OK);
}

static void test_the_rank_that_differs_is_named(void **state) {
    (void)state;
    run(change_name, 4, 2, "rank 2 has fc1.offset", LS_OK);
    run(change_name, 4, 0, "rank 0 has fc1.offset F32 [10], rank 1 has fc1.bias", LS_OK);
}

static void test_a_failure_on_one_rank_reaches_all(void **state) {
    (void)state;
    run(break_dtype, 3, 2, "parameter 1 (fc1.bias) has dtype I32", LS_ERR_ARGUMENT);
    run(break_dtype, 3, 0, "parameter 1 (fc1.bias) has dtype I32", LS_ERR_ARGUMENT);
    run(break_bucket, 2, 1, "bucket_bytes 63", LS_ERR_ARGUMENT);
}

static void test_progress_may_differ(void **state) {
    (void)state;
    run(change_progress, 2, 1, NULL, LS_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_field_is_named),
        cmocka_unit_test(test_missing_parameters_are_named),
        cmocka_unit_test(test_the_rank_that_differs_is_named),
        cmocka_unit_test(test_a_failure_on_one_rank_reaches_all),
        cmocka_unit_test(test_progress_may_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
