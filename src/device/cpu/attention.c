/* Causal multi-head attention. One (batch, head) at a time: blocks of BLOCK rows of queries meet
 * only the keys up to their last row, so what lies above the diagonal is mostly never computed.
 *
 * `saved` holds, for each row of scores, what turns them into probabilities: the largest, and one
 * over the sum of exponentials (batch, heads, time, 2). Backward computes the scores of a block
 * again, which is one of its five products, instead of reading (time, time) probabilities for each
 * head. The probabilities of one block, and their gradients, need (BLOCK, time) floats a thread
 * each. */
#include "device/cpu/attention.h"
#include "device/cpu/onednn.h"

enum { BLOCK = LS__ATTENTION_BLOCK };

struct attention_arguments {
    ls__attention shape;
    size_t workers;
    const float *qkv, *dy;
    float *y, *dqkv;
    ls__attention_row *rows; /* (batch, heads, time); NULL: not kept */
    float *scratch;          /* (workers, 2, BLOCK, time) */
    float scale;
    bool accumulate;
    dnnl_status_t *results; /* (workers) */
};

/* One head's slices, as matrices with row strides. */
typedef struct head {
    const float *q, *k, *v;
    float *dq, *dk, *dv;
    const float *dy;
    float *y;
    size_t stride, y_stride; /* 3C, C */
    ls__attention_row *rows; /* (time), or NULL */
} head;

static head head_of(const struct attention_arguments *g, size_t item) {
    const ls__attention *s = &g->shape;
    size_t batch = item / s->heads, index = item % s->heads, channels = s->heads * s->head_size;
    size_t at = batch * s->time * 3 * channels + index * s->head_size;
    size_t y_at = batch * s->time * channels + index * s->head_size;
    head h = {.q = g->qkv + at,
              .k = g->qkv + at + channels,
              .v = g->qkv + at + 2 * channels,
              .stride = 3 * channels,
              .y_stride = channels,
              .rows = g->rows ? g->rows + item * s->time : NULL};
    if (g->y)
        h.y = g->y + y_at;
    if (g->dqkv) {
        h.dy = g->dy + y_at;
        h.dq = g->dqkv + at;
        h.dk = g->dqkv + at + channels;
        h.dv = g->dqkv + at + 2 * channels;
    }
    return h;
}

