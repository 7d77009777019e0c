/* Device life, memory and matrix products. */
#include "device_support.h"

#include "device/cpu/cpu.h"

static void test_device_life(void **state) {
    (void)state;
    ls_device *device;
    assert_int_equal(ls_device_cpu(&device, 0), LS_OK);
    assert_string_equal(ls_device_name(device), "cpu");
    assert_int_equal(ls_device_threads(device), 1);
    ls_device_destroy(device);
    assert_int_equal(ls_device_cpu(&device, 3), LS_OK);
    assert_int_equal(ls_device_threads(device), 3);
    ls_device_destroy(device);
    assert_int_equal(ls_device_cpu(&device, -1), LS_ERR_ARGUMENT);
    assert_null(device);
    assert_int_equal(ls_device_cpu(NULL, 1), LS_ERR_ARGUMENT);
    ls_device_destroy(NULL);
}

static void test_memory(void **state) {
    fixture *f = *state;
    const ls__device_table *t = f->two->table;
    size_t sizes[] = {0, 1, 63, 64, 65, 4096, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *a, *b;
        assert_int_equal(t->alloc(f->two, sizes[i], &a), LS_OK);
        assert_int_equal(t->alloc(f->two, sizes[i], &b), LS_OK);
        assert_int_equal((uintptr_t)a % 64, 0);
        memset(a, 1, sizes[i]);
        memset(b, 2, sizes[i]);
        assert_int_equal(t->copy(f->two, b, a, sizes[i]), LS_OK);
        assert_memory_equal(a, b, sizes[i]);
        assert_int_equal(t->zero(f->two, a, sizes[i]), LS_OK);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(((char *)a)[j], 0);
        t->free(f->two, a);
        t->free(f->two, b);
    }
    void *memory;
    assert_int_equal(t->alloc(f->one, SIZE_MAX, &memory), LS_ERR_MEMORY);
    assert_int_equal(t->alloc(f->one, (size_t)1 << 60, &memory), LS_ERR_MEMORY);
    assert_non_null(strstr(ls_error_text(), "1152921504606846976 bytes"));
}

struct gemm_case {
    size_t m, n, k, pad; /* pad: elements by which rows are longer than needed */
};

/* The last two are cut along k: rows of b lie a page apart, then rows of a half a page, a transposed. */
static const struct gemm_case GEMM_CASES[] = {
    {1, 1, 1, 0},      {1, 7, 5, 0},       {7, 1, 5, 0},       {5, 7, 1, 0},
    {3, 5, 0, 0},      {13, 17, 9, 0},     {13, 17, 9, 3},     {64, 64, 64, 0},
    {65, 33, 129, 5},  {128, 10, 200, 0},  {1, 300, 70, 0},    {300, 1, 700, 1},
    {97, 384, 128, 0}, {200, 130, 513, 2}, {40, 1024, 300, 0}, {16, 512, 2100, 0},
};

/* Partial sums of k products of numbers below 1 are about sqrt(k) / 3 and are rounded k times, which adds up
 * as in a random walk: a standard deviation of 1.2e-8 * k where a kernel adds one after the other, as
 * oneDNN's do with SSE4.1 and AVX-512. Longer sums than 250 may be off by more than 1e-5 for that. */
static double gemm_tolerance(size_t k) {
    return fmax(1e-5, 4e-8 * (double)k);
}

static void check_gemm(fixture *f, struct gemm_case c, bool ta, bool tb, float alpha, float beta) {
    size_t lda = (ta ? c.m : c.k) + c.pad, ldb = (tb ? c.k : c.n) + c.pad, ldc = c.n + c.pad;
    float *a = uniform(f, (ta ? c.k : c.m) * lda + 1, -1, 1);
    float *b = uniform(f, (tb ? c.n : c.k) * ldb + 1, -1, 1);
    float *got = destination(f, c.m * ldc, beta != 0);
    float *again = copy_of(f, got, c.m * ldc);
    double *want = reference(f, got, c.m * ldc, true);
    for (size_t i = 0; i < c.m; i++) {
        for (size_t j = 0; j < c.n; j++) {
            double sum = 0;
            for (size_t l = 0; l < c.k; l++)
                sum += (double)(ta ? a[l * lda + i] : a[i * lda + l]) *
                       (double)(tb ? b[j * ldb + l] : b[l * ldb + j]);
            double before = beta != 0 ? (double)beta * want[i * ldc + j] : 0;
            want[i * ldc + j] = (double)alpha * sum + before;
        }
    }
    const ls__device_table *t = f->one->table;
    lda = lda ? lda : 1;
    ldb = ldb ? ldb : 1;
    assert_int_equal(
        t->gemm(f->one, LS_F32, ta, tb, c.m, c.n, c.k, alpha, a, lda, b, ldb, beta, got, ldc),
        LS_OK);
    expect_close(got, want, c.m * ldc, gemm_tolerance(c.k), "gemm");
    float *start = copy_of(f, again, c.m * ldc), *third = copy_of(f, again, c.m * ldc);
    t->gemm(f->one, LS_F32, ta, tb, c.m, c.n, c.k, alpha, a, lda, b, ldb, beta, again, ldc);
    expect_equal_bits(got, again, c.m * ldc * sizeof *got, "gemm, second run");
    t->gemm(f->two, LS_F32, ta, tb, c.m, c.n, c.k, alpha, a, lda, b, ldb, beta, start, ldc);
    expect_close(start, want, c.m * ldc, gemm_tolerance(c.k), "gemm, two threads");
    t->gemm(f->two, LS_F32, ta, tb, c.m, c.n, c.k, alpha, a, lda, b, ldb, beta, third, ldc);
    expect_equal_bits(start, third, c.m * ldc * sizeof *got, "gemm, two threads, second run");
}

