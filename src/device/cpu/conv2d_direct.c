/* Convolution by oneDNN's own primitives over channels-last images. With AVX-512 they need no columns
 * and leave out products with padding; which of the three passes is faster that way, and why the
 * others stay with conv2d.c's products, is in docs/decisions.md.
 *
 * Images are taken as they lie. Weights are reordered into the library's blocks in each call (and
 * gradients back): they have changed since the last step. */
#include "device/cpu/conv2d.h"

#include "device/cpu/onednn.h"

/* CHANNELS: floats in a vector; the library's kernels want whole ones. Beyond the other limits, it may
 * know nothing better than plain loops. Gradients of weights over smaller images than LEAST_SIDE, or
 * with a stride, are faster as products. */
enum { CHANNELS = 16, MOST_KERNEL = 7, MOST_STRIDE = 2, LEAST_SIDE = 7 };

/* oneDNN's first choice forward multiplies blocks as wide as a row of the result and reads all weights for each: slow
 * where rows are short and the weights are more than a second-level cache of 2 MiB. One core of an Intel Xeon, GFLOP/s of
 * it and of the older kernel, 4 x 4: 128 to 128 channels 218 and 185, 256: 146 and 178, 512: 116 and 174; 2 x 2, 256: 72 and
 * 168. From 5 x 5 on the first one wins. */
enum { SHORT_ROW = 4, MANY_WEIGHTS = 1 << 19 };
static const char *preferred(ls__plan_kind kind, const ls__conv2d *s) {
    size_t weights = s->in_channels * s->out_channels * s->kernel_h * s->kernel_w;
    bool slow = s->out_w <= SHORT_ROW && weights > MANY_WEIGHTS;
    return kind == LS__PLAN_CONV_FORWARD && slow ? "jit:avx512_core" : NULL;
}

/* Bits of a plan's flags. */
enum { BIAS = 1, ADD = 2, ADD_BIAS = 4 };

bool ls__conv2d_is_direct(const ls__conv2d *s) {
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core &&
           !s->relu && s->in_channels % CHANNELS == 0 && s->out_channels % CHANNELS == 0 &&
           s->kernel_h * s->kernel_w > 1 && s->kernel_h <= MOST_KERNEL &&
           s->kernel_w <= MOST_KERNEL && s->stride <= MOST_STRIDE && s->padding < s->kernel_h &&
           s->padding < s->kernel_w;
}

bool ls__conv2d_weights_are_direct(const ls__conv2d *s) {
    return ls__conv2d_is_direct(s) && s->stride == 1 && s->out_h >= LEAST_SIDE &&
           s->out_w >= LEAST_SIDE;
}

static dnnl_status_t init_layouts(ls__convolution_layouts *l, const ls__conv2d *s) {
    const dnnl_dim_t in = (dnnl_dim_t)s->in_channels, out = (dnnl_dim_t)s->out_channels;
    const dnnl_dims_t x = {(dnnl_dim_t)s->batch, in, (dnnl_dim_t)s->in_h, (dnnl_dim_t)s->in_w};
    const dnnl_dims_t y = {(dnnl_dim_t)s->batch, out, (dnnl_dim_t)s->out_h, (dnnl_dim_t)s->out_w};
    const dnnl_dims_t w = {out, in, (dnnl_dim_t)s->kernel_h, (dnnl_dim_t)s->kernel_w};
    dnnl_status_t result = ls__convolution_layouts_init(l, x, w, y);
    if (result == dnnl_success)
        result = ls__dnnl_layout_by_tag(&l->w, 4, w, dnnl_oihw);
    return result;
}

static ls__dnnl_pass pass_of(ls__plan_kind kind) {
    return kind == LS__PLAN_CONV_INPUT     ? LS__DNNL_BACKWARD_INPUT
           : kind == LS__PLAN_CONV_WEIGHTS ? LS__DNNL_BACKWARD_WEIGHTS
                                           : LS__DNNL_FORWARD;
}

