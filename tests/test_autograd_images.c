/* Chains of operations on images, which keep them channels last, mixed with operations that want plain
 * data: values and gradients against loops over plain arrays. Odd numbers of channels throughout. */
#include "autograd_check.h"

#include <lockstep/ops.h>

enum { B = 2, C = 3, O = 5, H = 6, W = 4, K = 3 }; /* images (B, C, H, W), weight (O, C, K, K) */
enum { IN = B * C * H * W, OUT = B * O * H * W };

static double relu(double x) {
    return x > 0 ? x : 0;
}

/* y (B, O, H, W), padding 1 */
static void convolve(const double *x, const double *w, const double *bias, double *y) {
    for (int i = 0; i < OUT; i++) {
        int b = i / (O * H * W), o = i / (H * W) % O, row = i / W % H, column = i % W;
        y[i] = bias ? bias[o] : 0;
        for (int c = 0; c < C; c++) {
            for (int k = 0; k < K * K; k++) {
                int iy = row + k / K - 1, ix = column + k % K - 1;
                if (iy >= 0 && iy < H && ix >= 0 && ix < W)
                    y[i] += x[((b * C + c) * H + iy) * W + ix] * w[(o * C + c) * K * K + k];
            }
        }
    }
}

/* The largest, or the mean, of 2 x 2 windows of `planes` planes (H, W) */
static void pool(const double *x, int planes, bool average, double *y) {
    for (int i = 0; i < planes * (H / 2) * (W / 2); i++) {
        int plane = i / (H / 2 * (W / 2)), row = i / (W / 2) % (H / 2), column = i % (W / 2);
        const double *at = x + plane * H * W + row * 2 * W + column * 2;
        double sum = at[0] + at[1] + at[W] + at[W + 1];
        double most = fmax(fmax(at[0], at[1]), fmax(at[W], at[W + 1]));
        y[i] = average ? sum / 4 : most;
    }
}

static ls_tensor *conv(ls_step *step, ls_tensor *x, ls_tensor *w, ls_tensor *bias, bool with_relu) {
    return ls_conv2d(step, x, w, bias, (ls_conv2d_options){.padding = 1, .relu = with_relu});
}

static ls_tensor *flat(ls_step *step, ls_tensor *x) {
    return ls_reshape(step, x, (size_t[]){B, x ? ls_tensor_count(x) / B : 1}, 2);
}

#define IMAGES                                                                                     \
    {                                                                                              \
        4, {                                                                                       \
            B, C, H, W                                                                             \
        }                                                                                          \
    }
#define WEIGHT                                                                                     \
    {                                                                                              \
        4, {                                                                                       \
            O, C, K, K                                                                             \
        }                                                                                          \
    }

/* --- convolution with relu, pooling, reshape --- */

static ls_tensor *build_chain(ls_step *step, const struct check *c, ls_tensor **in) {
    ls_tensor *y = conv(step, in[0], in[1], in[2], c->n[0]);
    if (!c->n[0])
        y = ls_relu(step, y);
    return flat(step, ls_max_pool2d(step, y, (ls_pool2d_options){.kernel = 2}));
}

static void chain(const struct check *c, const double *const *in, double *y) {
    double full[OUT];
    (void)c;
    convolve(in[0], in[1], in[2], full);
    for (int i = 0; i < OUT; i++)
        full[i] = relu(full[i]);
    pool(full, B * O, false, y);
}

/* --- one result for an operation on images and for one that wants it plain, in either order --- */

static ls_tensor *build_both(ls_step *step, const struct check *c, ls_tensor **in) {
    ls_tensor *y = conv(step, in[0], in[1], NULL, false), *parts[2];
    for (size_t i = 0; i < 2; i++) {
        if (i == c->n[0])
            parts[0] = flat(step, ls_avg_pool2d(step, y, (ls_pool2d_options){.kernel = 2}));
        else
            parts[1] = flat(step, ls_slice(step, y, 1, 1, 3));
    }
    return ls_concat(step, parts, 2, 1);
}

static void both(const struct check *c, const double *const *in, double *y) {
    double full[OUT], pooled[OUT / 4];
    (void)c;
    convolve(in[0], in[1], NULL, full);
    pool(full, B * O, true, pooled);
    for (int b = 0; b < B; b++) {
        for (int i = 0; i < O * H * W / 4; i++)
            *y++ = pooled[b * (O * H * W / 4) + i];
        for (int i = 0; i < 2 * H * W; i++)
            *y++ = full[(b * O + 1) * H * W + i];
    }
}

/* --- elementwise operations between the two layouts, whichever comes first --- */

static ls_tensor *build_mixed(ls_step *step, const struct check *c, ls_tensor **in) {
    ls_tensor *y = conv(step, in[0], in[1], NULL, false);
    return c->n[0] ? ls_mul(step, in[2], y) : ls_mul(step, ls_tanh(step, y), in[2]);
}

static void mixed(const struct check *c, const double *const *in, double *y) {
    convolve(in[0], in[1], NULL, y);
    for (int i = 0; i < OUT; i++)
        y[i] = (c->n[0] ? y[i] : tanh(y[i])) * in[2][i];
}

