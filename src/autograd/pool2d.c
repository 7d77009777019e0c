/* y (B, C, OH, OW): the largest, or the mean, of each kernel x kernel window of x (B, C, H, W). */
#include "autograd/tape.h"

struct pool2d {
    ls__node node;
    ls__pool2d shape;
    int32_t *where; /* max: (B, OH, OW, C), offset of the chosen element in its plane */
};

static ls_status pool2d_backward(ls_step *step, ls__node *node) {
    const struct pool2d *p = (const struct pool2d *)node;
    ls__gradient dx;
    LS_TRY(ls__tape_gradient_in(step, node->inputs[0], LS__CHANNELS_LAST, &dx));
    if (!dx.data)
        return LS_OK;
    const void *dy = ls__tensor_data_in(step, node->output->grad, LS__CHANNELS_LAST);
    if (!dy)
        return step->status;
    LS_TRY(step->device->table->pool2d_backward(step->device, node->output->dtype, &p->shape, dy,
                                                p->where, dx.data, dx.accumulate));
    return ls__tape_gradient_done(step, &dx);
}

static ls_status check_shapes(const char *name, const ls_tensor *x, ls_pool2d_options options,
                              ls__pool2d *shape) {
    char text[LS__SHAPE_TEXT];
    if (x->dims != 4)
        return ls__fail(LS_ERR_ARGUMENT, "%s: x is %s, want (B, C, H, W)", name,
                        ls__tensor_text(x, text));
    if (options.kernel == 0)
        return ls__fail(LS_ERR_ARGUMENT, "%s: kernel is 0, want at least 1", name);
    if (options.padding > options.kernel / 2)
        return ls__fail(LS_ERR_ARGUMENT, "%s: padding %zu is more than half of kernel %zu", name,
                        options.padding, options.kernel);
    size_t high = x->shape[2] + 2 * options.padding, wide = x->shape[3] + 2 * options.padding;
    if (options.kernel > high || options.kernel > wide)
        return ls__fail(LS_ERR_ARGUMENT, "%s: kernel %zu is larger than x %s with padding %zu",
                        name, options.kernel, ls__tensor_text(x, text), options.padding);
    if (x->shape[2] > INT32_MAX / x->shape[3])
        return ls__fail(LS_ERR_RANGE, "%s: planes of x %s are too large", name,
                        ls__tensor_text(x, text));
    shape->batch = x->shape[0];
    shape->channels = x->shape[1];
    shape->in_h = x->shape[2];
    shape->in_w = x->shape[3];
    shape->out_h = (high - options.kernel) / options.stride + 1;
    shape->out_w = (wide - options.kernel) / options.stride + 1;
    shape->kernel = options.kernel;
    shape->stride = options.stride;
    shape->padding = options.padding;
    return LS_OK;
}

static ls_tensor *pool2d(ls_step *step, const char *name, ls_tensor *x, ls_pool2d_options options,
                         bool average) {
    if (!ls__tensor_check_any(step, x, LS_F32, name))
        return NULL;
    if (options.stride == 0)
        options.stride = options.kernel;
    ls__pool2d shape = {.average = average};
    ls_status status = check_shapes(name, x, options, &shape);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    ls_tensor *y = ls_tensor_new(
        step, x->dtype, (size_t[]){shape.batch, shape.channels, shape.out_h, shape.out_w}, 4);
    const void *from = y ? ls__tensor_data_in(step, x, LS__CHANNELS_LAST) : NULL;
    if (!from)
        return NULL;
    y->layout = LS__CHANNELS_LAST;
    int32_t *where = NULL;
    if (!average && !(where = ls__step_alloc(step, y->count * sizeof *where)))
        return NULL;
    status =
        step->device->table->pool2d_forward(step->device, x->dtype, &shape, from, y->data, where);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, &x, 1))
        return y;
    struct pool2d *node =
        ls__tape_record(step, name, pool2d_backward, y, &x, 1, sizeof(struct pool2d));
    if (!node)
        return NULL;
    node->shape = shape;
    node->where = where;
    return y;
}

ls_tensor *ls_max_pool2d(ls_step *step, ls_tensor *x, ls_pool2d_options options) {
    return pool2d(step, "max_pool2d", x, options, false);
}

ls_tensor *ls_avg_pool2d(ls_step *step, ls_tensor *x, ls_pool2d_options options) {
    return pool2d(step, "avg_pool2d", x, options, true);
}
