/* Optimizers and schedules: refusals leave everything as it was, clipping, unused weights, statistics,
 * and the published schedule. What the updates compute is checked in test_nn_parity.c. */
#include "nn_support.h"

typedef struct fixture {
    ls_device *device;
    ls_model *model;
    ls_optimizer *optimizer;
    ls_parameter *weight, *bias; /* (3, 2) and (3) */
    uint64_t hash;
} fixture;

static fixture new_fixture(ls_optimizer_options options) {
    fixture f = {.device = new_device()};
    f.model = new_model(f.device, "mlp:2,3", 1);
    f.weight = find_parameter(f.model, "fc1.weight");
    f.bias = find_parameter(f.model, "fc1.bias");
    f.hash = ls_model_hash(f.model);
    assert_ok(ls_optimizer_create(&f.optimizer, f.model, &options));
    return f;
}

static void free_fixture(fixture *f) {
    ls_optimizer_destroy(f->optimizer);
    ls_model_destroy(f->model);
    ls_device_destroy(f->device);
}

/* As a backward leaves it: `value` in every element. */
static void set_gradient(ls_parameter *parameter, float value) {
    for (size_t i = 0; i < parameter->value.count; i++)
        parameter->gradient[i] = value;
    parameter->present = true;
}

static void unreduced_gradients_are_refused(void **state) {
    (void)state;
    float storage[16];
    fixture f = new_fixture((ls_optimizer_options){.momentum = 0.9});
    ls__parameter_set_gradient(f.weight, storage);
    ls__parameter_set_gradient(f.bias, storage + 8);
    set_gradient(f.weight, 1);
    set_gradient(f.bias, 1);
    f.weight->reduced = true;
    assert_int_equal(ls_optimizer_step(f.optimizer, 0.1, NULL), LS_ERR_NOT_REDUCED);
    assert_message("the gradient of fc1.bias was not reduced");
    assert_message("ls_ddp_wait");
    assert_int_equal(ls_model_hash(f.model), f.hash);
    f.bias->reduced = true;
    assert_ok(ls_optimizer_step(f.optimizer, 0.1, NULL));
    assert_int_not_equal(ls_model_hash(f.model), f.hash);
    /* used up: the same gradients do not serve twice */
    assert_int_equal(ls_optimizer_step(f.optimizer, 0.1, NULL), LS_ERR_NOT_REDUCED);
    assert_message("fc1.weight");
    free_fixture(&f);
}

static void a_step_without_backward_is_refused(void **state) {
    (void)state;
    fixture f = new_fixture((ls_optimizer_options){.kind = LS_ADAM});
    assert_int_equal(ls_optimizer_step(f.optimizer, 0.1, NULL), LS_ERR_STATE);
    assert_message("no weight has a gradient: call ls_backward first");
    set_gradient(f.weight, 1);
    assert_ok(ls_optimizer_step(f.optimizer, 0.1, NULL));
    assert_int_equal(ls_optimizer_step(f.optimizer, 0.1, NULL), LS_ERR_STATE);
    free_fixture(&f);
}

static void nan_gradients_are_refused(void **state) {
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    fixture f = new_fixture((ls_optimizer_options){.kind = LS_ADAMW, .clip = 1});
    for (size_t i = 0; i < 3; i++) {
        set_gradient(f.weight, 1);
        set_gradient(f.bias, 1);
        f.bias->gradient[2] = bad[i];
        assert_int_equal(ls_optimizer_step(f.optimizer, 0.1, NULL), LS_ERR_RANGE);
        assert_message("the gradient of fc1.bias holds a NaN or an infinity; nothing was changed");
        assert_int_equal(ls_model_hash(f.model), f.hash);
    }
    f.bias->gradient[2] = 1; /* and the next sound gradients work */
    assert_ok(ls_optimizer_step(f.optimizer, 0.1, NULL));
    free_fixture(&f);
}

static void bad_rates_are_refused(void **state) {
    (void)state;
    static const double bad[] = {NAN, INFINITY, -1e-3};
    fixture f = new_fixture((ls_optimizer_options){0});
    set_gradient(f.weight, 1);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(ls_optimizer_step(f.optimizer, bad[i], NULL), LS_ERR_ARGUMENT);
        assert_message("learning rate");
    }
    assert_int_equal(ls_model_hash(f.model), f.hash);
    free_fixture(&f);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    static const struct {
        ls_optimizer_options options;
        const char *part;
    } rows[] = {
        {{.kind = (ls_optimizer_kind)9}, "kind is 9"},
        {{.momentum = 1}, "momentum is 1, want 0 <= momentum < 1"},
        {{.momentum = -0.1}, "momentum is -0.1"},
        {{.nesterov = true}, "nesterov wants a momentum > 0"},
        {{.kind = LS_ADAM, .beta1 = 1}, "beta1 is 1"},
        {{.kind = LS_ADAM, .beta2 = NAN}, "beta2 is nan"},
        {{.kind = LS_ADAM, .epsilon = -1}, "epsilon is -1, want a finite number >= 0"},
        {{.weight_decay = -1}, "weight_decay is -1"},
        {{.clip = INFINITY}, "clip is inf"},
    };
    ls_device *device = new_device();
    ls_model *model = new_model(device, "mlp:2,3", 1);
    ls_optimizer *optimizer;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(ls_optimizer_create(&optimizer, model, &rows[i].options), LS_ERR_ARGUMENT);
        assert_message(rows[i].part);
    }
    ls_optimizer_destroy(NULL);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

