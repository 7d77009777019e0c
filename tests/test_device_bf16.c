/* Kernels of bf16 products: rounding and packing to the bit, products against f64 sums of the rounded
 * factors, the limit of kept plans. */
#include "device_support.h"

#include "base/half.h"
#include "device/cpu/onednn.h"

/* Products of bf16 factors are exact in f32, so what is left are the additions, k of them with numbers
 * below 1: a few roundings of 6e-8 of a sum that grows like the square root of k. */
static const double TOLERANCE = 1e-5;

static uint16_t *halves(fixture *f, const float *values, size_t count) {
    uint16_t *narrow = array(f, count * sizeof *narrow);
    ls__f32_to_bf16(narrow, values, count);
    return narrow;
}

static double value_of(uint16_t half) {
    float value;
    ls__bf16_to_f32(&value, &half, 1);
    return (double)value;
}

static bool has_bf16(fixture *f) {
    const char *lacks = f->one->table->lacks(f->one, LS_BF16);
    if (lacks)
        print_message("no products in bf16: that needs %s\n", lacks);
    return !lacks;
}

/* All kinds of numbers: NaN, infinities, denormals, ties, the largest. */
static void test_narrow(void **state) {
    fixture *f = *state;
    enum { ROWS = 37, COLUMNS = 531, COUNT = ROWS * COLUMNS };
    float *x = uniform(f, COUNT, -3, 3);
    const float special[] = {0.0F,          -0.0F,         NAN,       -NAN,
                             INFINITY,      -INFINITY,     1e-40F,    -3e-39F,
                             3.4e38F,       -3.4e38F,      0x1.01p0F, 0x1.03p0F,
                             0x1.010002p0F, 0x1.00fffep0F, 0x1p-133F, 0x1.8p-133F};
    memcpy(x + 1000, special, sizeof special);
    uint16_t *want = halves(f, x, COUNT), *got = array(f, COUNT * sizeof *got);
    ls_device *devices[] = {f->one, f->two};
    for (size_t d = 0; d < 2; d++) {
        memset(got, 0xff, COUNT * sizeof *got);
        assert_int_equal(
            devices[d]->table->narrow(devices[d], LS_BF16, ROWS, COLUMNS, x, got, NULL, false),
            LS_OK);
        expect_equal_bits(got, want, COUNT * sizeof *got, "narrow");
    }
    assert_int_equal(f->one->table->narrow(f->one, LS_F16, ROWS, COLUMNS, x, got, NULL, false),
                     LS_ERR_UNSUPPORTED);
}

static void check_sums(fixture *f, size_t rows, size_t columns, bool accumulate) {
    float *x = uniform(f, rows * columns, -1, 1), *got = destination(f, columns, accumulate);
    float *again = copy_of(f, got, columns);
    double *want = reference(f, got, columns, accumulate);
    uint16_t *y = array(f, rows * columns * sizeof *y);
    for (size_t i = 0; i < rows * columns; i++)
        want[i % columns] += (double)x[i];
    assert_int_equal(f->one->table->narrow(f->one, LS_BF16, rows, columns, x, y, got, accumulate),
                     LS_OK);
    expect_close(got, want, columns, 1e-5, "narrow's sums");
    expect_equal_bits(y, halves(f, x, rows * columns), rows * columns * sizeof *y, "narrow");
    assert_int_equal(f->two->table->narrow(f->two, LS_BF16, rows, columns, x, y, again, accumulate),
                     LS_OK);
    expect_equal_bits(got, again, columns * sizeof *got, "narrow's sums");
}

static void test_narrow_sums(void **state) {
    fixture *f = *state;
    const size_t sizes[][2] = {{1, 1}, {3, 7}, {64, 300}, {300, 64}, {129, 1025}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_sums(f, sizes[i][0], sizes[i][1], accumulate);
}

/* packed[j / 64][i / 32][(i % 32) / 2][j % 64][i % 2] = b[i][j], zeros around. */
static void check_pack(fixture *f, size_t k, size_t n, bool transposed) {
    const ls__packing packing = {.dtype = LS_BF16, .k = k, .n = n, .transposed = transposed};
    size_t deep = (k + 31) / 32, wide = (n + 63) / 64, count = deep * wide * 32 * 64;
    assert_int_equal(f->one->table->packed_bytes(f->one, &packing), 2 * count);
    float *b = uniform(f, k * n, -1, 1);
    uint16_t *want = array(f, 2 * count), *got = array(f, 2 * count);
    memset(want, 0, 2 * count);
    for (size_t i = 0; i < k; i++)
        for (size_t j = 0; j < n; j++)
            ls__f32_to_bf16(want + (j / 64 * deep + i / 32) * 2048 + i % 32 / 2 * 128 + j % 64 * 2 +
                                i % 2,
                            b + (transposed ? j * k + i : i * n + j), 1);
    ls_device *devices[] = {f->one, f->two};
    for (size_t d = 0; d < 2; d++) {
        memset(got, 0xff, 2 * count);
        assert_int_equal(devices[d]->table->pack(devices[d], &packing, b, got), LS_OK);
        expect_equal_bits(got, want, 2 * count, "pack");
    }
}

struct product_case {
    size_t rows, k, n;
};

static const struct product_case CASES[] = {
    {1, 1, 1},    {3, 5, 7},      {2, 33, 65},     {64, 64, 64},    {65, 129, 33},  {128, 10, 200},
    {300, 70, 1}, {97, 384, 128}, {200, 513, 130}, {256, 768, 320}, {1, 2048, 300}, {48, 31, 64},
};

static void test_pack(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int transposed = 0; transposed < 2; transposed++)
            check_pack(f, CASES[i].k, CASES[i].n, transposed);
    const ls__packing packing = {.dtype = LS_F64, .k = 3, .n = 3};
    assert_int_equal(f->one->table->packed_bytes(f->one, &packing), 0);
}

