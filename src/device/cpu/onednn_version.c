#include "device/cpu/onednn_version.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static bool is_preferred(const_dnnl_primitive_desc_t description, const char *prefer) {
    const char *name = NULL;
    return !prefer || (dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0,
                                                 (void *)&name) == dnnl_success &&
                       name && strncmp(name, prefer, strlen(prefer)) == 0);
}

/* What is asked of the library, whichever pass. */
typedef struct convolution {
    dnnl_engine_t engine;
    ls__dnnl_layout_ref x, w, bias, y;
    const dnnl_dim_t *strides, *padding;
    const_dnnl_primitive_attr_t attributes;
} convolution;

#if DNNL_VERSION_MAJOR >= 3

dnnl_status_t ls__dnnl_layout_by_tag(ls__dnnl_layout *layout, int dims, const dnnl_dims_t shape,
                                     dnnl_format_tag_t tag) {
    return ls__dnnl_layout_of(layout, dnnl_f32, dims, shape, tag);
}

dnnl_status_t ls__dnnl_layout_of(ls__dnnl_layout *layout, dnnl_data_type_t type, int dims,
                                 const dnnl_dims_t shape, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(&layout->description, dims, shape, type, tag);
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

/* `hint` is the forward pass, which backward ones are described with. */
static dnnl_status_t first_choice(dnnl_primitive_desc_t *description, const convolution *c,
                                  ls__dnnl_pass pass, const_dnnl_primitive_desc_t hint) {
    const dnnl_dims_t dilation = {0, 0};
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    if (pass == LS__DNNL_BACKWARD_INPUT)
        return dnnl_convolution_backward_data_primitive_desc_create(
            description, c->engine, direct, c->x, c->w, c->y, c->strides, dilation, c->padding,
            c->padding, hint, c->attributes);
    if (pass == LS__DNNL_BACKWARD_WEIGHTS)
        return dnnl_convolution_backward_weights_primitive_desc_create(
            description, c->engine, direct, c->x, c->w, c->bias, c->y, c->strides, dilation,
            c->padding, c->padding, hint, c->attributes);
    return dnnl_convolution_forward_primitive_desc_create(
        description, c->engine, dnnl_forward_training, direct, c->x, c->w, c->bias, c->y,
        c->strides, dilation, c->padding, c->padding, c->attributes);
}

static dnnl_status_t describe(dnnl_primitive_desc_t *description, const convolution *c,
                              ls__dnnl_pass pass, const char *prefer,
                              const_dnnl_primitive_desc_t hint) {
    dnnl_status_t result = first_choice(description, c, pass, hint);
    while (result == dnnl_success && !is_preferred(*description, prefer))
        result = dnnl_primitive_desc_next_impl(*description);
    if (result != dnnl_last_impl_reached)
        return result;
    dnnl_primitive_desc_destroy(*description);
    return first_choice(description, c, pass, hint);
}

dnnl_status_t ls__dnnl_matmul(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                              const ls__dnnl_layout *a, const ls__dnnl_layout *b,
                              const ls__dnnl_layout *bias, const ls__dnnl_layout *c,
                              const_dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(description, engine, ls__dnnl_layout_get(a),
                                             ls__dnnl_layout_get(b), ls__dnnl_layout_get(bias),
                                             ls__dnnl_layout_get(c), attributes);
}

dnnl_status_t ls__dnnl_inner_product_weights(dnnl_primitive_desc_t *description,
                                             dnnl_engine_t engine, const ls__dnnl_layout *x,
                                             const ls__dnnl_layout *dw, const ls__dnnl_layout *dy,
                                             const_dnnl_primitive_attr_t attributes) {
    return dnnl_inner_product_backward_weights_primitive_desc_create(
        description, engine, ls__dnnl_layout_get(x), ls__dnnl_layout_get(dw), NULL,
        ls__dnnl_layout_get(dy), NULL, attributes);
}

dnnl_status_t ls__dnnl_append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1.0F, 0, dnnl_data_type_undef);
}

#else

dnnl_status_t ls__dnnl_layout_by_tag(ls__dnnl_layout *layout, int dims, const dnnl_dims_t shape,
                                     dnnl_format_tag_t tag) {
    return ls__dnnl_layout_of(layout, dnnl_f32, dims, shape, tag);
}