/* Gradients 3 and 4 in 6 + 3 elements: norm sqrt(6 * 9 + 3 * 16) = sqrt(102). */
static void clipping_scales_by_the_global_norm(void **state) {
    (void)state;
    const double norm = sqrt(102), clip = 2;
    for (int clipped = 0; clipped < 2; clipped++) {
        fixture f = new_fixture((ls_optimizer_options){.clip = clipped ? clip : 100});
        double weight = (double)values_of(f.weight)[0], bias = (double)values_of(f.bias)[0], seen;
        double scale = clipped ? clip / (norm + 1e-6) : 1;
        set_gradient(f.weight, 3);
        set_gradient(f.bias, 4);
        assert_ok(ls_optimizer_step(f.optimizer, 0.5, &seen));
        assert_true(fabs(seen - norm) < 1e-12);
        assert_true(fabs((double)values_of(f.weight)[0] - (weight - 0.5 * scale * 3)) < 3e-7);
        assert_true(fabs((double)values_of(f.bias)[0] - (bias - 0.5 * scale * 4)) < 3e-7);
        free_fixture(&f);
    }
}

/* As PyTorch does where grad is None: no decay, no momentum, and the bias correction of its next
 * update counts its own updates. */
static void unused_weights_stay(void **state) {
    (void)state;
    fixture f = new_fixture(
        (ls_optimizer_options){.kind = LS_ADAMW, .weight_decay = 0.5, .decay_all = true});
    float before[3];
    memcpy(before, values_of(f.bias), sizeof before);
    set_gradient(f.bias, 5);
    f.bias->present = false; /* what lies there is from an earlier step */
    for (int i = 0; i < 3; i++) {
        double norm;
        set_gradient(f.weight, 1);
        assert_ok(ls_optimizer_step(f.optimizer, 0.1, &norm));
        assert_true(fabs(norm - sqrt(6)) < 1e-12);
        assert_memory_equal(before, values_of(f.bias), sizeof before);
    }
    set_gradient(f.bias,
                 5); /* a first Adam step goes by the learning rate, whatever the gradient */
    assert_ok(ls_optimizer_step(f.optimizer, 0.1, NULL));
    for (size_t i = 0; i < 3; i++)
        assert_true(fabs((double)values_of(f.bias)[i] - ((double)before[i] * 0.95 - 0.1)) < 1e-6);
    free_fixture(&f);
}

/* Zero gradient: only the decay moves a weight, and by default only those of two dimensions. */
static void decay_is_for_matrices(void **state) {
    (void)state;
    for (int all = 0; all < 2; all++) {
        fixture f = new_fixture(
            (ls_optimizer_options){.kind = LS_ADAMW, .weight_decay = 0.5, .decay_all = all == 1});
        float weight = values_of(f.weight)[0], bias = values_of(f.bias)[0];
        set_gradient(f.weight, 0);
        set_gradient(f.bias, 0);
        assert_ok(ls_optimizer_step(f.optimizer, 0.1, NULL));
        assert_true(fabsf(values_of(f.weight)[0] - weight * 0.95F) < 1e-7F);
        assert_true(fabsf(values_of(f.bias)[0] - bias * (all ? 0.95F : 1)) < 1e-7F);
        free_fixture(&f);
    }
}

static ls_tensor *no_forward(ls_step *step, ls__module *module, ls_tensor *x) {
    (void)step;
    (void)module;
    return x;
}

/* running = 0.9 running + 0.1 batch, the batch's value standing there times its samples, or, where a
 * ddp reduced it, divided already. */
