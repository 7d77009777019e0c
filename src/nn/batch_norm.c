/* Batch normalisation with running statistics. In training the statistics of a batch are written,
 * times its samples, where a weight has its gradient, and travel as gradients do;
 * ls_optimizer_step folds their average into the running ones. */
#include "nn/layers.h"

static const float EPSILON = 1e-5F;

enum { WEIGHT, BIAS, MEAN, VARIANCE };

/* (B, channels, H, W) or (B, channels) -> the same */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    ls_parameter *mean = module->parameters[MEAN], *variance = module->parameters[VARIANCE];
    ls_batch_norm_state state = {
        .running_mean = mean->value.data,
        .running_var = variance->value.data,
    };
    if (x && step->training) {
        ls_status status = ls__tape_statistic(step, mean, &state.batch_mean);
        if (status == LS_OK)
            status = ls__tape_statistic(step, variance, &state.batch_var);
        if (status != LS_OK)
            return ls__step_fail(step, status);
        mean->samples = variance->samples = x->shape[0];
    }
    return ls_batch_norm(step, x, &module->parameters[WEIGHT]->value,
                         &module->parameters[BIAS]->value, state, EPSILON);
}

ls_status ls__batch_norm_create(ls__module **module, ls__module *parent, const char *name,
                                const ls__builder *builder, size_t channels) {
    ls__init one = {.kind = LS__CONSTANT, .scale = 1}, zero = {.kind = LS__CONSTANT};
    LS_TRY(ls__module_create(module, parent, name, sizeof(ls__module), forward));
    LS_TRY(ls__module_add(*module, builder, "weight", LS_WEIGHT, &channels, 1, one));
    LS_TRY(ls__module_add(*module, builder, "bias", LS_WEIGHT, &channels, 1, zero));
    LS_TRY(ls__module_add(*module, builder, "running_mean", LS_STATISTIC, &channels, 1, zero));
    return ls__module_add(*module, builder, "running_var", LS_STATISTIC, &channels, 1, one);
}
