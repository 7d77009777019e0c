/* Elementwise kernels, dropout, and the copies that change the order of elements. */
#include "device_support.h"

#include "device/cpu/math.h"

static const size_t COUNTS[] = {1, 3, 16, 255, 257, 40001};
enum { COUNT_COUNT = sizeof COUNTS / sizeof *COUNTS };

/* --- exp, expm1, tanh, erf --- */

static void expect_relative(double got, double want, double tolerance, double x, const char *what) {
    double limit = tolerance * fabs(want) + 1e-45; /* one step of the denormal numbers */
    if (!(fabs(got - want) <= limit) && got != want)
        fail_msg("%s(%.9g) is %.9g, want %.9g", what, x, got, want);
}

static void test_math(void **state) {
    (void)state;
    for (double step = -1; step <= 1; step += 1e-5) {
        float x = (float)(step * 89), small = (float)(step * 5), tiny = (float)(step * 1e-3);
        expect_relative(ls__exp(x), (float)exp((double)x), 2e-7, x, "exp"); /* may be inf */
        expect_relative(ls__expm1(x / 2), expm1((double)(x / 2)), 3e-7, x / 2, "expm1");
        expect_relative(ls__expm1(tiny), expm1((double)tiny), 2e-7, tiny, "expm1");
        expect_relative(ls__tanh(x / 8), tanh((double)(x / 8)), 3e-7, x / 8, "tanh");
        expect_relative(ls__tanh(tiny), tanh((double)tiny), 3e-7, tiny, "tanh");
        expect_relative(ls__erf(small), erf((double)small), 3e-7, small, "erf");
        expect_relative(ls__erf(tiny), erf((double)tiny), 3e-7, tiny, "erf");
        expect_relative(ls__sigmoid(x / 2), 1 / (1 + exp(-(double)(x / 2))), 3e-7, x / 2,
                        "sigmoid");
    }
}

static void test_math_special(void **state) {
    (void)state;
    assert_true(isnan(ls__exp(NAN)) && isnan(ls__expm1(NAN)));
    assert_true(isnan(ls__tanh(NAN)) && isnan(ls__erf(NAN)) && isnan(ls__sigmoid(NAN)));
    assert_true(ls__exp(INFINITY) == INFINITY && ls__exp(-INFINITY) == 0);
    assert_true(ls__exp(0) == 1 && ls__exp(88.8F) == INFINITY);
    assert_true(ls__tanh(INFINITY) == 1 && ls__tanh(-INFINITY) == -1);
    assert_true(ls__erf(INFINITY) == 1 && ls__erf(-INFINITY) == -1);
    assert_true(ls__sigmoid(INFINITY) == 1 && ls__sigmoid(-INFINITY) == 0);
    assert_true(ls__tanh(-0.0F) == 0 && signbit(ls__tanh(-0.0F)));
    float x = -103; /* denormal results */
    assert_true(ls__exp(x) > 0 && fabs((double)ls__exp(x) - exp(-103.0)) <= 1.5e-45);
}

/* --- unary --- */

