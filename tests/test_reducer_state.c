/* Calls at the wrong time, wrong arguments, the report, and reducers with nothing to reduce. */
#include "ranks.h"
#include <lockstep/reducer.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define CHECK_ERROR(call, status, text)                                                            \
    do {                                                                                           \
        CHECK((call) == (status));                                                                 \
        CHECK(strstr(ls_error_text(), text) != NULL);                                              \
    } while (0)

static const size_t shape[1] = {100};
static const ls_reducer_param params[] = {{"a", LS_F32, shape, 1, false, false},
                                          {"b", LS_F32, shape, 1, true, false},
                                          {"c", LS_F32, shape, 1, false, false}};

static void wrong_calls(int rank, ls_job *job, void *context) {
    (void)rank;
    ls_group *group = ls_job_world(job);
    (void)context;
    ls_reducer *r;
    const size_t order[3] = {0, 1, 2};
    CHECK(ls_reducer_create(&r, group, params, 3, NULL) == LS_OK);
    CHECK(!ls_reducer_reduced(r));
    CHECK(ls_reducer_gradient(r, 1) == NULL);
    CHECK(ls_reducer_gradient(r, 3) == NULL);
    CHECK_ERROR(ls_reducer_wait(r, NULL), LS_ERR_STATE, "ls_reducer_begin");
    CHECK_ERROR(ls_reducer_ready(r, 0), LS_ERR_STATE, "parameter 0 (a F32 [100])");
    CHECK_ERROR(ls_reducer_begin(r, -1), LS_ERR_ARGUMENT, "weight is -1");
    CHECK_ERROR(ls_reducer_begin(r, (double)NAN), LS_ERR_ARGUMENT, "nan");
    CHECK_ERROR(ls_reducer_begin(r, (double)INFINITY), LS_ERR_ARGUMENT, "inf");
    CHECK_ERROR(ls_reducer_begin(r, 1e-300), LS_ERR_ARGUMENT, "1e-300");

    CHECK(ls_reducer_begin(r, 1) == LS_OK); /* a refused begin began nothing */
    CHECK_ERROR(ls_reducer_begin(r, 1), LS_ERR_STATE, "ls_reducer_wait");
    CHECK_ERROR(ls_reducer_set_order(r, order), LS_ERR_STATE, "a step is running");
    CHECK_ERROR(ls_reducer_ready(r, 1), LS_ERR_ARGUMENT, "frozen");
    CHECK_ERROR(ls_reducer_ready(r, 3), LS_ERR_ARGUMENT, "parameter 3 of 3");
    for (int i = 0; i < 100; i++)
        ((float *)ls_reducer_gradient(r, 2))[i] = 3;
    CHECK(ls_reducer_ready(r, 2) == LS_OK);
    CHECK_ERROR(ls_reducer_ready(r, 2), LS_ERR_STATE, "twice");
    CHECK(!ls_reducer_reduced(r));
    /* None of these mistakes spoils the step. */
    CHECK(ls_reducer_wait(r, NULL) == LS_OK);
    CHECK(ls_reducer_reduced(r));
    CHECK(((float *)ls_reducer_gradient(r, 2))[99] == 3);
    CHECK_ERROR(ls_reducer_wait(r, NULL), LS_ERR_STATE, "no step is running");
    CHECK(ls_reducer_begin(r, 1) == LS_OK);
    CHECK(!ls_reducer_reduced(r));
    ls_reducer_destroy(r); /* in the middle of a step */
    ls_reducer_destroy(NULL);
}

