#include "tensor/tensor.h"

#include "tensor/arena.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- the step, as operations see it --- */

void *ls__step_fail(ls_step *step, ls_status status) {
    if (step && step->status == LS_OK) {
        step->status = status;
        snprintf(step->error, sizeof step->error, "%s", ls_error_text());
    }
    return NULL;
}

void *ls__step_alloc(ls_step *step, size_t bytes) {
    void *memory = NULL;
    ls_status status = ls__arena_alloc(step->arena, bytes, &memory);
    return status == LS_OK ? memory : ls__step_fail(step, status);
}

void ls__step_release(ls_step *step, void *memory, size_t bytes) {
    ls__arena_release(step->arena, memory, bytes);
}

void *ls__step_alloc_record(ls_step *step, size_t bytes) {
    void *memory = NULL;
    ls_status status = ls__arena_alloc(step->records, bytes, &memory);
    return status == LS_OK ? memset(memory, 0, bytes) : ls__step_fail(step, status);
}

/* --- text for messages --- */

char *ls__shape_text(const size_t *shape, size_t dims, char *text, size_t size) {
    size_t n = (size_t)snprintf(text, size, "(");
    for (size_t d = 0; d < dims && n < size; d++)
        n += (size_t)snprintf(text + n, size - n, d ? ", %zu" : "%zu", shape[d]);
    if (n < size)
        snprintf(text + n, size - n, ")");
    return text;
}

char *ls__tensor_text(const ls_tensor *tensor, char *text) {
    return ls__shape_text(tensor->shape, tensor->dims, text, LS__SHAPE_TEXT);
}

/* --- making tensors --- */

/* A header without data; checks what the caller gave. */
static ls_tensor *new_header(ls_step *step, ls_dtype dtype, const size_t *shape, size_t dims) {
    if (!step)
        return NULL;
    size_t size = ls_dtype_size(dtype);
    if (size == 0)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "tensor: %d is no dtype", (int)dtype));
    if (dims > LS_MAX_DIMS)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                            "tensor: %zu dimensions, at most %d are possible", dims,
                                            LS_MAX_DIMS));
    if (dims > 0 && !shape)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "tensor: shape is NULL"));
    size_t count = 1;
    char text[LS__SHAPE_TEXT];
    for (size_t d = 0; d < dims; d++) {
        if (shape[d] == 0)
            return ls__step_fail(
                step, ls__fail(LS_ERR_ARGUMENT,
                               "tensor: shape %s has no elements, want extents of at least 1",
                               ls__shape_text(shape, dims, text, sizeof text)));
        if (count > SIZE_MAX / 8 / size / shape[d])
            return ls__step_fail(step,
                                 ls__fail(LS_ERR_RANGE,
                                          "tensor: shape %s has more elements than can be counted",
                                          ls__shape_text(shape, dims, text, sizeof text)));
        count *= shape[d];
    }
    ls_tensor *tensor = ls__step_alloc_record(step, sizeof *tensor);
    if (!tensor)
        return NULL;
    tensor->step = step;
    tensor->dtype = dtype;
    tensor->dims = dims;
    if (dims > 0)
        memcpy(tensor->shape, shape, dims * sizeof *shape);
    tensor->count = count;
    return tensor;
}

ls_tensor *ls_tensor_new(ls_step *step, ls_dtype dtype, const size_t *shape, size_t dims) {
    ls_tensor *tensor = new_header(step, dtype, shape, dims);
    if (!tensor)
        return NULL;
    tensor->data = ls__step_alloc(step, tensor->count * ls_dtype_size(dtype));
    return tensor->data ? tensor : NULL;
}

ls_tensor *ls_tensor_wrap(ls_step *step, void *data, ls_dtype dtype, const size_t *shape,
                          size_t dims) {
    if (!data)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "tensor: the data to wrap is NULL"));
    ls_tensor *tensor = new_header(step, dtype, shape, dims);
    if (tensor)
        tensor->data = data;
    return tensor;
}

ls_tensor *ls__tensor_like(ls_step *step, const ls_tensor *tensor) {
    ls_tensor *like = ls_tensor_new(step, tensor->dtype, tensor->shape, tensor->dims);
    if (like)
        like->layout = tensor->layout;
    return like;
}

/* --- looking at them --- */

bool ls__tensor_check_any(ls_step *step, const ls_tensor *tensor, ls_dtype dtype,
                          const char *operation) {
    if (!step) {
        ls__fail(LS_ERR_ARGUMENT, "%s: step is NULL", operation);
        return false;
    }
    /* The NULL of an operation that failed before: its error stays the step's, and the thread's. */
    if (!tensor && step->status != LS_OK)
        return false;
    if (!tensor) {
        ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "%s: an input is NULL", operation));
        return false;
    }
    if (tensor->dtype != dtype) {
        ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "%s: an input is %s, want %s", operation,
                                     ls_dtype_name(tensor->dtype), ls_dtype_name(dtype)));
        return false;
    }
    return true;
}

bool ls__tensor_check(ls_step *step, ls_tensor *tensor, ls_dtype dtype, const char *operation) {
    return ls__tensor_check_any(step, tensor, dtype, operation) &&
           ls__tensor_make_plain(step, tensor);
}

bool ls__tensor_same_shape(const ls_tensor *a, const ls_tensor *b) {
    return a->dims == b->dims && memcmp(a->shape, b->shape, a->dims * sizeof *a->shape) == 0;
}

size_t ls__tensor_span(const ls_tensor *tensor, size_t begin, size_t end) {
    size_t count = 1;
    for (size_t d = begin; d < end; d++)
        count *= tensor->shape[d];
    return count;
}

ls_dtype ls_tensor_dtype(const ls_tensor *tensor) {
    return tensor ? tensor->dtype : LS_DTYPE_COUNT;
}

size_t ls_tensor_dims(const ls_tensor *tensor) {
    return tensor ? tensor->dims : 0;
}

const size_t *ls_tensor_shape(const ls_tensor *tensor) {
    return tensor ? tensor->shape : NULL;
}

size_t ls_tensor_count(const ls_tensor *tensor) {
    return tensor ? tensor->count : 0;
}

void *ls_tensor_data(ls_tensor *tensor) {
    if (tensor && tensor->exposed)
        *tensor->exposed = true;
    return tensor && ls__tensor_make_plain(tensor->step, tensor) ? tensor->data : NULL;
}

void ls_tensor_need_grad(ls_tensor *tensor) {
    if (tensor && !tensor->parameter)
        tensor->need_grad = tensor->keep_grad = true;
}

double ls_tensor_item(const ls_tensor *tensor) {
    if (!tensor || tensor->dtype != LS_F32)
        return (double)NAN;
    return (double)*(const float *)tensor->data;
}
