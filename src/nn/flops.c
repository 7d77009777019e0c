#include "nn/flops.h"

#include "nn/model.h"

/* Multiply-adds of the forward pass of one sample. */
typedef struct work {
    double first, rest; /* of the layer that sees the input; of all others */
} work;

/* kernel x kernel, `side` x `side` outputs */
static double conv(size_t in, size_t out, size_t kernel, size_t side) {
    return (double)in * (double)out * (double)(kernel * kernel) * (double)(side * side);
}

static work mlp_work(const ls__spec *spec) {
    work w = {.first = (double)spec->widths[0] * (double)spec->widths[1]};
    for (size_t i = 2; i < spec->width_count; i++)
        w.rest += (double)spec->widths[i - 1] * (double)spec->widths[i];
    return w;
}

/* cnn.c: two convolutions without padding, then 9216 -> 128 -> 10 */
static work cnn_work(void) {
    work w = {.first = conv(1, 32, 3, 26)};
    w.rest = conv(32, 64, 3, 24) + 64.0 * 12 * 12 * 128 + 128.0 * LS__CNN_CLASSES;
    return w;
}

/* resnet.c: the first layer, and four stages of two blocks */
static work resnet_work(const ls__spec *spec) {
    size_t in = spec->width, side = LS__RESNET_SIDE;
    work w = {.first = conv(spec->channels, in, 3, side)};
    for (size_t stage = 0; stage < LS__RESNET_BLOCKS / 2; stage++) {
        size_t out = spec->width << stage;
        if (stage > 0) {
            side /= 2;
            w.rest += conv(in, out, 1, side);
        }
        w.rest += conv(in, out, 3, side) + 3 * conv(out, out, 3, side);
        in = out;
    }
    w.rest += (double)in * (double)spec->classes;
    return w;
}

double ls__model_step_flops(const ls_model *model, size_t batch) {
    const ls__spec *spec = &model->spec;
    work w = {0};
    switch (spec->kind) {
    case LS__GPT: {
        double tokens = (double)batch * (double)spec->context;
        double scores = (double)spec->layers * (double)spec->width * (double)spec->context;
        return (6 * (double)model->element_count + 12 * scores) * tokens;
    }
    case LS__MLP:
        w = mlp_work(spec);
        break;
    case LS__CNN:
        w = cnn_work();
        break;
    case LS__RESNET:
        w = resnet_work(spec);
        break;
    }
    return (double)batch * (4 * w.first + 6 * w.rest);
}
