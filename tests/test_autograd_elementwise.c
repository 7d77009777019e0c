/* Activations, arithmetic, softmax, normalisation and reductions, against loops. */
#include "autograd_check.h"

/* n[0] says which */
enum { RELU, GELU, GELU_TANH, TANH, SIGMOID, EXP, LOG, SQRT, NEG, SCALE, ADD_SCALAR };

static ls_tensor *build_unary(ls_step *step, const struct check *c, ls_tensor **in) {
    static ls_tensor *(*const operations[])(ls_step *, ls_tensor *) = {
        ls_relu, ls_gelu, ls_gelu_tanh, ls_tanh, ls_sigmoid, ls_exp, ls_log, ls_sqrt, ls_neg};
    if (c->n[0] == SCALE)
        return ls_scale(step, in[0], -2.5F);
    if (c->n[0] == ADD_SCALAR)
        return ls_add_scalar(step, in[0], 0.75F);
    return operations[c->n[0]](step, in[0]);
}

static double unary_value(size_t op, double x) {
    switch (op) {
    case RELU:
        return x > 0 ? x : 0;
    case GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case TANH:
        return tanh(x);
    case SIGMOID:
        return 1 / (1 + exp(-x));
    case EXP:
        return exp(x);
    case LOG:
        return log(x);
    case SQRT:
        return sqrt(x);
    case NEG:
        return -x;
    case SCALE:
        return -2.5 * x;
    default:
        return x + 0.75;
    }
}

static void unary(const struct check *c, const double *const *in, double *y) {
    for (size_t i = 0; i < check_count(c->out.shape, c->out.dims); i++)
        y[i] = unary_value(c->n[0], in[0][i]);
}

static void test_unary(void **state) {
    (void)state;
    static const char *const names[] = {"relu", "gelu", "gelu_tanh", "tanh",  "sigmoid",   "exp",
                                        "log",  "sqrt", "neg",       "scale", "add_scalar"};
    for (size_t op = RELU; op <= ADD_SCALAR; op++) {
        const struct check checks[] = {
            {names[op],
             build_unary,
             unary,
             1,
             {{2, {3, 37}}},
             {2, {3, 37}},
             {op},
             NULL,
             op == LOG || op == SQRT},
            {names[op],
             build_unary,
             unary,
             1,
             {{0, {0}}},
             {0, {0}},
             {op},
             NULL,
             op == LOG || op == SQRT},
        };
        CHECK_ALL(checks);
    }
}

static ls_tensor *build_binary(ls_step *step, const struct check *c, ls_tensor **in) {
    static ls_tensor *(*const operations[])(ls_step *, ls_tensor *, ls_tensor *) = {ls_add, ls_sub,
                                                                                    ls_mul, ls_div};
    return operations[c->n[0]](step, in[0], in[1]);
}

static void binary(const struct check *c, const double *const *in, double *y) {
    size_t columns = check_count(c->in[1].shape, c->in[1].dims);
    for (size_t i = 0; i < check_count(c->out.shape, c->out.dims); i++) {
        double a = in[0][i], b = in[1][i % columns];
        y[i] = c->n[0] == 0 ? a + b : c->n[0] == 1 ? a - b : c->n[0] == 2 ? a * b : a / b;
    }
}

static void test_binary(void **state) {
    (void)state;
    static const char *const names[] = {"add", "sub", "mul", "div"};
    for (size_t op = 0; op < 4; op++) {
        const struct check checks[] = {
            {names[op],
             build_binary,
             binary,
             2,
             {{2, {3, 19}}, {2, {3, 19}}},
             {2, {3, 19}},
             {op},
             NULL,
             op == 3},
            {names[op],
             build_binary,
             binary,
             2,
             {{3, {4, 3, 5}}, {1, {5}}},
             {3, {4, 3, 5}},
             {op},
             NULL,
             op == 3},
            {names[op],
             build_binary,
             binary,
             2,
             {{3, {4, 3, 5}}, {2, {3, 5}}},
             {3, {4, 3, 5}},
             {op},
             NULL,
             op == 3},
            {names[op],
             build_binary,
             binary,
             2,
             {{2, {4, 3}}, {0, {0}}},
             {2, {4, 3}},
             {op},
             NULL,
             op == 3},
            {names[op],
             build_binary,
             binary,
             2,
             {{2, {1, 3}}, {1, {3}}},
             {2, {1, 3}},
             {op},
             NULL,
             op == 3},
        };
        CHECK_ALL(checks);
    }
}

