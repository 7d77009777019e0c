#include "nn/layers.h"

#include <math.h>

typedef struct linear {
    ls__module base; /* parameters: weight, bias */
    bool in_out, bias_later;
} linear;

/* (..., in) -> (..., out) */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    const linear *m = (const linear *)module;
    ls_tensor *weight = &module->parameters[0]->value;
    ls_tensor *bias = m->bias_later ? NULL : &module->parameters[1]->value;
    return m->in_out ? ls_linear_io(step, x, weight, bias) : ls_linear(step, x, weight, bias);
}

ls__init ls__init_fan_in(size_t fan_in) {
    return (ls__init){.kind = LS__UNIFORM, .scale = 1 / sqrt((double)fan_in)};
}

ls_status ls__linear_create(ls__module **module, ls__module *parent, const char *name,
                            const ls__builder *builder, const ls__linear_options *options) {
    size_t shape[2] = {options->out, options->in};
    if (options->in_out) {
        shape[0] = options->in;
        shape[1] = options->out;
    }
    LS_TRY(ls__module_create(module, parent, name, sizeof(linear), forward));
    ((linear *)*module)->in_out = options->in_out;
    ((linear *)*module)->bias_later = options->bias_later;
    LS_TRY(ls__module_add(*module, builder, "weight", LS_WEIGHT, shape, 2, options->weight));
    return ls__module_add(*module, builder, "bias", LS_WEIGHT, &options->out, 1, options->bias);
}
