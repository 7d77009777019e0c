/* Operations with gradients. Part of liblockstep. All return a tensor in the step's arena, or NULL
 * (see tensor.h on errors). Float tensors are f32 today; dtype and device follow the inputs. Shapes
 * are given as (rows, columns); B batch, T time, C channels. Any number of uses of a tensor is fine. */
#ifndef LOCKSTEP_OPS_H
#define LOCKSTEP_OPS_H

#include <lockstep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- linear algebra --- */
/* y (..., out) = x (..., in) W^T + b. weight (out, in), as PyTorch keeps it. bias (out) or NULL. */
LS_API ls_tensor *ls_linear(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias);
/* y (..., out) = x (..., in) W + b. weight (in, out), as GPT-2 files keep it. */
LS_API ls_tensor *ls_linear_io(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias);
/* (m, k) x (k, n) -> (m, n); with equal leading dimensions: a batch of them. */
LS_API ls_tensor *ls_matmul(ls_step *step, ls_tensor *a, ls_tensor *b);

/* --- images, (B, C, H, W) --- */
typedef struct ls_conv2d_options {
    size_t stride;  /* 0 means 1 */
    size_t padding; /* zeros on all four sides */
    bool relu;      /* relu follows, in the same pass */
} ls_conv2d_options;
/* weight (out, in, kh, kw), bias (out) or NULL. Cross-correlation, as PyTorch. */
LS_API ls_tensor *ls_conv2d(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                            ls_conv2d_options options);
typedef struct ls_pool2d_options {
    size_t kernel;  /* square */
    size_t stride;  /* 0 means kernel */
    size_t padding; /* max: never chosen; avg: counted as zeros (count_include_pad, as PyTorch) */
} ls_pool2d_options;
LS_API ls_tensor *ls_max_pool2d(ls_step *step, ls_tensor *x, ls_pool2d_options options);
LS_API ls_tensor *ls_avg_pool2d(ls_step *step, ls_tensor *x, ls_pool2d_options options);

/* --- normalisation --- */
/* Over the last dimension; weight and bias (C). Ba, Kiros, Hinton 2016. */
LS_API ls_tensor *ls_layer_norm(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                float epsilon);
/* *sum = x + (branch + branch_bias), where a residual branch (the shape of x) ends in a layer whose bias
 * (C), or NULL, was left to be added here; the result is layer_norm(*sum). One pass each way, the bits of
 * ls_residual_add and ls_layer_norm. */
LS_API ls_tensor *ls_residual_layer_norm(ls_step *step, ls_tensor *x, ls_tensor *branch,
                                         ls_tensor *branch_bias, ls_tensor *weight, ls_tensor *bias,
                                         float epsilon, ls_tensor **sum);
LS_API ls_tensor *ls_residual_add(ls_step *step, ls_tensor *x, ls_tensor *branch,
                                  ls_tensor *branch_bias);
/* x (B, C, H, W) or (B, C). Ioffe, Szegedy 2015. Training: normalises with the statistics of this
 * shard and hands them out: batch_mean and batch_var (C; unbiased variance, as PyTorch's running one)
 * receive the statistics times B, so that they can be reduced as (sum, weight) like gradients; the
 * variance of a single value a channel is handed out as 0. Not training: normalises with running_mean
 * and running_var (C). */
typedef struct ls_batch_norm_sync {
    /* values[k] becomes the sum over all parts of the batch. Called once in forward (1 + 2 C values: rows,
     * sums, squares) and once in backward (2 C), by the thread that runs the step. */
    ls_status (*sum)(void *context, double *values, size_t count);
    void *context;
} ls_batch_norm_sync;
typedef struct ls_batch_norm_state {
    const float *running_mean, *running_var; /* (C), read when not training */
    float *batch_mean, *batch_var;           /* (C), written when training; may be NULL */
    bool add;                                /* to them, instead of overwriting */
    /* Training: x is a part of the batch whose statistics are meant, as for PyTorch's SyncBatchNorm. NULL:
     * x is all of it. Must live until backward is over. */
    const ls_batch_norm_sync *sync;
} ls_batch_norm_state;
LS_API ls_tensor *ls_batch_norm(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                                ls_batch_norm_state state, float epsilon);
/* relu(batch norm + residual) in the same passes; residual has the shape of x, or is NULL. */
LS_API ls_tensor *ls_batch_norm_relu(ls_step *step, ls_tensor *x, ls_tensor *residual,
                                     ls_tensor *weight, ls_tensor *bias, ls_batch_norm_state state,
                                     float epsilon);