static double gelu_tanh(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double unary(ls__unary op, double x) {
    switch (op) {
    case LS__RELU:
        return x > 0 ? x : 0;
    case LS__GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case LS__GELU_TANH:
        return gelu_tanh(x);
    case LS__TANH:
        return tanh(x);
    case LS__SIGMOID:
        return 1 / (1 + exp(-x));
    case LS__EXP:
        return exp(x);
    case LS__LOG:
        return log(x);
    case LS__SQRT:
        return sqrt(x);
    }
    return NAN;
}

/* Central difference, h = 1e-5: error about 1e-9 for these functions on their test ranges. */
static double unary_slope(ls__unary op, double x) {
    if (op == LS__RELU)
        return x > 0 ? 1 : 0;
    return (unary(op, x + 1e-5) - unary(op, x - 1e-5)) / 2e-5;
}

static void check_unary(fixture *f, ls__unary op, size_t count, bool accumulate) {
    bool positive = op == LS__LOG || op == LS__SQRT;
    float *x = uniform(f, count, positive ? 0.1F : -6, 6), *dy = uniform(f, count, -1, 1);
    float *start = destination(f, count, accumulate), *y[2], *dx[2];
    double *want = reference(f, NULL, count, false);
    double *want_dx = reference(f, start, count, accumulate);
    for (size_t i = 0; i < count; i++) {
        want[i] = unary(op, (double)x[i]);
        want_dx[i] += (double)dy[i] * unary_slope(op, (double)x[i]);
    }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        y[i] = destination(f, count, false);
        dx[i] = copy_of(f, start, count);
        assert_int_equal(device->table->unary_forward(device, LS_F32, op, count, x, y[i]), LS_OK);
        expect_close(y[i], want, count, 1e-6, "unary");
        assert_int_equal(device->table->unary_backward(device, LS_F32, op, count, x, y[i], dy,
                                                       dx[i], accumulate),
                         LS_OK);
        expect_close(dx[i], want_dx, count, 2e-6, "unary backward");
    }
    expect_equal_bits(y[0], y[1], count * sizeof(float), "unary, threads");
    expect_equal_bits(dx[0], dx[1], count * sizeof(float), "unary backward, threads");
}

static void test_unary(void **state) {
    for (ls__unary op = LS__RELU; op <= LS__SQRT; op++) {
        for (size_t i = 0; i < COUNT_COUNT; i++) {
            check_unary(*state, op, COUNTS[i], false);
            check_unary(*state, op, COUNTS[i], true);
        }
    }
}

static void test_unary_nan(void **state) {
    fixture *f = *state;
    for (ls__unary op = LS__RELU; op <= LS__SQRT; op++) {
        float *x = filled(f, 9, NAN), *y = filled(f, 9, 0);
        assert_int_equal(f->one->table->unary_forward(f->one, LS_F32, op, 9, x, y), LS_OK);
        for (int i = 0; i < 9; i++)
            assert_true(isnan(y[i]));
    }
}

/* --- gelu of a sum with a bias --- */

static const size_t GELU_SHAPES[][2] = {{1, 1}, {5, 3}, {3, 64}, {130, 300}, {301, 131}};

/* over: dx on the memory of dy */
static void check_bias_gelu(fixture *f, size_t rows, size_t columns, bool accumulate, bool over) {
    size_t count = rows * columns;
    float *x = uniform(f, count, -4, 4), *bias = uniform(f, columns, -2, 2);
    float *dy = uniform(f, count, -1, 1), *start = destination(f, count, accumulate);
    float *db0 = destination(f, columns, !accumulate), *y[2], *dx[2], *db[2];
    double *want = reference(f, NULL, count, false);
    double *want_dx = reference(f, start, count, accumulate);
    double *want_db = reference(f, db0, columns, !accumulate);
    for (size_t i = 0; i < count; i++) {
        double sum = (double)x[i] + (double)bias[i % columns];
        double slope = (double)dy[i] * unary_slope(LS__GELU_TANH, sum);
        want[i] = gelu_tanh(sum);
        want_dx[i] += slope;
        want_db[i % columns] += slope;
    }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        y[i] = destination(f, count, false);
        dx[i] = copy_of(f, over ? dy : start, count);
        db[i] = copy_of(f, db0, columns);
        assert_int_equal(
            device->table->bias_gelu_forward(device, LS_F32, rows, columns, x, bias, y[i]), LS_OK);
        expect_close(y[i], want, count, 1e-6, "bias_gelu");
        assert_int_equal(device->table->bias_gelu_backward(device, LS_F32, rows, columns, x, bias,
                                                           over ? dx[i] : dy, dx[i], accumulate,
                                                           db[i], !accumulate),
                         LS_OK);
        expect_close(dx[i], want_dx, count, 2e-6, "bias_gelu dx");
        expect_close(db[i], want_db, columns, 2e-5, "bias_gelu dbias");
    }
    expect_equal_bits(y[0], y[1], count * sizeof(float), "bias_gelu, threads");
    expect_equal_bits(dx[0], dx[1], count * sizeof(float), "bias_gelu dx, threads");
    expect_equal_bits(db[0], db[1], columns * sizeof(float), "bias_gelu dbias, threads");
    assert_int_equal(f->one->table->bias_gelu_backward(f->one, LS_F32, rows, columns, x, bias, dy,
                                                       NULL, false, db[0], false),
                     LS_OK);
}