static void wrong_params(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    ls_group *group = ls_job_world(job);
    ls_reducer *r;
    ls_reducer_param p[3];
#define REFUSED(count, text)                                                                       \
    CHECK_ERROR(ls_reducer_create(&r, group, p, count, NULL), LS_ERR_ARGUMENT, text);              \
    CHECK(r == NULL);                                                                              \
    memcpy(p, params, sizeof p)
    memcpy(p, params, sizeof p);
    p[2].name = "a";
    REFUSED(3, "two parameters have the name a");
    p[1].name = "";
    REFUSED(3, "parameter 1 has no name");
    p[1].name = NULL;
    REFUSED(3, "parameter 1 has no name");
    p[2].dims = SIZE_MAX;
    REFUSED(3, "parameter 2 (c) has 18446744073709551615 dimensions, want at most 32");
    REFUSED(SIZE_MAX, "18446744073709551615 parameters are more than memory can hold");
#undef REFUSED
    CHECK_ERROR(ls_reducer_create(&r, group, NULL, 3, NULL), LS_ERR_ARGUMENT, "params is NULL");
}

static void wrong_orders(int rank, ls_job *job, void *context) {
    (void)rank;
    ls_group *group = ls_job_world(job);
    (void)context;
    ls_reducer *r;
    bool zero = ls_group_rank(group) == 0;
    const size_t good[3] = {1, 0, 2}, twice[3] = {0, 2, 2}, outside[3] = {0, 3, 1};
    CHECK(ls_reducer_create(&r, group, params, 3, NULL) == LS_OK);
    char *a = ls_reducer_gradient(r, 0), *c = ls_reducer_gradient(r, 2);
    CHECK(c < a); /* the reverse of the list */
    /* Rank 0's order counts, on all ranks; theirs may be wrong. */
    CHECK_ERROR(ls_reducer_set_order(r, zero ? twice : good), LS_ERR_ARGUMENT, "entry 2");
    CHECK_ERROR(ls_reducer_set_order(r, zero ? outside : good), LS_ERR_ARGUMENT,
                "entry 1 of rank 0's order is 3");
    CHECK_ERROR(ls_reducer_set_order(r, zero ? NULL : good), LS_ERR_ARGUMENT, "NULL on rank 0");
    CHECK(ls_reducer_gradient(r, 0) == a && ls_reducer_gradient(r, 2) == c);
    CHECK(ls_reducer_set_order(r, zero ? good : twice) == LS_OK);
    CHECK(ls_reducer_gradient(r, 0) == c && ls_reducer_gradient(r, 2) > (void *)c);
    CHECK(ls_reducer_begin(r, 1) == LS_OK);
    CHECK(ls_reducer_wait(r, NULL) == LS_OK);
    ls_reducer_destroy(r);
}

/* Fills c (the first in ready order) and, after it, a; returns through wait. */
static void report_body(int rank, ls_job *job, void *context) {
    (void)rank;
    ls_group *group = ls_job_world(job);
    const ls_reducer_options *options = context;
    ls_reducer *r;
    double size = ls_group_size(group);
    CHECK(ls_reducer_create(&r, group, params, 3, options) == LS_OK);
    for (int step = 0; step < 3; step++) {
        CHECK(ls_reducer_begin(r, ls_group_rank(group) + 1) == LS_OK);
        for (size_t i = 0; i < 100; i++)
            ((float *)ls_reducer_gradient(r, 2))[i] = 1;
        CHECK(ls_reducer_ready(r, 2) == LS_OK);
        ls_reducer_report report;
        CHECK(ls_reducer_wait(r, &report) == LS_OK);
        CHECK(report.weight == size * (size + 1) / 2);
        CHECK(report.unused == 1);
        CHECK(report.bucket_count == 4); /* 2 * 448 bytes in buckets of 256 */
        CHECK(((float *)ls_reducer_gradient(r, 2))[0] == (float)size * (float)(1 / report.weight));
        CHECK(((float *)ls_reducer_gradient(r, 0))[0] == 0);
        size_t bytes = 0;
        for (size_t k = 0; k < report.bucket_count; k++) {
            const ls_reducer_bucket *b = &report.buckets[k];
            bytes += b->bytes;
            CHECK(b->bytes <= 256);
            CHECK(b->filled_ns > 0 && b->filled_ns <= b->times.queued_ns);
            CHECK(b->times.queued_ns <= b->times.begin_ns);
            CHECK(b->times.begin_ns <= b->times.ready_ns && b->times.ready_ns <= b->times.end_ns);
            CHECK(b->times.last_rank >= -1 && b->times.last_rank < ls_group_size(group));
            if (k > 0)
                CHECK(report.buckets[k - 1].times.end_ns <= b->times.end_ns);
        }
        CHECK(bytes == 896);
    }
    ls_reducer_destroy(r);
}

