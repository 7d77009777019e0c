/* Every operation against what PyTorch computed (scripts/reference/operations.py wrote the file).
 *
 * Tolerance: both sides are f32 and sum in different orders; the largest difference is at most 2e-5
 * of the largest element of what is compared. */
#include "autograd_check.h"

#include <lockstep/checkpoint.h>

static const double tolerance = 2e-5;
enum { INPUTS = 4 };

struct fixture {
    ls_device *device;
    ls_step *step;
    ls_safetensors *file;
    size_t compared; /* entries of the file that were used as results */
};

struct operation {
    const char *name;
    ls_tensor *(*build)(ls_step *step, ls_tensor **in, ls_tensor *ints);
};

/* --- the operations, with the options of the script --- */

#define UNARY(name)                                                                                \
    static ls_tensor *do_##name(ls_step *s, ls_tensor **in, ls_tensor *ints) {                     \
        (void)ints;                                                                                \
        return ls_##name(s, in[0]);                                                                \
    }
#define BINARY(name)                                                                               \
    static ls_tensor *do_##name(ls_step *s, ls_tensor **in, ls_tensor *ints) {                     \
        (void)ints;                                                                                \
        return ls_##name(s, in[0], in[1]);                                                         \
    }
#define BUILD(name, call)                                                                          \
    static ls_tensor *do_##name(ls_step *s, ls_tensor **in, ls_tensor *ints) {                     \
        (void)ints;                                                                                \
        return call;                                                                               \
    }

BUILD(linear, ls_linear(s, in[0], in[1], in[2]))
BUILD(linear_io, ls_linear_io(s, in[0], in[1], in[2]))
BINARY(matmul)
BUILD(conv2d, ls_conv2d(s, in[0], in[1], in[2], (ls_conv2d_options){0}))
BUILD(conv2d_pad, ls_conv2d(s, in[0], in[1], in[2], (ls_conv2d_options){1, 1}))
BUILD(conv2d_stride, ls_conv2d(s, in[0], in[1], NULL, (ls_conv2d_options){2, 2}))
BUILD(max_pool2d, ls_max_pool2d(s, in[0], (ls_pool2d_options){.kernel = 2}))
BUILD(max_pool2d_pad, ls_max_pool2d(s, in[0], (ls_pool2d_options){3, 2, 1}))
BUILD(avg_pool2d, ls_avg_pool2d(s, in[0], (ls_pool2d_options){.kernel = 2}))
BUILD(avg_pool2d_pad, ls_avg_pool2d(s, in[0], (ls_pool2d_options){3, 2, 1}))
BUILD(layer_norm, ls_layer_norm(s, in[0], in[1], in[2], 1e-5F))
UNARY(relu)
UNARY(gelu)
UNARY(gelu_tanh)
UNARY(tanh)
UNARY(sigmoid)
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(neg)
BUILD(scale, ls_scale(s, in[0], -1.75F))
BUILD(add_scalar, ls_add_scalar(s, in[0], 0.625F))
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
UNARY(softmax)
UNARY(log_softmax)
UNARY(sum)
UNARY(mean)
BUILD(sum_dim, ls_sum_dim(s, in[0], 1))
BUILD(mean_dim, ls_mean_dim(s, in[0], 0))
BUILD(max_dim, ls_max_dim(s, in[0], 2))
BUILD(reshape, ls_reshape(s, in[0], (const size_t[]){6, 10}, 2))
BUILD(permute, ls_permute(s, in[0], (const size_t[]){2, 0, 3, 1}))
BUILD(transpose, ls_transpose(s, in[0], 1, 2))
BUILD(slice, ls_slice(s, in[0], 1, 1, 3))
BUILD(concat, ls_concat(s, in, 3, 1))
BUILD(embedding, ls_embedding(s, in[0], ints))
BUILD(causal_attention, ls_causal_attention(s, in[0], 2))
BUILD(causal_attention_4, ls_causal_attention(s, in[0], 4))
BUILD(cross_entropy, ls_cross_entropy(s, in[0], ints))
BINARY(squared_error)