static void test_gemm(void **state) {
    for (size_t i = 0; i < sizeof GEMM_CASES / sizeof *GEMM_CASES; i++) {
        for (int transposed = 0; transposed < 4; transposed++) {
            bool ta = transposed & 1, tb = transposed & 2;
            check_gemm(*state, GEMM_CASES[i], ta, tb, 1, 0);
            check_gemm(*state, GEMM_CASES[i], ta, tb, 1, 1);
            check_gemm(*state, GEMM_CASES[i], ta, tb, 0.5F, -2);
        }
    }
}

static void test_dtype(void **state) {
    fixture *f = *state;
    float one = 1, result;
    assert_int_equal(f->one->table->gemm(f->one, LS_BF16, false, false, 1, 1, 1, 1, &one, 1, &one,
                                         1, 0, &result, 1),
                     LS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ls_error_text(), "BF16"));
}

struct linear_case {
    size_t rows, in, out;
};

/* Both sides of what decides between a convolution and gemm: rows, multiples of 8. */
static const struct linear_case LINEAR_CASES[] = {
    {1, 1, 1},     {5, 3, 7},     {31, 8, 16},     {32, 8, 8},      {33, 16, 24},  {64, 40, 104},
    {64, 40, 105}, {64, 39, 104}, {257, 200, 328}, {300, 784, 136}, {35, 130, 37}, {64, 1024, 10},
};

/* Tolerance: one sum of up to 784 products, rounded after each. */
static void check_linear(fixture *f, struct linear_case c, bool out_first, bool bias,
                         bool accumulate) {
    size_t count = c.rows * c.out;
    float *x = uniform(f, c.rows * c.in, -1, 1), *w = uniform(f, c.in * c.out, -1, 1);
    float *b = bias ? uniform(f, c.out, -1, 1) : NULL, *start = destination(f, count, accumulate);
    double *want = reference(f, start, count, accumulate);
    for (size_t i = 0; i < c.rows; i++)
        for (size_t j = 0; j < c.out; j++) {
            want[i * c.out + j] += b ? (double)b[j] : 0;
            for (size_t k = 0; k < c.in; k++)
                want[i * c.out + j] += (double)x[i * c.in + k] *
                                       (double)(out_first ? w[j * c.in + k] : w[k * c.out + j]);
        }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        float *got = copy_of(f, start, count), *again = copy_of(f, start, count);
        assert_int_equal(device->table->linear(device, LS_F32, c.rows, c.in, c.out, x, w, out_first,
                                               b, got, accumulate),
                         LS_OK);
        expect_close(got, want, count, 5e-5, "linear");
        device->table->linear(device, LS_F32, c.rows, c.in, c.out, x, w, out_first, b, again,
                              accumulate);
        expect_equal_bits(got, again, count * sizeof *got, "linear, second run");
    }
}

/* With few rows and AVX-512, a result depends neither on the other rows nor on the threads. */
static void test_linear_rows_apart(void **state) {
    fixture *f = *state;
    enum { ROWS = 77, IN = 203, OUT = 101, FEWER = 33 };
    ls_device *threads;
    assert_int_equal(ls_device_cpu(&threads, 3), LS_OK);
    if (((ls__cpu *)threads)->level == LS__CPU_AVX512) {
        float *x = uniform(f, ROWS * IN, -1, 1), *w = uniform(f, IN * OUT, -1, 1);
        float *b = uniform(f, OUT, -1, 1), *all = destination(f, ROWS * OUT, false);
        float *some = destination(f, ROWS * OUT, false), *other = destination(f, ROWS * OUT, false);
        const ls__device_table *t = threads->table;
        t->linear(f->one, LS_F32, ROWS, IN, OUT, x, w, true, b, all, false);
        t->linear(f->one, LS_F32, FEWER, IN, OUT, x + IN, w, true, b, some, false);
        t->linear(threads, LS_F32, ROWS, IN, OUT, x, w, true, b, other, false);
        expect_equal_bits(all, other, ROWS * OUT * sizeof *all, "linear, three threads");
        expect_equal_bits(all + OUT, some, FEWER * OUT * sizeof *all, "linear, fewer rows");
    }
    ls_device_destroy(threads);
}

static void test_linear(void **state) {
    for (size_t i = 0; i < sizeof LINEAR_CASES / sizeof *LINEAR_CASES; i++)
        for (int flags = 0; flags < 8; flags++)
            check_linear(*state, LINEAR_CASES[i], flags & 1, flags & 2, flags & 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_life),
        kernel_test(test_memory),
        kernel_test(test_gemm),
        kernel_test(test_linear),
        kernel_test(test_linear_rows_apart),
        kernel_test(test_dtype),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
