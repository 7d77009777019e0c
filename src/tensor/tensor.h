/* The inside of tensors and steps. */
#ifndef LS_TENSOR_TENSOR_H
#define LS_TENSOR_TENSOR_H

#include "base/error.h"
#include "device/device.h"
#include <lockstep/tensor.h>

typedef struct ls_parameter ls_parameter;
typedef struct ls__tape ls__tape;       /* autograd/tape.h */
typedef struct ls__arena ls__arena;     /* tensor/arena.h */
typedef struct ls__profile ls__profile; /* autograd/profile.h */

/* How elements lie in memory. */
typedef enum ls__layout {
    LS__PLAIN,         /* row-major */
    LS__CHANNELS_LAST, /* (B, C, H, W) as (B, H, W, C): what the kernels for images work on */
} ls__layout;

struct ls_tensor {
    ls_dtype dtype;
    size_t dims;
    size_t shape[LS_MAX_DIMS];
    size_t count; /* elements */
    void *data;
    ls__layout layout; /* of data; only results of operations on images are not plain */
    void *twin;        /* the same elements in the other layout, once somebody asked; or NULL */
    void *half;        /* the same elements, plain, in BF16, once a product asked; or NULL */
    ls_step *step;     /* it lives in; NULL for parameters */
    bool keep_grad;    /* asked for by the caller: backward does not take it away */
    bool need_grad;    /* it, or something it was computed from, wants a gradient */
    ls_tensor *grad;   /* what has flowed in so far; NULL: nothing yet */
    size_t *holders;   /* gradients: how many tensors' grad stand on data */
    ls_parameter *parameter; /* set for parameter values: their gradient has its own storage */
    bool
        *exposed; /* parameter values and views of them: set when the address of data is handed to a
                          caller, who may then write there (autograd/prepared.c) */
};

struct ls_step {
    ls_device *device;
    uint64_t seed;
    bool training;
    bool recompute; /* as in ls_step_mode */
    ls_dtype compute;
    bool unrecorded;   /* inside of a checkpoint's forward: training, but no tape */
    uint64_t *samples; /* (sample_count) global sample numbers */
    size_t sample_count, sample_capacity;
    ls__arena *arena;   /* elements: device memory */
    ls__arena *records; /* ls_tensor, ls__node: host memory */
    ls__tape *tape;
    ls__profile *profile; /* the caller's; NULL: none is kept */
    ls_status status;     /* the first error, and its text */
    char error[1024];
};

/* Records a failure (text: the thread's error text) unless one is there already; returns NULL, so
 * an operation can `return ls__step_fail(step, ls__fail(...))`. */
void *ls__step_fail(ls_step *step, ls_status status);

/* `bytes` bytes of device memory in the arena, 64-byte aligned; NULL after ls__step_fail. */
void *ls__step_alloc(ls_step *step, size_t bytes);

/* Gives such a block back before the step ends, for others of its size. */
void ls__step_release(ls_step *step, void *memory, size_t bytes);

/* The same in host memory, zeroed: for structures. */
void *ls__step_alloc_record(ls_step *step, size_t bytes);

/* True when `tensor` is there and has this dtype; otherwise fails the step, naming `operation`.
 * Its data is plain from then on: for operations that know of no other layout. */
bool ls__tensor_check(ls_step *step, ls_tensor *tensor, ls_dtype dtype, const char *operation);
/* The same for operations that take any layout. */
bool ls__tensor_check_any(ls_step *step, const ls_tensor *tensor, ls_dtype dtype,
                          const char *operation);

/* The elements in `layout`: converted when first asked for, and kept. NULL after ls__step_fail. */
void *ls__tensor_data_in(ls_step *step, ls_tensor *tensor, ls__layout layout);
/* The elements in BF16, row-major: rounded when first asked for, and kept. NULL after ls__step_fail. */
void *ls__tensor_half(ls_step *step, ls_tensor *tensor);
/* Makes `data` plain. False after ls__step_fail. */
bool ls__tensor_make_plain(ls_step *step, ls_tensor *tensor);
/* True where both layouts are the same bytes, so that nothing need be converted. */
bool ls__tensor_one_layout(const ls_tensor *tensor);
/* Copies elements of the tensor's shape from one layout to the other, `to`; or adds them. */
ls_status ls__tensor_convert(const ls_tensor *tensor, ls_device *device, const void *from,
                             ls__layout to_layout, void *to, bool accumulate);

/* A new tensor with the dtype, shape and layout of `tensor`. */
ls_tensor *ls__tensor_like(ls_step *step, const ls_tensor *tensor);

bool ls__tensor_same_shape(const ls_tensor *a, const ls_tensor *b);

/* Product of the extents of dimensions [begin, end). */
size_t ls__tensor_span(const ls_tensor *tensor, size_t begin, size_t end);

enum { LS__SHAPE_TEXT = 160 };

/* Writes "(2, 3)" for messages; returns text. */
char *ls__shape_text(const size_t *shape, size_t dims, char *text, size_t size);
/* The tensor's shape; text has LS__SHAPE_TEXT bytes. */
char *ls__tensor_text(const ls_tensor *tensor, char *text);

#endif
