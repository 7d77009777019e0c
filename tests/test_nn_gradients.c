/* Gradients of a gpt are born where they stay: the first contribution overwrites what is there, also for
 * the embedding that two layers share, and no pass zeroes it or copies it there. */
#include "nn_support.h"

enum { BATCH = 2, TIME = 16, VOCAB = 40, MOST = 64 };
static const char SPEC[] = "gpt:layers=2,heads=2,width=32,context=16,vocab=40";

/* --- a device that counts the bytes it zeroes and copies --- */

static struct {
    const ls__device_table *original;
    ls__device_table table;
    size_t zeroed, copied;
} counting;

static ls_status counted_zero(ls_device *device, void *memory, size_t bytes) {
    counting.zeroed += bytes;
    return counting.original->zero(device, memory, bytes);
}

static ls_status counted_copy(ls_device *device, void *to, const void *from, size_t bytes) {
    counting.copied += bytes;
    return counting.original->copy(device, to, from, bytes);
}

static void run(ls_step *step, ls_model *model) {
    int32_t x[BATCH * TIME], y[BATCH * TIME];
    const size_t shape[2] = {BATCH, TIME};
    for (size_t i = 0; i < (size_t)BATCH * TIME; i++) {
        x[i] = (int32_t)(i * 7 % VOCAB);
        y[i] = (int32_t)(i * 5 % VOCAB);
    }
    assert_ok(ls_step_begin(step, &(ls_step_mode){.training = true, .sample_count = BATCH}));
    ls_tensor *loss = ls_model_loss(step, model, ls_tensor_wrap(step, x, LS_I32, shape, 2),
                                    ls_tensor_wrap(step, y, LS_I32, shape, 2), NULL);
    assert_ok(ls_backward(step, loss, NULL, NULL));
}

static void test_gradients_are_overwritten(void **state) {
    (void)state;
    ls_device *device = new_device();
    ls_model *model = new_model(device, SPEC, 1);
    ls_step *step;
    float *first[MOST];
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device}));
    run(step, model);
    size_t count = ls_model_parameter_count(model);
    assert_true(count <= MOST);
    for (size_t i = 0; i < count; i++) {
        ls_parameter *p = ls_model_parameter(model, i);
        size_t bytes = p->value.count * sizeof(float);
        assert_non_null(first[i] = malloc(bytes));
        memcpy(first[i], p->gradient, bytes);
        memset(p->gradient, 0xFF, bytes); /* NaN, wherever it is added to */
    }
    counting.original = device->table;
    counting.table = *device->table;
    counting.table.zero = counted_zero;
    counting.table.copy = counted_copy;
    device->table = &counting.table;
    run(step, model);
    device->table = counting.original;
    for (size_t i = 0; i < count; i++) {
        ls_parameter *p = ls_model_parameter(model, i);
        if (memcmp(first[i], p->gradient, p->value.count * sizeof(float)) != 0)
            fail_msg("the gradient of %s depends on what was there", p->name);
        free(first[i]);
    }
    assert_true(counting.zeroed <= sizeof(float)); /* the loss's own gradient */
    assert_true(counting.copied <= sizeof(float)); /* its value */
    ls_step_destroy(step);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients_are_overwritten)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
