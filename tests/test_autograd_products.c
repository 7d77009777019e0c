/* linear, linear_io, matmul, conv2d and the pools, against loops. */
#include "autograd_check.h"

static ls_tensor *build_linear(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_linear(step, in[0], in[1], c->inputs > 2 ? in[2] : NULL);
}

static ls_tensor *build_linear_io(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_linear_io(step, in[0], in[1], c->inputs > 2 ? in[2] : NULL);
}

/* n: rows, in, out, whether the weight is (in, out) */
static void linear(const struct check *c, const double *const *in, double *y) {
    size_t rows = c->n[0], n = c->n[1], m = c->n[2];
    for (size_t r = 0; r < rows; r++)
        for (size_t o = 0; o < m; o++) {
            y[r * m + o] = c->inputs > 2 ? in[2][o] : 0;
            for (size_t i = 0; i < n; i++)
                y[r * m + o] += in[0][r * n + i] * in[1][c->n[3] ? i * m + o : o * n + i];
        }
}

static void test_linear(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"linear",
         build_linear,
         linear,
         3,
         {{2, {5, 7}}, {2, {3, 7}}, {1, {3}}},
         {2, {5, 3}},
         {5, 7, 3, 0}},
        {"linear 3d",
         build_linear,
         linear,
         3,
         {{3, {2, 3, 4}}, {2, {6, 4}}, {1, {6}}},
         {3, {2, 3, 6}},
         {6, 4, 6, 0}},
        {"linear row",
         build_linear,
         linear,
         3,
         {{1, {4}}, {2, {2, 4}}, {1, {2}}},
         {1, {2}},
         {1, 4, 2, 0}},
        {"linear no bias",
         build_linear,
         linear,
         2,
         {{2, {1, 1}}, {2, {9, 1}}},
         {2, {1, 9}},
         {1, 1, 9, 0}},
        {"linear_io",
         build_linear_io,
         linear,
         3,
         {{2, {5, 7}}, {2, {7, 3}}, {1, {3}}},
         {2, {5, 3}},
         {5, 7, 3, 1}},
        {"linear_io 4d",
         build_linear_io,
         linear,
         2,
         {{4, {2, 1, 3, 4}}, {2, {4, 6}}},
         {4, {2, 1, 3, 6}},
         {6, 4, 6, 1}},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_matmul(ls_step *step, const struct check *c, ls_tensor **in) {
    (void)c;
    return ls_matmul(step, in[0], in[1]);
}

/* n: batch, m, n, k */
static void matmul(const struct check *c, const double *const *in, double *y) {
    size_t m = c->n[1], n = c->n[2], k = c->n[3];
    for (size_t b = 0; b < c->n[0]; b++)
        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < n; j++) {
                double sum = 0;
                for (size_t l = 0; l < k; l++)
                    sum += in[0][(b * m + i) * k + l] * in[1][(b * k + l) * n + j];
                y[(b * m + i) * n + j] = sum;
            }
}

static void test_matmul(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"matmul", build_matmul, matmul, 2, {{2, {3, 4}}, {2, {4, 5}}}, {2, {3, 5}}, {1, 3, 5, 4}},
        {"matmul batch",
         build_matmul,
         matmul,
         2,
         {{3, {2, 3, 4}}, {3, {2, 4, 5}}},
         {3, {2, 3, 5}},
         {2, 3, 5, 4}},
        {"matmul outer",
         build_matmul,
         matmul,
         2,
         {{4, {2, 2, 3, 1}}, {4, {2, 2, 1, 4}}},
         {4, {2, 2, 3, 4}},
         {4, 3, 4, 1}},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_conv2d(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_conv2d(step, in[0], in[1], c->inputs > 2 ? in[2] : NULL,
                     (ls_conv2d_options){.stride = c->n[0], .padding = c->n[1]});
}

/* n: stride, padding */
static void conv2d(const struct check *c, const double *const *in, double *y) {
    const size_t *x = c->in[0].shape, *w = c->in[1].shape, *o = c->out.shape;
    size_t stride = c->n[0] ? c->n[0] : 1;
    for (size_t b = 0; b < o[0]; b++)
        for (size_t q = 0; q < o[1]; q++)
            for (size_t i = 0; i < o[2]; i++)
                for (size_t j = 0; j < o[3]; j++) {
                    double sum = c->inputs > 2 ? in[2][q] : 0;
                    for (size_t p = 0; p < x[1]; p++)
                        for (size_t u = 0; u < w[2]; u++)
                            for (size_t v = 0; v < w[3]; v++) {
                                size_t r = i * stride + u - c->n[1], s = j * stride + v - c->n[1];
                                if (r < x[2] && s < x[3]) /* below 0 is above all as size_t */
                                    sum += in[0][((b * x[1] + p) * x[2] + r) * x[3] + s] *
                                           in[1][((q * x[1] + p) * w[2] + u) * w[3] + v];
                            }
                    y[((b * o[1] + q) * o[2] + i) * o[3] + j] = sum;
                }
}

