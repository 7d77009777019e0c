/* Convolution through oneDNN, which chooses its own layouts; the caller's are nchw and oihw. */
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"

/* Layouts of the tensors of one convolution: plain, and left open for oneDNN to choose. */
typedef struct conv_layouts {
    dnnl_memory_desc_t x, w, y, bias;
    dnnl_memory_desc_t any_x, any_w, any_y;
    dnnl_dims_t stride, padding;
} conv_layouts;

static dnnl_status_t init_layout(dnnl_memory_desc_t *plain, dnnl_memory_desc_t *any, size_t a,
                                 size_t b, size_t c, size_t d) {
    const dnnl_dims_t dims = {(dnnl_dim_t)a, (dnnl_dim_t)b, (dnnl_dim_t)c, (dnnl_dim_t)d};
    dnnl_status_t result = dnnl_memory_desc_init_by_tag(plain, 4, dims, dnnl_f32, dnnl_abcd);
    if (result == dnnl_success)
        result = dnnl_memory_desc_init_by_tag(any, 4, dims, dnnl_f32, dnnl_format_tag_any);
    return result;
}

static ls_status init_layouts(conv_layouts *l, const ls__conv2d *s) {
    memset(l, 0, sizeof *l);
    for (int i = 0; i < 2; i++) {
        l->stride[i] = (dnnl_dim_t)s->stride;
        l->padding[i] = (dnnl_dim_t)s->padding;
    }
    const dnnl_dims_t channels = {(dnnl_dim_t)s->out_channels};
    dnnl_status_t result =
        init_layout(&l->x, &l->any_x, s->batch, s->in_channels, s->in_h, s->in_w);
    if (result == dnnl_success)
        result = init_layout(&l->w, &l->any_w, s->out_channels, s->in_channels, s->kernel_h,
                             s->kernel_w);
    if (result == dnnl_success)
        result = init_layout(&l->y, &l->any_y, s->batch, s->out_channels, s->out_h, s->out_w);
    if (result == dnnl_success)
        result = dnnl_memory_desc_init_by_tag(&l->bias, 1, channels, dnnl_f32, dnnl_a);
    return ls__onednn_check(result, "conv2d: layout");
}

/* The layout that the primitive chose for an argument. */
static const dnnl_memory_desc_t *chosen(const_dnnl_primitive_desc_t description, int argument) {
    return dnnl_primitive_desc_query_md(description, dnnl_query_exec_arg_md, argument);
}

static dnnl_status_t forward_op(const conv_layouts *l, bool bias, dnnl_convolution_desc_t *op) {
    return dnnl_convolution_forward_desc_init(op, dnnl_forward_training, dnnl_convolution_direct,
                                              &l->any_x, &l->any_w, bias ? &l->bias : NULL,
                                              &l->any_y, l->stride, l->padding, l->padding);
}

static ls_status build_forward(ls_device *device, ls__plan *plan, const conv_layouts *l) {
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t description = NULL;
    ls_status status;
    LS_TRY(ls__onednn_check(forward_op(l, plan->key.bias, &op), "conv2d"));
    LS_TRY_OUT(ls__plan_set_primitive(device, plan, &op, NULL, &description));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_SRC, LS__PLAN_READ, &l->x,
                            chosen(description, DNNL_ARG_SRC)));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_WEIGHTS, LS__PLAN_READ, &l->w,
                            chosen(description, DNNL_ARG_WEIGHTS)));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_DST, LS__PLAN_WRITE, &l->y,
                            chosen(description, DNNL_ARG_DST)));
    if (plan->key.bias)
        LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_BIAS, LS__PLAN_READ, &l->bias, &l->bias));
out:
    if (description)
        dnnl_primitive_desc_destroy(description);
    return status;
}

static ls_status build_backward_data(ls_device *device, ls__plan *plan, const conv_layouts *l,
                                     const_dnnl_primitive_desc_t forward) {
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t description = NULL;
    ls_status status;
    LS_TRY(ls__onednn_check(
        dnnl_convolution_backward_data_desc_init(&op, dnnl_convolution_direct, &l->any_x, &l->any_w,
                                                 &l->any_y, l->stride, l->padding, l->padding),
        "conv2d backward data"));
    LS_TRY_OUT(ls__plan_set_primitive(device, plan, &op, forward, &description));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_DIFF_DST, LS__PLAN_READ, &l->y,
                            chosen(description, DNNL_ARG_DIFF_DST)));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_WEIGHTS, LS__PLAN_READ, &l->w,
                            chosen(description, DNNL_ARG_WEIGHTS)));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_DIFF_SRC, plan->key.flow[0], &l->x,
                            chosen(description, DNNL_ARG_DIFF_SRC)));
out:
    if (description)
        dnnl_primitive_desc_destroy(description);
    return status;
}

