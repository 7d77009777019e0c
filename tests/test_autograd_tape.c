/* What flows where: repeated use, tied and dead parameters, order of readiness, states. */
#include "autograd_check.h"

enum { N = 4 }; /* elements of every parameter here */

struct fixture {
    ls_device *device;
    ls_step *step;
    struct ls_parameter p[4];
    float value[4][N], gradient[4][N];
    ls_parameter *ready[16];
    size_t ready_count, fail_at; /* fail_at n: the n-th report is answered with an error */
};

static void add_parameter(struct fixture *f, size_t i, const char *name, ls_role role) {
    struct ls_parameter *p = &f->p[i];
    *p = (struct ls_parameter){.name = (char *)(uintptr_t)name, .device = f->device, .role = role};
    p->value = (ls_tensor){.dtype = LS_F32,
                           .dims = 1,
                           .shape = {N},
                           .count = N,
                           .data = f->value[i],
                           .need_grad = role == LS_WEIGHT,
                           .parameter = p};
    p->gradient = f->gradient[i];
    p->slot = 1234567; /* a hint, and a wrong one */
    for (size_t j = 0; j < N; j++) {
        f->value[i][j] = (float)(i + 1) + 0.25F * (float)j;
        f->gradient[i][j] = NAN;
    }
}

static int set_up(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->device = check_device();
    check_status(ls_step_create(&f->step, &(ls_step_options){.device = f->device}));
    static const char *const names[] = {"a", "b", "c", "d"};
    for (size_t i = 0; i < 4; i++)
        add_parameter(f, i, names[i], LS_WEIGHT);
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

static void begin(struct fixture *f) {
    check_status(ls_step_begin(f->step, &(ls_step_mode){.training = true}));
    f->ready_count = 0;
}

static ls_status on_ready(void *context, ls_parameter *parameter) {
    struct fixture *f = context;
    assert_true(f->ready_count < 16);
    f->ready[f->ready_count++] = parameter;
    return f->ready_count == f->fail_at ? ls__fail(LS_ERR_PEER, "rank 3 left") : LS_OK;
}

static void assert_gradient(const struct fixture *f, size_t i, double first, double slope) {
    for (size_t j = 0; j < N; j++)
        if (fabs((double)f->gradient[i][j] - (first + slope * (double)j)) > 1e-5)
            fail_msg("gradient of %s: element %zu is %g, want %g", f->p[i].name, j,
                     (double)f->gradient[i][j], first + slope * (double)j);
}

/* One tensor as both inputs of an operation. */
static ls_tensor *build_twice(ls_step *step, const struct check *c, ls_tensor **in) {
    switch (c->n[0]) {
    case 0:
        return ls_add(step, in[0], in[0]);
    case 1:
        return ls_sub(step, in[0], in[0]);
    case 2:
        return ls_mul(step, in[0], in[0]);
    case 3:
        return ls_div(step, in[0], in[0]);
    case 4:
        return ls_matmul(step, in[0], in[0]);
    case 5:
        return ls_linear(step, in[0], in[0], NULL);
    default:
        return ls_concat(step, (ls_tensor *[]){in[0], in[0], in[0]}, 3, 0);
    }
}

static void twice(const struct check *c, const double *const *in, double *y) {
    for (size_t i = 0; i < (c->n[0] == 6 ? 27 : 9); i++) {
        double x = in[0][i % 9], sum = 0;
        for (size_t k = 0; k < 3 && i < 9; k++)
            sum += in[0][i / 3 * 3 + k] * in[0][c->n[0] == 4 ? k * 3 + i % 3 : i % 3 * 3 + k];
        y[i] = (double[]){x + x, 0, x * x, 1, sum, sum, x}[c->n[0]];
    }
}

static void test_a_tensor_as_both_inputs(void **state) {
    (void)state;
    static const char *const names[] = {"add", "sub", "mul", "div", "matmul", "linear", "concat"};
    for (size_t op = 0; op < 7; op++) {
        const struct check checks[] = {{names[op],
                                        build_twice,
                                        twice,
                                        1,
                                        {{2, {3, 3}}},
                                        {2, {op == 6 ? 9 : 3, 3}},
                                        {op},
                                        NULL,
                                        true}};
        CHECK_ALL(checks);
    }
}

/* layer_norm(x, x, x) and batch_norm with weight = bias: three gradients into one place. */
static ls_tensor *build_norm(ls_step *step, const struct check *c, ls_tensor **in) {
    if (c->n[0])
        return ls_batch_norm(step, in[0], in[1], in[1], (ls_batch_norm_state){0}, 1e-5F);
    return ls_layer_norm(step, in[0], in[0], in[0], 1e-5F);
}

static void norm(const struct check *c, const double *const *in, double *y) {
    size_t n = c->in[0].shape[0], stride = c->n[0] ? 2 : 1; /* x (n) or (n, 2) */
    for (size_t k = 0; k < stride; k++) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < n; i++)
            mean += in[0][i * stride + k] / (double)n;
        for (size_t i = 0; i < n; i++)
            variance += pow(in[0][i * stride + k] - mean, 2) / (double)n;
        for (size_t i = 0; i < n; i++) {
            double w = c->n[0] ? in[1][k] : in[0][i];
            y[i * stride + k] = (in[0][i * stride + k] - mean) / sqrt(variance + 1e-5) * w + w;
        }
    }
}

