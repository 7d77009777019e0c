/* y (B, O, OH, OW): y[b][o][i][j] = bias[o] + sum over c, u, v of
 * x[b][c][i*stride + u - padding][j*stride + v - padding] * weight[o][c][u][v], x being 0 outside. */
#include "autograd/tape.h"

struct conv2d {
    ls__node node;
    ls__conv2d shape;
};

/* What a pass over dy writes; the others are NULL. */
static ls_status contribute(ls_step *step, ls__node *node, bool to_x, bool to_weight,
                            bool to_bias) {
    const ls__conv2d *shape = &((const struct conv2d *)node)->shape;
    ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    void *dweight, *dbias;
    bool add_weight, add_bias;
    ls__gradient dx;
    LS_TRY(ls__tape_gradient(step, to_weight ? weight : NULL, &dweight, &add_weight));
    LS_TRY(ls__tape_gradient(step, to_bias ? bias : NULL, &dbias, &add_bias));
    LS_TRY(ls__tape_gradient_in(step, to_x ? x : NULL, LS__CHANNELS_LAST, &dx));
    const void *from = ls__tensor_data_in(step, x, LS__CHANNELS_LAST);
    const void *y = ls__tensor_data_in(step, node->output, LS__CHANNELS_LAST);
    const void *dy = ls__tensor_data_in(step, node->output->grad, LS__CHANNELS_LAST);
    if (!from || !y || !dy)
        return step->status;
    LS_TRY(step->device->table->conv2d_backward(step->device, x->dtype, shape, from, weight->data,
                                                y, dy, dx.data, dx.accumulate, dweight, add_weight,
                                                dbias, add_bias));
    return ls__tape_gradient_done(step, &dx);
}

/* Where one tensor stands for two, the second adds to what the first wrote: one after the other. */
static ls_status conv2d_backward(ls_step *step, ls__node *node) {
    const ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    if (x != weight && weight != bias && bias != x)
        return contribute(step, node, true, true, true);
    LS_TRY(contribute(step, node, true, false, false));
    LS_TRY(contribute(step, node, false, true, false));
    return contribute(step, node, false, false, true);
}

static ls_status check_shapes(const ls_tensor *x, const ls_tensor *weight, const ls_tensor *bias,
                              ls_conv2d_options options, ls__conv2d *shape) {
    char tx[LS__SHAPE_TEXT], tw[LS__SHAPE_TEXT];
    if (x->dims != 4 || weight->dims != 4)
        return ls__fail(LS_ERR_ARGUMENT,
                        "conv2d: x is %s and weight %s, want (B, C, H, W) and (out, C, kh, kw)",
                        ls__tensor_text(x, tx), ls__tensor_text(weight, tw));
    if (weight->shape[1] != x->shape[1])
        return ls__fail(LS_ERR_ARGUMENT, "conv2d: x %s does not fit weight %s: want %zu channels",
                        ls__tensor_text(x, tx), ls__tensor_text(weight, tw), weight->shape[1]);
    if (bias && (bias->dims != 1 || bias->shape[0] != weight->shape[0]))
        return ls__fail(LS_ERR_ARGUMENT, "conv2d: bias %s does not fit weight %s: want (%zu)",
                        ls__tensor_text(bias, tx), ls__tensor_text(weight, tw), weight->shape[0]);
    if (options.padding > SIZE_MAX / 8)
        return ls__fail(LS_ERR_RANGE, "conv2d: padding %zu is too large", options.padding);
    size_t high = x->shape[2] + 2 * options.padding, wide = x->shape[3] + 2 * options.padding;
    if (weight->shape[2] > high || weight->shape[3] > wide)
        return ls__fail(LS_ERR_ARGUMENT,
                        "conv2d: the kernel of weight %s is larger than x %s with padding %zu",
                        ls__tensor_text(weight, tw), ls__tensor_text(x, tx), options.padding);
    *shape = (ls__conv2d){
        .batch = x->shape[0],
        .in_channels = x->shape[1],
        .in_h = x->shape[2],
        .in_w = x->shape[3],
        .out_channels = weight->shape[0],
        .kernel_h = weight->shape[2],
        .kernel_w = weight->shape[3],
        .out_h = (high - weight->shape[2]) / options.stride + 1,
        .out_w = (wide - weight->shape[3]) / options.stride + 1,
        .stride = options.stride,
        .padding = options.padding,
        .relu = options.relu,
    };
    return LS_OK;
}

ls_tensor *ls_conv2d(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                     ls_conv2d_options options) {
    if (!ls__tensor_check_any(step, x, LS_F32, "conv2d") ||
        !ls__tensor_check(step, weight, LS_F32, "conv2d") ||
        (bias && !ls__tensor_check(step, bias, LS_F32, "conv2d")))
        return NULL;
    if (options.stride == 0)
        options.stride = 1;
    ls__conv2d shape;
    ls_status status = check_shapes(x, weight, bias, options, &shape);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    ls_tensor *y = ls_tensor_new(
        step, x->dtype, (size_t[]){shape.batch, shape.out_channels, shape.out_h, shape.out_w}, 4);
    const void *from = y ? ls__tensor_data_in(step, x, LS__CHANNELS_LAST) : NULL;
    if (!from)
        return NULL;
    y->layout = LS__CHANNELS_LAST;
    status = step->device->table->conv2d_forward(step->device, x->dtype, &shape, from, weight->data,
                                                 bias ? bias->data : NULL, y->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    ls_tensor *inputs[] = {x, weight, bias};
    if (!ls__tape_wants(step, inputs, 3))
        return y;
    struct conv2d *node =
        ls__tape_record(step, "conv2d", conv2d_backward, y, inputs, 3, sizeof(struct conv2d));
    if (!node)
        return NULL;
    node->shape = shape;
    return y;
}