/* --- activations, elementwise --- */
LS_API ls_tensor *ls_relu(ls_step *step, ls_tensor *x);
LS_API ls_tensor *ls_gelu(ls_step *step, ls_tensor *x);      /* exact: x Phi(x) */
LS_API ls_tensor *ls_gelu_tanh(ls_step *step, ls_tensor *x); /* GPT-2's tanh form */
/* gelu_tanh(x + bias), bias (C): in one pass after a layer's product without its bias */
LS_API ls_tensor *ls_bias_gelu_tanh(ls_step *step, ls_tensor *x, ls_tensor *bias);
LS_API ls_tensor *ls_tanh(ls_step *step, ls_tensor *x);
LS_API ls_tensor *ls_sigmoid(ls_step *step, ls_tensor *x);
LS_API ls_tensor *ls_exp(ls_step *step, ls_tensor *x);
LS_API ls_tensor *ls_log(ls_step *step, ls_tensor *x);
LS_API ls_tensor *ls_sqrt(ls_step *step, ls_tensor *x);
LS_API ls_tensor *ls_neg(ls_step *step, ls_tensor *x);
LS_API ls_tensor *ls_scale(ls_step *step, ls_tensor *x, float factor);
LS_API ls_tensor *ls_add_scalar(ls_step *step, ls_tensor *x, float term);
/* b has the shape of a, or of a's last dimensions, and is then repeated over the first ones. */
LS_API ls_tensor *ls_add(ls_step *step, ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_sub(ls_step *step, ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_mul(ls_step *step, ls_tensor *a, ls_tensor *b);
LS_API ls_tensor *ls_div(ls_step *step, ls_tensor *a, ls_tensor *b);
/* Over the last dimension. */
LS_API ls_tensor *ls_softmax(ls_step *step, ls_tensor *x);
LS_API ls_tensor *ls_log_softmax(ls_step *step, ls_tensor *x);
/* Zeroes with probability p (0 <= p < 1) and scales the rest by 1/(1-p), in training; otherwise
 * returns x. Dimension 0 of x is a multiple of the step's sample count: element e of sample s is
 * decided by f(seed, s, purpose, e), whatever rank or row s sits on. Give each use its own purpose. */
LS_API ls_tensor *ls_dropout(ls_step *step, ls_tensor *x, float p, uint64_t purpose);

/* --- reductions --- */
LS_API ls_tensor *ls_sum(ls_step *step, ls_tensor *x);                 /* scalar */
LS_API ls_tensor *ls_mean(ls_step *step, ls_tensor *x);                /* scalar */
LS_API ls_tensor *ls_sum_dim(ls_step *step, ls_tensor *x, size_t dim); /* dim is removed */
LS_API ls_tensor *ls_mean_dim(ls_step *step, ls_tensor *x, size_t dim);
LS_API ls_tensor *ls_max_dim(ls_step *step, ls_tensor *x, size_t dim); /* first of equals wins */

/* --- shape --- */
/* A view: no copy. Equal element counts. */
LS_API ls_tensor *ls_reshape(ls_step *step, ls_tensor *x, const size_t *shape, size_t dims);
/* Copies into the order of dimensions given by `permutation` (dims of x entries). */
LS_API ls_tensor *ls_permute(ls_step *step, ls_tensor *x, const size_t *permutation);
LS_API ls_tensor *ls_transpose(ls_step *step, ls_tensor *x, size_t dim_a, size_t dim_b);
/* Elements [begin, end) of one dimension. */
LS_API ls_tensor *ls_slice(ls_step *step, ls_tensor *x, size_t dim, size_t begin, size_t end);
LS_API ls_tensor *ls_concat(ls_step *step, ls_tensor *const *parts, size_t count, size_t dim);

/* --- language --- */
/* rows of table (V, C) by I32 indices (...) -> (..., C). An index outside 0..V-1 is LS_ERR_RANGE. */
LS_API ls_tensor *ls_embedding(ls_step *step, ls_tensor *table, ls_tensor *indices);
/* Causal multi-head self-attention. qkv (B, T, 3C): queries, keys, values; head h takes channels
 * [h*C/heads, (h+1)*C/heads) of each. Scores are scaled by 1/sqrt(C/heads). -> (B, T, C) */
LS_API ls_tensor *ls_causal_attention(ls_step *step, ls_tensor *qkv, size_t heads);

/* --- losses: scalars that are SUMS over rows, to be divided by the global weight in the reduction --- */
/* logits (..., V), targets (...) I32. A target of -1, or of -100 (PyTorch's ignore_index), is padding and
 * adds nothing; its weight is 0 (ls_count_targets). Others outside 0..V-1 are LS_ERR_RANGE. */
LS_API ls_tensor *ls_cross_entropy(ls_step *step, ls_tensor *logits, ls_tensor *targets);
/* ls_cross_entropy of ls_linear(x, weight, NULL) without logits of all rows and classes in memory that
 * nothing else needs: x (..., C), weight (V, C), targets (...). *correct (may be NULL) as from
 * ls_count_correct. */
LS_API ls_tensor *ls_linear_cross_entropy(ls_step *step, ls_tensor *x, ls_tensor *weight,
                                          ls_tensor *targets, size_t *correct);
/* Those of `count` targets that are no padding: what a batch weighs, ls_ddp_begin. */
LS_API size_t ls_count_targets(const int32_t *targets, size_t count);
/* Sum over all elements of (a - b)^2. */
LS_API ls_tensor *ls_squared_error(ls_step *step, ls_tensor *a, ls_tensor *b);
/* How many rows of logits (..., V) have their largest element at the target; padding does not count.
 * No gradient; first of equals wins. */
LS_API ls_status ls_count_correct(ls_step *step, ls_tensor *logits, ls_tensor *targets,
                                  size_t *correct);

#ifdef __cplusplus
}
#endif
#endif
