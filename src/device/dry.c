#include "device/dry.h"

#include "base/error.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct dry {
    ls_device base;
    ls_device *real;
    size_t bytes; /* handed out */
} dry;

static dry *dry_of(ls_device *device) {
    return (dry *)device;
}

/* --- memory: address space without pages. The page before a block says how long it is. --- */

enum { HEAD = 4096 };

static ls_status dry_alloc(ls_device *device, size_t bytes, void **memory) {
    if (bytes > SIZE_MAX >> 8)
        return ls__fail(LS_ERR_MEMORY, "dry: %zu bytes are more than can be addressed", bytes);
    /* Only the head can be written: the rest is no memory that a limit on it (ulimit -d) counts. */
    size_t *head =
        mmap(NULL, bytes + HEAD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (head != MAP_FAILED && mprotect(head, HEAD, PROT_READ | PROT_WRITE) != 0) {
        munmap(head, bytes + HEAD);
        head = MAP_FAILED;
    }
    if (head == MAP_FAILED)
        return ls__fail(LS_ERR_MEMORY, "dry: no address space for %zu bytes", bytes);
    *head = bytes;
    dry_of(device)->bytes += bytes;
    *memory = (char *)head + HEAD;
    return LS_OK;
}

static void dry_free(ls_device *device, void *memory) {
    if (!memory)
        return;
    size_t *head = (size_t *)((char *)memory - HEAD);
    dry_of(device)->bytes -= *head;
    munmap(head, *head + HEAD);
}

static void dry_destroy(ls_device *device) {
    free(dry_of(device));
}

size_t ls__device_dry_bytes(const ls_device *device) {
    return ((const dry *)device)->bytes;
}

/* --- what the kernels of the real device decide --- */

static const char *lacks(const ls_device *device, ls_dtype dtype) {
    const ls_device *real = ((const dry *)device)->real;
    return real->table->lacks(real, dtype);
}

static size_t packed_bytes(ls_device *device, const ls__packing *packing) {
    ls_device *real = dry_of(device)->real;
    return real->table->packed_bytes(real, packing);
}

static size_t attention_saved_bytes(ls_device *device, ls_dtype dtype, const ls__attention *shape) {
    ls_device *real = dry_of(device)->real;
    return real->table->attention_saved_bytes(real, dtype, shape);
}

/* --- results that go to the host --- */

/* clang-format off */
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* clang-format on */

static ls_status class_blocks_end(ls_device *device, size_t rows, size_t classes,
                                  const int32_t *targets, const ls__class_row *state, float *loss,
                                  size_t *correct) {
    *correct = 0;
    return LS_OK;
}

static ls_status count_correct(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                               const void *x, const int32_t *targets, size_t *correct) {
    *correct = 0;
    return LS_OK;
}

static ls_status squares(ls_device *device, size_t count, float factor, const float *x,
                         double *sums) {
    memset(sums, 0, ls__squares_blocks(count) * sizeof *sums);
    return LS_OK;
}

/* One number is what an operation asks of the gradient of the loss (ls__tape_scalar_gradient), and that is 1
 * unless somebody scales it: what depends on it goes as in a real step. */
static ls_status copy(ls_device *device, void *to, const void *from, size_t bytes) {
    if (bytes == sizeof(float))
        *(float *)to = 1;
    return LS_OK;
}

/* --- everything else: nothing --- */

static ls_status zero(ls_device *device, void *memory, size_t bytes) {
    return LS_OK;
}

static ls_status gemm(ls_device *device, ls_dtype dtype, bool ta, bool tb, size_t m, size_t n,
                      size_t k, float alpha, const void *a, size_t lda, const void *b, size_t ldb,
                      float beta, void *c, size_t ldc) {
    return LS_OK;
}

static ls_status linear(ls_device *device, ls_dtype dtype, size_t rows, size_t in, size_t out,
                        const void *x, const void *w, bool out_first, const void *bias, void *y,
                        bool accumulate) {
    return LS_OK;
}

static ls_status pack(ls_device *device, const ls__packing *packing, const float *b, void *packed) {
    return LS_OK;
}

static ls_status product(ls_device *device, const ls__packing *packing, size_t rows, const void *a,
                         const void *packed, const float *bias, float *c, bool accumulate) {
    return LS_OK;
}

static ls_status outer_product(ls_device *device, ls_dtype dtype, size_t rows, size_t m, size_t n,
                               const void *a, const void *b, float *c, bool accumulate) {
    return LS_OK;
}

static ls_status narrow(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                        const float *x, void *y, float *sums, bool accumulate) {
    return LS_OK;
}

static ls_status conv2d_forward(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                const void *x, const void *w, const void *bias, void *y) {
    return LS_OK;
}

static ls_status conv2d_backward(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                 const void *x, const void *w, const void *y, const void *dy,
                                 void *dx, bool accumulate_dx, void *dw, bool accumulate_dw,
                                 void *dbias, bool accumulate_dbias) {
    return LS_OK;
}

static ls_status pool2d_forward(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                const void *x, void *y, int32_t *where) {
    return LS_OK;
}

static ls_status pool2d_backward(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                 const void *dy, const int32_t *where, void *dx, bool accumulate) {
    return LS_OK;
}

static ls_status layer_norm_forward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                    const void *x, const void *weight, const void *bias,
                                    float epsilon, void *y, float *mean, float *rstd) {
    return LS_OK;
}

