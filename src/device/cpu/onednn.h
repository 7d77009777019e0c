/* oneDNN behind one door: the engine, and plans. What differs between its major versions is
 * in onednn_version.c.
 *
 * A plan is one primitive with its arguments. Where the primitive wants another memory layout than
 * the caller's plain one, the plan holds the reorder too and a place for the reordered tensor in
 * the device's scratch memory. Plans are made once for each key (operation, shape, flags), so that
 * later calls only set pointers. */
#ifndef LS_DEVICE_CPU_ONEDNN_H
#define LS_DEVICE_CPU_ONEDNN_H

#include <oneapi/dnnl/dnnl.h>

#include "device/cpu/cpu.h"
#include "device/cpu/onednn_version.h"

/* LS__PLANS: more shapes than a training run has. Beyond it, all are forgotten: a caller whose shapes
 * never repeat pays for making plans, not with its memory. */
enum { LS__PLAN_ARGUMENTS = 4, LS__PLANS = 512 };

typedef enum ls__plan_flow {
    LS__PLAN_READ,
    LS__PLAN_WRITE,
    LS__PLAN_ADD, /* the result is added to the caller's tensor */
} ls__plan_flow;

typedef struct ls__plan_argument {
    int index; /* DNNL_ARG_... */
    ls__plan_flow flow;
    dnnl_memory_t caller; /* the caller's tensor, in plain layout */
    dnnl_memory_t inner;  /* what the primitive works on; NULL: the caller's itself */
    dnnl_primitive_t reorder;
    size_t scratch_offset; /* of inner */
} ls__plan_argument;

typedef enum ls__plan_kind {
    LS__PLAN_LINEAR_IN_OUT, /* the weights as (in, out) */
    LS__PLAN_LINEAR_OUT_IN,
    LS__PLAN_CONV_FORWARD,
    LS__PLAN_CONV_INPUT, /* backward, to dx */
    LS__PLAN_CONV_WEIGHTS,
    LS__PLAN_PRODUCT_BF16,     /* rows x in times packed in x out */
    LS__PLAN_PRODUCT_ADD_BF16, /* the same, added */
    LS__PLAN_OUTER_BF16,       /* (rows x in)^T times rows x out */
    LS__PLAN_OUTER_ADD_BF16,
    LS__PLAN_ATTENTION_BF16, /* flags: which product; never in the table */
} ls__plan_kind;

/* What a plan is made for. Compared as bytes: no member leaves any of them unused. */
typedef struct ls__plan_key {
    ls__plan_kind kind;
    uint32_t flags; /* whose bits the kind defines */
    size_t rows, in, out;
    size_t window[6]; /* of a convolution: in_h, in_w, kernel_h, kernel_w, stride, padding; rows are
                       * images */
} ls__plan_key;

typedef struct ls__plan {
    ls__plan_key key;
    struct ls__plan *next; /* in the same slot of the table */
    dnnl_primitive_t primitive;
    size_t argument_count;
    ls__plan_argument arguments[LS__PLAN_ARGUMENTS];
    dnnl_memory_t scratchpad; /* NULL: none */
    size_t scratchpad_offset;
    size_t scratch_bytes;
} ls__plan;

ls_status ls__onednn_create(ls__onednn **onednn);
void ls__onednn_destroy(ls__onednn *onednn);

/* "gemm: oneDNN: invalid arguments" and the matching status; LS_OK for success. */
ls_status ls__onednn_check(dnnl_status_t status, const char *what);

/* oneDNN's OpenMP regions take the calling thread's setting. Enter sets the device's thread count
 * and returns what was set before, for leave. */
int ls__onednn_enter(ls_device *device);
void ls__onednn_leave(ls_device *device, int before);

dnnl_engine_t ls__onednn_engine(ls_device *device);

/* Runs the plan of `key` on `tensors`, in the order its arguments were added. Where there is none yet,
 * `build` gets an empty one to fill, and it is kept. oneDNN's interface takes what it only reads as
 * void * too. `what` is for messages. */
typedef ls_status (*ls__plan_build_fn)(ls_device *device, ls__plan *plan, const void *context);
ls_status ls__plan_do(ls_device *device, const ls__plan_key *key, ls__plan_build_fn build,
                      const void *context, void *const *tensors, const char *what);
/* A plan outside of the table, which its owner fills and destroys. */
ls_status ls__plan_new(ls__plan **plan, const ls__plan_key *key);
void ls__plan_destroy(ls__plan *plan);
/* How many are kept. */
size_t ls__plan_count(ls_device *device);
/* Attributes a plan's primitive is described with: its scratchpad is ours. */
ls_status ls__plan_attributes(dnnl_primitive_attr_t *attributes);
/* Makes the primitive out of its description. Call it first, once. */
ls_status ls__plan_set_primitive(ls_device *device, ls__plan *plan,
                                 const_dnnl_primitive_desc_t description);
/* Adds an argument: the caller's layout, and the one that the primitive asks for. */
ls_status ls__plan_add(ls_device *device, ls__plan *plan, int index, ls__plan_flow flow,
                       ls__dnnl_layout_ref caller, ls__dnnl_layout_ref inner);
/* Runs it on the caller's tensors, in the order in which the arguments were added. */
ls_status ls__plan_run(ls_device *device, ls__plan *plan, void *const *tensors, const char *what);
/* The same on a stream and scratch memory (plan->scratch_bytes) of the caller's: two threads may each
 * run a plan of their own. */
dnnl_status_t ls__plan_execute(dnnl_stream_t stream, ls__plan *plan, void *const *tensors,
                               char *scratch);

/* --- convolutions over channels-last images; onednn_convolution.c --- */

/* x (batch, in, h, w), y (batch, out, h, w); the weights as the caller has them, and in any order */
typedef struct ls__convolution_layouts {
    ls__dnnl_layout x, w, any_w, bias, y;
} ls__convolution_layouts;

/* All but w, whose order is the caller's matter. w_shape: (out, in, h, w) */
dnnl_status_t ls__convolution_layouts_init(ls__convolution_layouts *layouts, const dnnl_dims_t x,
                                           const dnnl_dims_t w_shape, const dnnl_dims_t y);
void ls__convolution_layouts_free(ls__convolution_layouts *layouts);
ls_status ls__convolution_describe(ls_device *device, ls__dnnl_pass pass,
                                   const ls__convolution_layouts *layouts, bool with_bias,
                                   size_t stride, size_t padding, const char *prefer,
                                   const char *what, dnnl_primitive_desc_t *description);

#endif