static ls_tensor *build_softmax(ls_step *step, const struct check *c, ls_tensor **in) {
    return c->n[0] ? ls_log_softmax(step, in[0]) : ls_softmax(step, in[0]);
}

static void softmax(const struct check *c, const double *const *in, double *y) {
    size_t count = check_count(c->out.shape, c->out.dims), n = c->out.shape[c->out.dims - 1];
    for (size_t r = 0; r < count; r += n) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += exp(in[0][r + i]);
        for (size_t i = 0; i < n; i++)
            y[r + i] = c->n[0] ? in[0][r + i] - log(sum) : exp(in[0][r + i]) / sum;
    }
}

static void test_softmax(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"softmax", build_softmax, softmax, 1, {{2, {4, 9}}}, {2, {4, 9}}, {0}},
        {"softmax 3d", build_softmax, softmax, 1, {{3, {2, 3, 5}}}, {3, {2, 3, 5}}, {0}},
        {"softmax row", build_softmax, softmax, 1, {{1, {33}}}, {1, {33}}, {0}},
        {"log_softmax", build_softmax, softmax, 1, {{2, {4, 9}}}, {2, {4, 9}}, {1}},
        {"log_softmax 3d", build_softmax, softmax, 1, {{3, {2, 3, 5}}}, {3, {2, 3, 5}}, {1}},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_layer_norm(ls_step *step, const struct check *c, ls_tensor **in) {
    (void)c;
    return ls_layer_norm(step, in[0], in[1], in[2], 1e-5F);
}

static void layer_norm(const struct check *c, const double *const *in, double *y) {
    size_t count = check_count(c->out.shape, c->out.dims), n = c->out.shape[c->out.dims - 1];
    for (size_t r = 0; r < count; r += n) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < n; i++)
            mean += in[0][r + i] / (double)n;
        for (size_t i = 0; i < n; i++)
            variance += pow(in[0][r + i] - mean, 2) / (double)n;
        for (size_t i = 0; i < n; i++)
            y[r + i] = (in[0][r + i] - mean) / sqrt(variance + 1e-5) * in[1][i] + in[2][i];
    }
}

static void test_layer_norm(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"layer_norm",
         build_layer_norm,
         layer_norm,
         3,
         {{2, {4, 8}}, {1, {8}}, {1, {8}}},
         {2, {4, 8}}},
        {"layer_norm 3d",
         build_layer_norm,
         layer_norm,
         3,
         {{3, {2, 3, 5}}, {1, {5}}, {1, {5}}},
         {3, {2, 3, 5}}},
        {"layer_norm row",
         build_layer_norm,
         layer_norm,
         3,
         {{1, {17}}, {1, {17}}, {1, {17}}},
         {1, {17}}},
    };
    CHECK_ALL(checks);
}

/* Inputs: x, branch, and the branch's bias where there are three. */
static ls_tensor *build_residual_add(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_residual_add(step, in[0], in[1], c->inputs == 3 ? in[2] : NULL);
}

static void residual_add(const struct check *c, const double *const *in, double *y) {
    size_t count = check_count(c->out.shape, c->out.dims), n = c->out.shape[c->out.dims - 1];
    for (size_t i = 0; i < count; i++)
        y[i] = in[0][i] + in[1][i] + (c->inputs == 3 ? in[2][i % n] : 0);
}

