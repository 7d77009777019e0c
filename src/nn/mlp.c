/* Multi-layer perceptron: fc1, relu, fc2, relu, ..., fcN. PyTorch's names and default start. */
#include "nn/models.h"

#include <stdio.h>

/* (B, ...) -> (B, out) */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    size_t batch = x->shape[0];
    x = ls_reshape(step, x, (size_t[]){batch, x->count / batch}, 2);
    for (size_t i = 0; i < module->child_count; i++) {
        if (i > 0)
            x = ls_relu(step, x);
        x = ls__module_forward(step, module->children[i], x);
    }
    return x;
}

ls_status ls__mlp_create(ls__module **root, const ls__builder *builder, const ls__spec *spec) {
    LS_TRY(ls__module_create(root, NULL, "", sizeof(ls__module), forward));
    for (size_t i = 1; i < spec->width_count; i++) {
        char name[32];
        ls__module *layer;
        ls__linear_options options = {
            .in = spec->widths[i - 1],
            .out = spec->widths[i],
            .weight = ls__init_fan_in(spec->widths[i - 1]),
            .bias = ls__init_fan_in(spec->widths[i - 1]),
        };
        snprintf(name, sizeof name, "fc%zu", i);
        LS_TRY(ls__linear_create(&layer, *root, name, builder, &options));
    }
    return LS_OK;
}