static ls_status build_backward_weights(ls_device *device, ls__plan *plan, const conv_layouts *l,
                                        const_dnnl_primitive_desc_t forward) {
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t description = NULL;
    ls_status status;
    LS_TRY(ls__onednn_check(
        dnnl_convolution_backward_weights_desc_init(&op, dnnl_convolution_direct, &l->any_x,
                                                    &l->any_w, plan->key.bias ? &l->bias : NULL,
                                                    &l->any_y, l->stride, l->padding, l->padding),
        "conv2d backward weights"));
    LS_TRY_OUT(ls__plan_set_primitive(device, plan, &op, forward, &description));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_SRC, LS__PLAN_READ, &l->x,
                            chosen(description, DNNL_ARG_SRC)));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_DIFF_DST, LS__PLAN_READ, &l->y,
                            chosen(description, DNNL_ARG_DIFF_DST)));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_DIFF_WEIGHTS, plan->key.flow[0], &l->w,
                            chosen(description, DNNL_ARG_DIFF_WEIGHTS)));
    if (plan->key.bias)
        LS_TRY_OUT(
            ls__plan_add(device, plan, DNNL_ARG_DIFF_BIAS, plan->key.flow[1], &l->bias, &l->bias));
out:
    if (description)
        dnnl_primitive_desc_destroy(description);
    return status;
}

/* Backward primitives want the description of the forward one as a hint. */
static ls_status build(ls_device *device, ls__plan *plan) {
    conv_layouts layouts;
    LS_TRY(init_layouts(&layouts, &plan->key.conv));
    if (plan->key.kind == LS__PLAN_CONV_FORWARD)
        return build_forward(device, plan, &layouts);
    dnnl_convolution_desc_t op;
    dnnl_primitive_desc_t forward = NULL;
    dnnl_status_t result = forward_op(&layouts, false, &op);
    if (result == dnnl_success)
        result = dnnl_primitive_desc_create(&forward, &op, NULL, ls__onednn_engine(device), NULL);
    LS_TRY(ls__onednn_check(result, "conv2d: forward description"));
    ls_status status = plan->key.kind == LS__PLAN_CONV_BACKWARD_DATA
                           ? build_backward_data(device, plan, &layouts, forward)
                           : build_backward_weights(device, plan, &layouts, forward);
    dnnl_primitive_desc_destroy(forward);
    return status;
}

static ls_status find_or_build(ls_device *device, const ls__plan_key *key, ls__plan **plan) {
    *plan = ls__plan_find(device, key);
    if (*plan)
        return LS_OK;
    LS_TRY(ls__plan_new(plan, key));
    ls_status status = build(device, *plan);
    if (status != LS_OK) {
        ls__plan_destroy(*plan);
        return status;
    }
    ls__plan_keep(device, *plan);
    return LS_OK;
}

static ls_status conv_run(ls_device *device, const ls__plan_key *key, void *const *tensors,
                          const char *what) {
    ls__plan *plan;
    int before = ls__onednn_enter(device);
    ls_status status = find_or_build(device, key, &plan);
    if (status == LS_OK)
        status = ls__plan_run(device, plan, tensors, what);
    ls__onednn_leave(device, before);
    return status;
}

static void init_key(ls__plan_key *key, ls__plan_kind kind, const ls__conv2d *shape) {
    memset(key, 0, sizeof *key);
    key->kind = kind;
    key->conv = *shape;
}

/* oneDNN's interface takes what it only reads as void * too. */
static void *unconst(const void *pointer) {
    return (void *)pointer;
}

ls_status ls__cpu_conv2d_forward(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                 const void *x, const void *w, const void *bias, void *y) {
    LS_TRY(ls__cpu_require_f32(dtype, "conv2d"));
    ls__plan_key key;
    init_key(&key, LS__PLAN_CONV_FORWARD, shape);
    key.bias = bias != NULL;
    void *tensors[] = {unconst(x), unconst(w), y, unconst(bias)};
    return conv_run(device, &key, tensors, "conv2d");
}

ls_status ls__cpu_conv2d_backward_data(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                       const void *dy, const void *w, void *dx, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "conv2d"));
    ls__plan_key key;
    init_key(&key, LS__PLAN_CONV_BACKWARD_DATA, shape);
    key.flow[0] = accumulate ? LS__PLAN_ADD : LS__PLAN_WRITE;
    void *tensors[] = {unconst(dy), unconst(w), dx};
    return conv_run(device, &key, tensors, "conv2d backward data");
}

ls_status ls__cpu_conv2d_backward_weights(ls_device *device, ls_dtype dtype,
                                          const ls__conv2d *shape, const void *x, const void *dy,
                                          void *dw, bool accumulate_dw, void *dbias,
                                          bool accumulate_dbias) {
    LS_TRY(ls__cpu_require_f32(dtype, "conv2d"));
    ls__plan_key key;
    init_key(&key, LS__PLAN_CONV_BACKWARD_WEIGHTS, shape);
    key.bias = dbias != NULL;
    key.flow[0] = accumulate_dw ? LS__PLAN_ADD : LS__PLAN_WRITE;
    if (dbias)
        key.flow[1] = accumulate_dbias ? LS__PLAN_ADD : LS__PLAN_WRITE;
    void *tensors[] = {unconst(x), unconst(dy), dw, dbias};
    return conv_run(device, &key, tensors, "conv2d backward weights");
}