/* The norm, and half of the sum. Inputs: x, branch, weight, bias, the branch's bias where there are five. */
static ls_tensor *build_residual_norm(ls_step *step, const struct check *c, ls_tensor **in) {
    ls_tensor *sum, *bias = c->inputs == 5 ? in[4] : NULL;
    ls_tensor *y = ls_residual_layer_norm(step, in[0], in[1], bias, in[2], in[3], 1e-5F, &sum);
    return ls_add(step, y, ls_scale(step, sum, 0.5F));
}

static void residual_norm(const struct check *c, const double *const *in, double *y) {
    size_t count = check_count(c->out.shape, c->out.dims), n = c->out.shape[c->out.dims - 1];
    double *sum = malloc(count * sizeof *sum);
    assert_non_null(sum);
    for (size_t i = 0; i < count; i++)
        sum[i] = in[0][i] + in[1][i] + (c->inputs == 5 ? in[4][i % n] : 0);
    layer_norm(c, (const double *[]){sum, in[2], in[3]}, y);
    for (size_t i = 0; i < count; i++)
        y[i] += 0.5 * sum[i];
    free(sum);
}

#define RESIDUAL_SHAPES                                                                            \
    {3, {2, 3, 8}}, {3, {2, 3, 8}}, {1, {8}}, {1, {8}}, {                                          \
        1, {                                                                                       \
            8                                                                                      \
        }                                                                                          \
    }
#define RESIDUAL(name, operation, inputs)                                                          \
    {                                                                                              \
        name, build_##operation, operation, inputs, {RESIDUAL_SHAPES}, {                           \
            3, {                                                                                   \
                2, 3, 8                                                                            \
            }                                                                                      \
        }                                                                                          \
    }