static void statistics_are_folded(void **state) {
    (void)state;
    float storage[4][2] = {{0}};
    ls_device *device = new_device();
    const ls__builder builder = {.device = device};
    ls__module *root, *layer;
    ls_model *model;
    ls_optimizer *optimizer;
    assert_ok(ls__module_create(&root, NULL, "", sizeof *root, no_forward));
    assert_ok(ls__batch_norm_create(&layer, root, "bn", &builder, 2, false));
    assert_ok(ls__model_adopt(&model, device, root));
    assert_ok(ls_optimizer_create(&optimizer, model, &(ls_optimizer_options){0}));
    ls_parameter *mean = find_parameter(model, "bn.running_mean");
    ls_parameter *variance = find_parameter(model, "bn.running_var");
    assert_int_equal(ls_parameter_role(mean), LS_STATISTIC);
    assert_int_equal(ls_model_element_count(model), 4); /* weight and bias only */

    set_gradient(mean, 8 * 2);
    set_gradient(variance, 8 * 3);
    mean->samples = variance->samples = 8;
    assert_ok(ls_optimizer_step(optimizer, 0.1, NULL));
    assert_true(fabsf(values_of(mean)[1] - 0.2F) < 1e-7F);
    assert_true(fabsf(values_of(variance)[1] - 1.2F) < 2e-7F);

    for (size_t i = 0; i < 4; i++) {
        ls_parameter *p = ls_model_parameter(model, i);
        ls__parameter_set_gradient(p, storage[i]);
        p->reduced = true;
    }
    set_gradient(mean, 2);
    assert_ok(ls_optimizer_step(optimizer, 0.1, NULL)); /* the variance, unused, stays */
    assert_true(fabsf(values_of(mean)[1] - 0.38F) < 1e-7F);
    assert_true(fabsf(values_of(variance)[1] - 1.2F) < 2e-7F);

    for (size_t i = 0; i < 4; i++)
        ls_model_parameter(model, i)->reduced = true;
    set_gradient(mean, NAN);
    assert_int_equal(ls_optimizer_step(optimizer, 0.1, NULL), LS_ERR_RANGE);
    assert_message("batch value of bn.running_mean");
    ls_optimizer_destroy(optimizer);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

/* Cosine: nanoGPT's get_lr in Python, learning rate 1e-3, warm-up 100, 2000 steps, floor 1e-4. */
static void schedules_are_as_published(void **state) {
    (void)state;
    static const struct {
        ls_schedule_kind kind;
        uint64_t step;
        double rate;
    } rows[] = {
        {LS_COSINE, 0, 9.900990099009901e-06},
        {LS_COSINE, 1, 1.9801980198019803e-05},
        {LS_COSINE, 99, 0.0009900990099009901},
        {LS_COSINE, 100, 0.001},
        {LS_COSINE, 101, 0.0009999993848585915},
        {LS_COSINE, 575, 0.0008681980515339464},
        {LS_COSINE, 1050, 0.00055},
        {LS_COSINE, 1999, 0.00010000061514140841},
        {LS_COSINE, 2000, 0.0001},
        {LS_COSINE, UINT64_MAX, 0.0001},
        {LS_LINEAR, 0, 9.900990099009901e-06},
        {LS_LINEAR, 100, 0.001},
        {LS_LINEAR, 1050, 0.00055},
        {LS_LINEAR, 575, 0.000775},
        {LS_LINEAR, 2000, 0.0001},
        {LS_LINEAR, 2001, 0.0001},
        {LS_CONSTANT, 0, 9.900990099009901e-06},
        {LS_CONSTANT, 100, 0.001},
        {LS_CONSTANT, 5000, 0.001},
    };
    ls_schedule schedule = {.peak = 1e-3, .floor = 1e-4, .warmup = 100, .steps = 2000};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        schedule.kind = rows[i].kind;
        double rate = ls_schedule_rate(&schedule, rows[i].step);
        if (!(fabs(rate - rows[i].rate) <= 1e-15))
            fail_msg("row %zu: %.17g, want %.17g", i, rate, rows[i].rate);
    }
    /* no warm-up, and nothing after it */
    schedule = (ls_schedule){.kind = LS_COSINE, .peak = 1, .steps = 1};
    assert_true(ls_schedule_rate(&schedule, 0) == 1 && ls_schedule_rate(&schedule, 1) == 0);
    schedule = (ls_schedule){.kind = LS_LINEAR, .peak = 1, .floor = 0.5, .warmup = 5, .steps = 3};
    assert_true(ls_schedule_rate(&schedule, 5) == 0.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unreduced_gradients_are_refused),
        cmocka_unit_test(a_step_without_backward_is_refused),
        cmocka_unit_test(nan_gradients_are_refused),
        cmocka_unit_test(bad_rates_are_refused),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(clipping_scales_by_the_global_norm),
        cmocka_unit_test(unused_weights_stay),
        cmocka_unit_test(decay_is_for_matrices),
        cmocka_unit_test(statistics_are_folded),
        cmocka_unit_test(schedules_are_as_published),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
