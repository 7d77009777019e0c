/* ResNet-18 (He et al. 2015) in its form for small images: a 3 x 3 convolution instead of 7 x 7 and max
 * pooling at the front; torchvision's names and start. With width w = 64 and side 32:
 *
 *     conv1, bn1, relu               (B, w, 32, 32)
 *     layer1.0, layer1.1             (B, w, 32, 32)
 *     layer2.0, layer2.1             (B, 2w, 16, 16)
 *     layer3.0, layer3.1             (B, 4w, 8, 8)
 *     layer4.0, layer4.1             (B, 8w, 4, 4)
 *     mean over the image, fc        (B, classes)
 *
 * Smaller images are as if centred on a black one of 32 x 32: conv1 pads by that much more. */
#include "nn/models.h"

#include <math.h>
#include <stdio.h>

/* y = relu(bn2(conv2(relu(bn1(conv1(x))))) + x), with x through a convolution and batch norm of its own
 * where the shape changes */
typedef struct block {
    ls__module base;
    ls__module *conv1, *bn1, *conv2, *bn2;
    ls__module *shortcut, *shortcut_bn; /* or NULL */
} block;

typedef struct resnet {
    ls__module base;
    ls__module *conv1, *bn1, *blocks[LS__RESNET_BLOCKS], *fc;
    size_t channels, side;
} resnet;

static ls_tensor *block_forward(ls_step *step, ls__module *module, ls_tensor *x) {
    block *m = (block *)module;
    ls_tensor *y = ls__module_forward(step, m->conv1, x);
    y = ls__module_forward(step, m->bn1, y);
    y = ls__module_forward(step, m->conv2, y);
    if (m->shortcut)
        x = ls__module_forward(step, m->shortcut_bn, ls__module_forward(step, m->shortcut, x));
    ls__batch_norm_add(m->bn2, x);
    return ls__module_forward(step, m->bn2, y);
}

/* (B, ...), channels * side * side elements a sample -> (B, classes) */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    resnet *m = (resnet *)module;
    size_t batch = x->shape[0];
    x = ls_reshape(step, x, (size_t[]){batch, m->channels, m->side, m->side}, 4);
    x = ls__module_forward(step, m->bn1, ls__module_forward(step, m->conv1, x));
    for (size_t i = 0; i < LS__RESNET_BLOCKS; i++)
        x = ls__module_forward(step, m->blocks[i], x);
    if (!x)
        return NULL;
    x = ls_avg_pool2d(step, x, (ls_pool2d_options){.kernel = x->shape[2]});
    return ls__module_forward(step, m->fc,
                              ls_reshape(step, x, (size_t[]){batch, x ? x->shape[1] : 1}, 2));
}

typedef struct conv_bn {
    const char *conv, *bn;
    size_t in, out, kernel, stride, padding;
    bool relu; /* behind batch norm */
} conv_bn;

/* The convolution starts as N(0, 2 / (out * kernel^2)). */
static ls_status create_conv_bn(ls__module **conv, ls__module **bn, ls__module *parent,
                                const ls__builder *builder, const conv_bn *o) {
    const ls__conv2d_layer_options options = {
        .in = o->in,
        .out = o->out,
        .kernel = o->kernel,
        .geometry = {.stride = o->stride, .padding = o->padding},
        .no_bias = true,
        .init = {.kind = LS__NORMAL, .scale = sqrt(2.0 / (double)(o->out * o->kernel * o->kernel))},
    };
    LS_TRY(ls__conv2d_create(conv, parent, o->conv, builder, &options));
    return ls__batch_norm_create(bn, parent, o->bn, builder, o->out, o->relu);
}

static ls_status create_block(ls__module **module, ls__module *root, const char *name,
                              const ls__builder *builder, size_t in, size_t out, size_t stride) {
    LS_TRY(ls__module_create(module, root, name, sizeof(block), block_forward));
    block *m = (block *)*module;
    const conv_bn first = {"conv1", "bn1", in, out, 3, stride, 1, true};
    const conv_bn second = {"conv2", "bn2", out, out, 3, 1, 1, true};
    LS_TRY(create_conv_bn(&m->conv1, &m->bn1, *module, builder, &first));
    LS_TRY(create_conv_bn(&m->conv2, &m->bn2, *module, builder, &second));
    if (stride == 1 && in == out)
        return LS_OK;
    const conv_bn shortcut = {"downsample.0", "downsample.1", in, out, 1, stride, 0, false};
    return create_conv_bn(&m->shortcut, &m->shortcut_bn, *module, builder, &shortcut);
}

ls_status ls__resnet_create(ls__module **root, const ls__builder *builder, const ls__spec *spec) {
    LS_TRY(ls__module_create(root, NULL, "", sizeof(resnet), forward));
    resnet *m = (resnet *)*root;
    m->channels = spec->channels;
    m->side = spec->side;
    const conv_bn stem = {
        "conv1", "bn1", spec->channels, spec->width, 3, 1, 1 + (LS__RESNET_SIDE - spec->side) / 2,
        true};
    LS_TRY(create_conv_bn(&m->conv1, &m->bn1, *root, builder, &stem));
    size_t in = spec->width;
    for (size_t i = 0; i < LS__RESNET_BLOCKS; i++) {
        char name[32];
        size_t layer = i / 2, out = spec->width << layer;
        snprintf(name, sizeof name, "layer%zu.%zu", layer + 1, i % 2);
        LS_TRY(create_block(&m->blocks[i], *root, name, builder, in, out,
                            layer > 0 && i % 2 == 0 ? 2 : 1));
        in = out;
    }
    ls__linear_options fc = {
        .in = in, .out = spec->classes, .weight = ls__init_fan_in(in), .bias = ls__init_fan_in(in)};
    return ls__linear_create(&m->fc, *root, "fc", builder, &fc);
}