static void test_bias_gelu(void **state) {
    for (size_t i = 0; i < sizeof GELU_SHAPES / sizeof *GELU_SHAPES; i++) {
        check_bias_gelu(*state, GELU_SHAPES[i][0], GELU_SHAPES[i][1], false, false);
        check_bias_gelu(*state, GELU_SHAPES[i][0], GELU_SHAPES[i][1], true, false);
        check_bias_gelu(*state, GELU_SHAPES[i][0], GELU_SHAPES[i][1], false, true);
    }
}

/* --- binary and affine --- */

static const size_t SHAPES[][2] = {{1, 1}, {5, 3}, {3, 64}, {200, 10}, {301, 131}};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

static double binary(ls__binary op, double a, double b) {
    return op == LS__ADD ? a + b : op == LS__SUB ? a - b : op == LS__MUL ? a * b : a / b;
}

static double binary_da(ls__binary op, double b) {
    return op == LS__MUL ? b : op == LS__DIV ? 1 / b : 1;
}

static double binary_db(ls__binary op, double a, double b) {
    return op == LS__ADD ? 1 : op == LS__SUB ? -1 : op == LS__MUL ? a : -a / (b * b);
}

/* skip: 0 nothing, 1 da, 2 db is NULL */
static void check_binary(fixture *f, ls__binary op, const size_t shape[2], bool repeat,
                         bool accumulate, int skip) {
    size_t count = shape[0] * shape[1], b_count = repeat ? shape[1] : count;
    float *a = uniform(f, count, -1, 1), *b = uniform(f, b_count, 1, 2);
    float *dy = uniform(f, count, -1, 1), *y[2], *da[2], *db[2];
    float *da0 = destination(f, count, accumulate), *db0 = destination(f, b_count, !accumulate);
    double *want = reference(f, NULL, count, false);
    double *want_da = reference(f, da0, count, accumulate);
    double *want_db = reference(f, db0, b_count, !accumulate);
    for (size_t i = 0; i < count; i++) {
        size_t j = i % b_count;
        want[i] = binary(op, (double)a[i], (double)b[j]);
        want_da[i] += (double)dy[i] * binary_da(op, (double)b[j]);
        want_db[j] += (double)dy[i] * binary_db(op, (double)a[i], (double)b[j]);
    }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        const ls__device_table *t = device->table;
        y[i] = destination(f, count, false);
        da[i] = copy_of(f, da0, count);
        db[i] = copy_of(f, db0, b_count);
        assert_int_equal(
            t->binary_forward(device, LS_F32, op, shape[0], shape[1], a, b, repeat, y[i]), LS_OK);
        expect_close(y[i], want, count, 1e-6, "binary");
        assert_int_equal(t->binary_backward(device, LS_F32, op, shape[0], shape[1], a, b, repeat,
                                            dy, skip == 1 ? NULL : da[i], accumulate,
                                            skip == 2 ? NULL : db[i], !accumulate),
                         LS_OK);
        if (skip != 1)
            expect_close(da[i], want_da, count, 1e-6, "binary da");
        if (skip != 2)
            expect_close(db[i], want_db, b_count, 1e-5, "binary db");
    }
    expect_equal_bits(y[0], y[1], count * sizeof(float), "binary, threads");
    expect_equal_bits(da[0], da[1], count * sizeof(float), "binary da, threads");
    expect_equal_bits(db[0], db[1], b_count * sizeof(float), "binary db, threads");
}