static const struct operation operations[] = {
    {"linear", do_linear},
    {"linear_3d", do_linear},
    {"linear_io", do_linear_io},
    {"matmul", do_matmul},
    {"matmul_batch", do_matmul},
    {"conv2d", do_conv2d},
    {"conv2d_pad", do_conv2d_pad},
    {"conv2d_stride", do_conv2d_stride},
    {"max_pool2d", do_max_pool2d},
    {"max_pool2d_pad", do_max_pool2d_pad},
    {"avg_pool2d", do_avg_pool2d},
    {"avg_pool2d_pad", do_avg_pool2d_pad},
    {"layer_norm", do_layer_norm},
    {"layer_norm_3d", do_layer_norm},
    {"relu", do_relu},
    {"gelu", do_gelu},
    {"gelu_tanh", do_gelu_tanh},
    {"tanh", do_tanh},
    {"sigmoid", do_sigmoid},
    {"exp", do_exp},
    {"log", do_log},
    {"sqrt", do_sqrt},
    {"neg", do_neg},
    {"scale", do_scale},
    {"add_scalar", do_add_scalar},
    {"add", do_add},
    {"add_repeated", do_add},
    {"sub", do_sub},
    {"sub_repeated", do_sub},
    {"mul", do_mul},
    {"mul_repeated", do_mul},
    {"div", do_div},
    {"div_repeated", do_div},
    {"softmax", do_softmax},
    {"log_softmax", do_log_softmax},
    {"sum", do_sum},
    {"mean", do_mean},
    {"sum_dim", do_sum_dim},
    {"mean_dim", do_mean_dim},
    {"max_dim", do_max_dim},
    {"reshape", do_reshape},
    {"permute", do_permute},
    {"transpose", do_transpose},
    {"slice", do_slice},
    {"concat", do_concat},
    {"embedding", do_embedding},
    {"causal_attention", do_causal_attention},
    {"causal_attention_4", do_causal_attention_4},
    {"cross_entropy", do_cross_entropy},
    {"cross_entropy_padded", do_cross_entropy},
    {"squared_error", do_squared_error},
};

/* --- the file --- */

static int set_up(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    const char *source = getenv("LOCKSTEP_TEST_SOURCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/data/operations.safetensors", source ? source : ".");
    check_status(ls_safetensors_open(&f->file, path));
    f->device = check_device();
    check_status(ls_step_create(&f->step, &(ls_step_options){.device = f->device}));
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    ls_step_destroy(f->step);
    check_device_destroy(f->device);
    ls_safetensors_close(f->file);
    free(f);
    return 0;
}

static const ls_safetensors_entry *entry(struct fixture *f, const char *name, const char *part,
                                         int number) {
    char full[64];
    if (number < 0)
        snprintf(full, sizeof full, "%s.%s", name, part);
    else
        snprintf(full, sizeof full, "%s.%s%d", name, part, number);
    return ls_safetensors_find(f->file, full);
}

/* A copy of an entry as a tensor; NULL where there is none. */
static ls_tensor *load(struct fixture *f, const char *name, const char *part, int number) {
    const ls_safetensors_entry *e = entry(f, name, part, number);
    if (!e)
        return NULL;
    ls_dtype dtype = strcmp(e->dtype, "I32") == 0 ? LS_I32 : LS_F32;
    ls_tensor *x = ls_tensor_new(f->step, dtype, e->shape, e->dims);
    check_status(ls_step_status(f->step));
    assert_int_equal(e->bytes, x->count * 4);
    memcpy(x->data, e->data, e->bytes);
    return x;
}

static void compare(struct fixture *f, const char *name, const char *part, int number,
                    const float *got, size_t count) {
    const ls_safetensors_entry *e = entry(f, name, part, number);
    double scale = 1e-2;
    if (!e)
        fail_msg("%s: the file has no %s %d", name, part, number);
    assert_int_equal(e->bytes, count * sizeof(float));
    float *want = malloc(e->bytes);
    assert_non_null(want);
    memcpy(want, e->data, e->bytes);
    for (size_t i = 0; i < count; i++)
        scale = fmax(scale, fabs((double)want[i]));
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= tolerance * scale))
            fail_msg("%s: %s %d, element %zu is %.9g, PyTorch has %.9g (largest %.3g)", name, part,
                     number, i, (double)got[i], (double)want[i], scale);
    free(want);
    f->compared++;
}