/* The first bucket is reduced while the last gradient is still missing. The pause in between grows, in
 * case the machine is busy. */
static void overlap_body(int rank, ls_job *job, void *context) {
    (void)rank;
    ls_group *group = ls_job_world(job);
    const ls_reducer_options *options = context;
    ls_reducer *r;
    int32_t overlapped = 0;
    CHECK(ls_reducer_create(&r, group, params, 3, options) == LS_OK);
    for (useconds_t pause = 10000; pause < 2000000 && !overlapped; pause *= 2) {
        CHECK(ls_reducer_begin(r, 1) == LS_OK);
        float *c = ls_reducer_gradient(r, 2);
        c[0] = (float)ls_group_rank(group);
        CHECK(ls_reducer_ready(r, 2) == LS_OK);
        if (options->progress == LS_PROGRESS_INLINE && ls_group_size(group) == 2)
            CHECK(c[0] == 0.5f); /* ready returned after the reduction */
        usleep(pause);
        CHECK(ls_reducer_ready(r, 0) == LS_OK);
        ls_reducer_report report;
        CHECK(ls_reducer_wait(r, &report) == LS_OK);
        CHECK(report.unused == 0);
        overlapped = report.buckets[0].times.end_ns < report.buckets[3].filled_ns;
        CHECK(ls_all_reduce(group, &overlapped, &overlapped, 1, LS_I32, LS_MIN) == LS_OK);
    }
    CHECK(overlapped);
    ls_reducer_destroy(r);
}

/* Nothing trainable: the weight is still summed. */
static void empty_body(int rank, ls_job *job, void *context) {
    (void)rank;
    ls_group *group = ls_job_world(job);
    (void)context;
    for (size_t count = 0; count < 2; count++) {
        ls_reducer *r;
        ls_reducer_report report;
        CHECK(ls_reducer_create(&r, group, count ? &params[1] : NULL, count, NULL) == LS_OK);
        CHECK(ls_reducer_set_order(r, &(size_t){0}) == LS_OK);
        CHECK(ls_reducer_begin(r, 2) == LS_OK);
        CHECK(ls_reducer_wait(r, &report) == LS_OK);
        CHECK(report.weight == 2 * ls_group_size(group) && report.unused == 0);
        ls_reducer_destroy(r);
    }
}

static void run(ranks_body body, void *context) {
    for (int world = 1; world <= 3; world++)
        assert_int_equal(ranks_run(world, ranks_transport(), body, context), 0);
}

static void test_wrong_calls(void **state) {
    (void)state;
    run(wrong_calls, NULL);
}

static void test_wrong_params(void **state) {
    (void)state;
    run(wrong_params, NULL);
}

static void test_wrong_orders(void **state) {
    (void)state;
    run(wrong_orders, NULL);
}

static void test_report(void **state) {
    (void)state;
    for (int progress = 0; progress < 2; progress++)
        run(report_body, &(ls_reducer_options){.first_bucket_bytes = 256,
                                               .bucket_bytes = 256,
                                               .progress = (ls_progress)progress});
}

static void test_reduces_while_gradients_are_missing(void **state) {
    (void)state;
    for (int progress = 0; progress < 2; progress++)
        run(overlap_body, &(ls_reducer_options){.first_bucket_bytes = 256,
                                                .bucket_bytes = 256,
                                                .progress = (ls_progress)progress});
}

static void test_nothing_trainable(void **state) {
    (void)state;
    run(empty_body, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_wrong_params),
        cmocka_unit_test(test_wrong_orders),
        cmocka_unit_test(test_report),
        cmocka_unit_test(test_reduces_while_gradients_are_missing),
        cmocka_unit_test(test_nothing_trainable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
