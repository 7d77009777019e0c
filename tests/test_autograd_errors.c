/* Wrong inputs: the call returns NULL, the first message stays, the next step is clean. */
#include "autograd_check.h"

struct fixture {
    ls_device *device;
    ls_step *step;
};

static int set_up(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->device = check_device();
    check_status(ls_step_create(&f->step, &(ls_step_options){.device = f->device}));
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    ls_step_destroy(f->step);
    check_device_destroy(f->device);
    free(f);
    return 0;
}

/* A tensor of ones; shape ends with 0. */
static ls_tensor *ones(ls_step *step, const size_t *shape) {
    size_t dims = 0;
    while (shape[dims])
        dims++;
    ls_tensor *x = ls_tensor_new(step, LS_F32, shape, dims);
    assert_non_null(x);
    for (size_t i = 0; i < x->count; i++)
        ((float *)x->data)[i] = 1;
    return x;
}

static ls_tensor *ints(ls_step *step, const int32_t *values, size_t count) {
    return ls_tensor_wrap(step, (void *)(uintptr_t)values, LS_I32, &count, 1);
}

#define T(...) ones(s, (const size_t[]){__VA_ARGS__, 0})
#define I(...) ints(s, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

/* `call` must fail in a step of its own (`s`), with this status and text. */
#define REFUSED(call, want, text)                                                                  \
    do {                                                                                           \
        ls_step *s = ((struct fixture *)*state)->step;                                             \
        check_status(ls_step_begin(s, &(ls_step_mode){.training = true}));                         \
        assert_null(call);                                                                         \
        assert_int_equal(ls_step_status(s), want);                                                 \
        if (strcmp(ls_error_text(), text) != 0)                                                    \
            fail_msg("the text is \"%s\", want \"%s\"", ls_error_text(), text);                    \
    } while (0)

static void test_shapes_of_products(void **state) {
    REFUSED(ls_linear(s, T(32, 784), T(10, 1024), NULL), LS_ERR_ARGUMENT,
            "linear: x (32, 784) does not fit weight (10, 1024): want 1024 columns");
    REFUSED(ls_linear_io(s, T(32, 784), T(1024, 10), NULL), LS_ERR_ARGUMENT,
            "linear_io: x (32, 784) does not fit weight (1024, 10): want 1024 columns");
    REFUSED(ls_linear(s, T(2, 3), T(4, 3), T(3)), LS_ERR_ARGUMENT,
            "linear: bias (3) does not fit weight (4, 3): want (4)");
    REFUSED(ls_linear(s, T(2, 3), T(3), NULL), LS_ERR_ARGUMENT,
            "linear: weight is (3), want (out, in)");
    REFUSED(ls_matmul(s, T(2, 3), T(2, 3)), LS_ERR_ARGUMENT,
            "matmul: a (2, 3) does not fit b (2, 3): want (..., m, k) and (..., k, n)");
    REFUSED(ls_matmul(s, T(2, 4, 3), T(3, 3, 4)), LS_ERR_ARGUMENT,
            "matmul: a (2, 4, 3) does not fit b (3, 3, 4): want (..., m, k) and (..., k, n)");
}