static void test_residual(void **state) {
    (void)state;
    static const struct check checks[] = {
        RESIDUAL("residual_add", residual_add, 3),
        RESIDUAL("residual_add without bias", residual_add, 2),
        RESIDUAL("residual_layer_norm", residual_norm, 5),
        RESIDUAL("residual_layer_norm without bias", residual_norm, 4),
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_bias_gelu(ls_step *step, const struct check *c, ls_tensor **in) {
    (void)c;
    return ls_bias_gelu_tanh(step, in[0], in[1]);
}

/* The gradient of x is needed by two: it must not be overwritten by the first. */
static ls_tensor *build_shared_bias_gelu(ls_step *step, const struct check *c, ls_tensor **in) {
    (void)c;
    ls_tensor *y = ls_bias_gelu_tanh(step, in[0], in[1]);
    return ls_add(step, ls_scale(step, in[0], 2), y);
}

static double gelu_tanh_of(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void bias_gelu(const struct check *c, const double *const *in, double *y) {
    size_t count = check_count(c->out.shape, c->out.dims), n = c->out.shape[c->out.dims - 1];
    for (size_t i = 0; i < count; i++)
        y[i] = gelu_tanh_of(in[0][i] + in[1][i % n]);
}

static void shared_bias_gelu(const struct check *c, const double *const *in, double *y) {
    bias_gelu(c, in, y);
    for (size_t i = 0; i < check_count(c->out.shape, c->out.dims); i++)
        y[i] += 2 * in[0][i];
}

static void test_bias_gelu(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"bias_gelu", build_bias_gelu, bias_gelu, 2, {{2, {4, 9}}, {1, {9}}}, {2, {4, 9}}},
        {"bias_gelu 3d", build_bias_gelu, bias_gelu, 2, {{3, {2, 3, 5}}, {1, {5}}}, {3, {2, 3, 5}}},
        {"bias_gelu, x used twice",
         build_shared_bias_gelu,
         shared_bias_gelu,
         2,
         {{2, {4, 9}}, {1, {9}}},
         {2, {4, 9}}},
    };
    CHECK_ALL(checks);
}

static const float running_mean[] = {0.5F, -0.25F, 1.0F}, running_var[] = {2.0F, 0.5F, 1.5F};

static ls_tensor *build_batch_norm(ls_step *step, const struct check *c, ls_tensor **in) {
    ls_batch_norm_state state = {.running_mean = running_mean, .running_var = running_var};
    size_t channels = c->out.shape[1], n = check_count(c->out.shape, c->out.dims) / channels;
    float mean[3], variance[3];
    state.batch_mean = mean;
    state.batch_var = variance;
    ls_tensor *y = ls_batch_norm(step, in[0], in[1], in[2], state, 1e-5F);
    const float *x = in[0]->data;
    for (size_t k = 0; y && k < channels && step->training; k++) { /* what is handed out */
        double sum = 0, squares = 0;
        size_t inner = ls__tensor_span(in[0], 2, in[0]->dims);
        for (size_t i = 0; i < n; i++)
            sum += (double)x[(i / inner * channels + k) * inner + i % inner];
        for (size_t i = 0; i < n; i++)
            squares +=
                pow((double)x[(i / inner * channels + k) * inner + i % inner] - sum / (double)n, 2);
        double batch = (double)c->out.shape[0];
        assert_true(fabs((double)mean[k] - batch * sum / (double)n) < 1e-4);
        assert_true(fabs((double)variance[k] - batch * squares / (double)(n - 1)) < 1e-3);
    }
    return y;
}

/* n[0]: training */
static void batch_norm(const struct check *c, const double *const *in, double *y) {
    size_t outer = c->out.shape[0], channels = c->out.shape[1];
    size_t inner = check_count(c->out.shape + 2, c->out.dims - 2);
    double n = (double)(outer * inner);
    for (size_t k = 0; k < channels; k++) {
        double mean = 0, variance = 0;
        for (size_t o = 0; o < outer; o++)
            for (size_t i = 0; i < inner; i++)
                mean += in[0][(o * channels + k) * inner + i] / n;
        for (size_t o = 0; o < outer; o++)
            for (size_t i = 0; i < inner; i++)
                variance += pow(in[0][(o * channels + k) * inner + i] - mean, 2) / n;
        if (!c->n[0]) {
            mean = (double)running_mean[k];
            variance = (double)running_var[k];
        }
        for (size_t o = 0; o < outer; o++)
            for (size_t i = 0; i < inner; i++) {
                size_t e = (o * channels + k) * inner + i;
                y[e] = (in[0][e] - mean) / sqrt(variance + 1e-5) * in[1][k] + in[2][k];
            }
    }
}

static void test_batch_norm(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"batch_norm",
         build_batch_norm,
         batch_norm,
         3,
         {{4, {3, 2, 4, 5}}, {1, {2}}, {1, {2}}},
         {4, {3, 2, 4, 5}},
         {1}},
        {"batch_norm 2d",
         build_batch_norm,
         batch_norm,
         3,
         {{2, {6, 3}}, {1, {3}}, {1, {3}}},
         {2, {6, 3}},
         {1}},
    };
    check_all(checks, 2, false);
}

static void test_batch_norm_uses_running_statistics_when_not_training(void **state) {
    (void)state;
    static const struct check c = {"batch_norm",
                                   build_batch_norm,
                                   batch_norm,
                                   3,
                                   {{4, {2, 3, 2, 2}}, {1, {3}}, {1, {3}}},
                                   {4, {2, 3, 2, 2}},
                                   {0}};
    ls_device *device = check_device();
    struct check_run r;
    check_prepare(&r, &c, device);
    check_inference(&r);
    check_finish(&r);
    check_device_destroy(device);
}

/* One value a channel: its variance is handed out as 0, not as NaN. */
static void test_batch_norm_of_one_value(void **state) {
    (void)state;
    ls_device *device = check_device();
    ls_step *step = NULL;
    check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
    check_status(ls_step_begin(step, &(ls_step_mode){.training = true}));
    float x[] = {3, -4}, one[] = {1, 1}, bias[] = {0.5F, 0.25F}, mean[2], variance[2];
    ls_tensor *w = ls_tensor_wrap(step, one, LS_F32, (size_t[]){2}, 1);
    ls_tensor *b = ls_tensor_wrap(step, bias, LS_F32, (size_t[]){2}, 1);
    ls_tensor *y =
        ls_batch_norm(step, ls_tensor_wrap(step, x, LS_F32, (size_t[]){1, 2}, 2), w, b,
                      (ls_batch_norm_state){.batch_mean = mean, .batch_var = variance}, 1e-5F);
    check_status(ls_step_status(step));
    assert_memory_equal(y->data, bias, sizeof bias);
    assert_memory_equal(mean, x, sizeof x);
    assert_true(variance[0] == 0 && variance[1] == 0);
    ls_step_destroy(step);
    check_device_destroy(device);
}