static void test_conv2d(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"conv2d",
         build_conv2d,
         conv2d,
         3,
         {{4, {2, 3, 6, 5}}, {4, {4, 3, 3, 3}}, {1, {4}}},
         {4, {2, 4, 4, 3}},
         {0, 0}},
        {"conv2d pad",
         build_conv2d,
         conv2d,
         3,
         {{4, {2, 2, 5, 5}}, {4, {3, 2, 3, 3}}, {1, {3}}},
         {4, {2, 3, 5, 5}},
         {1, 1}},
        {"conv2d stride",
         build_conv2d,
         conv2d,
         2,
         {{4, {1, 2, 7, 6}}, {4, {3, 2, 3, 2}}},
         {4, {1, 3, 3, 3}},
         {2, 0}},
        {"conv2d odd",
         build_conv2d,
         conv2d,
         3,
         {{4, {1, 1, 4, 5}}, {4, {2, 1, 2, 3}}, {1, {2}}},
         {4, {1, 2, 3, 3}},
         {3, 2}},
        {"conv2d 1x1",
         build_conv2d,
         conv2d,
         3,
         {{4, {2, 3, 2, 2}}, {4, {2, 3, 1, 1}}, {1, {2}}},
         {4, {2, 2, 2, 2}},
         {1, 0}},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_max_pool(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_max_pool2d(step, in[0], (ls_pool2d_options){c->n[0], c->n[1], c->n[2]});
}

static ls_tensor *build_avg_pool(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_avg_pool2d(step, in[0], (ls_pool2d_options){c->n[0], c->n[1], c->n[2]});
}

/* n: kernel, stride, padding, average */
static void pool(const struct check *c, const double *const *in, double *y) {
    const size_t *x = c->in[0].shape, *o = c->out.shape;
    size_t kernel = c->n[0], stride = c->n[1] ? c->n[1] : kernel;
    for (size_t p = 0; p < o[0] * o[1]; p++)
        for (size_t i = 0; i < o[2]; i++)
            for (size_t j = 0; j < o[3]; j++) {
                double sum = 0, largest = -1e300;
                for (size_t u = 0; u < kernel; u++)
                    for (size_t v = 0; v < kernel; v++) {
                        size_t r = i * stride + u - c->n[2], s = j * stride + v - c->n[2];
                        if (r >= x[2] || s >= x[3])
                            continue;
                        sum += in[0][(p * x[2] + r) * x[3] + s];
                        largest = fmax(largest, in[0][(p * x[2] + r) * x[3] + s]);
                    }
                y[(p * o[2] + i) * o[3] + j] = c->n[3] ? sum / (double)(kernel * kernel) : largest;
            }
}

static void test_pools(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"max_pool2d",
         build_max_pool,
         pool,
         1,
         {{4, {2, 3, 4, 6}}},
         {4, {2, 3, 2, 3}},
         {2, 0, 0, 0}},
        {"max_pool2d overlap",
         build_max_pool,
         pool,
         1,
         {{4, {1, 2, 7, 7}}},
         {4, {1, 2, 4, 4}},
         {3, 2, 1, 0}},
        {"max_pool2d rest",
         build_max_pool,
         pool,
         1,
         {{4, {2, 1, 5, 5}}},
         {4, {2, 1, 2, 2}},
         {2, 2, 0, 0}},
        {"avg_pool2d",
         build_avg_pool,
         pool,
         1,
         {{4, {2, 3, 4, 6}}},
         {4, {2, 3, 2, 3}},
         {2, 0, 0, 1}},
        {"avg_pool2d overlap",
         build_avg_pool,
         pool,
         1,
         {{4, {1, 2, 7, 7}}},
         {4, {1, 2, 4, 4}},
         {3, 2, 1, 1}},
        {"avg_pool2d all",
         build_avg_pool,
         pool,
         1,
         {{4, {2, 2, 3, 3}}},
         {4, {2, 2, 1, 1}},
         {3, 1, 0, 1}},
    };
    CHECK_ALL(checks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_conv2d),
        cmocka_unit_test(test_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