static void check_product(fixture *f, struct product_case c, bool transposed, bool with_bias,
                          bool accumulate) {
    const ls__device_table *t = f->one->table;
    const ls__packing packing = {.dtype = LS_BF16, .k = c.k, .n = c.n, .transposed = transposed};
    float *af = uniform(f, c.rows * c.k, -1, 1), *bf = uniform(f, c.k * c.n, -1, 1);
    float *bias = with_bias ? uniform(f, c.n, -1, 1) : NULL;
    uint16_t *a = halves(f, af, c.rows * c.k), *b = halves(f, bf, c.k * c.n);
    float *got = destination(f, c.rows * c.n, accumulate), *again = copy_of(f, got, c.rows * c.n);
    double *want = reference(f, got, c.rows * c.n, accumulate);
    for (size_t i = 0; i < c.rows; i++)
        for (size_t j = 0; j < c.n; j++) {
            want[i * c.n + j] += bias ? (double)bias[j] : 0;
            for (size_t l = 0; l < c.k; l++)
                want[i * c.n + j] +=
                    value_of(a[i * c.k + l]) * value_of(b[transposed ? j * c.k + l : l * c.n + j]);
        }
    void *packed = array(f, t->packed_bytes(f->one, &packing));
    assert_int_equal(t->pack(f->one, &packing, bf, packed), LS_OK);
    assert_int_equal(t->product(f->one, &packing, c.rows, a, packed, bias, got, accumulate), LS_OK);
    expect_close(got, want, c.rows * c.n, TOLERANCE, "bf16 product");
    assert_int_equal(t->product(f->one, &packing, c.rows, a, packed, bias, again, accumulate),
                     LS_OK);
    expect_equal_bits(got, again, c.rows * c.n * sizeof *got, "bf16 product, again");
}

static void test_product(void **state) {
    fixture *f = *state;
    if (!has_bf16(f))
        skip();
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int transposed = 0; transposed < 2; transposed++) {
            check_product(f, CASES[i], transposed, false, false);
            check_product(f, CASES[i], transposed, true, false);
            check_product(f, CASES[i], transposed, false, true);
        }
}

static void check_outer(fixture *f, struct product_case c, bool accumulate) {
    const ls__device_table *t = f->one->table;
    size_t rows = c.rows, m = c.k, n = c.n;
    uint16_t *a = halves(f, uniform(f, rows * m, -1, 1), rows * m);
    uint16_t *b = halves(f, uniform(f, rows * n, -1, 1), rows * n);
    float *got = destination(f, m * n, accumulate), *again = copy_of(f, got, m * n);
    double *want = reference(f, got, m * n, accumulate);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            for (size_t r = 0; r < rows; r++)
                want[i * n + j] += value_of(a[r * m + i]) * value_of(b[r * n + j]);
    assert_int_equal(t->outer_product(f->one, LS_BF16, rows, m, n, a, b, got, accumulate), LS_OK);
    expect_close(got, want, m * n, TOLERANCE, "bf16 outer product");
    assert_int_equal(t->outer_product(f->one, LS_BF16, rows, m, n, a, b, again, accumulate), LS_OK);
    expect_equal_bits(got, again, m * n * sizeof *got, "bf16 outer product, again");
}

static void test_outer_product(void **state) {
    fixture *f = *state;
    if (!has_bf16(f))
        skip();
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_outer(f, CASES[i], accumulate);
}

/* The device that is forced to the baseline says what it lacks, and computes nothing wrong. */
static void test_lacks(void **state) {
    fixture *f = *state;
    const ls__packing packing = {.dtype = LS_BF16, .k = 1, .n = 1};
    uint16_t a = 0, packed[2048] = {0};
    float c = 7;
    assert_null(f->one->table->lacks(f->one, LS_F32));
    assert_null(f->two->table->lacks(f->two, LS_F32));
    assert_non_null(f->one->table->lacks(f->one, LS_F16));
    assert_non_null(strstr(ls_device_lacks(f->two, LS_BF16), "LOCKSTEP_CPU"));
    assert_int_equal(f->two->table->product(f->two, &packing, 1, &a, packed, NULL, &c, false),
                     LS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ls_error_text(), "BF16"));
    assert_int_equal(f->two->table->outer_product(f->two, LS_BF16, 1, 1, 1, &a, &a, &c, false),
                     LS_ERR_UNSUPPORTED);
    assert_true(c == 7);
}

/* More shapes than are kept: all are forgotten, memory does not grow, and results stay right. */
static void test_plan_limit(void **state) {
    fixture *f = *state;
    if (!has_bf16(f))
        skip();
    size_t most = 0, last = 0;
    bool forgot = false;
    for (size_t rows = 1; rows <= LS__PLANS + 20; rows++) {
        check_product(f, (struct product_case){rows, 2, 3}, false, false, false);
        size_t count = ls__plan_count(f->one);
        forgot = forgot || count < last;
        last = count;
        most = count > most ? count : most;
    }
    assert_int_equal(most, LS__PLANS);
    assert_true(forgot);
    check_product(f, (struct product_case){1, 2, 3}, false, false, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        kernel_test(test_narrow),     kernel_test(test_narrow_sums),   kernel_test(test_pack),
        kernel_test(test_product),    kernel_test(test_outer_product), kernel_test(test_lacks),
        kernel_test(test_plan_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
