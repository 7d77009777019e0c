#include "parallel/plan.h"

#include "base/error.h"
#include "comm/shm/layout.h"
#include "device/dry.h"
#include "nn/model.h"
#include "parallel/ddp.h"
#include "reducer/align.h"
#include "tensor/arena.h"
#include "tensor/tensor.h"
#include <stdlib.h>
#include <string.h>

static size_t divide_up(size_t a, size_t b) {
    return (a + b - 1) / b;
}

/* One forward of `samples`, and in training its backward. The samples' memory is never looked at. */
static ls_status dry_step(const ls__plan_request *r, ls_model *model, ls_step *step, size_t samples,
                          bool training) {
    const ls_step_mode mode = {.training = training,
                               .recompute = r->recompute,
                               .compute = r->compute,
                               .sample_count = samples};
    size_t shape[4] = {samples};
    void *nothing = NULL;
    memcpy(shape + 1, r->sample_shape, sizeof r->sample_shape);
    LS_TRY(model->device->table->alloc(model->device, sizeof(float), &nothing));
    ls_status status;
    LS_TRY_OUT(ls_step_begin(step, &mode));
    ls_tensor *x =
        ls_tensor_wrap(step, nothing, r->tokens ? LS_I32 : LS_F32, shape, 1 + r->sample_dims);
    ls_tensor *y = ls_tensor_wrap(step, nothing, LS_I32, shape, r->tokens ? 2 : 1);
    size_t correct;
    ls_tensor *loss = ls_model_loss(step, model, x, y, training ? NULL : &correct);
    LS_TRY_OUT(ls_step_status(step));
    status = training ? ls_backward(step, loss, NULL, NULL) : LS_OK;
out:
    model->device->table->free(model->device, nothing);
    return status;
}

/* What a step holds; what lies outside of its arena stays from step to step: packed factors. */
static ls_status plan_activations(ls__memory_plan *plan, const ls__plan_request *r,
                                  ls_model *model) {
    ls_device *device = model->device;
    size_t before = ls__device_dry_bytes(device);
    const ls_step_options options = {.device = device};
    ls_step *step = NULL;
    ls_status status;
    LS_TRY_OUT(ls_step_create(&step, &options));
    LS_TRY_OUT(dry_step(r, model, step, divide_up(r->batch, r->shards), true));
    if (r->evaluation)
        LS_TRY_OUT(dry_step(r, model, step, r->evaluation, false));
    plan->activations = ls__arena_touched(step->arena) + ls__arena_touched(step->records);
out:
    ls_step_destroy(step);
    plan->activations += ls__device_dry_bytes(device) - before;
    return status;
}

/* As reducer/layout.h places them, each with its used mark. */
static void plan_gradients(ls__memory_plan *plan, const ls__plan_request *r,
                           const ls_model *model) {
    size_t bytes = 0, slots = ls__ddp_slots_needed(divide_up(r->shards, r->ranks));
    for (size_t i = 0; i < model->parameter_count; i++)
        if (model->parameters[i]->role != LS_FROZEN)
            bytes += divide_up((model->parameters[i]->value.count + 1) * sizeof(float),
                               LS__GRADIENT_ALIGN) *
                     LS__GRADIENT_ALIGN;
    plan->gradients = bytes * slots;
}

static ls_status plan_hook(ls__memory_plan *plan, const ls__plan_request *r,
                           const ls_model *model) {
    ls_reducer_hook *hook;
    LS_TRY(ls_hook_create(&hook, r->compress));
    if (!hook)
        return LS_OK;
    ls_status status = LS_OK;
    ls_reducer_param *params = calloc(model->parameter_count, sizeof *params);
    for (size_t i = 0; params && i < model->parameter_count; i++)
        params[i] = ls__ddp_describe(model->parameters[i]);
    if (params)
        plan->compression = hook->memory(hook->context, r->ranks, params, model->parameter_count,
                                         &plan->compression_saved);
    else
        status = ls__fail(LS_ERR_MEMORY, "no memory for %zu parameters", model->parameter_count);
    free(params);
    ls_hook_destroy(hook);
    return status;
}

static ls_status plan_model(ls__memory_plan *plan, const ls__plan_request *r, ls_model *model) {
    for (size_t i = 0; i < model->parameter_count; i++)
        plan->parameters += model->parameters[i]->value.count * sizeof(float);
    plan_gradients(plan, r, model);
    LS_TRY(plan_hook(plan, r, model));
    size_t before = ls__device_dry_bytes(model->device);
    ls_optimizer *optimizer;
    LS_TRY(ls_optimizer_create(&optimizer, model, &r->optimizer));
    plan->optimizer = ls__device_dry_bytes(model->device) - before;
    ls_optimizer_destroy(optimizer);
    plan->communication = r->ranks > 1 ? 2 * (size_t)LS__SHM_HALF_BYTES : 0;
    return plan_activations(plan, r, model);
}

ls_status ls__plan_memory(ls__memory_plan *plan, const ls__plan_request *r) {
    ls_device *dry;
    ls_model *model = NULL;
    *plan = (ls__memory_plan){0};
    LS_TRY(ls__device_dry(&dry, r->device));
    const ls_model_options options = {.device = dry, .default_vocab = r->default_vocab};
    ls_status status = ls_model_create(&model, r->spec, &options);
    if (status == LS_OK)
        status = plan_model(plan, r, model);
    ls_model_destroy(model);
    ls_device_destroy(dry);
    return status == LS_OK ? LS_OK : ls__fail_context(status, "memory plan");
}
