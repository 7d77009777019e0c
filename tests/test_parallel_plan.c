/* The memory plan against the real thing: a step on the device that computes nothing takes the same memory as
 * one on the cpu, to the byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/dry.h"
#include "nn/model.h"
#include "parallel/plan.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include <lockstep/lockstep.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *spec;
    size_t dims, shape[3]; /* of a sample */
    bool tokens, recompute;
} cases[] = {
    {"mlp:20,33,4", 1, {20}, false, false},
    {"cnn", 3, {1, 28, 28}, false, false},
    {"resnet18:channels=1,width=4", 3, {1, 28, 28}, false, false},
    {"gpt:layers=2,heads=2,width=32,context=16,vocab=50,dropout=0.1", 1, {16}, true, false},
    {"gpt:layers=2,heads=2,width=32,context=16,vocab=50", 1, {16}, true, true},
};

enum { SAMPLES = 5 };

/* One real training step; returns what its arenas took. */
static size_t real_activations(ls_device *device, ls_model *model, size_t i, ls_dtype compute) {
    const ls_step_options options = {.device = device};
    const ls_step_mode mode = {.training = true,
                               .recompute = cases[i].recompute,
                               .compute = compute,
                               .sample_count = SAMPLES};
    size_t shape[4] = {SAMPLES}, elements = SAMPLES;
    memcpy(shape + 1, cases[i].shape, sizeof cases[i].shape);
    for (size_t d = 0; d < cases[i].dims; d++)
        elements *= cases[i].shape[d];
    void *input = calloc(elements, sizeof(float)), *target = calloc(elements, sizeof(int32_t));
    ls_step *step;
    assert_int_equal(ls_step_create(&step, &options), LS_OK);
    assert_int_equal(ls_step_begin(step, &mode), LS_OK);
    ls_tensor *x =
        ls_tensor_wrap(step, input, cases[i].tokens ? LS_I32 : LS_F32, shape, 1 + cases[i].dims);
    ls_tensor *y = ls_tensor_wrap(step, target, LS_I32, shape, cases[i].tokens ? 2 : 1);
    ls_tensor *loss = ls_model_loss(step, model, x, y, NULL);
    assert_int_equal(ls_backward(step, loss, NULL, NULL), LS_OK);
    size_t bytes = ls__arena_touched(step->arena) + ls__arena_touched(step->records);
    ls_step_destroy(step);
    free(input);
    free(target);
    return bytes;
}

static ls__plan_request request_of(ls_device *device, size_t i) {
    ls__plan_request request = {.spec = cases[i].spec,
                                .device = device,
                                .compute = LS_F32,
                                .recompute = cases[i].recompute,
                                .optimizer = {.kind = LS_ADAMW},
                                .compress = "none",
                                .ranks = 1,
                                .shards = 1,
                                .batch = SAMPLES,
                                .sample_dims = cases[i].dims,
                                .tokens = cases[i].tokens};
    memcpy(request.sample_shape, cases[i].shape, sizeof request.sample_shape);
    return request;
}

static void test_steps(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_device *device;
        ls_model *model;
        assert_int_equal(ls_device_cpu(&device, 1), LS_OK);
        const ls_model_options options = {.device = device};
        assert_int_equal(ls_model_create(&model, cases[i].spec, &options), LS_OK);
        const ls__plan_request request = request_of(device, i);
        ls__memory_plan plan;
        assert_int_equal(ls__plan_memory(&plan, &request), LS_OK);
        assert_int_equal(plan.activations, real_activations(device, model, i, LS_F32));
        size_t all = 0, weights = 0;
        for (size_t p = 0; p < model->parameter_count; p++) {
            all += model->parameters[p]->value.count * sizeof(float);
            if (model->parameters[p]->role == LS_WEIGHT)
                weights += model->parameters[p]->value.count * sizeof(float);
        }
        assert_int_equal(plan.parameters, all);
        assert_int_equal(plan.optimizer, 2 * weights);
        assert_in_range(plan.gradients, all, all + 64 * model->parameter_count);
        assert_int_equal(plan.communication, 0);
        ls_model_destroy(model);
        ls_device_destroy(device);
    }
}

