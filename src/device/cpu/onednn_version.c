#include "device/cpu/onednn_version.h"

#include <stddef.h>

#if DNNL_VERSION_MAJOR >= 3

dnnl_status_t ls__dnnl_layout_by_tag(ls__dnnl_layout *layout, int dims, const dnnl_dims_t shape,
                                     dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(&layout->description, dims, shape, dnnl_f32, tag);
}

dnnl_status_t ls__dnnl_layout_by_strides(ls__dnnl_layout *layout, int dims, const dnnl_dims_t shape,
                                         const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(&layout->description, dims, shape, dnnl_f32,
                                                strides);
}

void ls__dnnl_layout_free(ls__dnnl_layout *layout) {
    if (layout->description)
        dnnl_memory_desc_destroy(layout->description);
    layout->description = NULL;
}

ls__dnnl_layout_ref ls__dnnl_layout_get(const ls__dnnl_layout *layout) {
    return layout ? layout->description : NULL;
}

dnnl_status_t ls__dnnl_convolution(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                                   const ls__dnnl_layout *x, const ls__dnnl_layout *w,
                                   const ls__dnnl_layout *bias, const ls__dnnl_layout *y,
                                   const dnnl_dims_t strides, const dnnl_dims_t padding,
                                   const_dnnl_primitive_attr_t attributes) {
    const dnnl_dims_t dilation = {0, 0};
    return dnnl_convolution_forward_primitive_desc_create(
        description, engine, dnnl_forward_training, dnnl_convolution_direct, ls__dnnl_layout_get(x),
        ls__dnnl_layout_get(w), ls__dnnl_layout_get(bias), ls__dnnl_layout_get(y), strides,
        dilation, padding, padding, attributes);
}

dnnl_status_t ls__dnnl_append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1.0F, 0, dnnl_data_type_undef);
}

#else

dnnl_status_t ls__dnnl_layout_by_tag(ls__dnnl_layout *layout, int dims, const dnnl_dims_t shape,
                                     dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(&layout->description, dims, shape, dnnl_f32, tag);
}

dnnl_status_t ls__dnnl_layout_by_strides(ls__dnnl_layout *layout, int dims, const dnnl_dims_t shape,
                                         const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(&layout->description, dims, shape, dnnl_f32, strides);
}

void ls__dnnl_layout_free(ls__dnnl_layout *layout) {
    (void)layout;
}

ls__dnnl_layout_ref ls__dnnl_layout_get(const ls__dnnl_layout *layout) {
    return layout ? &layout->description : NULL;
}

dnnl_status_t ls__dnnl_convolution(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                                   const ls__dnnl_layout *x, const ls__dnnl_layout *w,
                                   const ls__dnnl_layout *bias, const ls__dnnl_layout *y,
                                   const dnnl_dims_t strides, const dnnl_dims_t padding,
                                   const_dnnl_primitive_attr_t attributes) {
    dnnl_convolution_desc_t op;
    dnnl_status_t result = dnnl_convolution_forward_desc_init(
        &op, dnnl_forward_training, dnnl_convolution_direct, ls__dnnl_layout_get(x),
        ls__dnnl_layout_get(w), ls__dnnl_layout_get(bias), ls__dnnl_layout_get(y), strides, padding,
        padding);
    return result == dnnl_success
               ? dnnl_primitive_desc_create(description, &op, attributes, engine, NULL)
               : result;
}

dnnl_status_t ls__dnnl_append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1.0F);
}

#endif