static void test_shapes_of_images(void **state) {
    ls_conv2d_options none = {0};
    REFUSED(ls_conv2d(s, T(1, 3, 8, 8), T(4, 2, 3, 3), NULL, none), LS_ERR_ARGUMENT,
            "conv2d: x (1, 3, 8, 8) does not fit weight (4, 2, 3, 3): want 2 channels");
    REFUSED(
        ls_conv2d(s, T(1, 3, 2, 8), T(4, 3, 3, 3), NULL, none), LS_ERR_ARGUMENT,
        "conv2d: the kernel of weight (4, 3, 3, 3) is larger than x (1, 3, 2, 8) with padding 0");
    REFUSED(
        ls_conv2d(s, T(3, 8, 8), T(4, 3, 3, 3), NULL, none), LS_ERR_ARGUMENT,
        "conv2d: x is (3, 8, 8) and weight (4, 3, 3, 3), want (B, C, H, W) and (out, C, kh, kw)");
    REFUSED(ls_conv2d(s, T(1, 1, 8, 8), T(4, 1, 3, 3), T(1), none), LS_ERR_ARGUMENT,
            "conv2d: bias (1) does not fit weight (4, 1, 3, 3): want (4)");
    REFUSED(ls_max_pool2d(s, T(1, 1, 8, 8), (ls_pool2d_options){0}), LS_ERR_ARGUMENT,
            "max_pool2d: kernel is 0, want at least 1");
    REFUSED(ls_avg_pool2d(s, T(1, 1, 2, 2), (ls_pool2d_options){.kernel = 3}), LS_ERR_ARGUMENT,
            "avg_pool2d: kernel 3 is larger than x (1, 1, 2, 2) with padding 0");
    REFUSED(ls_max_pool2d(s, T(1, 1, 8, 8), (ls_pool2d_options){2, 2, 2}), LS_ERR_ARGUMENT,
            "max_pool2d: padding 2 is more than half of kernel 2");
}

static void test_shapes_of_norms_and_arithmetic(void **state) {
    REFUSED(
        ls_layer_norm(s, T(2, 3), T(2), T(3), 1e-5F), LS_ERR_ARGUMENT,
        "layer_norm: x (2, 3) does not fit weight (2) and bias (3): want (..., C), (C) and (C)");
    REFUSED(ls_residual_add(s, T(2, 3), T(3, 2), NULL), LS_ERR_ARGUMENT,
            "residual_add: x (2, 3) does not fit branch (3, 2) and its bias none: want (..., C) "
            "twice and (C)");
    ls_tensor *sum;
    REFUSED(ls_residual_layer_norm(s, T(2, 3), T(2, 3), T(2), T(3), T(3), 1e-5F, &sum),
            LS_ERR_ARGUMENT,
            "residual_layer_norm: x (2, 3) does not fit branch (2, 3) and its bias (2): want "
            "(..., C) twice and (C)");
    REFUSED(ls_bias_gelu_tanh(s, T(2, 3), T(2)), LS_ERR_ARGUMENT,
            "bias_gelu_tanh: x (2, 3) does not fit bias (2): want (..., C) and (C)");
    REFUSED(ls_batch_norm(s, T(2, 3), T(2), T(2), (ls_batch_norm_state){0}, 1e-5F), LS_ERR_ARGUMENT,
            "batch_norm: x (2, 3) does not fit weight (2) and bias (2): want (3)");
    REFUSED(ls_batch_norm(s, T(3), T(3), T(3), (ls_batch_norm_state){0}, 1e-5F), LS_ERR_ARGUMENT,
            "batch_norm: x is (3), want (B, C, H, W) or (B, C)");
    REFUSED(ls_add(s, T(2, 3), T(2)), LS_ERR_ARGUMENT,
            "add: b (2) does not fit a (2, 3): want a's shape, or its last dimensions");
    REFUSED(ls_div(s, T(3), T(2, 3)), LS_ERR_ARGUMENT,
            "div: b (2, 3) does not fit a (3): want a's shape, or its last dimensions");
    REFUSED(ls_sum_dim(s, T(2, 3), 2), LS_ERR_ARGUMENT, "sum_dim: x (2, 3) has no dimension 2");
    REFUSED(ls_softmax(s, ls_tensor_new(s, LS_F32, NULL, 0)), LS_ERR_ARGUMENT,
            "softmax: x is a scalar, want (..., C)");
    REFUSED(ls_squared_error(s, T(2, 3), T(3, 2)), LS_ERR_ARGUMENT,
            "squared_error: a (2, 3) and b (3, 2) have different shapes");
    ls_step *step = ((struct fixture *)*state)->step;
    check_status(ls_step_begin(step, NULL));
    ls_tensor *x = ones(step, (size_t[]){2, 3, 0}), *c = ones(step, (size_t[]){3, 0});
    assert_null(ls_batch_norm(step, x, c, c, (ls_batch_norm_state){0}, 1e-5F));
    assert_int_equal(ls_step_status(step), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_text(),
                        "batch_norm: not training, and no running statistics given");
}

