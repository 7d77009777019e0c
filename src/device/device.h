/* The table of operations a device offers. Nothing outside of device/ names oneDNN or CUDA.
 *
 * Pointers are device memory, dense and row-major unless strides are given. `dtype` is the type of
 * the float arrays (LS_F32 today); what a device cannot do is LS_ERR_UNSUPPORTED. Destinations of
 * backward kernels follow `accumulate`: false overwrites whatever was there (it may be
 * uninitialised), true adds. Kernels take no memory per call beyond scratch the device keeps, and
 * give the same bits for the same inputs, shapes and thread count. The caller checked the shapes. */
#ifndef LS_DEVICE_DEVICE_H
#define LS_DEVICE_DEVICE_H

#include <lockstep/tensor.h>

typedef enum ls__unary {
    LS__RELU,
    LS__GELU,
    LS__GELU_TANH,
    LS__TANH,
    LS__SIGMOID,
    LS__EXP,
    LS__LOG,
    LS__SQRT,
} ls__unary;

typedef enum ls__binary { LS__ADD, LS__SUB, LS__MUL, LS__DIV } ls__binary;

/* Images are channels last: x (batch, in_h, in_w, in_channels), y (batch, out_h, out_w,
 * out_channels). w (out_channels, in_channels, kernel_h, kernel_w) */
typedef struct ls__conv2d {
    size_t batch, in_channels, in_h, in_w;
    size_t out_channels, kernel_h, kernel_w, out_h, out_w;
    size_t stride, padding;
    bool relu; /* y = max(0, convolution); NaN stays */
} ls__conv2d;

/* Channels last too. */
typedef struct ls__pool2d {
    bool average; /* else maximum */
    size_t batch, channels, in_h, in_w, out_h, out_w;
    size_t kernel, stride, padding;
} ls__pool2d;

/* x (rows, channels), a row for each pixel of each image: statistics over rows */
typedef struct ls__batch_norm {
    size_t rows, channels;
    float epsilon;
    bool relu; /* y = max(0, normalised x + residual); NaN stays */
    /* Training on a part of the batch: adds up over all parts (ls_batch_norm_sync of ops.h, which says
     * what and when). NULL: x is all of it. */
    ls_status (*sum)(void *context, double *values, size_t count);
    void *sum_context;
    double *all_rows; /* of all parts: forward writes, backward reads. Not NULL where sum is not */
} ls__batch_norm;

/* qkv (batch, time, 3 * heads * head_size), y (batch, time, heads * head_size) */
typedef struct ls__attention {
    size_t batch, time, heads, head_size;
} ls__attention;

/* b (k, n), the second factor of products, in the order and type that the device's kernels want: packed.
 * It is packed from f32, stored as (k, n), or as (n, k) where `transposed`. */
typedef struct ls__packing {
    ls_dtype dtype;
    size_t k, n;
    bool transposed;
} ls__packing;

/* A row of logits, as far as its blocks of classes have been seen */
typedef struct ls__class_row {
    double sum;   /* of exp(logit - most) */
    float most;   /* largest logit */
    float target; /* the target's logit */
    int32_t best; /* class of the first largest */
} ls__class_row;

/* Hyperparameters of one fused update; formulas as torch.optim. Gradients are multiplied by
 * grad_factor (1 / weight of a sum), then by grad_scale (clipping) as they are read. */
typedef struct ls__sgd {
    float rate, momentum, weight_decay, grad_factor, grad_scale;
    bool nesterov, first; /* first: the momentum buffer is set, not updated */
} ls__sgd;
typedef struct ls__adam {
    float rate, beta1, beta2, epsilon, weight_decay, grad_factor, grad_scale;
    float correction1, correction2; /* 1 - beta^t */
    bool decoupled;                 /* AdamW */
} ls__adam;