/* In the order (x, w, y, bias), dx and dw and dbias in their places. */
static ls_status add_arguments(ls_device *device, ls__plan *plan, const ls__convolution_layouts *l,
                               const_dnnl_primitive_desc_t description) {
    bool to_x = plan->key.kind == LS__PLAN_CONV_INPUT,
         to_w = plan->key.kind == LS__PLAN_CONV_WEIGHTS;
    bool to_y = !to_x && !to_w;
    ls__plan_flow result = plan->key.flags & ADD ? LS__PLAN_ADD : LS__PLAN_WRITE;
    ls__dnnl_layout_ref x = ls__dnnl_layout_get(&l->x), y = ls__dnnl_layout_get(&l->y),
                        bias = ls__dnnl_layout_get(&l->bias);
    ls__dnnl_layout_ref w = dnnl_primitive_desc_query_md(
        description, to_w ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
    LS_TRY(ls__plan_add(device, plan, to_x ? DNNL_ARG_DIFF_SRC : DNNL_ARG_SRC,
                        to_x ? result : LS__PLAN_READ, x, x));
    LS_TRY(ls__plan_add(device, plan, to_w ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS,
                        to_w ? result : LS__PLAN_READ, ls__dnnl_layout_get(&l->w), w));
    LS_TRY(ls__plan_add(device, plan, to_y ? DNNL_ARG_DST : DNNL_ARG_DIFF_DST,
                        to_y ? result : LS__PLAN_READ, y, y));
    if (!(plan->key.flags & BIAS))
        return LS_OK;
    ls__plan_flow flow = plan->key.flags & ADD_BIAS ? LS__PLAN_ADD : LS__PLAN_WRITE;
    return ls__plan_add(device, plan, to_w ? DNNL_ARG_DIFF_BIAS : DNNL_ARG_BIAS,
                        to_w ? flow : LS__PLAN_READ, bias, bias);
}

static ls_status build(ls_device *device, ls__plan *plan, const void *context) {
    const ls__conv2d *shape = context;
    ls__convolution_layouts l = {0};
    dnnl_primitive_desc_t description = NULL;
    ls_status status;
    LS_TRY_OUT(ls__onednn_check(init_layouts(&l, shape), "conv2d"));
    LS_TRY_OUT(ls__convolution_describe(device, pass_of(plan->key.kind), &l, plan->key.flags & BIAS,
                                        shape->stride, shape->padding,
                                        preferred(plan->key.kind, shape), "conv2d", &description));
    LS_TRY_OUT(ls__plan_set_primitive(device, plan, description));
    LS_TRY_OUT(add_arguments(device, plan, &l, description));
out:
    if (description)
        dnnl_primitive_desc_destroy(description);
    ls__convolution_layouts_free(&l);
    return status;
}

static ls_status run(ls_device *device, ls__plan_kind kind, uint32_t flags, const ls__conv2d *s,
                     const void *x, const void *w, const void *y, const void *bias) {
    const ls__plan_key key = {
        .kind = kind,
        .flags = flags,
        .rows = s->batch,
        .in = s->in_channels,
        .out = s->out_channels,
        .window = {s->in_h, s->in_w, s->kernel_h, s->kernel_w, s->stride, s->padding},
    };
    return ls__plan_do(device, &key, build, s,
                       (void *[]){(void *)x, (void *)w, (void *)y, (void *)bias}, "conv2d");
}

ls_status ls__conv2d_direct_forward(ls_device *device, const ls__conv2d *shape, const float *x,
                                    const float *w, const float *bias, float *y) {
    return run(device, LS__PLAN_CONV_FORWARD, bias ? BIAS : 0, shape, x, w, y, bias);
}

ls_status ls__conv2d_direct_input(ls_device *device, const ls__conv2d *shape, const float *w,
                                  const float *dy, float *dx, bool accumulate) {
    return run(device, LS__PLAN_CONV_INPUT, accumulate ? ADD : 0, shape, dx, w, dy, NULL);
}

ls_status ls__conv2d_direct_weights(ls_device *device, const ls__conv2d *shape, const float *x,
                                    const float *dy, float *dw, bool accumulate_dw, float *dbias,
                                    bool accumulate_dbias) {
    uint32_t flags =
        (accumulate_dw ? ADD : 0) | (dbias ? BIAS : 0) | (dbias && accumulate_dbias ? ADD_BIAS : 0);
    return run(device, LS__PLAN_CONV_WEIGHTS, flags, shape, x, dw, dy, dbias);
}
