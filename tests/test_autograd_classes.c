/* The output layer of a language model computes its gradients in forward where it may, again in backward where it
 * must, to equal bits; and never has all logits at once. */
#include "autograd_check.h"

#include "nn/parameter.h"
#include "tensor/arena.h"

/* Two blocks of rows, 35 of classes. */
enum { ROWS = 300, IN = 4, CLASSES = 70000 };

struct layer {
    ls_device *device;
    ls_step *step;
    ls_parameter *weight;
    float *x;
    int32_t *targets;
    double loss;
    float dx[ROWS * IN];
};

static struct layer new_layer(void) {
    struct layer l = {.device = check_device(), .x = check_random(1, (size_t)ROWS * IN, false)};
    l.targets = malloc(ROWS * sizeof *l.targets);
    assert_non_null(l.targets);
    for (int r = 0; r < ROWS; r++)
        l.targets[r] = r % 11 == 3 ? -1 : r * 233;
    check_status(ls_step_create(&l.step, &(ls_step_options){.device = l.device}));
    check_status(ls__parameter_create(&l.weight, l.device, "weight", LS_WEIGHT,
                                      (size_t[]){CLASSES, IN}, 2, 1,
                                      (ls__init){.kind = LS__NORMAL, .scale = 1}));
    return l;
}

static void destroy_layer(struct layer *l) {
    ls__parameter_destroy(l->weight);
    ls_step_destroy(l->step);
    free(l->x);
    free(l->targets);
    check_device_destroy(l->device);
}

static ls_tensor *forward(struct layer *l, ls_tensor **x) {
    *x = ls_tensor_wrap(l->step, l->x, LS_F32, (size_t[]){ROWS, IN}, 2);
    ls_tensor_need_grad(*x);
    ls_tensor *y = ls_tensor_wrap(l->step, l->targets, LS_I32, (size_t[]){ROWS}, 1);
    return ls_linear_cross_entropy(l->step, *x, &l->weight->value, y, NULL);
}

static void begin(struct layer *l) {
    check_status(ls_step_begin(l->step, &(ls_step_mode){.training = true}));
}

/* backward; loss and dx are taken down. */
static void finish(struct layer *l, ls_tensor *loss, ls_tensor *x) {
    check_status(ls_backward(l->step, loss, NULL, NULL));
    assert_true(l->weight->present);
    l->loss = ls_tensor_item(loss);
    memcpy(l->dx, ls_tensor_data(ls_tensor_grad(x)), sizeof l->dx);
}

/* What the layer leaves when its gradients are computed in backward. */
static struct layer expected(float factor) {
    struct layer l = new_layer();
    ls_tensor *x;
    l.weight->gradient_exposed = true;
    begin(&l);
    ls_tensor *loss = forward(&l, &x);
    finish(&l, factor == 1 ? loss : ls_scale(l.step, loss, factor), x);
    return l;
}

static void expect_equal(const struct layer *got, const struct layer *want) {
    assert_memory_equal(&got->loss, &want->loss, sizeof got->loss);
    assert_memory_equal(got->dx, want->dx, sizeof got->dx);
    assert_memory_equal(got->weight->gradient, want->weight->gradient,
                        (size_t)CLASSES * IN * sizeof(float));
}

static bool all_zero(const float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (values[i] != 0)
            return false;
    return true;
}

static void test_forward_computes_gradients(void **state) {
    (void)state;
    struct layer l = new_layer(), want = expected(1);
    ls_tensor *x;
    begin(&l);
    ls_tensor *loss = forward(&l, &x);
    /* They are there before backward, and all of the logits never were. */
    assert_memory_equal(l.weight->gradient, want.weight->gradient,
                        (size_t)CLASSES * IN * sizeof(float));
    assert_false(l.weight->present);
    size_t all = (size_t)ROWS * CLASSES * sizeof(float);
    finish(&l, loss, x);
    expect_equal(&l, &want);
    assert_true(ls__arena_peak(l.step->arena) < all - all / 8);
    assert_true(ls__arena_peak(want.step->arena) < all / 20);
    destroy_layer(&want);
    destroy_layer(&l);
}

/* A gradient that an optimizer has not yet used, or whose address somebody has, is left alone by forward. */
static void test_forward_keeps_away(void **state) {
    (void)state;
    struct layer l = new_layer(), want = expected(1);
    ls_tensor *x;
    for (int exposed = 0; exposed < 2; exposed++) {
        size_t count = l.weight->value.count;
        memset(l.weight->gradient, 0, count * sizeof(float));
        l.weight->present = !exposed;
        if (exposed)
            assert_ptr_equal(ls_parameter_gradient(l.weight), l.weight->gradient);
        begin(&l);
        ls_tensor *loss = forward(&l, &x);
        assert_true(all_zero(l.weight->gradient, count));
        finish(&l, loss, x);
        expect_equal(&l, &want);
    }
    destroy_layer(&want);
    destroy_layer(&l);
}

/* What others do between forward and backward. */
static void move_gradient(struct layer *l) {
    static float storage[CLASSES * IN];
    ls__parameter_set_gradient(l->weight, storage);
}

static void ask_for_gradient(struct layer *l) {
    float *gradient = ls_parameter_gradient(l->weight);
    for (size_t i = 0; i < l->weight->value.count; i++)
        gradient[i] = 7;
}

static void another_forward(struct layer *l) {
    struct layer other = *l;
    ls_tensor *x;
    other.step = NULL;
    check_status(ls_step_create(&other.step, &(ls_step_options){.device = l->device}));
    begin(&other);
    l->x[0] += 1;
    forward(&other, &x);
    l->x[0] -= 1;
    ls_step_destroy(other.step);
}

static void test_others_write(void **state) {
    (void)state;
    static void (*const others[])(struct layer *) = {move_gradient, ask_for_gradient,
                                                     another_forward};
    struct layer want = expected(1);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        struct layer l = new_layer();
        l.x[0] = 0.5F;
        want.x[0] = 0.5F;
        ls_tensor *x;
        begin(&l);
        ls_tensor *loss = forward(&l, &x);
        others[i](&l);
        finish(&l, loss, x);
        if (i == 0) {
            begin(&want);
            ls_tensor *again = forward(&want, &x);
            finish(&want, again, x);
        }
        expect_equal(&l, &want);
        destroy_layer(&l);
    }
    destroy_layer(&want);
}

/* Another use of the weight that comes first in backward; and a loss that is multiplied. */
static void test_other_uses(void **state) {
    (void)state;
    struct layer got[2];
    for (int exposed = 0; exposed < 2; exposed++) {
        struct layer l = new_layer();
        ls_tensor *x;
        l.weight->gradient_exposed = exposed;
        begin(&l);
        ls_tensor *loss = forward(&l, &x);
        ls_tensor *sum = ls_sum(l.step, &l.weight->value);
        finish(&l, ls_add(l.step, loss, sum), x);
        got[exposed] = l;
    }
    expect_equal(&got[0], &got[1]);
    assert_false(all_zero(got[0].weight->gradient, (size_t)CLASSES * IN));
    for (int exposed = 0; exposed < 2; exposed++)
        destroy_layer(&got[exposed]);
    struct layer l = new_layer(), want = expected(3);
    ls_tensor *x;
    begin(&l);
    ls_tensor *loss = forward(&l, &x);
    finish(&l, ls_scale(l.step, loss, 3), x);
    expect_equal(&l, &want);
    destroy_layer(&want);
    destroy_layer(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_computes_gradients),
        cmocka_unit_test(test_forward_keeps_away),
        cmocka_unit_test(test_others_write),
        cmocka_unit_test(test_other_uses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