typedef struct ls__device_table {
    const char *name;
    void (*destroy)(ls_device *device);
    /* What decides the bits of results: kernels, their version and instruction set, threads. One line. */
    void (*describe)(const ls_device *device, char *text, size_t bytes);

    /* --- memory: 64-byte aligned, not zeroed --- */
    ls_status (*alloc)(ls_device *device, size_t bytes, void **memory);
    void (*free)(ls_device *device, void *memory);
    ls_status (*zero)(ls_device *device, void *memory, size_t bytes);
    ls_status (*copy)(ls_device *device, void *to, const void *from, size_t bytes);

    /* c (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * c; op transposes where ta, tb say so;
     * ld* are the row strides, in elements, of the matrices as stored. beta 0 does not read c. */
    ls_status (*gemm)(ls_device *device, ls_dtype dtype, bool ta, bool tb, size_t m, size_t n,
                      size_t k, float alpha, const void *a, size_t lda, const void *b, size_t ldb,
                      float beta, void *c, size_t ldc);
    /* y (rows, out) (+)= x (rows, in) W + bias. w is W (in, out), or its transpose (out, in) where
     * out_first. bias (out) may be NULL. */
    ls_status (*linear)(ls_device *device, ls_dtype dtype, size_t rows, size_t in, size_t out,
                        const void *x, const void *w, bool out_first, const void *bias, void *y,
                        bool accumulate);

    /* --- products with a factor that is packed once and used often. 16-bit factors are rounded to
     *     nearest even, sums are made in f32 --- */
    /* NULL where products can be computed in `dtype`; else what that would need, in words. */
    const char *(*lacks)(const ls_device *device, ls_dtype dtype);
    /* Bytes of b packed; 0: not for this dtype. */
    size_t (*packed_bytes)(ls_device *device, const ls__packing *packing);
    ls_status (*pack)(ls_device *device, const ls__packing *packing, const float *b, void *packed);
    /* c (rows, n) f32 (+)= a (rows, k), in packing's dtype, times packed b, + bias. bias (n) may be
     * NULL; it is not added together with accumulate. */
    ls_status (*product)(ls_device *device, const ls__packing *packing, size_t rows, const void *a,
                         const void *packed, const float *bias, float *c, bool accumulate);
    /* c (m, n) f32 (+)= a^T b of a (rows, m) and b (rows, n), both BF16 and as they lie. */
    ls_status (*outer_product)(ls_device *device, ls_dtype dtype, size_t rows, size_t m, size_t n,
                               const void *a, const void *b, float *c, bool accumulate);
    /* y (rows, columns) = x in `dtype`. sums (columns) (+)= sum of x over rows; may be NULL. */
    ls_status (*narrow)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                        const float *x, void *y, float *sums, bool accumulate);

    /* --- images; bias may be NULL --- */
    ls_status (*conv2d_forward)(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                const void *x, const void *w, const void *bias, void *y);
    /* y: forward's, read where relu is set. dx, dw and dbias may be NULL. */
    ls_status (*conv2d_backward)(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                 const void *x, const void *w, const void *y, const void *dy,
                                 void *dx, bool accumulate_dx, void *dw, bool accumulate_dw,
                                 void *dbias, bool accumulate_dbias);
    /* max: `where` (as many I32 as y) receives the offset of the chosen element inside its
     * (in_h, in_w) plane; average: where is not used. */
    ls_status (*pool2d_forward)(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                const void *x, void *y, int32_t *where);
    ls_status (*pool2d_backward)(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                 const void *dy, const int32_t *where, void *dx, bool accumulate);

    /* --- normalisation. mean and rstd are saved for backward: (rows) or (channels) f32.
     *     d* destinations may be NULL --- */
    ls_status (*layer_norm_forward)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                    const void *x, const void *weight, const void *bias,
                                    float epsilon, void *y, float *mean, float *rstd);
    /* dx_sums (columns): dx, as it is left, summed over the rows; wants dx */
    ls_status (*layer_norm_backward)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                     const void *x, const void *weight, const float *mean,
                                     const float *rstd, const void *dy, void *dx,
                                     bool accumulate_dx, void *dweight, bool accumulate_dweight,
                                     void *dbias, bool accumulate_dbias, void *dx_sums,
                                     bool accumulate_dx_sums);
    /* sum (rows, columns) = x + (branch + bias); bias (columns) may be NULL */
    ls_status (*residual_sum)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                              const void *x, const void *branch, const void *bias, void *sum);
    /* the same, and y = layer_norm(sum): equal to the bit to one after the other */
    ls_status (*residual_norm_forward)(ls_device *device, ls_dtype dtype, size_t rows,
                                       size_t columns, const void *x, const void *branch,
                                       const void *branch_bias, const void *weight,
                                       const void *bias, float epsilon, void *sum, void *y,
                                       float *mean, float *rstd);
    /* training: statistics of x are computed into mean, variance (biased) and rstd; else mean and
     * variance are given and rstd is computed from them. residual (rows, channels) may be NULL. */
    ls_status (*batch_norm_forward)(ls_device *device, ls_dtype dtype, const ls__batch_norm *shape,
                                    bool training, const void *x, const void *weight,
                                    const void *bias, const void *residual, void *y, float *mean,
                                    float *variance, float *rstd);
    /* training: through the statistics; else they are constants. y: forward's, read where relu is
     * set. */
    ls_status (*batch_norm_backward)(ls_device *device, ls_dtype dtype, const ls__batch_norm *shape,
                                     bool training, const void *x, const void *weight,
                                     const float *mean, const float *rstd, const void *y,
                                     const void *dy, void *dx, bool accumulate_dx, void *dresidual,
                                     bool accumulate_dresidual, void *dweight,
                                     bool accumulate_dweight, void *dbias, bool accumulate_dbias);

    /* --- elementwise --- */
    ls_status (*unary_forward)(ls_device *device, ls_dtype dtype, ls__unary op, size_t count,
                               const void *x, void *y);
    ls_status (*unary_backward)(ls_device *device, ls_dtype dtype, ls__unary op, size_t count,
                                const void *x, const void *y, const void *dy, void *dx,
                                bool accumulate);
    /* y (rows, columns) = gelu(x + bias) in the tanh form. Backward: dx may lie on dy where it is not
     * accumulated; dx and dbias may be NULL. */
    ls_status (*bias_gelu_forward)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                   const void *x, const void *bias, void *y);
    ls_status (*bias_gelu_backward)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                    const void *x, const void *bias, const void *dy, void *dx,
                                    bool accumulate_dx, void *dbias, bool accumulate_dbias);
    /* y (rows, columns) = a (rows, columns) op b; b has rows * columns elements, or columns
     * (repeated for every row) */
    ls_status (*binary_forward)(ls_device *device, ls_dtype dtype, ls__binary op, size_t rows,
                                size_t columns, const void *a, const void *b, bool repeat_b,
                                void *y);
    /* da and db may be NULL */
    ls_status (*binary_backward)(ls_device *device, ls_dtype dtype, ls__binary op, size_t rows,
                                 size_t columns, const void *a, const void *b, bool repeat_b,
                                 const void *dy, void *da, bool accumulate_da, void *db,
                                 bool accumulate_db);
    /* y = factor * x + term, or y += that. x may be y. */
    ls_status (*affine)(ls_device *device, ls_dtype dtype, size_t count, float factor, float term,
                        const void *x, void *y, bool accumulate);
    /* y (+)= x / (1 - p) where the Philox number of (seed, purpose, sample, element) keeps it, else
     * 0: sample s = samples[i / per_sample], element e = i % per_sample, for
     * i < sample_count * per_sample. Forward and backward alike. */
    ls_status (*dropout)(ls_device *device, ls_dtype dtype, size_t per_sample,
                         const uint64_t *samples, size_t sample_count, uint64_t seed,
                         uint64_t purpose, float p, const void *x, void *y, bool accumulate);
    ls_status (*softmax_forward)(ls_device *device, ls_dtype dtype, bool logarithm, size_t rows,
                                 size_t columns, const void *x, void *y);
    ls_status (*softmax_backward)(ls_device *device, ls_dtype dtype, bool logarithm, size_t rows,
                                  size_t columns, const void *y, const void *dy, void *dx,
                                  bool accumulate);

    /* --- reductions of x (outer, n, inner) over n to y (outer, inner), times scale --- */
    ls_status (*sum)(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                     float scale, const void *x, void *y, bool accumulate);
    /* the reverse: dx (outer, n, inner) = scale * dy (outer, inner) */
    ls_status (*repeat)(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                        float scale, const void *dy, void *dx, bool accumulate);
    /* where: (outer, inner) I32, index along n of the first maximum */
    ls_status (*max)(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                     const void *x, void *y, int32_t *where);
    ls_status (*max_backward)(ls_device *device, ls_dtype dtype, size_t outer, size_t n,
                              size_t inner, const int32_t *where, const void *dy, void *dx,
                              bool accumulate);

    /* --- shape --- */
    /* dimension d of y is dimension permutation[d] of x; shape is x's */
    ls_status (*permute)(ls_device *device, ls_dtype dtype, size_t dims, const size_t *shape,
                         const size_t *permutation, const void *x, void *y, bool accumulate);
    /* `rows` runs of `columns` elements, with row strides in elements */
    ls_status (*copy_rows)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                           const void *x, size_t x_stride, void *y, size_t y_stride,
                           bool accumulate);

    /* --- language --- */
    /* An index outside 0..table_rows-1: LS_ERR_RANGE naming position and value. */
    ls_status (*embedding_forward)(ls_device *device, ls_dtype dtype, size_t table_rows,
                                   size_t columns, const void *table, const int32_t *indices,
                                   size_t count, void *y);
    /* Rows of dtable that no index names: zeroed unless accumulate. Adds in order of `indices`. */
    ls_status (*embedding_backward)(ls_device *device, ls_dtype dtype, size_t table_rows,
                                    size_t columns, const int32_t *indices, size_t count,
                                    const void *dy, void *dtable, bool accumulate);
    /* Attention. In LS_BF16 the factors of products are rounded, all arrays stay f32; where `lacks` names
     * something it is LS_ERR_UNSUPPORTED. */
    /* Bytes that forward leaves in `saved` for backward. */
    size_t (*attention_saved_bytes)(ls_device *device, ls_dtype dtype, const ls__attention *shape);
    /* Causal; scores times 1/sqrt(head_size). saved NULL: no backward will follow. */
    ls_status (*attention_forward)(ls_device *device, ls_dtype dtype, const ls__attention *shape,
                                   const void *qkv, void *y, void *saved);
    ls_status (*attention_backward)(ls_device *device, ls_dtype dtype, const ls__attention *shape,
                                    const void *qkv, const void *y, const void *saved,
                                    const void *dy, void *dqkv, bool accumulate);

    /* --- losses --- */
    /* *loss = sum over rows with target != -1 of -log softmax(x)[target], added up in f64. probs
     * (rows, columns) receives the softmax for backward; may be NULL. Other targets outside
     * 0..columns-1: LS_ERR_RANGE naming row and value. */
    ls_status (*cross_entropy_forward)(ls_device *device, ls_dtype dtype, size_t rows,
                                       size_t columns, const void *x, const int32_t *targets,
                                       float *loss, void *probs);
    /* dx (+)= dloss * (probs - onehot), zero for rows of padding */
    ls_status (*cross_entropy_backward)(ls_device *device, ls_dtype dtype, size_t rows,
                                        size_t columns, const void *probs, const int32_t *targets,
                                        float dloss, void *dx, bool accumulate);
    /* The same for logits that come in blocks of classes: x (rows, columns) are those of classes
     * first, first + 1, ...; blocks from 0 on, in order. state (rows) is written by the first. */
    ls_status (*class_block)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                             size_t first, const void *x, const int32_t *targets,
                             ls__class_row *state);
    /* After the last: the loss, and how many rows have their first largest logit at the target. */
    ls_status (*class_blocks_end)(ls_device *device, size_t rows, size_t classes,
                                  const int32_t *targets, const ls__class_row *state, float *loss,
                                  size_t *correct);
    /* One block of logits becomes its gradient, in place. */
    ls_status (*class_block_backward)(ls_device *device, ls_dtype dtype, size_t rows,
                                      size_t columns, size_t first, const int32_t *targets,
                                      const ls__class_row *state, float dloss, void *x);
    /* class_block for a backward in BF16: powers (rows, columns) BF16 = exp(x - most), where most (rows)
     * becomes the largest logit of the row so far; powers may be NULL. state NULL: most is given, and
     * powers have the bits of the first time. */
    ls_status (*class_powers)(ls_device *device, size_t rows, size_t columns, size_t first,
                              const float *x, const int32_t *targets, ls__class_row *state,
                              float *most, void *powers);
    /* One block of powers becomes the gradient of its logits, in BF16, in place. */
    ls_status (*class_powers_backward)(ls_device *device, size_t rows, size_t columns, size_t first,
                                       const int32_t *targets, const ls__class_row *state,
                                       const float *most, float dloss, void *powers);
    /* *loss = sum of (a - b)^2, added up in f64 */
    ls_status (*squared_error)(ls_device *device, ls_dtype dtype, size_t count, const void *a,
                               const void *b, float *loss);
    ls_status (*count_correct)(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                               const void *x, const int32_t *targets, size_t *correct);

    /* --- optimizers: in place on f32 weights --- */
    ls_status (*sgd)(ls_device *device, size_t count, const ls__sgd *o, float *weight,
                     const float *gradient, float *momentum);
    ls_status (*adam)(ls_device *device, size_t count, const ls__adam *o, float *weight,
                      const float *gradient, float *first, float *second);
    /* sums[k], on the host: of (factor * x)^2 over elements LS__SQUARES_BLOCK k and on, as many at most; products in
     * f32, their squares and sums in f64, in a fixed order that does not depend on the thread count */
    ls_status (*squares)(ls_device *device, size_t count, float factor, const float *x,
                         double *sums);
} ls__device_table;

enum { LS__SQUARES_BLOCK = 4096 };

static inline size_t ls__squares_blocks(size_t count) {
    return count / LS__SQUARES_BLOCK + (count % LS__SQUARES_BLOCK != 0);
}

/* The order in which every norm is added up, whoever made the sums of blocks. */
static inline double ls__squares_total(const double *sums, size_t count) {
    double total = 0;
    for (size_t i = 0; i < ls__squares_blocks(count); i++)
        total += sums[i];
    return total;
}

struct ls_device {
    const ls__device_table *table;
    int threads;
    bool dry; /* keeps no values: dry.h */
};

#endif