static void test_a_tensor_as_all_inputs_of_a_norm(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"layer_norm", build_norm, norm, 1, {{1, {9}}}, {1, {9}}, {0}},
        {"batch_norm", build_norm, norm, 2, {{2, {5, 2}}, {1, {2}}}, {2, {5, 2}}, {1}},
    };
    check_all(checks, 2, false);
}

/* loss = sum(a * b) + sum(a * c): a is ready last though b and c are used with it. */
static void test_shared_parameter_adds_up_and_is_ready_last(void **state) {
    struct fixture *f = *state;
    begin(f);
    ls_tensor *a = &f->p[0].value, *b = &f->p[1].value, *c = &f->p[2].value;
    ls_tensor *left = ls_sum(f->step, ls_mul(f->step, a, b));
    ls_tensor *right = ls_sum(f->step, ls_mul(f->step, a, c));
    ls_tensor *loss = ls_add(f->step, left, right);
    ls_parameter *order[4] = {NULL};
    assert_int_equal(ls__tape_ready_order(f->step, order, 4), 3);
    check_status(ls_backward(f->step, loss, on_ready, f));
    assert_int_equal(f->ready_count, 3);
    assert_memory_equal(f->ready, order, 3 * sizeof *order);
    assert_ptr_equal(f->ready[0], &f->p[2]);
    assert_true(f->ready[1] == &f->p[0] || f->ready[1] == &f->p[1]);
    assert_gradient(f, 0, 2 + 3, 0.5); /* b + c */
    assert_gradient(f, 1, 1, 0.25);
    assert_gradient(f, 2, 1, 0.25);
    assert_false(f->p[3].present);
    assert_null(ls_tensor_grad(&f->p[3].value));
    ls_tensor *grad = ls_tensor_grad(a);
    assert_ptr_equal(ls_tensor_data(grad), f->gradient[0]);
    assert_true(ls__tensor_same_shape(grad, a));
}

/* The order is read off the tape before backward, and does not disturb it; a short list is cut. */
static void test_ready_order_of_a_tied_weight(void **state) {
    struct fixture *f = *state;
    begin(f);
    ls_tensor *x = ls_mul(f->step, &f->p[0].value, &f->p[1].value); /* a first and last */
    x = ls_mul(f->step, x, &f->p[2].value);
    x = ls_mul(f->step, x, &f->p[3].value);
    ls_tensor *loss = ls_sum(f->step, ls_mul(f->step, x, &f->p[0].value));
    ls_parameter *order[4] = {NULL};
    assert_int_equal(ls__tape_ready_order(f->step, order, 1), 4);
    assert_null(order[1]);
    assert_int_equal(ls__tape_ready_order(f->step, order, 4), 4);
    assert_ptr_equal(order[0], &f->p[3]);
    assert_ptr_equal(order[1], &f->p[2]);
    check_status(ls_backward(f->step, loss, on_ready, f));
    assert_int_equal(f->ready_count, 4);
    assert_memory_equal(f->ready, order, sizeof order);
    float want = 2 * f->value[0][1] * f->value[1][1] * f->value[2][1] * f->value[3][1];
    assert_true(fabsf(f->gradient[0][1] - want) < 1e-4F);
}

/* b is used only where nothing flows; a there as well as in the loss; c before a dead end. */
static void test_dead_branches(void **state) {
    struct fixture *f = *state;
    begin(f);
    ls_tensor *a = &f->p[0].value, *b = &f->p[1].value, *c = &f->p[2].value;
    ls_tensor *shared = ls_mul(f->step, c, c);
    ls_tensor *loss = ls_sum(f->step, ls_add(f->step, a, shared));
    assert_non_null(ls_exp(f->step, ls_mul(f->step, a, b)));
    assert_non_null(ls_exp(f->step, shared));
    ls_parameter *order[4] = {NULL};
    assert_int_equal(ls__tape_ready_order(f->step, order, 4), 3);
    check_status(ls_backward(f->step, loss, on_ready, f));
    assert_int_equal(f->ready_count, 2);
    assert_ptr_equal(f->ready[0], a->parameter);
    assert_ptr_equal(f->ready[1], c->parameter);
    assert_gradient(f, 0, 1, 0);
    assert_gradient(f, 2, 6, 0.5);
    assert_false(b->parameter->present);
    assert_true(isnan(f->gradient[1][0])); /* not touched */
}