static void compare_gradients(struct fixture *f, const char *name, ls_tensor *y, ls_tensor **in) {
    ls_tensor *loss = ls_sum(f->step, ls_mul(f->step, y, load(f, name, "w", -1)));
    check_status(ls_backward(f->step, loss, NULL, NULL));
    for (int i = 0; i < INPUTS && in[i]; i++) {
        ls_tensor *grad = ls_tensor_grad(in[i]);
        assert_non_null(grad);
        compare(f, name, "grad", i, ls_tensor_data(grad), grad->count);
    }
}

static void begin(struct fixture *f, bool training, const char *name, ls_tensor *in[INPUTS + 1]) {
    check_status(ls_step_begin(f->step, &(ls_step_mode){.training = training}));
    for (int i = 0; i <= INPUTS; i++) {
        in[i] = load(f, name, "in", i);
        ls_tensor_need_grad(in[i]);
    }
    assert_non_null(in[0]);
    assert_null(in[INPUTS]);
}

/* The file's name for it is `name`, whatever the case was built from. */
static void assert_shape(struct fixture *f, const char *name, const ls_tensor *y) {
    const ls_safetensors_entry *e = entry(f, name, "y", -1);
    assert_non_null(e);
    assert_int_equal(y->dims, e->dims);
    for (size_t d = 0; d < y->dims; d++)
        assert_int_equal(y->shape[d], e->shape[d]);
}

static void test_operations(void **state) {
    struct fixture *f = *state;
    for (size_t k = 0; k < sizeof operations / sizeof *operations; k++) {
        const struct operation *o = &operations[k];
        ls_tensor *in[INPUTS + 1];
        begin(f, true, o->name, in);
        ls_tensor *y = o->build(f->step, in, load(f, o->name, "ints", -1));
        check_status(ls_step_status(f->step));
        assert_shape(f, o->name, y);
        compare(f, o->name, "y", -1, ls_tensor_data(y), y->count);
        compare_gradients(f, o->name, y, in);
    }
}

/* Training, with the statistics handed out; and not training, with these as running ones. */
static void test_batch_norm(void **state) {
    struct fixture *f = *state;
    static const char *const names[][2] = {{"batch_norm", "batch_norm_eval"},
                                           {"batch_norm_2d", "batch_norm_2d_eval"}};
    for (size_t k = 0; k < 2; k++) {
        ls_tensor *in[INPUTS + 1];
        float mean[8], variance[8];
        const char *name = names[k][0];
        begin(f, true, name, in);
        size_t channels = in[0]->shape[1];
        assert_true(channels <= 8);
        ls_batch_norm_state given = {.batch_mean = mean, .batch_var = variance};
        ls_tensor *y = ls_batch_norm(f->step, in[0], in[1], in[2], given, 1e-5F);
        check_status(ls_step_status(f->step));
        compare(f, name, "y", -1, ls_tensor_data(y), y->count);
        compare_gradients(f, name, y, in);
        for (size_t i = 0; i < channels; i++) {
            mean[i] /= (float)in[0]->shape[0];
            variance[i] /= (float)in[0]->shape[0];
        }
        compare(f, name, "mean", -1, mean, channels);
        compare(f, name, "var", -1, variance, channels);

        given = (ls_batch_norm_state){.running_mean = mean, .running_var = variance};
        name = names[k][1];
        begin(f, false, name, in);
        y = ls_batch_norm(f->step, in[0], in[1], in[2], given, 1e-5F);
        check_status(ls_step_status(f->step));
        compare(f, name, "y", -1, ls_tensor_data(y), y->count);
    }
}

/* Nothing in the file may be left unlooked at. */
static void test_all_of_the_file_is_compared(void **state) {
    struct fixture *f = *state;
    size_t results = 0;
    for (size_t i = 0; i < ls_safetensors_count(f->file); i++) {
        const char *part = strrchr(ls_safetensors_get(f->file, i)->name, '.');
        results += !strcmp(part, ".y") || !strcmp(part, ".mean") || !strcmp(part, ".var") ||
                   !strncmp(part, ".grad", 5);
    }
    assert_true(results > 100);
    test_operations(state);
    test_batch_norm(state);
    assert_int_equal(f->compared, results);
}

#define WITH_FIXTURE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_FIXTURE(test_operations),
        WITH_FIXTURE(test_batch_norm),
        WITH_FIXTURE(test_all_of_the_file_is_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
