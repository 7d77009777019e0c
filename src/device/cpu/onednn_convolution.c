/* What every use of oneDNN's convolution has to say to it. */
#include "device/cpu/onednn.h"

dnnl_status_t ls__convolution_layouts_init(ls__convolution_layouts *l, const dnnl_dims_t x,
                                           const dnnl_dims_t w_shape, const dnnl_dims_t y) {
    const dnnl_dims_t bias = {w_shape[0]};
    dnnl_status_t result = ls__dnnl_layout_by_tag(&l->x, 4, x, dnnl_nhwc);
    if (result == dnnl_success)
        result = ls__dnnl_layout_by_tag(&l->any_w, 4, w_shape, dnnl_format_tag_any);
    if (result == dnnl_success)
        result = ls__dnnl_layout_by_tag(&l->bias, 1, bias, dnnl_a);
    if (result == dnnl_success)
        result = ls__dnnl_layout_by_tag(&l->y, 4, y, dnnl_nhwc);
    return result;
}

void ls__convolution_layouts_free(ls__convolution_layouts *l) {
    ls__dnnl_layout_free(&l->x);
    ls__dnnl_layout_free(&l->w);
    ls__dnnl_layout_free(&l->any_w);
    ls__dnnl_layout_free(&l->bias);
    ls__dnnl_layout_free(&l->y);
}

ls_status ls__convolution_describe(ls_device *device, ls__dnnl_pass pass,
                                   const ls__convolution_layouts *l, bool with_bias, size_t stride,
                                   size_t padding, const char *prefer, const char *what,
                                   dnnl_primitive_desc_t *description) {
    const dnnl_dims_t strides = {(dnnl_dim_t)stride, (dnnl_dim_t)stride};
    const dnnl_dims_t paddings = {(dnnl_dim_t)padding, (dnnl_dim_t)padding};
    dnnl_primitive_attr_t attributes = NULL;
    ls_status status = ls__plan_attributes(&attributes);
    if (status == LS_OK)
        status =
            ls__onednn_check(ls__dnnl_convolution(description, ls__onednn_engine(device), pass,
                                                  &l->x, &l->any_w, with_bias ? &l->bias : NULL,
                                                  &l->y, strides, paddings, prefer, attributes),
                             what);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    return status;
}
