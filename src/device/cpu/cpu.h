/* The CPU's device, inside: what the files of this folder share, and the kernels they define. */
#ifndef LS_DEVICE_CPU_CPU_H
#define LS_DEVICE_CPU_CPU_H

#include "base/error.h"
#include "base/level.h"
#include "device/device.h"

typedef struct ls__onednn ls__onednn;                   /* onednn.h */
typedef struct ls__attention_plans ls__attention_plans; /* attention_bf16.c */

typedef struct ls__cpu {
    ls_device base;
    ls__onednn *onednn;
    ls__attention_plans *attention; /* made when first needed */
    ls__cpu_level level;            /* of the own kernels */
    char *scratch; /* grows to the largest need seen; one kernel at a time uses it */
    size_t scratch_bytes;
} ls__cpu;

/* Elements below which a second thread costs more than it brings (measured: a parallel region is
 * about 5 us). */
enum { LS__CPU_GRAIN = 16384 };

/* Kernels that build values in pieces of this many elements before they store or add them. */
enum { LS__CPU_PIECE = 256 };

/* Runs the kernel (LS_KERNEL) at the device's level over [0, count), cut into one contiguous part a thread. `cost` is the number of
 * elements one item stands for. A body must give each item a result that does not depend on the
 * cut, so that neither do the bits. */
void ls__cpu_parallel(ls_device *device, size_t count, size_t cost, ls__cpu_body *const kernel[],
                      const void *arguments);

/* Memory that is valid until the next call. */
ls_status ls__cpu_scratch(ls_device *device, size_t bytes, void **memory);

/* LS_ERR_UNSUPPORTED unless f32. */
ls_status ls__cpu_require_f32(ls_dtype dtype, const char *kernel);

/* Asks the memory for what lies LS__CPU_AHEAD elements behind [x, x + count), for kernels that stream through more than
 * the caches hold. The processor's own prefetching stops at each page of 4 KiB and leaves one core below what memory
 * can give it. One core of an Intel Xeon, beyond the caches: AdamW's pass 26 -> 29 GB/s, the norm's 14 ->
 * 17. Behind the end of an array this asks in vain, which is no fault. */
enum { LS__CPU_AHEAD = 512 };
LS_INLINE void ls__cpu_ask_ahead(const float *x, size_t count) {
    for (size_t i = 0; i < count; i += 16)
        __builtin_prefetch((const char *)x + (LS__CPU_AHEAD + i) * sizeof *x);
}

/* y = values, or y += values */
LS_INLINE void ls__cpu_store(float *y, const float *values, size_t count, bool accumulate) {
    if (accumulate) {
        for (size_t i = 0; i < count; i++)
            y[i] += values[i];
    } else {
        for (size_t i = 0; i < count; i++)
            y[i] = values[i];
    }
}

/* Sums over rows, of kernels that make them beside something else: each block of rows leaves its sums
 * as one row of `partials` (blocks, stride), which are then added in order. The blocks are those of
 * ls__cpu_sum, and so are the bits. */
enum { LS__CPU_ROW_BLOCK = 128 };
size_t ls__cpu_row_blocks(size_t rows);
void ls__cpu_add_blocks(ls_device *device, const float *partials, size_t blocks, size_t stride,
                        size_t columns, float *y, bool accumulate);

/* A target that is none: ours, and PyTorch's. */
LS_INLINE bool ls__cpu_is_padding(int32_t target) {
    return target == -1 || target == -100;
}

LS_INLINE size_t ls__min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Kernels: the contract of each stands in device.h. */
ls_status ls__cpu_gemm(ls_device *device, ls_dtype dtype, bool ta, bool tb, size_t m, size_t n,
                       size_t k, float alpha, const void *a, size_t lda, const void *b, size_t ldb,
                       float beta, void *c, size_t ldc);
ls_status ls__cpu_linear(ls_device *device, ls_dtype dtype, size_t rows, size_t in, size_t out,
                         const void *x, const void *w, bool out_first, const void *bias, void *y,
                         bool accumulate);
/* linear.c's way for few rows and weights (out, in): whether it is one for this device, and the product. */
bool ls__cpu_linear_dot_fits(const ls_device *device, size_t rows, size_t in, bool out_first);
ls_status ls__cpu_linear_dot(ls_device *device, size_t rows, size_t in, size_t out, const float *x,
                             const float *w, const float *bias, float *y, bool accumulate);

