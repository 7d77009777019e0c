/* The network of PyTorch's MNIST example, with its names and default start:
 * conv1, relu, conv2, relu, max pool 2, dropout 0.25, flatten, fc1, relu, dropout 0.5, fc2. With norm= a
 * batch norm stands behind each convolution, which then has no bias. */
#include "nn/models.h"

typedef struct cnn {
    ls__module base;
    ls__module *conv1, *conv2, *dropout1, *fc1, *dropout2, *fc2;
    ls__module *bn1, *bn2; /* or NULL */
} cnn;

enum { CHANNELS_1 = 32, CHANNELS_2 = 64, KERNEL = 3, POOL = 2, HIDDEN = 128 };
enum { POOLED = (LS__CNN_SIDE - 2 * (KERNEL - 1)) / POOL, FLAT = CHANNELS_2 * POOLED * POOLED };

/* (B, ...), 784 elements a sample -> (B, 10) */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    cnn *m = (cnn *)module;
    size_t batch = x->shape[0];
    x = ls_reshape(step, x, (size_t[]){batch, 1, LS__CNN_SIDE, LS__CNN_SIDE}, 4);
    x = ls__module_forward(step, m->conv1, x); /* (B, 32, 26, 26) */
    if (m->bn1)
        x = ls__module_forward(step, m->bn1, x);
    x = ls__module_forward(step, m->conv2, x); /* (B, 64, 24, 24) */
    if (m->bn2)
        x = ls__module_forward(step, m->bn2, x);
    x = ls_max_pool2d(step, x, (ls_pool2d_options){.kernel = POOL}); /* (B, 64, 12, 12) */
    x = ls_relu(step, x); /* of the largest: the same as the largest after relu, in a quarter */
    x = ls__module_forward(step, m->dropout1, x);
    x = ls_reshape(step, x, (size_t[]){batch, FLAT}, 2);    /* (B, 9216) */
    x = ls_relu(step, ls__module_forward(step, m->fc1, x)); /* (B, 128) */
    x = ls__module_forward(step, m->dropout2, x);
    return ls__module_forward(step, m->fc2, x);
}

static ls_status create_linear(ls__module **layer, ls__module *root, const char *name,
                               const ls__builder *builder, size_t in, size_t out) {
    ls__linear_options options = {
        .in = in,
        .out = out,
        .weight = ls__init_fan_in(in),
        .bias = ls__init_fan_in(in),
    };
    return ls__linear_create(layer, root, name, builder, &options);
}

ls_status ls__cnn_create(ls__module **root, const ls__builder *builder, const ls__spec *spec) {
    bool norm = spec->norm != LS__NORM_NONE;
    const ls__conv2d_layer_options conv1 = {
        .in = 1, .out = CHANNELS_1, .kernel = KERNEL, .geometry.relu = !norm, .no_bias = norm};
    const ls__conv2d_layer_options conv2 = {
        .in = CHANNELS_1, .out = CHANNELS_2, .kernel = KERNEL, .no_bias = norm};
    double p1 = spec->dropout_given ? spec->dropout : 0.25;
    double p2 = spec->dropout_given ? spec->dropout : 0.5;
    LS_TRY(ls__module_create(root, NULL, "", sizeof(cnn), forward));
    cnn *m = (cnn *)*root;
    LS_TRY(ls__conv2d_create(&m->conv1, *root, "conv1", builder, &conv1));
    if (norm)
        LS_TRY(ls__batch_norm_create(&m->bn1, *root, "bn1", builder, CHANNELS_1, true));
    LS_TRY(ls__conv2d_create(&m->conv2, *root, "conv2", builder, &conv2));
    if (norm)
        LS_TRY(ls__batch_norm_create(&m->bn2, *root, "bn2", builder, CHANNELS_2, false));
    LS_TRY(ls__dropout_create(&m->dropout1, *root, "dropout1", p1));
    LS_TRY(create_linear(&m->fc1, *root, "fc1", builder, FLAT, HIDDEN));
    LS_TRY(ls__dropout_create(&m->dropout2, *root, "dropout2", p2));
    return create_linear(&m->fc2, *root, "fc2", builder, HIDDEN, LS__CNN_CLASSES);
}