/* c (m, n) = alpha op(a) op(b) + beta c; inside of a parallel part, on the calling thread alone. */
static dnnl_status_t product(char ta, char tb, size_t m, size_t n, size_t k, float alpha,
                             const float *a, size_t lda, const float *b, size_t ldb, float beta,
                             float *c, size_t ldc) {
    return dnnl_sgemm(ta, tb, (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, alpha, a,
                      (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)ldc);
}

LS_INLINE dnnl_status_t score_product(const struct attention_arguments *g, const head *h,
                                      size_t begin, size_t end, float *scores) {
    return product('N', 'T', end - begin, end, g->shape.head_size, g->scale,
                   h->q + begin * h->stride, h->stride, h->k, h->stride, 0, scores, end);
}

LS_INLINE dnnl_status_t forward_head(const struct attention_arguments *g, const head *h,
                                     float *scores) {
    size_t time = g->shape.time, size = g->shape.head_size;
    for (size_t begin = 0; begin < time; begin += BLOCK) {
        size_t end = ls__min_size(begin + BLOCK, time);
        dnnl_status_t result = score_product(g, h, begin, end, scores);
        if (result != dnnl_success)
            return result;
        ls__attention_softmax(begin, end, end, 1, scores, h->rows, false);
        result = product('N', 'N', end - begin, size, end, 1, scores, end, h->v, h->stride, 0,
                         h->y + begin * h->y_stride, h->y_stride);
        if (result != dnnl_success)
            return result;
    }
    return dnnl_success;
}

/* The last block comes first: it touches all keys, so the gradients of keys and values are set
 * there and added to by the others. */
LS_INLINE dnnl_status_t backward_head(const struct attention_arguments *g, const head *h,
                                      float *probs) {
    size_t time = g->shape.time, size = g->shape.head_size;
    float *dprobs = probs + BLOCK * time;
    float before = g->accumulate ? 1 : 0;
    for (size_t block = (time - 1) / BLOCK + 1; block-- > 0;) {
        size_t begin = block * BLOCK, end = ls__min_size(begin + BLOCK, time), rows = end - begin;
        const float *dy = h->dy + begin * h->y_stride, *q = h->q + begin * h->stride;
        float beta = end == time ? before : 1;
        dnnl_status_t result = score_product(g, h, begin, end, probs);
        ls__attention_softmax(begin, end, end, 1, probs, h->rows, true);
        if (result == dnnl_success)
            result = product('N', 'T', rows, end, size, 1, dy, h->y_stride, h->v, h->stride, 0,
                             dprobs, end);
        if (result == dnnl_success)
            result = product('T', 'N', end, size, rows, 1, probs, end, dy, h->y_stride, beta, h->dv,
                             h->stride);
        ls__attention_slopes(begin, end, end, 1, probs, dprobs);
        if (result == dnnl_success)
            result = product('N', 'N', rows, size, end, g->scale, dprobs, end, h->k, h->stride,
                             before, h->dq + begin * h->stride, h->stride);
        if (result == dnnl_success)
            result = product('T', 'N', end, size, rows, g->scale, dprobs, end, q, h->stride, beta,
                             h->dk, h->stride);
        if (result != dnnl_success)
            return result;
    }
    return dnnl_success;
}

/* Items are workers, each with its share of the heads and its part of the scratch memory. */
LS_KERNEL(attention_body) {
    const struct attention_arguments *g = arguments;
    size_t items = g->shape.batch * g->shape.heads;
    for (size_t worker = begin; worker < end; worker++) {
        float *scratch = g->scratch + worker * 2 * BLOCK * g->shape.time;
        dnnl_status_t result = dnnl_success;
        for (size_t item = items * worker / g->workers;
             item < items * (worker + 1) / g->workers && result == dnnl_success; item++) {
            head h = head_of(g, item);
            result = g->dqkv ? backward_head(g, &h, scratch) : forward_head(g, &h, scratch);
        }
        g->results[worker] = result;
    }
}

static ls_status attention_run(ls_device *device, struct attention_arguments *g, const char *what) {
    const ls__attention *s = &g->shape;
    size_t items = s->batch * s->heads, cost = s->time * s->time * s->head_size;
    if (items == 0 || s->time == 0)
        return LS_OK;
    g->workers = ls__min_size((size_t)device->threads, items);
    if (items * cost < LS__CPU_GRAIN)
        g->workers = 1;
    g->scale = 1.0F / sqrtf((float)s->head_size);
    size_t floats = g->workers * 2 * BLOCK * s->time * sizeof(float);
    void *memory;
    LS_TRY(ls__cpu_scratch(device, floats + g->workers * sizeof(dnnl_status_t), &memory));
    g->scratch = memory;
    g->results = (dnnl_status_t *)((char *)memory + floats);
    int before = ls__onednn_enter(device);
    ls__cpu_parallel(device, g->workers, LS__CPU_GRAIN, attention_body, g);
    ls__onednn_leave(device, before);
    for (size_t worker = 0; worker < g->workers; worker++)
        LS_TRY(ls__onednn_check(g->results[worker], what));
    return LS_OK;
}

size_t ls__cpu_attention_saved_bytes(ls_device *device, ls_dtype dtype,
                                     const ls__attention *shape) {
    (void)device;
    (void)dtype;
    return shape->batch * shape->heads * shape->time * sizeof(ls__attention_row);
}

ls_status ls__cpu_attention_forward(ls_device *device, ls_dtype dtype, const ls__attention *shape,
                                    const void *qkv, void *y, void *saved) {
    if (dtype == LS_BF16)
        return ls__attention_bf16_forward(device, shape, qkv, y, saved);
    LS_TRY(ls__cpu_require_f32(dtype, "attention"));
    struct attention_arguments g = {.shape = *shape, .qkv = qkv, .y = y, .rows = saved};
    return attention_run(device, &g, "attention");
}

ls_status ls__cpu_attention_backward(ls_device *device, ls_dtype dtype, const ls__attention *shape,
                                     const void *qkv, const void *y, const void *saved,
                                     const void *dy, void *dqkv, bool accumulate) {
    (void)y;
    if (dtype == LS_BF16)
        return ls__attention_bf16_backward(device, shape, qkv, saved, dy, dqkv, accumulate);
    LS_TRY(ls__cpu_require_f32(dtype, "attention"));
    struct attention_arguments g = {.shape = *shape,
                                    .qkv = qkv,
                                    .dy = dy,
                                    .dqkv = dqkv,
                                    .rows = (ls__attention_row *)saved,
                                    .accumulate = accumulate};
    return attention_run(device, &g, "attention backward");
}