const char *ls__cpu_lacks(const ls_device *device, ls_dtype dtype);
size_t ls__cpu_packed_bytes(ls_device *device, const ls__packing *packing);
ls_status ls__cpu_pack(ls_device *device, const ls__packing *packing, const float *b, void *packed);
ls_status ls__cpu_product(ls_device *device, const ls__packing *packing, size_t rows, const void *a,
                          const void *packed, const float *bias, float *c, bool accumulate);
ls_status ls__cpu_outer_product(ls_device *device, ls_dtype dtype, size_t rows, size_t m, size_t n,
                                const void *a, const void *b, float *c, bool accumulate);
ls_status ls__cpu_narrow(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                         const float *x, void *y, float *sums, bool accumulate);

ls_status ls__cpu_conv2d_forward(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                 const void *x, const void *w, const void *bias, void *y);
ls_status ls__cpu_conv2d_backward(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                  const void *x, const void *w, const void *y, const void *dy,
                                  void *dx, bool accumulate_dx, void *dw, bool accumulate_dw,
                                  void *dbias, bool accumulate_dbias);
ls_status ls__cpu_pool2d_forward(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                 const void *x, void *y, int32_t *where);
ls_status ls__cpu_pool2d_backward(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                  const void *dy, const int32_t *where, void *dx, bool accumulate);

ls_status ls__cpu_layer_norm_forward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                     const void *x, const void *weight, const void *bias,
                                     float epsilon, void *y, float *mean, float *rstd);
ls_status ls__cpu_layer_norm_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                      size_t columns, const void *x, const void *weight,
                                      const float *mean, const float *rstd, const void *dy,
                                      void *dx, bool accumulate_dx, void *dweight,
                                      bool accumulate_dweight, void *dbias, bool accumulate_dbias,
                                      void *dx_sums, bool accumulate_dx_sums);
ls_status ls__cpu_residual_sum(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                               const void *x, const void *branch, const void *bias, void *sum);
ls_status ls__cpu_residual_norm_forward(ls_device *device, ls_dtype dtype, size_t rows,
                                        size_t columns, const void *x, const void *branch,
                                        const void *branch_bias, const void *weight,
                                        const void *bias, float epsilon, void *sum, void *y,
                                        float *mean, float *rstd);
ls_status ls__cpu_batch_norm_forward(ls_device *device, ls_dtype dtype, const ls__batch_norm *shape,
                                     bool training, const void *x, const void *weight,
                                     const void *bias, const void *residual, void *y, float *mean,
                                     float *variance, float *rstd);
ls_status ls__cpu_batch_norm_backward(ls_device *device, ls_dtype dtype,
                                      const ls__batch_norm *shape, bool training, const void *x,
                                      const void *weight, const float *mean, const float *rstd,
                                      const void *y, const void *dy, void *dx, bool accumulate_dx,
                                      void *dresidual, bool accumulate_dresidual, void *dweight,
                                      bool accumulate_dweight, void *dbias, bool accumulate_dbias);

ls_status ls__cpu_unary_forward(ls_device *device, ls_dtype dtype, ls__unary op, size_t count,
                                const void *x, void *y);
ls_status ls__cpu_unary_backward(ls_device *device, ls_dtype dtype, ls__unary op, size_t count,
                                 const void *x, const void *y, const void *dy, void *dx,
                                 bool accumulate);
ls_status ls__cpu_bias_gelu_forward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                    const void *x, const void *bias, void *y);
ls_status ls__cpu_bias_gelu_backward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                     const void *x, const void *bias, const void *dy, void *dx,
                                     bool accumulate_dx, void *dbias, bool accumulate_dbias);
ls_status ls__cpu_binary_forward(ls_device *device, ls_dtype dtype, ls__binary op, size_t rows,
                                 size_t columns, const void *a, const void *b, bool repeat_b,
                                 void *y);
ls_status ls__cpu_binary_backward(ls_device *device, ls_dtype dtype, ls__binary op, size_t rows,
                                  size_t columns, const void *a, const void *b, bool repeat_b,
                                  const void *dy, void *da, bool accumulate_da, void *db,
                                  bool accumulate_db);
ls_status ls__cpu_affine(ls_device *device, ls_dtype dtype, size_t count, float factor, float term,
                         const void *x, void *y, bool accumulate);