static ls_status layer_norm_backward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                     const void *x, const void *weight, const float *mean,
                                     const float *rstd, const void *dy, void *dx,
                                     bool accumulate_dx, void *dweight, bool accumulate_dweight,
                                     void *dbias, bool accumulate_dbias, void *dx_sums,
                                     bool accumulate_dx_sums) {
    return LS_OK;
}

static ls_status residual_sum(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                              const void *x, const void *branch, const void *bias, void *sum) {
    return LS_OK;
}

static ls_status residual_norm_forward(ls_device *device, ls_dtype dtype, size_t rows,
                                       size_t columns, const void *x, const void *branch,
                                       const void *branch_bias, const void *weight,
                                       const void *bias, float epsilon, void *sum, void *y,
                                       float *mean, float *rstd) {
    return LS_OK;
}

static ls_status batch_norm_forward(ls_device *device, ls_dtype dtype, const ls__batch_norm *shape,
                                    bool training, const void *x, const void *weight,
                                    const void *bias, const void *residual, void *y, float *mean,
                                    float *variance, float *rstd) {
    return LS_OK;
}

static ls_status batch_norm_backward(ls_device *device, ls_dtype dtype, const ls__batch_norm *shape,
                                     bool training, const void *x, const void *weight,
                                     const float *mean, const float *rstd, const void *y,
                                     const void *dy, void *dx, bool accumulate_dx, void *dresidual,
                                     bool accumulate_dresidual, void *dweight,
                                     bool accumulate_dweight, void *dbias, bool accumulate_dbias) {
    return LS_OK;
}

static ls_status unary_forward(ls_device *device, ls_dtype dtype, ls__unary op, size_t count,
                               const void *x, void *y) {
    return LS_OK;
}

static ls_status unary_backward(ls_device *device, ls_dtype dtype, ls__unary op, size_t count,
                                const void *x, const void *y, const void *dy, void *dx,
                                bool accumulate) {
    return LS_OK;
}

static ls_status bias_gelu_forward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                   const void *x, const void *bias, void *y) {
    return LS_OK;
}

static ls_status bias_gelu_backward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                    const void *x, const void *bias, const void *dy, void *dx,
                                    bool accumulate_dx, void *dbias, bool accumulate_dbias) {
    return LS_OK;
}

static ls_status binary_forward(ls_device *device, ls_dtype dtype, ls__binary op, size_t rows,
                                size_t columns, const void *a, const void *b, bool repeat_b,
                                void *y) {
    return LS_OK;
}

static ls_status binary_backward(ls_device *device, ls_dtype dtype, ls__binary op, size_t rows,
                                 size_t columns, const void *a, const void *b, bool repeat_b,
                                 const void *dy, void *da, bool accumulate_da, void *db,
                                 bool accumulate_db) {
    return LS_OK;
}

static ls_status affine(ls_device *device, ls_dtype dtype, size_t count, float factor, float term,
                        const void *x, void *y, bool accumulate) {
    return LS_OK;
}

static ls_status dropout(ls_device *device, ls_dtype dtype, size_t per_sample,
                         const uint64_t *samples, size_t sample_count, uint64_t seed,
                         uint64_t purpose, float p, const void *x, void *y, bool accumulate) {
    return LS_OK;
}

static ls_status softmax_forward(ls_device *device, ls_dtype dtype, bool logarithm, size_t rows,
                                 size_t columns, const void *x, void *y) {
    return LS_OK;
}

static ls_status softmax_backward(ls_device *device, ls_dtype dtype, bool logarithm, size_t rows,
                                  size_t columns, const void *y, const void *dy, void *dx,
                                  bool accumulate) {
    return LS_OK;
}

static ls_status sum(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                     float scale, const void *x, void *y, bool accumulate) {
    return LS_OK;
}

static ls_status repeat(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                        float scale, const void *dy, void *dx, bool accumulate) {
    return LS_OK;
}

static ls_status max(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                     const void *x, void *y, int32_t *where) {
    return LS_OK;
}

static ls_status max_backward(ls_device *device, ls_dtype dtype, size_t outer, size_t n,
                              size_t inner, const int32_t *where, const void *dy, void *dx,
                              bool accumulate) {
    return LS_OK;
}

static ls_status permute(ls_device *device, ls_dtype dtype, size_t dims, const size_t *shape,
                         const size_t *permutation, const void *x, void *y, bool accumulate) {
    return LS_OK;
}

static ls_status copy_rows(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                           const void *x, size_t x_stride, void *y, size_t y_stride,
                           bool accumulate) {
    return LS_OK;
}