static void test_no_place_for_a_sum(void **state) {
    REFUSED(ls_residual_layer_norm(s, T(2, 3), T(2, 3), NULL, T(3), T(3), 1e-5F, NULL),
            LS_ERR_ARGUMENT, "residual_layer_norm: sum is NULL; want a place for x + branch");
}

static void test_shapes_of_shapes(void **state) {
    REFUSED(ls_reshape(s, T(2, 3), (size_t[]){4}, 1), LS_ERR_ARGUMENT,
            "reshape: x (2, 3) has 6 elements, but (4) has 4");
    REFUSED(ls_permute(s, T(2, 3), (size_t[]){0, 0}), LS_ERR_ARGUMENT,
            "permute: (0, 0) is no permutation of 2 dimensions");
    REFUSED(ls_transpose(s, T(2, 3), 0, 2), LS_ERR_ARGUMENT,
            "transpose: x (2, 3) has no dimension 2");
    REFUSED(ls_slice(s, T(2, 3), 1, 2, 4), LS_ERR_ARGUMENT,
            "slice: elements [2, 4) of dimension 1 are no part of x (2, 3)");
    REFUSED(ls_slice(s, T(2, 3), 1, 2, 2), LS_ERR_ARGUMENT,
            "slice: elements [2, 2) of dimension 1 are no part of x (2, 3)");
    REFUSED(ls_concat(s, (ls_tensor *[]){T(2, 3), T(2, 4)}, 2, 0), LS_ERR_ARGUMENT,
            "concat: part 1 (2, 4) does not fit part 0 (2, 3) along dimension 0");
    REFUSED(ls_concat(s, (ls_tensor *[]){T(4, 4), T(4, 4)}, 2, 9), LS_ERR_ARGUMENT,
            "concat: part 0 (4, 4) has no dimension 9");
    REFUSED(ls_concat(s, NULL, 0, 0), LS_ERR_ARGUMENT, "concat: no parts given");
    REFUSED(ls_tensor_new(s, LS_F32, (size_t[]){2, 0, 3}, 3), LS_ERR_ARGUMENT,
            "tensor: shape (2, 0, 3) has no elements, want extents of at least 1");
    REFUSED(ls_tensor_new(s, LS_F32, (size_t[]){1, 1, 1, 1, 1, 1, 1}, 7), LS_ERR_ARGUMENT,
            "tensor: 7 dimensions, at most 6 are possible");
    REFUSED(ls_tensor_new(s, LS_F32, (size_t[]){(size_t)1 << 40, (size_t)1 << 30}, 2), LS_ERR_RANGE,
            "tensor: shape (1099511627776, 1073741824) has more elements than can be counted");
    REFUSED(ls_tensor_wrap(s, NULL, LS_F32, NULL, 0), LS_ERR_ARGUMENT,
            "tensor: the data to wrap is NULL");
}

static void test_language(void **state) {
    REFUSED(ls_embedding(s, T(4), I(1)), LS_ERR_ARGUMENT, "embedding: table is (4), want (V, C)");
    REFUSED(ls_embedding(s, T(4, 2), T(1)), LS_ERR_ARGUMENT,
            "embedding: an input is F32, want I32");
    REFUSED(ls_causal_attention(s, T(1, 2, 12), 3), LS_ERR_ARGUMENT,
            "causal_attention: 4 channels of qkv (1, 2, 12) cannot be shared by 3 heads");
    REFUSED(ls_causal_attention(s, T(1, 2, 10), 1), LS_ERR_ARGUMENT,
            "causal_attention: qkv is (1, 2, 10), want (B, T, 3C)");
    REFUSED(ls_cross_entropy(s, T(2, 3), I(1, 2, 0)), LS_ERR_ARGUMENT,
            "cross_entropy: targets (3) do not fit logits (2, 3): want (...) and (..., V)");
}

