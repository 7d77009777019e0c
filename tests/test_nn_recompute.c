/* Activation recomputation changes memory and nothing else: equal bits of loss, gradients and weights. */
#include "nn_support.h"

enum { BATCH = 4, TIME = 24, STEPS = 3 };
static const char SPEC[] = "gpt:layers=4,heads=2,width=32,context=24,vocab=40,dropout=0.1";

static void fill_tokens(int32_t *tokens, size_t step) {
    for (size_t i = 0; i < (size_t)BATCH * TIME; i++)
        tokens[i] = (int32_t)((i * 7 + step * 5 + i * i) % 40);
}

struct seen {
    ls_model *model;
    size_t ready[64];
};

static ls_status on_ready(void *context, ls_parameter *parameter) {
    struct seen *seen = context;
    seen->ready[parameter->index]++;
    return LS_OK;
}

/* Trains; returns the step's peak of bytes. hash: of loss and gradients of every step, and weights. */
static size_t train(bool recompute, int threads, uint64_t *hash) {
    ls_device *device;
    assert_ok(ls_device_cpu(&device, threads));
    ls_model *model = new_model(device, SPEC, 1);
    ls_step *step;
    ls_optimizer *optimizer;
    const ls_optimizer_options adamw = {.kind = LS_ADAMW, .clip = 1};
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device, .seed = 3}));
    assert_ok(ls_optimizer_create(&optimizer, model, &adamw));
    size_t count = ls_model_parameter_count(model);
    XXH64_state_t *state = XXH64_createState();
    assert_non_null(state);
    XXH64_reset(state, 0);
    for (size_t s = 0; s < STEPS; s++) {
        int32_t x[BATCH * TIME], y[BATCH * TIME];
        struct seen seen = {.model = model};
        fill_tokens(x, s);
        fill_tokens(y, s + 1);
        for (size_t i = 0; i < count; i++)
            ls_model_parameter(model, i)->index = i;
        assert_ok(ls_step_begin(
            step,
            &(ls_step_mode){.training = true, .recompute = recompute, .sample_count = BATCH}));
        const size_t shape[2] = {BATCH, TIME};
        ls_tensor *tx = ls_tensor_wrap(step, x, LS_I32, shape, 2);
        ls_tensor *ty = ls_tensor_wrap(step, y, LS_I32, shape, 2);
        ls_tensor *loss = ls_model_loss(step, model, tx, ty, NULL);
        ls_parameter *order[64];
        assert_int_equal(ls__tape_ready_order(step, order, 64), count);
        assert_ok(ls_backward(step, loss, on_ready, &seen));
        XXH64_update(state, ls_tensor_data(loss), sizeof(float));
        for (size_t i = 0; i < count; i++) {
            ls_parameter *p = ls_model_parameter(model, i);
            assert_int_equal(seen.ready[i], 1);
            XXH64_update(state, p->gradient, p->value.count * sizeof(float));
        }
        assert_ok(ls_optimizer_step(optimizer, 1e-3, NULL));
    }
    *hash = XXH64_digest(state) ^ ls_model_hash(model);
    size_t peak = ls_step_peak_bytes(step);
    XXH64_freeState(state);
    ls_optimizer_destroy(optimizer);
    ls_step_destroy(step);
    ls_model_destroy(model);
    ls_device_destroy(device);
    return peak;
}

static void test_same_bits_less_memory(void **state) {
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        uint64_t kept, recomputed;
        size_t most = train(false, threads, &kept), less = train(true, threads, &recomputed);
        assert_true(kept == recomputed);
        assert_true(less < most / 2);
    }
}

/* The loss without logits, and its count, are those of the logits. */
static void test_loss_is_that_of_the_logits(void **state) {
    (void)state;
    ls_device *device = new_device();
    ls_model *model = new_model(device, SPEC, 1);
    ls_step *step;
    int32_t x[BATCH * TIME], y[BATCH * TIME];
    const size_t shape[2] = {BATCH, TIME};
    size_t correct[2] = {99, 99};
    fill_tokens(x, 0);
    fill_tokens(y, 1);
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device}));
    assert_ok(ls_step_begin(step, NULL));
    ls_tensor *tx = ls_tensor_wrap(step, x, LS_I32, shape, 2);
    ls_tensor *ty = ls_tensor_wrap(step, y, LS_I32, shape, 2);
    ls_tensor *logits = ls_model_forward(step, model, tx);
    double want = ls_tensor_item(ls_cross_entropy(step, logits, ty));
    assert_ok(ls_count_correct(step, logits, ty, &correct[0]));
    double got = ls_tensor_item(ls_model_loss(step, model, tx, ty, &correct[1]));
    assert_true(fabs(got - want) < 1e-5 * want);
    assert_int_equal(correct[1], correct[0]);
    ls_step_destroy(step);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_less_memory),
        cmocka_unit_test(test_loss_is_that_of_the_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