static void test_chains(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"conv, relu, pool", build_chain, chain, 3, {IMAGES, WEIGHT, {1, {O}}}, {2, {B, 30}}, {0}},
        {"conv with relu", build_chain, chain, 3, {IMAGES, WEIGHT, {1, {O}}}, {2, {B, 30}}, {1}},
        {"pool, slice", build_both, both, 2, {IMAGES, WEIGHT}, {2, {B, 78}}, {0}},
        {"slice, pool", build_both, both, 2, {IMAGES, WEIGHT}, {2, {B, 78}}, {1}},
        {"last * plain",
         build_mixed,
         mixed,
         3,
         {IMAGES, WEIGHT, {4, {B, O, H, W}}},
         {4, {B, O, H, W}},
         {0}},
        {"plain * last",
         build_mixed,
         mixed,
         3,
         {IMAGES, WEIGHT, {4, {B, O, H, W}}},
         {4, {B, O, H, W}},
         {1}},
    };
    CHECK_ALL(checks);
}

/* --- batch norm + residual, relu --- */

static ls_tensor *build_norm(ls_step *step, const struct check *c, ls_tensor **in) {
    ls_tensor *residual = c->inputs > 3 ? in[3] : c->n[0] ? in[0] : NULL;
    return ls_batch_norm_relu(step, in[0], residual, in[1], in[2], (ls_batch_norm_state){0}, 1e-2F);
}

static void norm(const struct check *c, const double *const *in, double *y) {
    const double *residual = c->inputs > 3 ? in[3] : c->n[0] ? in[0] : NULL;
    for (int channel = 0; channel < C; channel++) {
        double sum = 0, squares = 0, n = B * H * W;
        for (int i = 0; i < IN; i++)
            sum += i / (H * W) % C == channel ? in[0][i] : 0;
        for (int i = 0; i < IN; i++)
            if (i / (H * W) % C == channel)
                squares += (in[0][i] - sum / n) * (in[0][i] - sum / n);
        for (int i = 0; i < IN; i++) {
            if (i / (H * W) % C != channel)
                continue;
            double normal = (in[0][i] - sum / n) / sqrt(squares / n + (double)1e-2F);
            y[i] = normal * in[1][channel] + in[2][channel] + (residual ? residual[i] : 0);
            y[i] = relu(y[i]);
        }
    }
}

static void test_batch_norm_relu(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"norm, relu", build_norm, norm, 3, {IMAGES, {1, {C}}, {1, {C}}}, IMAGES, {0}},
        {"norm + x, relu", build_norm, norm, 3, {IMAGES, {1, {C}}, {1, {C}}}, IMAGES, {1}},
        {"norm + residual", build_norm, norm, 4, {IMAGES, {1, {C}}, {1, {C}}, IMAGES}, IMAGES, {0}},
    };
    check_all(checks, sizeof checks / sizeof *checks, false);
}

/* What the caller sees of a result is row-major, before and after other operations used it. */
static void test_data_is_plain(void **state) {
    (void)state;
    ls_device *device = check_device();
    ls_step *step;
    float x[1 * 2 * 1 * 2] = {1, 2, 30, 40}, w[2 * 2] = {1, 0, 0, 1}; /* 1 x 1: y = x */
    check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
    check_status(ls_step_begin(step, &(ls_step_mode){.training = true}));
    ls_tensor *in = ls_tensor_wrap(step, x, LS_F32, (size_t[]){1, 2, 1, 2}, 4);
    ls_tensor *weight = ls_tensor_wrap(step, w, LS_F32, (size_t[]){2, 2, 1, 1}, 4);
    ls_tensor_need_grad(in);
    ls_tensor *y = ls_relu(step, ls_conv2d(step, in, weight, NULL, (ls_conv2d_options){0}));
    assert_non_null(y);
    assert_int_equal(y->layout, LS__CHANNELS_LAST);
    assert_true(ls_tensor_item(y) == 1);
    assert_memory_equal(ls_tensor_data(y), x, sizeof x);
    ls_tensor *z = ls_relu(step, y);
    assert_memory_equal(ls_tensor_data(z), x, sizeof x);
    assert_memory_equal(ls_tensor_data(y), x, sizeof x);
    check_status(ls_backward(step, ls_sum(step, z), NULL, NULL));
    const float *gradient = ls_tensor_data(ls_tensor_grad(in));
    for (size_t i = 0; i < 4; i++)
        assert_true(gradient[i] == 1);
    ls_step_destroy(step);
    check_device_destroy(device);
}

/* A residual of another shape is named. */
static void test_residual_is_checked(void **state) {
    (void)state;
    ls_device *device = check_device();
    ls_step *step;
    check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
    check_status(ls_step_begin(step, &(ls_step_mode){.training = true}));
    ls_tensor *x = ls_tensor_new(step, LS_F32, (size_t[]){2, 3, 4, 4}, 4);
    ls_tensor *residual = ls_tensor_new(step, LS_F32, (size_t[]){2, 3, 4, 2}, 4);
    ls_tensor *weight = ls_tensor_new(step, LS_F32, (size_t[]){3}, 1);
    assert_null(ls_batch_norm_relu(step, x, residual, weight, weight, (ls_batch_norm_state){0}, 1));
    assert_non_null(strstr(ls_error_text(), "batch_norm_relu: residual is (2, 3, 4, 2), want x's"));
    ls_step_destroy(step);
    check_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains),
        cmocka_unit_test(test_batch_norm_relu),
        cmocka_unit_test(test_data_is_plain),
        cmocka_unit_test(test_residual_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
