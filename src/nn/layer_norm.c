#include "nn/layers.h"

static const float EPSILON = 1e-5F;

typedef struct layer_norm {
    ls__module base;          /* parameters: weight, bias */
    ls_tensor *branch, *bias; /* of the next forward alone */
    ls_tensor *sum;           /* of the last one */
} layer_norm;

/* (..., width) -> the same */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    layer_norm *m = (layer_norm *)module;
    ls_tensor *weight = &module->parameters[0]->value, *bias = &module->parameters[1]->value;
    ls_tensor *branch = m->branch;
    m->branch = m->sum = NULL;
    if (!branch)
        return ls_layer_norm(step, x, weight, bias, EPSILON);
    return ls_residual_layer_norm(step, x, branch, m->bias, weight, bias, EPSILON, &m->sum);
}

void ls__layer_norm_add(ls__module *module, ls_tensor *branch, ls_tensor *bias) {
    ((layer_norm *)module)->branch = branch;
    ((layer_norm *)module)->bias = bias;
}

ls_tensor *ls__layer_norm_sum(const ls__module *module) {
    return ((const layer_norm *)module)->sum;
}

ls_status ls__layer_norm_create(ls__module **module, ls__module *parent, const char *name,
                                const ls__builder *builder, size_t width) {
    ls__init one = {.kind = LS__CONSTANT, .scale = 1}, zero = {.kind = LS__CONSTANT};
    LS_TRY(ls__module_create(module, parent, name, sizeof(layer_norm), forward));
    LS_TRY(ls__module_add(*module, builder, "weight", LS_WEIGHT, &width, 1, one));
    return ls__module_add(*module, builder, "bias", LS_WEIGHT, &width, 1, zero);
}