/* Values are looked at by the kernels; whatever they say must name the value. */
static void test_values_out_of_range(void **state) {
    ls_step *s = ((struct fixture *)*state)->step;
    static const int32_t bad[] = {4, -1, -2, INT32_MIN};
    for (size_t i = 0; i < 4; i++) {
        char value[16];
        snprintf(value, sizeof value, "%d", (int)bad[i]);
        check_status(ls_step_begin(s, NULL));
        assert_null(ls_embedding(s, T(4, 2), I(0, 3, bad[i])));
        assert_int_equal(ls_step_status(s), LS_ERR_RANGE);
        assert_non_null(strstr(ls_error_text(), value));
        if (bad[i] == -1)
            continue; /* padding for the losses */
        check_status(ls_step_begin(s, NULL));
        assert_null(ls_cross_entropy(s, T(2, 4), I(3, bad[i])));
        assert_int_equal(ls_step_status(s), LS_ERR_RANGE);
        assert_non_null(strstr(ls_error_text(), value));
        check_status(ls_step_begin(s, NULL));
        size_t correct;
        assert_int_equal(ls_count_correct(s, T(2, 4), I(3, bad[i]), &correct), LS_ERR_RANGE);
        assert_int_equal(ls_step_status(s), LS_ERR_RANGE);
    }
}

static void test_the_first_error_stays(void **state) {
    ls_step *s = ((struct fixture *)*state)->step;
    check_status(ls_step_begin(s, &(ls_step_mode){.training = true}));
    ls_tensor *y = ls_relu(s, ls_linear(s, T(2, 3), T(4, 5), NULL)); /* NULL goes through */
    assert_null(y);
    assert_string_equal(ls_error_text(),
                        "linear: x (2, 3) does not fit weight (4, 5): want 5 columns");
    assert_null(ls_slice(s, T(2), 0, 1, 9)); /* a second error */
    assert_int_equal(ls_step_status(s), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_text(),
                        "linear: x (2, 3) does not fit weight (4, 5): want 5 columns");
    assert_int_equal(ls_backward(s, y, NULL, NULL), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_text(),
                        "linear: x (2, 3) does not fit weight (4, 5): want 5 columns");
    check_status(ls_step_begin(s, NULL));
    check_status(ls_step_status(s));
}

static void test_null_everywhere(void **state) {
    REFUSED(ls_relu(s, NULL), LS_ERR_ARGUMENT, "relu: an input is NULL");
    REFUSED(ls_reshape(s, NULL, NULL, 0), LS_ERR_ARGUMENT, "reshape: an input is NULL");
    REFUSED(ls_concat(s, (ls_tensor *[]){T(2), NULL}, 2, 0), LS_ERR_ARGUMENT,
            "concat: an input is NULL");
    assert_null(ls_relu(NULL, NULL));
    assert_string_equal(ls_error_text(), "relu: step is NULL");
    assert_null(ls_concat(NULL, NULL, 0, 0));
    assert_null(ls_tensor_new(NULL, LS_F32, NULL, 0));
    assert_int_equal(ls_step_begin(NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_step_status(NULL), LS_ERR_ARGUMENT);
    ls_step *step = NULL;
    assert_int_equal(ls_step_create(&step, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_step_create(&step, &(ls_step_options){0}), LS_ERR_ARGUMENT);
    assert_int_equal(ls_step_create(NULL, NULL), LS_ERR_ARGUMENT);
    ls_step_destroy(NULL);
    ls_tensor_need_grad(NULL);
    assert_null(ls_tensor_grad(NULL));
    assert_true(isnan(ls_tensor_item(NULL)));
    assert_int_equal(ls_tensor_count(NULL), 0);
}

#define WITH_FIXTURE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_FIXTURE(test_shapes_of_products),
        WITH_FIXTURE(test_shapes_of_images),
        WITH_FIXTURE(test_shapes_of_norms_and_arithmetic),
        WITH_FIXTURE(test_no_place_for_a_sum),
        WITH_FIXTURE(test_shapes_of_shapes),
        WITH_FIXTURE(test_language),
        WITH_FIXTURE(test_values_out_of_range),
        WITH_FIXTURE(test_the_first_error_stays),
        WITH_FIXTURE(test_null_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