/* Several shards a rank: a sum more for each power of two, and activations of one shard alone. Another rank:
 * nothing of that, but a place to meet. */
static void test_shards(void **state) {
    (void)state;
    ls_device *device;
    assert_int_equal(ls_device_cpu(&device, 1), LS_OK);
    ls__plan_request request = request_of(device, 0);
    ls__memory_plan one, four, ranks;
    request.batch = 64;
    assert_int_equal(ls__plan_memory(&one, &request), LS_OK);
    request.shards = 4;
    assert_int_equal(ls__plan_memory(&four, &request), LS_OK);
    assert_int_equal(four.gradients, 3 * one.gradients);
    assert_true(four.activations < one.activations / 2);
    request.ranks = 4;
    assert_int_equal(ls__plan_memory(&ranks, &request), LS_OK);
    assert_int_equal(ranks.gradients, one.gradients);
    assert_int_equal(ranks.activations, four.activations);
    assert_true(ranks.communication > 0);
    request.optimizer = (ls_optimizer_options){.kind = LS_SGD};
    assert_int_equal(ls__plan_memory(&ranks, &request), LS_OK);
    assert_int_equal(ranks.optimizer, 0);
    ls_device_destroy(device);
}

/* What a hook says that it will save is what it hands out to be saved. */
static void test_compression(void **state) {
    (void)state;
    static const char *const hooks[] = {"none", "bf16", "powersgd:rank=2", "topk:ratio=0.1"};
    ls_job *job;
    assert_int_equal(ls_job_init(&job, NULL), LS_OK);
    for (size_t h = 0; h < sizeof hooks / sizeof *hooks; h++) {
        ls_device *device;
        ls_model *model;
        ls_ddp *ddp;
        ls_reducer_hook *hook;
        assert_int_equal(ls_device_cpu(&device, 1), LS_OK);
        const ls_model_options options = {.device = device};
        assert_int_equal(ls_model_create(&model, cases[1].spec, &options), LS_OK);
        assert_int_equal(ls_hook_create(&hook, hooks[h]), LS_OK);
        const ls_ddp_options with = {.reducer.hook = hook};
        assert_int_equal(ls_ddp_create(&ddp, model, ls_job_world(job), &with), LS_OK);
        ls__plan_request request = request_of(device, 1);
        request.compress = hooks[h];
        ls__memory_plan plan;
        assert_int_equal(ls__plan_memory(&plan, &request), LS_OK);
        size_t saved = 0;
        for (size_t i = 0; i < ls_ddp_hook_states(ddp); i++) {
            ls_hook_state s;
            assert_int_equal(ls_ddp_hook_state(ddp, i, &s), LS_OK);
            saved += ls_dtype_size(s.dtype) * s.shape[0] * (s.dims > 1 ? s.shape[1] : 1);
        }
        assert_int_equal(plan.compression_saved, saved);
        assert_true((plan.compression > saved) == (h > 0));
        ls_ddp_destroy(ddp);
        ls_model_destroy(model);
        ls_device_destroy(device);
    }
    ls_job_finish(job);
}

/* A model of 2 TB is planned as well; nothing of it is taken. */
static void test_huge(void **state) {
    (void)state;
    ls_device *device;
    assert_int_equal(ls_device_cpu(&device, 1), LS_OK);
    ls__plan_request request = request_of(device, 4);
    request.spec = "gpt:layers=64,heads=64,width=16384,context=16,vocab=50000";
    ls__memory_plan plan;
    assert_int_equal(ls__plan_memory(&plan, &request), LS_OK);
    assert_true(plan.parameters > (size_t)700 << 30);
    assert_true(plan.optimizer > (size_t)1400 << 30);
    request.spec = "gpt:layers=0";
    assert_int_equal(ls__plan_memory(&plan, &request), LS_ERR_ARGUMENT);
    ls_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_compression),
        cmocka_unit_test(test_huge),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