dnnl_status_t ls__dnnl_layout_of(ls__dnnl_layout *layout, dnnl_data_type_t type, int dims,
                                 const dnnl_dims_t shape, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(&layout->description, dims, shape, type, tag);
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

/* dnnl_iterator_ends: there is none that is preferred. */
static dnnl_status_t choose(dnnl_primitive_desc_t *description, const convolution *c,
                            const_dnnl_op_desc_t op, const char *prefer,
                            const_dnnl_primitive_desc_t hint) {
    dnnl_primitive_desc_iterator_t choices = NULL;
    dnnl_status_t result =
        dnnl_primitive_desc_iterator_create(&choices, op, c->attributes, c->engine, hint);
    while (result == dnnl_success) {
        *description = dnnl_primitive_desc_iterator_fetch(choices);
        if (!*description || is_preferred(*description, prefer))
            break;
        dnnl_primitive_desc_destroy(*description);
        *description = NULL;
        result = dnnl_primitive_desc_iterator_next(choices);
    }
    if (choices)
        dnnl_primitive_desc_iterator_destroy(choices);
    return result == dnnl_success && !*description ? dnnl_out_of_memory : result;
}

static dnnl_status_t describe(dnnl_primitive_desc_t *description, const convolution *c,
                              ls__dnnl_pass pass, const char *prefer,
                              const_dnnl_primitive_desc_t hint) {
    const dnnl_alg_kind_t direct = dnnl_convolution_direct;
    dnnl_convolution_desc_t op;
    dnnl_status_t result;
    if (pass == LS__DNNL_BACKWARD_INPUT)
        result = dnnl_convolution_backward_data_desc_init(&op, direct, c->x, c->w, c->y, c->strides,
                                                          c->padding, c->padding);
    else if (pass == LS__DNNL_BACKWARD_WEIGHTS)
        result = dnnl_convolution_backward_weights_desc_init(&op, direct, c->x, c->w, c->bias, c->y,
                                                             c->strides, c->padding, c->padding);
    else
        result =
            dnnl_convolution_forward_desc_init(&op, dnnl_forward_training, direct, c->x, c->w,
                                               c->bias, c->y, c->strides, c->padding, c->padding);
    if (result != dnnl_success)
        return result;
    result = choose(description, c, &op, prefer, hint);
    return result == dnnl_iterator_ends ? choose(description, c, &op, NULL, hint) : result;
}

dnnl_status_t ls__dnnl_matmul(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                              const ls__dnnl_layout *a, const ls__dnnl_layout *b,
                              const ls__dnnl_layout *bias, const ls__dnnl_layout *c,
                              const_dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t op;
    dnnl_status_t result =
        dnnl_matmul_desc_init(&op, ls__dnnl_layout_get(a), ls__dnnl_layout_get(b),
                              ls__dnnl_layout_get(bias), ls__dnnl_layout_get(c));
    return result == dnnl_success
               ? dnnl_primitive_desc_create(description, &op, attributes, engine, NULL)
               : result;
}

dnnl_status_t ls__dnnl_inner_product_weights(dnnl_primitive_desc_t *description,
                                             dnnl_engine_t engine, const ls__dnnl_layout *x,
                                             const ls__dnnl_layout *dw, const ls__dnnl_layout *dy,
                                             const_dnnl_primitive_attr_t attributes) {
    dnnl_inner_product_desc_t op;
    dnnl_status_t result = dnnl_inner_product_backward_weights_desc_init(
        &op, ls__dnnl_layout_get(x), ls__dnnl_layout_get(dw), NULL, ls__dnnl_layout_get(dy));
    return result == dnnl_success
               ? dnnl_primitive_desc_create(description, &op, attributes, engine, NULL)
               : result;
}

dnnl_status_t ls__dnnl_append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1.0F);
}

#endif

dnnl_status_t ls__dnnl_convolution(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                                   ls__dnnl_pass pass, const ls__dnnl_layout *x,
                                   const ls__dnnl_layout *w, const ls__dnnl_layout *bias,
                                   const ls__dnnl_layout *y, const dnnl_dims_t strides,
                                   const dnnl_dims_t padding, const char *prefer,
                                   const_dnnl_primitive_attr_t attributes) {
    const convolution c = {.engine = engine,
                           .x = ls__dnnl_layout_get(x),
                           .w = ls__dnnl_layout_get(w),
                           .bias = ls__dnnl_layout_get(bias),
                           .y = ls__dnnl_layout_get(y),
                           .strides = strides,
                           .padding = padding,
                           .attributes = attributes};
    if (pass == LS__DNNL_FORWARD)
        return describe(description, &c, pass, prefer, NULL);
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t result = describe(&hint, &c, LS__DNNL_FORWARD, NULL, NULL);
    if (result == dnnl_success)
        result = describe(description, &c, pass, prefer, hint);
    if (hint)
        dnnl_primitive_desc_destroy(hint);
    return result;
}