static void test_binary(void **state) {
    for (ls__binary op = LS__ADD; op <= LS__DIV; op++)
        for (size_t i = 0; i < SHAPE_COUNT; i++)
            for (int k = 0; k < 4; k++)
                for (int skip = 0; skip < 3; skip++)
                    check_binary(*state, op, SHAPES[i], k & 1, k & 2, skip);
}

static void test_affine(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < COUNT_COUNT; i++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            size_t count = COUNTS[i];
            float *x = uniform(f, count, -1, 1), *y = destination(f, count, accumulate);
            double *want = reference(f, y, count, accumulate);
            for (size_t j = 0; j < count; j++)
                want[j] += 3 * (double)x[j] - 0.5;
            assert_int_equal(
                f->two->table->affine(f->two, LS_F32, count, 3, -0.5F, x, y, accumulate), LS_OK);
            expect_close(y, want, count, 1e-6, "affine");
        }
    }
    float *x = uniform(f, 100, -1, 1), *in_place = copy_of(f, x, 100);
    assert_int_equal(f->one->table->affine(f->one, LS_F32, 100, -1, 0, in_place, in_place, false),
                     LS_OK);
    for (int i = 0; i < 100; i++)
        assert_true(in_place[i] == -x[i]);
}

/* --- dropout --- */

static void test_dropout(void **state) {
    fixture *f = *state;
    static const uint64_t samples[] = {5, 0, (uint64_t)1 << 40, 17};
    for (size_t per_sample = 1; per_sample < 12000; per_sample = per_sample * 3 + 1) {
        size_t count = 4 * per_sample, groups = (per_sample + 3) / 4;
        float *x = uniform(f, count, -1, 1), *y[2], *added = filled(f, count, 1);
        double *want = reference(f, NULL, count, false);
        for (size_t i = 0; i < count; i++) {
            float four[4];
            size_t e = i % per_sample;
            ls_random_uniform4(9, 11, samples[i / per_sample] * groups + e / 4, four);
            want[i] = four[e % 4] >= 0.25F ? (double)x[i] / 0.75 : 0;
        }
        for (int i = 0; i < 2; i++) {
            ls_device *device = i ? f->two : f->one;
            y[i] = destination(f, count, false);
            assert_int_equal(device->table->dropout(device, LS_F32, per_sample, samples, 4, 9, 11,
                                                    0.25F, x, y[i], false),
                             LS_OK);
            expect_close(y[i], want, count, 1e-6, "dropout");
        }
        expect_equal_bits(y[0], y[1], count * sizeof(float), "dropout, threads");
        f->one->table->dropout(f->one, LS_F32, per_sample, samples, 4, 9, 11, 0.25F, x, added,
                               true);
        for (size_t i = 0; i < count; i++)
            want[i] += 1;
        expect_close(added, want, count, 1e-6, "dropout, added");
    }
}

/* A sample's elements are kept or not whatever its row, and about 1 - p of them are. */
static void test_dropout_by_sample(void **state) {
    fixture *f = *state;
    enum { N = 10000 };
    const uint64_t forward[] = {3, 8}, reversed[] = {8, 3};
    float *x = filled(f, 2 * N, 1), *a = filled(f, 2 * N, 0), *b = filled(f, 2 * N, 0);
    f->one->table->dropout(f->one, LS_F32, N, forward, 2, 1, 2, 0.1F, x, a, false);
    f->two->table->dropout(f->two, LS_F32, N, reversed, 2, 1, 2, 0.1F, x, b, false);
    expect_equal_bits(a, b + N, N * sizeof *a, "sample 3");
    expect_equal_bits(a + N, b, N * sizeof *a, "sample 8");
    size_t kept = 0;
    for (int i = 0; i < 2 * N; i++)
        kept += a[i] != 0;
    /* 20000 draws: standard deviation 42 */
    assert_in_range(kept, 18000 - 250, 18000 + 250);
}

