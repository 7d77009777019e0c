/* Batch normalisation with running statistics. In training the statistics of a batch are written,
 * times its samples, where a weight has its gradient, and travel as gradients do;
 * ls_optimizer_step folds their average into the running ones. With a sync in the builder the batch is that
 * of all ranks. */
#include "nn/layers.h"

typedef struct batch_norm {
    ls__module base;
    bool relu;
    const ls__sync *sync; /* or NULL */
    ls_tensor *residual;  /* of the next forward */
} batch_norm;

static const float EPSILON = 1e-5F;

enum { WEIGHT, BIAS, MEAN, VARIANCE };

/* (B, channels, H, W) or (B, channels) -> the same */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    ls_parameter *mean = module->parameters[MEAN], *variance = module->parameters[VARIANCE];
    ls_batch_norm_state state = {
        .running_mean = mean->value.data,
        .running_var = variance->value.data,
    };
    batch_norm *m = (batch_norm *)module;
    if (m->sync && m->sync->over.sum)
        state.sync = &m->sync->over;
    if (x && step->training) {
        size_t samples = x->shape[0];
        ls_status status = ls__tape_statistic(step, mean, samples, &state.batch_mean, &state.add);
        if (status == LS_OK)
            status = ls__tape_statistic(step, variance, samples, &state.batch_var, &state.add);
        if (status != LS_OK)
            return ls__step_fail(step, status);
    }
    ls_tensor *weight = &module->parameters[WEIGHT]->value, *residual = m->residual;
    ls_tensor *bias = &module->parameters[BIAS]->value;
    m->residual = NULL;
    if (m->relu)
        return ls_batch_norm_relu(step, x, residual, weight, bias, state, EPSILON);
    return ls_batch_norm(step, x, weight, bias, state, EPSILON);
}

void ls__batch_norm_add(ls__module *module, ls_tensor *residual) {
    ((batch_norm *)module)->residual = residual;
}

ls_status ls__batch_norm_create(ls__module **module, ls__module *parent, const char *name,
                                const ls__builder *builder, size_t channels, bool relu) {
    ls__init one = {.kind = LS__CONSTANT, .scale = 1}, zero = {.kind = LS__CONSTANT};
    LS_TRY(ls__module_create(module, parent, name, sizeof(batch_norm), forward));
    batch_norm *m = (batch_norm *)*module;
    m->relu = relu;
    m->sync = builder->sync;
    if (builder->sync) {
        builder->sync->layers++;
        if (builder->sync->most < 1 + 2 * channels) /* as ls_batch_norm_sync says */
            builder->sync->most = 1 + 2 * channels;
    }
    LS_TRY(ls__module_add(*module, builder, "weight", LS_WEIGHT, &channels, 1, one));
    LS_TRY(ls__module_add(*module, builder, "bias", LS_WEIGHT, &channels, 1, zero));
    LS_TRY(ls__module_add(*module, builder, "running_mean", LS_STATISTIC, &channels, 1, zero));
    return ls__module_add(*module, builder, "running_var", LS_STATISTIC, &channels, 1, one);
}
