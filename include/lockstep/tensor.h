/* Devices, tensors and the step they live in. Part of liblockstep.
 *
 * Tensors are dense and row-major. Those that operations return live in the step's arena: all of them
 * are gone at the next ls_step_begin, and a step of the same shapes gets the same addresses. Parameters
 * (model.h) live as long as their model.
 *
 * Errors stick: an operation that fails, or is given NULL, returns NULL, so calls can be nested; the
 * first failure is kept by the step (ls_step_status) and ls_backward returns it. */
#ifndef LOCKSTEP_TENSOR_H
#define LOCKSTEP_TENSOR_H

#include <lockstep/dtype.h>
#include <lockstep/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_device ls_device; /* opaque: memory and the kernels that work on it */
typedef struct ls_tensor ls_tensor; /* opaque */
typedef struct ls_step ls_step; /* opaque: arena, tape and randomness of one forward and backward */

enum { LS_MAX_DIMS = 6 };

/* The processor, with oneDNN. threads 0 means 1: results are equal to the bit for equal thread counts,
 * so the number never follows from the machine by itself. A device is used by one thread at a time. */
LS_API ls_status ls_device_cpu(ls_device **device, int threads);
/* After everything that was made on it. */
LS_API void ls_device_destroy(ls_device *device);
LS_API const char *ls_device_name(const ls_device *device); /* "cpu" */
LS_API int ls_device_threads(const ls_device *device);
/* What computing in `dtype` (ls_step_mode) would need and the device has not, in words: "a processor with
 * AVX512_BF16"; NULL where it can. */
LS_API const char *ls_device_lacks(const ls_device *device, ls_dtype dtype);

/* Zero-initialise. */
typedef struct ls_step_options {
    ls_device *device; /* required; must outlive the step */
    uint64_t seed;     /* of all randomness inside operations */
} ls_step_options;

/* How the next forward runs. Zero-initialise. */
typedef struct ls_step_mode {
    bool training;           /* dropout on, batch statistics, a tape is recorded */
    const uint64_t *samples; /* global sample numbers of the rows of the batch; randomness is
                                f(seed, sample, purpose). Copied. NULL: 0, 1, 2, ... */
    bool recompute;          /* models that can compute parts again in backward instead of keeping
                                them: gpt keeps the inputs of its blocks. Bits are the same */
    ls_dtype compute; /* LS_F32, or LS_BF16: the factors of matrix products (linear layers, matmul,
                                attention, linear_cross_entropy) are rounded to BF16 and their sums made
                                in F32; everything else (convolutions too), tensors and weights stay
                                F32. What the device cannot is LS_ERR_UNSUPPORTED: ls_device_lacks */
    size_t sample_count; /* rows (dimension 0) of the batch; 0 with samples NULL: unknown, then
                                dropout fails */
} ls_step_mode;

/* An empty step; ls_step_begin comes before the first operation. */
LS_API ls_status ls_step_create(ls_step **step, const ls_step_options *options);
LS_API void ls_step_destroy(ls_step *step);
/* Frees what the step before left, forgets its error, and starts. `mode` may be NULL (all zero). */
LS_API ls_status ls_step_begin(ls_step *step, const ls_step_mode *mode);
/* The first error since ls_step_begin; its text is set as the thread's ls_error_text. */
LS_API ls_status ls_step_status(const ls_step *step);
/* The largest number of bytes the arena held at once so far. */
LS_API size_t ls_step_peak_bytes(const ls_step *step);

/* A tensor in the arena, contents undefined. Extents are at least 1; dims 0 is a scalar. */
LS_API ls_tensor *ls_tensor_new(ls_step *step, ls_dtype dtype, const size_t *shape, size_t dims);
/* A tensor in the arena that uses the caller's memory (host, row-major), which must stay valid and
 * unchanged until the next ls_step_begin. No gradient flows into it. */
LS_API ls_tensor *ls_tensor_wrap(ls_step *step, void *data, ls_dtype dtype, const size_t *shape,
                                 size_t dims);

LS_API ls_dtype ls_tensor_dtype(const ls_tensor *tensor);
LS_API size_t ls_tensor_dims(const ls_tensor *tensor);
/* Extents; valid as long as the tensor. */
LS_API const size_t *ls_tensor_shape(const ls_tensor *tensor);
/* Elements */
LS_API size_t ls_tensor_count(const ls_tensor *tensor);
/* The elements, row-major, in device memory (for the CPU: readable here). Operations on images keep
 * their results in an order of their own until somebody asks: then they are converted, once; NULL when
 * there is no memory for that. */
LS_API void *ls_tensor_data(ls_tensor *tensor);
/* The gradient after ls_backward (of a weight's value: a view of its gradient's storage); NULL where
 * none flowed. In training mode, ls_tensor_need_grad asks for the gradient of a tensor that is no
 * parameter, be it an input or a result; call it before the tensor is used. Of results nobody asked
 * for, the memory of the gradient is used again as soon as it has flowed on. */
LS_API ls_tensor *ls_tensor_grad(ls_tensor *tensor);
LS_API void ls_tensor_need_grad(ls_tensor *tensor);
/* Element 0 of an f32 tensor as a double, NaN for NULL. */
LS_API double ls_tensor_item(const ls_tensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