static void test_frozen_parameters_get_nothing(void **state) {
    struct fixture *f = *state;
    add_parameter(f, 1, "b", LS_FROZEN);
    begin(f);
    ls_tensor *loss = ls_sum(f->step, ls_mul(f->step, &f->p[0].value, &f->p[1].value));
    check_status(ls_backward(f->step, loss, on_ready, f));
    assert_int_equal(f->ready_count, 1);
    assert_false(f->p[1].present);
    assert_true(isnan(f->gradient[1][0]));
    assert_gradient(f, 0, 2, 0.25);
}

/* Nothing but frozen values: nothing is recorded, and backward has nothing to do. */
static void test_nothing_to_train(void **state) {
    struct fixture *f = *state;
    add_parameter(f, 0, "a", LS_FROZEN);
    begin(f);
    ls_tensor *loss = ls_sum(f->step, &f->p[0].value);
    assert_false(loss->need_grad);
    check_status(ls_backward(f->step, loss, on_ready, f));
    assert_int_equal(f->ready_count, 0);
}

/* Written by forward, reported before the weights, whatever the loss is. */
static void test_statistics_come_first(void **state) {
    struct fixture *f = *state;
    add_parameter(f, 2, "running", LS_STATISTIC);
    begin(f);
    ls_tensor *y = ls_sum(f->step, &f->p[0].value);
    float *destination = NULL;
    bool add = true;
    check_status(ls__tape_statistic(f->step, &f->p[2], 4, &destination, &add));
    assert_false(add);
    assert_ptr_equal(destination, f->gradient[2]);
    ls_tensor *loss = ls_add(f->step, y, ls_sum(f->step, &f->p[1].value));
    ls_parameter *order[4] = {NULL};
    assert_int_equal(ls__tape_ready_order(f->step, order, 4), 3);
    check_status(ls_backward(f->step, loss, on_ready, f));
    assert_int_equal(f->ready_count, 3);
    assert_memory_equal(order, f->ready, 3 * sizeof *order);
    assert_ptr_equal(f->ready[0], &f->p[2]);
    assert_true(f->p[2].present);
    assert_null(ls_tensor_grad(&f->p[2].value));
}

/* A weight without storage gets some. */
static void test_missing_gradient_storage_is_taken(void **state) {
    struct fixture *f = *state;
    f->p[0].gradient = NULL;
    begin(f);
    check_status(ls_backward(f->step, ls_sum(f->step, &f->p[0].value), NULL, NULL));
    assert_true(f->p[0].owns_gradient && f->p[0].present);
    assert_true(f->p[0].gradient[N - 1] == 1);
    f->device->table->free(f->device, f->p[0].gradient);
}

/* Each backward overwrites what the step before left; a step given up before backward leaves nothing. */
static void test_steps_do_not_leak_into_each_other(void **state) {
    struct fixture *f = *state;
    ls_tensor *a = &f->p[0].value, *b = &f->p[1].value;
    for (size_t round = 0; round < 3; round++) {
        begin(f);
        assert_non_null(ls_sum(f->step, ls_mul(f->step, ls_mul(f->step, a, a), b))); /* given up */
        begin(f);
        check_status(ls_backward(f->step, ls_sum(f->step, ls_mul(f->step, b, a)), on_ready, f));
        assert_int_equal(f->ready_count, 2);
        assert_gradient(f, 0, 2, 0.25);
        assert_gradient(f, 1, 1, 0.25);
    }
}

/* Two steps over the same parameters, one begun inside the other. */
static void test_two_steps_over_one_model(void **state) {
    struct fixture *f = *state;
    ls_tensor *a = &f->p[0].value, *b = &f->p[1].value;
    ls_step *other = NULL;
    check_status(ls_step_create(&other, &(ls_step_options){.device = f->device}));
    check_status(ls_step_begin(other, &(ls_step_mode){.training = true}));
    begin(f);
    ls_tensor *loss = ls_sum(f->step, ls_mul(f->step, a, a));
    ls_tensor *other_loss = ls_sum(other, ls_mul(other, b, ls_mul(other, b, a)));
    check_status(ls_backward(f->step, loss, on_ready, f));
    assert_int_equal(f->ready_count, 1);
    assert_gradient(f, 0, 2, 0.5);
    check_status(ls_backward(other, other_loss, on_ready, f));
    assert_int_equal(f->ready_count, 3);
    assert_true(fabsf(f->gradient[0][2] - f->value[1][2] * f->value[1][2]) < 1e-5F);
    ls_step_destroy(other);
}