static ls_status embedding_forward(ls_device *device, ls_dtype dtype, size_t table_rows,
                                   size_t columns, const void *table, const int32_t *indices,
                                   size_t count, void *y) {
    return LS_OK;
}

static ls_status embedding_backward(ls_device *device, ls_dtype dtype, size_t table_rows,
                                    size_t columns, const int32_t *indices, size_t count,
                                    const void *dy, void *dtable, bool accumulate) {
    return LS_OK;
}

static ls_status attention_forward(ls_device *device, ls_dtype dtype, const ls__attention *shape,
                                   const void *qkv, void *y, void *saved) {
    return LS_OK;
}

static ls_status attention_backward(ls_device *device, ls_dtype dtype, const ls__attention *shape,
                                    const void *qkv, const void *y, const void *saved,
                                    const void *dy, void *dqkv, bool accumulate) {
    return LS_OK;
}

static ls_status cross_entropy_forward(ls_device *device, ls_dtype dtype, size_t rows,
                                       size_t columns, const void *x, const int32_t *targets,
                                       float *loss, void *probs) {
    return LS_OK;
}

static ls_status cross_entropy_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                        size_t columns, const void *probs, const int32_t *targets,
                                        float dloss, void *dx, bool accumulate) {
    return LS_OK;
}

static ls_status class_block(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                             size_t first, const void *x, const int32_t *targets,
                             ls__class_row *state) {
    return LS_OK;
}

static ls_status class_block_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                      size_t columns, size_t first, const int32_t *targets,
                                      const ls__class_row *state, float dloss, void *x) {
    return LS_OK;
}

static ls_status class_powers(ls_device *device, size_t rows, size_t columns, size_t first,
                              const float *x, const int32_t *targets, ls__class_row *state,
                              float *most, void *powers) {
    return LS_OK;
}

static ls_status class_powers_backward(ls_device *device, size_t rows, size_t columns, size_t first,
                                       const int32_t *targets, const ls__class_row *state,
                                       const float *most, float dloss, void *powers) {
    return LS_OK;
}

static ls_status squared_error(ls_device *device, ls_dtype dtype, size_t count, const void *a,
                               const void *b, float *loss) {
    return LS_OK;
}

static ls_status sgd(ls_device *device, size_t count, const ls__sgd *o, float *weight,
                     const float *gradient, float *momentum) {
    return LS_OK;
}

static ls_status adam(ls_device *device, size_t count, const ls__adam *o, float *weight,
                      const float *gradient, float *first, float *second) {
    return LS_OK;
}

static const ls__device_table DRY_TABLE = {
    .name = "dry",
    .destroy = dry_destroy,
    .alloc = dry_alloc,
    .free = dry_free,
    .zero = zero,
    .copy = copy,
    .gemm = gemm,
    .linear = linear,
    .lacks = lacks,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .product = product,
    .outer_product = outer_product,
    .narrow = narrow,
    .conv2d_forward = conv2d_forward,
    .conv2d_backward = conv2d_backward,
    .pool2d_forward = pool2d_forward,
    .pool2d_backward = pool2d_backward,
    .layer_norm_forward = layer_norm_forward,
    .layer_norm_backward = layer_norm_backward,
    .residual_sum = residual_sum,
    .residual_norm_forward = residual_norm_forward,
    .batch_norm_forward = batch_norm_forward,
    .batch_norm_backward = batch_norm_backward,
    .unary_forward = unary_forward,
    .unary_backward = unary_backward,
    .bias_gelu_forward = bias_gelu_forward,
    .bias_gelu_backward = bias_gelu_backward,
    .binary_forward = binary_forward,
    .binary_backward = binary_backward,
    .affine = affine,
    .dropout = dropout,
    .softmax_forward = softmax_forward,
    .softmax_backward = softmax_backward,
    .sum = sum,
    .repeat = repeat,
    .max = max,
    .max_backward = max_backward,
    .permute = permute,
    .copy_rows = copy_rows,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .attention_saved_bytes = attention_saved_bytes,
    .attention_forward = attention_forward,
    .attention_backward = attention_backward,
    .cross_entropy_forward = cross_entropy_forward,
    .cross_entropy_backward = cross_entropy_backward,
    .class_block = class_block,
    .class_blocks_end = class_blocks_end,
    .class_block_backward = class_block_backward,
    .class_powers = class_powers,
    .class_powers_backward = class_powers_backward,
    .squared_error = squared_error,
    .count_correct = count_correct,
    .sgd = sgd,
    .adam = adam,
    .squares = squares,
};

ls_status ls__device_dry(ls_device **device, ls_device *real) {
    dry *d = calloc(1, sizeof *d);
    if (!d)
        return ls__fail(LS_ERR_MEMORY, "dry: no memory for the device");
    d->base.table = &DRY_TABLE;
    d->base.threads = real->threads;
    d->base.dry = true;
    d->real = real;
    *device = &d->base;
    return LS_OK;
}
