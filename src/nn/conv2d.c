#include "nn/layers.h"

typedef struct conv2d {
    ls__module base; /* parameters: weight, bias if any */
    ls_conv2d_options geometry;
} conv2d;

/* (B, in, H, W) -> (B, out, H', W') */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    ls_tensor *bias = module->parameter_count > 1 ? &module->parameters[1]->value : NULL;
    return ls_conv2d(step, x, &module->parameters[0]->value, bias, ((conv2d *)module)->geometry);
}

ls_status ls__conv2d_create(ls__module **module, ls__module *parent, const char *name,
                            const ls__builder *builder, const ls__conv2d_layer_options *options) {
    size_t shape[4] = {options->out, options->in, options->kernel, options->kernel};
    ls__init init = options->init.scale != 0
                        ? options->init
                        : ls__init_fan_in(options->in * options->kernel * options->kernel);
    LS_TRY(ls__module_create(module, parent, name, sizeof(conv2d), forward));
    ((conv2d *)*module)->geometry = options->geometry;
    LS_TRY(ls__module_add(*module, builder, "weight", LS_WEIGHT, shape, 4, init));
    if (options->no_bias)
        return LS_OK;
    return ls__module_add(*module, builder, "bias", LS_WEIGHT, &options->out, 1, init);
}