/* --- shape --- */

static void check_permute(fixture *f, size_t dims, const size_t *shape, const size_t *permutation,
                          bool accumulate) {
    size_t count = 1, strides[LS_MAX_DIMS] = {0};
    for (size_t d = dims; d-- > 0;) {
        strides[d] = count;
        count *= shape[d];
    }
    float *x = uniform(f, count, -1, 1), *y0 = destination(f, count, accumulate);
    double *want = reference(f, y0, count, accumulate);
    for (size_t i = 0; i < count; i++) {
        size_t rest = i, from = 0;
        for (size_t d = dims; d-- > 0;) {
            from += rest % shape[permutation[d]] * strides[permutation[d]];
            rest /= shape[permutation[d]];
        }
        want[i] += (double)x[from];
    }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        float *y = copy_of(f, y0, count);
        assert_int_equal(
            device->table->permute(device, LS_F32, dims, shape, permutation, x, y, accumulate),
            LS_OK);
        expect_close(y, want, count, 1e-7, "permute");
    }
}

/* All permutations of `dims` dimensions, by Heap's method. */
static void permutations(fixture *f, size_t k, size_t dims, const size_t *shape, size_t *order) {
    if (k <= 1) {
        check_permute(f, dims, shape, order, false);
        check_permute(f, dims, shape, order, true);
        return;
    }
    for (size_t i = 0; i < k; i++) {
        permutations(f, k - 1, dims, shape, order);
        size_t other = k % 2 ? 0 : i, swap = order[other];
        order[other] = order[k - 1];
        order[k - 1] = swap;
    }
}

static void test_permute(void **state) {
    static const size_t shapes[][LS_MAX_DIMS] = {
        {7},           {33, 17},     {100, 90},       {5, 1, 19},         {3, 18, 20},
        {2, 3, 17, 5}, {4, 1, 1, 3}, {2, 3, 1, 4, 3}, {2, 3, 2, 3, 2, 3},
    };
    static const size_t dims[] = {1, 2, 2, 3, 3, 4, 4, 5, 6};
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        size_t order[LS_MAX_DIMS] = {0, 1, 2, 3, 4, 5};
        permutations(*state, dims[i], dims[i], shapes[i], order);
    }
    fixture *f = *state;
    check_permute(f, 0, NULL, NULL, false);
    size_t empty[] = {3, 0}, order[] = {1, 0};
    assert_int_equal(f->one->table->permute(f->one, LS_F32, 2, empty, order, NULL, NULL, false),
                     LS_OK);
}

static void test_copy_rows(void **state) {
    fixture *f = *state;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        size_t rows = 301, columns = 65, xs = 70, ys = 83;
        float *x = uniform(f, rows * xs, -1, 1), *y = destination(f, rows * ys, accumulate);
        double *want = reference(f, y, rows * ys, true);
        for (size_t r = 0; r < rows; r++)
            for (size_t j = 0; j < columns; j++)
                want[r * ys + j] = (accumulate ? want[r * ys + j] : 0) + (double)x[r * xs + j];
        assert_int_equal(
            f->two->table->copy_rows(f->two, LS_F32, rows, columns, x, xs, y, ys, accumulate),
            LS_OK);
        expect_close(y, want, rows * ys, 1e-7, "copy_rows");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math),
        cmocka_unit_test(test_math_special),
        kernel_test(test_bias_gelu),
        kernel_test(test_unary),
        kernel_test(test_unary_nan),
        kernel_test(test_binary),
        kernel_test(test_affine),
        kernel_test(test_dropout),
        kernel_test(test_dropout_by_sample),
        kernel_test(test_permute),
        kernel_test(test_copy_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