enum { SUM, MEAN, SUM_DIM, MEAN_DIM, MAX_DIM };

static ls_tensor *build_reduce(ls_step *step, const struct check *c, ls_tensor **in) {
    switch (c->n[0]) {
    case SUM:
        return ls_sum(step, in[0]);
    case MEAN:
        return ls_mean(step, in[0]);
    case SUM_DIM:
        return ls_sum_dim(step, in[0], c->n[4]);
    case MEAN_DIM:
        return ls_mean_dim(step, in[0], c->n[4]);
    default:
        return ls_max_dim(step, in[0], c->n[4]);
    }
}

/* n: which, outer, n, inner, dim */
static void reduce(const struct check *c, const double *const *in, double *y) {
    size_t n = c->n[2], inner = c->n[3];
    bool mean = c->n[0] == MEAN || c->n[0] == MEAN_DIM;
    for (size_t o = 0; o < c->n[1]; o++)
        for (size_t i = 0; i < inner; i++) {
            double sum = 0, largest = -1e300;
            for (size_t k = 0; k < n; k++) {
                sum += in[0][(o * n + k) * inner + i];
                largest = fmax(largest, in[0][(o * n + k) * inner + i]);
            }
            y[o * inner + i] = c->n[0] == MAX_DIM ? largest : mean ? sum / (double)n : sum;
        }
}

static void test_reductions(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"sum", build_reduce, reduce, 1, {{3, {2, 3, 7}}}, {0, {0}}, {SUM, 1, 42, 1}},
        {"mean", build_reduce, reduce, 1, {{2, {5, 7}}}, {0, {0}}, {MEAN, 1, 35, 1}},
        {"sum_dim 0", build_reduce, reduce, 1, {{2, {5, 7}}}, {1, {7}}, {SUM_DIM, 1, 5, 7, 0}},
        {"sum_dim 1",
         build_reduce,
         reduce,
         1,
         {{3, {2, 3, 4}}},
         {2, {2, 4}},
         {SUM_DIM, 2, 3, 4, 1}},
        {"sum_dim of a row", build_reduce, reduce, 1, {{1, {4}}}, {0, {0}}, {SUM_DIM, 1, 4, 1, 0}},
        {"mean_dim 1",
         build_reduce,
         reduce,
         1,
         {{3, {2, 3, 4}}},
         {2, {2, 4}},
         {MEAN_DIM, 2, 3, 4, 1}},
        {"mean_dim last", build_reduce, reduce, 1, {{2, {3, 5}}}, {1, {3}}, {MEAN_DIM, 3, 5, 1, 1}},
        {"max_dim 0", build_reduce, reduce, 1, {{2, {5, 7}}}, {1, {7}}, {MAX_DIM, 1, 5, 7, 0}},
        {"max_dim last",
         build_reduce,
         reduce,
         1,
         {{3, {2, 3, 5}}},
         {2, {2, 3}},
         {MAX_DIM, 6, 5, 1, 2}},
    };
    CHECK_ALL(checks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unary),
        cmocka_unit_test(test_binary),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_layer_norm),
        cmocka_unit_test(test_residual),
        cmocka_unit_test(test_bias_gelu),
        cmocka_unit_test(test_batch_norm),
        cmocka_unit_test(test_batch_norm_uses_running_statistics_when_not_training),
        cmocka_unit_test(test_batch_norm_of_one_value),
        cmocka_unit_test(test_reductions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
