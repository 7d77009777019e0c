#include "nn/layers.h"

static const float EPSILON = 1e-5F;

/* (..., width) -> the same */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    return ls_layer_norm(step, x, &module->parameters[0]->value, &module->parameters[1]->value,
                         EPSILON);
}

ls_status ls__layer_norm_create(ls__module **module, ls__module *parent, const char *name,
                                const ls__builder *builder, size_t width) {
    ls__init one = {.kind = LS__CONSTANT, .scale = 1}, zero = {.kind = LS__CONSTANT};
    LS_TRY(ls__module_create(module, parent, name, sizeof(ls__module), forward));
    LS_TRY(ls__module_add(*module, builder, "weight", LS_WEIGHT, &width, 1, one));
    return ls__module_add(*module, builder, "bias", LS_WEIGHT, &width, 1, zero);
}