ls_status ls__cpu_dropout(ls_device *device, ls_dtype dtype, size_t per_sample,
                          const uint64_t *samples, size_t sample_count, uint64_t seed,
                          uint64_t purpose, float p, const void *x, void *y, bool accumulate);
ls_status ls__cpu_softmax_forward(ls_device *device, ls_dtype dtype, bool logarithm, size_t rows,
                                  size_t columns, const void *x, void *y);
ls_status ls__cpu_softmax_backward(ls_device *device, ls_dtype dtype, bool logarithm, size_t rows,
                                   size_t columns, const void *y, const void *dy, void *dx,
                                   bool accumulate);

ls_status ls__cpu_sum(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                      float scale, const void *x, void *y, bool accumulate);
ls_status ls__cpu_repeat(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                         float scale, const void *dy, void *dx, bool accumulate);
ls_status ls__cpu_max(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                      const void *x, void *y, int32_t *where);
ls_status ls__cpu_max_backward(ls_device *device, ls_dtype dtype, size_t outer, size_t n,
                               size_t inner, const int32_t *where, const void *dy, void *dx,
                               bool accumulate);

ls_status ls__cpu_permute(ls_device *device, ls_dtype dtype, size_t dims, const size_t *shape,
                          const size_t *permutation, const void *x, void *y, bool accumulate);
ls_status ls__cpu_copy_rows(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                            const void *x, size_t x_stride, void *y, size_t y_stride,
                            bool accumulate);

ls_status ls__cpu_embedding_forward(ls_device *device, ls_dtype dtype, size_t table_rows,
                                    size_t columns, const void *table, const int32_t *indices,
                                    size_t count, void *y);
ls_status ls__cpu_embedding_backward(ls_device *device, ls_dtype dtype, size_t table_rows,
                                     size_t columns, const int32_t *indices, size_t count,
                                     const void *dy, void *dtable, bool accumulate);
size_t ls__cpu_attention_saved_bytes(ls_device *device, ls_dtype dtype, const ls__attention *shape);
ls_status ls__cpu_attention_forward(ls_device *device, ls_dtype dtype, const ls__attention *shape,
                                    const void *qkv, void *y, void *saved);
ls_status ls__cpu_attention_backward(ls_device *device, ls_dtype dtype, const ls__attention *shape,
                                     const void *qkv, const void *y, const void *saved,
                                     const void *dy, void *dqkv, bool accumulate);

ls_status ls__cpu_cross_entropy_forward(ls_device *device, ls_dtype dtype, size_t rows,
                                        size_t columns, const void *x, const int32_t *targets,
                                        float *loss, void *probs);
ls_status ls__cpu_cross_entropy_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                         size_t columns, const void *probs, const int32_t *targets,
                                         float dloss, void *dx, bool accumulate);
ls_status ls__cpu_class_block(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                              size_t first, const void *x, const int32_t *targets,
                              ls__class_row *state);
ls_status ls__cpu_class_blocks_end(ls_device *device, size_t rows, size_t classes,
                                   const int32_t *targets, const ls__class_row *state, float *loss,
                                   size_t *correct);
ls_status ls__cpu_class_block_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                       size_t columns, size_t first, const int32_t *targets,
                                       const ls__class_row *state, float dloss, void *x);
ls_status ls__cpu_class_powers(ls_device *device, size_t rows, size_t columns, size_t first,
                               const float *x, const int32_t *targets, ls__class_row *state,
                               float *most, void *powers);
ls_status ls__cpu_class_powers_backward(ls_device *device, size_t rows, size_t columns,
                                        size_t first, const int32_t *targets,
                                        const ls__class_row *state, const float *most, float dloss,
                                        void *powers);
void ls__attention_plans_destroy(ls__attention_plans *plans);
ls_status ls__cpu_squared_error(ls_device *device, ls_dtype dtype, size_t count, const void *a,
                                const void *b, float *loss);
ls_status ls__cpu_count_correct(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                const void *x, const int32_t *targets, size_t *correct);

ls_status ls__cpu_sgd(ls_device *device, size_t count, const ls__sgd *o, float *weight,
                      const float *gradient, float *momentum);
ls_status ls__cpu_adam(ls_device *device, size_t count, const ls__adam *o, float *weight,
                       const float *gradient, float *first, float *second);
ls_status ls__cpu_squares(ls_device *device, size_t count, float factor, const float *x,
                          double *sums);

#endif