/* The gradient of a view is its own: x has another use. */
static void test_gradient_of_a_view(void **state) {
    struct fixture *f = *state;
    begin(f);
    float data[N] = {1, 2, 3, 4};
    ls_tensor *x = ls_tensor_wrap(f->step, data, LS_F32, (size_t[]){N}, 1);
    ls_tensor_need_grad(x);
    ls_tensor *view = ls_reshape(f->step, x, (size_t[]){2, 2}, 2);
    ls_tensor_need_grad(view);
    ls_tensor *loss =
        ls_add(f->step, ls_sum(f->step, x), ls_sum(f->step, ls_scale(f->step, view, 3)));
    check_status(ls_backward(f->step, loss, NULL, NULL));
    for (size_t i = 0; i < N; i++) {
        assert_true(((float *)ls_tensor_data(ls_tensor_grad(view)))[i] == 3);
        assert_true(((float *)ls_tensor_data(ls_tensor_grad(x)))[i] == 4);
    }
    assert_true(ls_tensor_item(ls_tensor_grad(loss)) == 1);
}

static void assert_refused(ls_status status, ls_status want, const char *text) {
    assert_int_equal(status, want);
    if (!strstr(ls_error_text(), text))
        fail_msg("the text is \"%s\", want \"%s\" in it", ls_error_text(), text);
}

static void test_backward_refuses(void **state) {
    struct fixture *f = *state;
    ls_tensor *a = &f->p[0].value;
    assert_refused(ls_backward(NULL, a, NULL, NULL), LS_ERR_ARGUMENT, "step is NULL");
    check_status(ls_step_begin(f->step, NULL));
    assert_refused(ls_backward(f->step, ls_sum(f->step, a), NULL, NULL), LS_ERR_STATE,
                   "not training");
    begin(f);
    assert_refused(ls_backward(f->step, NULL, NULL, NULL), LS_ERR_ARGUMENT, "loss is NULL");
    assert_refused(ls_backward(f->step, ls_exp(f->step, a), NULL, NULL), LS_ERR_ARGUMENT,
                   "F32 (4)");
    ls_tensor *loss = ls_sum(f->step, a);
    check_status(ls_backward(f->step, loss, NULL, NULL)); /* the refusals changed nothing */
    assert_refused(ls_backward(f->step, loss, NULL, NULL), LS_ERR_STATE, "twice");
    begin(f);
    assert_null(ls_log(f->step, ls_reshape(f->step, a, (size_t[]){3}, 1)));
    assert_refused(ls_backward(f->step, NULL, NULL, NULL), LS_ERR_ARGUMENT, "reshape: x (4)");
    begin(f);
    f->p[0].value.count = f->p[0].value.shape[0] = 1;
    assert_refused(ls_backward(f->step, a, NULL, NULL), LS_ERR_ARGUMENT, "parameter a");
}

static void test_error_of_the_callback_ends_backward(void **state) {
    struct fixture *f = *state;
    begin(f);
    ls_tensor *x = ls_mul(f->step, ls_mul(f->step, &f->p[0].value, &f->p[1].value), &f->p[2].value);
    f->fail_at = 1;
    assert_refused(ls_backward(f->step, ls_sum(f->step, x), on_ready, f), LS_ERR_PEER,
                   "rank 3 left");
    assert_int_equal(f->ready_count, 1);
    assert_refused(ls_step_status(f->step), LS_ERR_PEER, "rank 3 left");
    assert_false(f->p[0].present);
    f->fail_at = 0;
    begin(f);
    check_status(ls_backward(f->step, ls_sum(f->step, &f->p[0].value), on_ready, f));
    assert_gradient(f, 0, 1, 0);
}

#define WITH_FIXTURE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tensor_as_both_inputs),
        cmocka_unit_test(test_a_tensor_as_all_inputs_of_a_norm),
        WITH_FIXTURE(test_shared_parameter_adds_up_and_is_ready_last),
        WITH_FIXTURE(test_ready_order_of_a_tied_weight),
        WITH_FIXTURE(test_dead_branches),
        WITH_FIXTURE(test_frozen_parameters_get_nothing),
        WITH_FIXTURE(test_nothing_to_train),
        WITH_FIXTURE(test_statistics_come_first),
        WITH_FIXTURE(test_missing_gradient_storage_is_taken),
        WITH_FIXTURE(test_steps_do_not_leak_into_each_other),
        WITH_FIXTURE(test_two_steps_over_one_model),
        WITH_FIXTURE(test_gradient_of_a_view),
        WITH_FIXTURE(test_backward_refuses),
        WITH_FIXTURE(test_error_of_the_callback_ends_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
