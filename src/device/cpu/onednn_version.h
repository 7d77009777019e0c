/* What differs between oneDNN's major versions 2 and 3, and nothing else: descriptions of memory are
 * structures in 2 and objects in 3, operations have a description of their own in 2 only. Written
 * against 2.6 and 3.2; compiled against 2026.1's headers (3.x) too. */
#ifndef LS_DEVICE_CPU_ONEDNN_VERSION_H
#define LS_DEVICE_CPU_ONEDNN_VERSION_H

#include <oneapi/dnnl/dnnl.h>

/* A tensor's type, shape and layout. Zero-initialise it, free it. */
typedef struct ls__dnnl_layout {
    dnnl_memory_desc_t description;
} ls__dnnl_layout;

/* What functions take and queries return; not owned. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t ls__dnnl_layout_ref;
#else
typedef const dnnl_memory_desc_t *ls__dnnl_layout_ref;
#endif

/* Of f32 */
dnnl_status_t ls__dnnl_layout_by_tag(ls__dnnl_layout *layout, int dims, const dnnl_dims_t shape,
                                     dnnl_format_tag_t tag);
dnnl_status_t ls__dnnl_layout_by_strides(ls__dnnl_layout *layout, int dims, const dnnl_dims_t shape,
                                         const dnnl_dims_t strides);
/* Of any type */
dnnl_status_t ls__dnnl_layout_of(ls__dnnl_layout *layout, dnnl_data_type_t type, int dims,
                                 const dnnl_dims_t shape, dnnl_format_tag_t tag);
void ls__dnnl_layout_free(ls__dnnl_layout *layout);
ls__dnnl_layout_ref ls__dnnl_layout_get(const ls__dnnl_layout *layout);

/* What is computed: y; dx; or dw and the bias's gradient. */
typedef enum ls__dnnl_pass {
    LS__DNNL_FORWARD,
    LS__DNNL_BACKWARD_INPUT,
    LS__DNNL_BACKWARD_WEIGHTS,
} ls__dnnl_pass;

/* A convolution of two spatial dimensions, without dilation, padding equal at both ends. bias NULL:
 * none. Gradients have the layouts of what they are gradients of. Of the library's implementations the
 * one whose name begins with `prefer`; its first choice where there is none, or for NULL. */
dnnl_status_t ls__dnnl_convolution(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                                   ls__dnnl_pass pass, const ls__dnnl_layout *x,
                                   const ls__dnnl_layout *w, const ls__dnnl_layout *bias,
                                   const ls__dnnl_layout *y, const dnnl_dims_t strides,
                                   const dnnl_dims_t padding, const char *prefer,
                                   const_dnnl_primitive_attr_t attributes);

/* c = a b + bias, of matrices; bias NULL: none. */
dnnl_status_t ls__dnnl_matmul(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                              const ls__dnnl_layout *a, const ls__dnnl_layout *b,
                              const ls__dnnl_layout *bias, const ls__dnnl_layout *c,
                              const_dnnl_primitive_attr_t attributes);

/* The gradient dw (out, in) of the weights of a layer y = x w^T: x (rows, in), dy (rows, out). */
dnnl_status_t ls__dnnl_inner_product_weights(dnnl_primitive_desc_t *description,
                                             dnnl_engine_t engine, const ls__dnnl_layout *x,
                                             const ls__dnnl_layout *dw, const ls__dnnl_layout *dy,
                                             const_dnnl_primitive_attr_t attributes);

/* The result is added to what is there. */
dnnl_status_t ls__dnnl_append_sum(dnnl_post_ops_t operations);

#endif
