/* The reducer against an obvious reference: for worlds of 1 to 4, random gradients, weights and ready
 * orders, the averaged gradients equal to the bit what one process computes in tree order, whatever
 * the bucket sizes, the ready order and the progress mode. */
#include "ranks.h"
#include <lockstep/reducer.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 12, MAX_WORLD = 4, MAX_ELEMENTS = 3000 };

/* --- random numbers that every rank can compute for every other ---------------------------------- */

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t draw(unsigned step, int rank, size_t param, size_t element) {
    return mix(mix(mix(mix(step) + (uint64_t)rank) + param) + element);
}

static double normal_like(uint64_t bits) {
    return ldexp((double)(int64_t)bits, -62) * ldexp(1, (int)(bits & 7) - 3);
}

/* --- 16-bit floats, slowly ---------------------------------------------------------------------- */

/* Rounds to the nearest float of `digits` significant bits and smallest exponent `low`, ties to even. */
static double rounded(double x, int digits, int low) {
    if (x == 0)
        return 0;
    int exponent = ilogb(x) < low ? low : ilogb(x);
    return ldexp(nearbyint(ldexp(x, digits - 1 - exponent)), exponent - digits + 1);
}

static uint16_t to_f16(double x) {
    double r = fabs(rounded(x, 11, -14));
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (r < ldexp(1, -14))
        return (uint16_t)(sign | (unsigned)ldexp(r, 24));
    int exponent = ilogb(r);
    return (uint16_t)(sign | (unsigned)(exponent + 15) << 10 |
                      ((unsigned)ldexp(r, 10 - exponent) & 1023));
}

static float from_f16(uint16_t h) {
    unsigned exponent = (h >> 10) & 31, fraction = h & 1023;
    double value = exponent ? ldexp(1024 + fraction, (int)exponent - 25) : ldexp(fraction, -24);
    return (float)(h & 0x8000 ? -value : value);
}

static uint16_t to_bf16(double x) {
    float r = (float)rounded(x, 8, -126);
    uint32_t bits;
    memcpy(&bits, &r, 4);
    return (uint16_t)(bits >> 16);
}

static float from_bf16(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static void store(void *data, ls_dtype dtype, size_t i, double value) {
    if (dtype == LS_F64)
        ((double *)data)[i] = value;
    else if (dtype == LS_F32)
        ((float *)data)[i] = (float)value;
    else
        ((uint16_t *)data)[i] = dtype == LS_F16 ? to_f16(value) : to_bf16(value);
}

static double load(const void *data, ls_dtype dtype, size_t i) {
    if (dtype == LS_F64)
        return ((const double *)data)[i];
    if (dtype == LS_F32)
        return ((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return dtype == LS_F16 ? from_f16(half) : from_bf16(half);
}

/* --- the reference ------------------------------------------------------------------------------ */

static double tree(const double *value, int n, ls_dtype dtype) {
    if (n == 1)
        return value[0];
    int m = 1;
    while (2 * m < n)
        m *= 2;
    double a = tree(value, m, dtype), b = tree(value + m, n - m, dtype);
    return dtype == LS_F64 ? a + b : (double)((float)a + (float)b);
}

static double scaled(double sum, double total, ls_dtype dtype) {
    float scale = (float)(1 / total);
    if (total == 0)
        return 0;
    return dtype == LS_F64 ? sum * (1 / total) : (double)((float)sum * scale);
}

/* One way to run the job. */
typedef struct setting {
    ls_reducer_options options;
    bool mixed;         /* all four dtypes, else f32 */
    bool no_weight;     /* all weights 0 */
    bool reorder;       /* set_order half-way */
    double weight_step; /* multiplies the random weights */
} setting;

static const size_t shapes[COUNT][2] = {{3, 5},  {1, 1},   {16, 1}, {50, 60}, {0, 4},  {64, 1},
                                        {7, 11}, {100, 3}, {17, 1}, {1, 33},  {40, 8}, {2, 2}};

static void describe(ls_reducer_param params[COUNT], bool mixed) {
    static const ls_dtype dtypes[4] = {LS_F32, LS_F64, LS_F16, LS_BF16};
    static const char *names[COUNT] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
    for (size_t i = 0; i < COUNT; i++)
        params[i] = (ls_reducer_param){.name = names[i],
                                       .dtype = mixed ? dtypes[(i / 2) % 4] : LS_F32,
                                       .shape = shapes[i],
                                       .dims = 2,
                                       .frozen = i == 6};
}

static double weight_of(const setting *s, unsigned step, int rank) {
    return s->no_weight ? 0 : (double)(draw(step, rank, 99, 0) % 5) * s->weight_step;
}

/* Parameter 1 is used by nobody, 2 by nobody in odd steps, the others by some or all. */
static bool uses(unsigned step, int rank, size_t i) {
    if (i == 1 || (i == 2 && step % 2 == 1))
        return false;
    return i % 3 != 0 || draw(step, rank, i, 7777) % 2 == 0;
}

static double gradient_of(unsigned step, int rank, size_t i, size_t element, ls_dtype dtype) {
    char stored[8]; /* as the dtype holds it */
    store(stored, dtype, 0, normal_like(draw(step, rank, i, element)));
    return load(stored, dtype, 0);
}

/* Fills and reports this rank's gradients in an order of its own. Unreported storage holds garbage. */
static void fill(ls_group *group, ls_reducer *r, const ls_reducer_param *params, unsigned step) {
    int rank = ls_group_rank(group);
    size_t first = draw(step, rank, 1, 1) % COUNT, stride = draw(step, rank, 2, 2) % 2 ? 5 : 7;
    for (size_t n = 0; n < COUNT; n++) {
        size_t i = (first + n * stride) % COUNT, elements = params[i].shape[0] * params[i].shape[1];
        void *gradient = ls_reducer_gradient(r, i);
        CHECK((gradient == NULL) == params[i].frozen);
        CHECK((uintptr_t)gradient % 64 == 0);
        if (gradient == NULL)
            continue;
        for (size_t e = 0; e < elements; e++)
            store(gradient, params[i].dtype, e, gradient_of(step, rank, i, e, params[i].dtype));
        if (uses(step, rank, i))
            CHECK(ls_reducer_ready(r, i) == LS_OK);
    }
}

static void compare(ls_group *group, ls_reducer *r, const ls_reducer_param *params, unsigned step,
                    double total, double scale) {
    int size = ls_group_size(group);
    for (size_t i = 0; i < COUNT; i++) {
        if (params[i].frozen) {
            CHECK(!ls_reducer_used(r, i));
            continue;
        }
        bool used = false;
        for (int rank = 0; rank < size; rank++)
            used |= uses(step, rank, i);
        CHECK(ls_reducer_used(r, i) == (used && total > 0));
        const char *gradient = ls_reducer_gradient(r, i);
        ls_dtype dtype = params[i].dtype;
        for (size_t e = 0; e < params[i].shape[0] * params[i].shape[1]; e++) {
            double value[MAX_WORLD] = {0};
            char want[8], got[8];
            for (int rank = 0; rank < size; rank++)
                value[rank] = uses(step, rank, i) ? gradient_of(step, rank, i, e, dtype) : 0;
            store(want, dtype, 0, scaled(tree(value, size, dtype), total, dtype));
            size_t bytes = ls_dtype_size(dtype);
            double found = load(gradient, dtype, e);
            store(got, dtype, 0, scale == 1 ? found : scaled(found, 1 / scale, dtype));
            /* -0 and 0 are both zero */
            CHECK(memcmp(want, got, bytes) == 0 ||
                  (load(want, dtype, 0) == 0 && load(got, dtype, 0) == 0));
        }
    }
}

static void body(int rank, ls_job *job, void *context) {
    ls_group *group = ls_job_world(job);
    const setting *s = context;
    ls_reducer_param params[COUNT];
    describe(params, s->mixed);
    ls_reducer *r;
    CHECK(ls_reducer_create(&r, group, params, COUNT, &s->options) == LS_OK);
    for (unsigned step = 0; step < 6; step++) {
        if (s->reorder && step % 2 == 1) {
            size_t order[COUNT];
            for (size_t i = 0; i < COUNT; i++) /* only rank 0's counts */
                order[i] = ls_group_rank(group) == 0 ? (i * 5 + step) % COUNT : 0;
            void *before = ls_reducer_gradient(r, 0);
            CHECK(ls_reducer_set_order(r, order) == LS_OK);
            CHECK(ls_reducer_gradient(r, 0) != before);
            CHECK(!ls_reducer_reduced(r));
        }
        double total = 0;
        for (int other = 0; other < ls_group_size(group); other++)
            total += weight_of(s, step, other);
        CHECK(ls_reducer_begin(r, weight_of(s, step, rank)) == LS_OK);
        fill(group, r, params, step);
        ls_reducer_report report;
        CHECK(ls_reducer_wait(r, &report) == LS_OK);
        CHECK(report.weight == total);
        CHECK(ls_reducer_reduced(r));
        bool left = s->options.leave_sums && ls_group_size(group) == 1 && total > 0;
        CHECK(report.scale == (left ? 1 / total : 1));
        compare(group, r, params, step, total, report.scale);
    }
    ls_reducer_destroy(r);
}

static void run_all_worlds(setting s) {
    if (s.weight_step == 0)
        s.weight_step = 1;
    for (int progress = LS_PROGRESS_THREAD; progress <= LS_PROGRESS_INLINE; progress++)
        for (int world = 1; world <= MAX_WORLD; world++) {
            s.options.progress = (ls_progress)progress;
            assert_int_equal(ranks_run(world, ranks_transport(), body, &s), 0);
        }
}

static void test_default_buckets(void **state) {
    (void)state;
    run_all_worlds((setting){0});
}

static void test_tiny_buckets(void **state) {
    (void)state;
    run_all_worlds((setting){.options = {.first_bucket_bytes = 256, .bucket_bytes = 256}});
}

static void test_small_buckets_all_dtypes(void **state) {
    (void)state;
    run_all_worlds(
        (setting){.options = {.first_bucket_bytes = 64, .bucket_bytes = 320}, .mixed = true});
}

static void test_odd_buckets_all_dtypes(void **state) {
    (void)state;
    run_all_worlds(
        (setting){.options = {.first_bucket_bytes = 1000, .bucket_bytes = 5000}, .mixed = true});
}

static void test_sums_left(void **state) {
    (void)state;
    run_all_worlds((setting){.options = {.first_bucket_bytes = 512, .leave_sums = true}});
    run_all_worlds((setting){.options.leave_sums = true, .no_weight = true});
}

static void test_all_weights_zero(void **state) {
    (void)state;
    run_all_worlds((setting){.mixed = true, .no_weight = true});
}

/* 1 / total is far below the smallest f16: gradients vanish, the used marks must not. */
static void test_marks_survive_huge_weights(void **state) {
    (void)state;
    run_all_worlds((setting){.mixed = true, .weight_step = 0x1p97});
}

static void test_marks_survive_tiny_weights(void **state) {
    (void)state;
    run_all_worlds((setting){.weight_step = 0x1p-66});
}

static void test_set_order_keeps_parity(void **state) {
    (void)state;
    run_all_worlds((setting){.options = {.first_bucket_bytes = 512, .bucket_bytes = 2048},
                             .mixed = true,
                             .reorder = true});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_buckets),
        cmocka_unit_test(test_tiny_buckets),
        cmocka_unit_test(test_small_buckets_all_dtypes),
        cmocka_unit_test(test_odd_buckets_all_dtypes),
        cmocka_unit_test(test_sums_left),
        cmocka_unit_test(test_all_weights_zero),
        cmocka_unit_test(test_marks_survive_huge_weights),
        cmocka_unit_test(test_marks_survive_tiny_weights),
        cmocka_unit_test(test_set_order_keeps_parity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
