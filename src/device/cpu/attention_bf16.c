/* Causal attention with the factors of its products rounded to bf16 and sums in f32: attention.c's
 * blocks of queries against the keys up to their last row. Softmax and its gradient are f32.
 *
 * A worker copies one head's q, k, v and dy into bf16 matrices of its own, filled up with rows of zeros
 * to whole blocks. So there are three products for each number of keys (BLOCK, 2 BLOCK, ...), whatever
 * the length:
 *
 *   SCORES  (BLOCK, keys) = x (BLOCK, size) y (keys, size)^T     scores of q, k; dp of dy, v
 *   VALUES  (BLOCK, size) = p (BLOCK, keys) x (keys, size)       y of p, v;      dq of ds, k
 *   OUTER   (keys, size) += p (BLOCK, keys)^T x (BLOCK, size)    dv of p, dy;    dk of ds, q
 *
 * Each worker has plans and a stream of its own, made for one thread: what is computed does not depend
 * on how many there are, and nor do the bits. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "device/cpu/attention.h"
#include "device/cpu/bf16.h"
#include "device/cpu/onednn.h"

enum { BLOCK = LS__ATTENTION_BLOCK, ALIGNMENT = 64 };

typedef enum product_kind { SCORES, VALUES, OUTER, PRODUCTS } product_kind;

/* --- plans --- */

/* For one head size, up to so many workers and blocks; the last one used is kept. */
struct ls__attention_plans {
    size_t head_size, workers, blocks, scratch_bytes;
    dnnl_stream_t *streams; /* (workers) */
    ls__plan **plans;       /* (workers, blocks, PRODUCTS) */
};

void ls__attention_plans_destroy(ls__attention_plans *p) {
    if (!p)
        return;
    for (size_t i = 0; p->plans && i < p->workers * p->blocks * PRODUCTS; i++)
        ls__plan_destroy(p->plans[i]);
    for (size_t i = 0; p->streams && i < p->workers; i++)
        if (p->streams[i])
            dnnl_stream_destroy(p->streams[i]);
    free(p->plans);
    free(p->streams);
    free(p);
}

typedef struct layouts {
    ls__dnnl_layout a, b, c;
} layouts;

/* Matrices (m, k), (k, n) and (m, n); transposed ones as they lie. */
static dnnl_status_t init_layouts(layouts *l, const ls__plan_key *key) {
    const dnnl_dim_t keys = (dnnl_dim_t)key->rows, size = (dnnl_dim_t)key->in, block = BLOCK;
    const dnnl_dims_t shapes[PRODUCTS][3] = {
        [SCORES] = {{block, size}, {size, keys}, {block, keys}},
        [VALUES] = {{block, keys}, {keys, size}, {block, size}},
        [OUTER] = {{keys, block}, {block, size}, {keys, size}},
    };
    const dnnl_dims_t *shape = shapes[key->flags];
    dnnl_status_t result =
        ls__dnnl_layout_of(&l->a, dnnl_bf16, 2, shape[0], key->flags == OUTER ? dnnl_ba : dnnl_ab);
    if (result == dnnl_success)
        result = ls__dnnl_layout_of(&l->b, dnnl_bf16, 2, shape[1],
                                    key->flags == SCORES ? dnnl_ba : dnnl_ab);
    if (result == dnnl_success)
        result = ls__dnnl_layout_by_tag(&l->c, 2, shape[2], dnnl_ab);
    return result;
}

static dnnl_status_t add_to_result(dnnl_primitive_attr_t attributes) {
    dnnl_post_ops_t after;
    dnnl_status_t result = dnnl_post_ops_create(&after);
    if (result != dnnl_success)
        return result;
    result = ls__dnnl_append_sum(after);
    if (result == dnnl_success)
        result = dnnl_primitive_attr_set_post_ops(attributes, after);
    dnnl_post_ops_destroy(after);
    return result;
}

static ls_status fill_plan(ls_device *device, ls__plan *plan) {
    static const char what[] = "attention's product in bf16";
    layouts l = {0};
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t description = NULL;
    ls_status status;
    LS_TRY_OUT(ls__onednn_check(init_layouts(&l, &plan->key), what));
    LS_TRY_OUT(ls__plan_attributes(&attributes));
    if (plan->key.flags == OUTER)
        LS_TRY_OUT(ls__onednn_check(add_to_result(attributes), what));
    LS_TRY_OUT(ls__onednn_check(ls__dnnl_matmul(&description, ls__onednn_engine(device), &l.a, &l.b,
                                                NULL, &l.c, attributes),
                                what));
    LS_TRY_OUT(ls__plan_set_primitive(device, plan, description));
    ls__dnnl_layout_ref a = ls__dnnl_layout_get(&l.a), b = ls__dnnl_layout_get(&l.b),
                        c = ls__dnnl_layout_get(&l.c);
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_SRC, LS__PLAN_READ, a, a));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_WEIGHTS, LS__PLAN_READ, b, b));
    LS_TRY_OUT(ls__plan_add(device, plan, DNNL_ARG_DST, LS__PLAN_WRITE, c, c));
out:
    if (description)
        dnnl_primitive_desc_destroy(description);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    ls__dnnl_layout_free(&l.a);
    ls__dnnl_layout_free(&l.b);
    ls__dnnl_layout_free(&l.c);
    return status;
}

static ls_status fill_plans(ls_device *device, ls__attention_plans *p) {
    for (size_t i = 0; i < p->workers; i++)
        LS_TRY(ls__onednn_check(dnnl_stream_create(&p->streams[i], ls__onednn_engine(device),
                                                   dnnl_stream_default_flags),
                                "attention's stream"));
    for (size_t i = 0; i < p->workers * p->blocks * PRODUCTS; i++) {
        const ls__plan_key key = {.kind = LS__PLAN_ATTENTION_BF16,
                                  .flags = (uint32_t)(i % PRODUCTS),
                                  .rows = (i / PRODUCTS % p->blocks + 1) * BLOCK,
                                  .in = p->head_size};
        LS_TRY(ls__plan_new(&p->plans[i], &key));
        LS_TRY(fill_plan(device, p->plans[i]));
        if (p->plans[i]->scratch_bytes > p->scratch_bytes)
            p->scratch_bytes = p->plans[i]->scratch_bytes;
    }
    return LS_OK;
}

static ls_status require_plans(ls_device *device, size_t head_size, size_t workers, size_t blocks) {
    ls__attention_plans **kept = &((ls__cpu *)device)->attention, *p = *kept;
    if (p && p->head_size == head_size && p->workers >= workers && p->blocks >= blocks)
        return LS_OK;
    if (p && p->head_size == head_size) { /* two shapes in turn must not make them anew each time */
        workers = p->workers > workers ? p->workers : workers;
        blocks = p->blocks > blocks ? p->blocks : blocks;
    }
    *kept = NULL;
    ls__attention_plans_destroy(p);
    p = calloc(1, sizeof *p);
    if (!p)
        return ls__fail(LS_ERR_MEMORY, "attention: no memory for plans");
    p->head_size = head_size;
    p->workers = workers;
    p->blocks = blocks;
    p->streams = calloc(workers, sizeof(dnnl_stream_t));
    p->plans = calloc(workers * blocks * PRODUCTS, sizeof(ls__plan *));
    ls_status status = p->streams && p->plans
                           ? LS_OK
                           : ls__fail(LS_ERR_MEMORY, "attention: no memory for %zu plans",
                                      workers * blocks * PRODUCTS);
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    if (status == LS_OK)
        status = fill_plans(device, p);
    omp_set_num_threads(before);
    if (status == LS_OK)
        *kept = p;
    else
        ls__attention_plans_destroy(p);
    return status;
}

/* --- one head --- */

struct attention_arguments {
    ls__attention shape;
    const ls__attention_plans *plans;
    size_t workers, blocks, worker_bytes;
    const float *qkv, *dy;
    float *y, *dqkv;
    ls__attention_row *rows; /* (batch, heads, time); NULL: not kept */
    char *scratch;           /* (workers, worker_bytes) */
    dnnl_status_t *results;  /* (workers) */
    float scale;
    bool accumulate;
};

/* What a worker works with: `filled` is the time in whole blocks. */
typedef struct work {
    uint16_t *q, *k, *v, *dy; /* (filled, size) */
    uint16_t *half;           /* (BLOCK, filled): probabilities or their gradients */
    float *probs, *dprobs;    /* (BLOCK, filled) */
    float *dk, *dv;           /* (filled, size) */
    float *block;             /* (BLOCK, size) */
    char *scratch;            /* of a plan */
    size_t worker;
    dnnl_status_t result; /* the first that is no success */
} work;

/* Bytes in whole cache lines, so that no two matrices or workers share one. */
static size_t whole(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t work_bytes(size_t filled, size_t size, size_t plan_bytes) {
    return 4 * whole(filled * size * sizeof(uint16_t)) + whole(BLOCK * filled * sizeof(uint16_t)) +
           2 * whole(BLOCK * filled * sizeof(float)) + 2 * whole(filled * size * sizeof(float)) +
           whole(BLOCK * size * sizeof(float)) + whole(plan_bytes);
}

static void *take(char **memory, size_t bytes) {
    void *taken = *memory;
    *memory += whole(bytes);
    return taken;
}

/* Lays `w` out in `memory`, of work_bytes. */
static void lay_out(work *w, char *memory, size_t filled, size_t size) {
    uint16_t **halves[] = {&w->q, &w->k, &w->v, &w->dy};
    for (size_t i = 0; i < 4; i++)
        *halves[i] = take(&memory, filled * size * sizeof(uint16_t));
    w->half = take(&memory, BLOCK * filled * sizeof(uint16_t));
    w->probs = take(&memory, BLOCK * filled * sizeof(float));
    w->dprobs = take(&memory, BLOCK * filled * sizeof(float));
    w->dk = take(&memory, filled * size * sizeof(float));
    w->dv = take(&memory, filled * size * sizeof(float));
    w->block = take(&memory, BLOCK * size * sizeof(float));
    w->scratch = memory;
}

/* y (filled, columns) = x (rows, columns) rounded, zeros below. */
LS_INLINE void round_rows(size_t rows, size_t filled, size_t columns, const float *x, size_t stride,
                          uint16_t *y) {
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            y[i * columns + j] = ls__bf16_of(x[i * stride + j]);
    memset(y + rows * columns, 0, (filled - rows) * columns * sizeof *y);
}

LS_INLINE void store_rows(size_t rows, size_t columns, const float *x, float *y, size_t stride,
                          bool accumulate) {
    for (size_t i = 0; i < rows; i++)
        ls__cpu_store(y + i * stride, x + i * columns, columns, accumulate);
}

static void multiply(const struct attention_arguments *g, work *w, product_kind kind, size_t block,
                     uint16_t *a, uint16_t *b, float *c) {
    void *tensors[] = {a, b, c};
    const ls__attention_plans *p = g->plans;
    ls__plan *plan = p->plans[(w->worker * p->blocks + block) * PRODUCTS + kind];
    if (w->result == dnnl_success)
        w->result = ls__plan_execute(p->streams[w->worker], plan, tensors, w->scratch);
}

LS_INLINE void forward_head(const struct attention_arguments *g, work *w, float *y, size_t stride,
                            ls__attention_row *rows) {
    size_t time = g->shape.time, size = g->shape.head_size;
    for (size_t block = 0; block < g->blocks; block++) {
        size_t begin = block * BLOCK, keys = begin + BLOCK, end = ls__min_size(keys, time);
        multiply(g, w, SCORES, block, w->q + begin * size, w->k, w->probs);
        ls__attention_softmax(begin, end, keys, g->scale, w->probs, rows, false);
        round_rows(end - begin, BLOCK, keys, w->probs, keys, w->half);
        multiply(g, w, VALUES, block, w->half, w->v, w->block);
        store_rows(end - begin, size, w->block, y + begin * stride, stride, false);
    }
}

/* dq, dk and dv of one head in dqkv, from `at` on. */
LS_INLINE void backward_head(const struct attention_arguments *g, work *w, size_t at,
                             ls__attention_row *rows) {
    size_t time = g->shape.time, size = g->shape.head_size, channels = g->shape.heads * size;
    size_t stride = 3 * channels;
    float *dq = g->dqkv + at;
    memset(w->dk, 0, g->blocks * BLOCK * size * sizeof(float));
    memset(w->dv, 0, g->blocks * BLOCK * size * sizeof(float));
    for (size_t block = 0; block < g->blocks; block++) {
        size_t begin = block * BLOCK, keys = begin + BLOCK, end = ls__min_size(keys, time);
        multiply(g, w, SCORES, block, w->q + begin * size, w->k, w->probs);
        ls__attention_softmax(begin, end, keys, g->scale, w->probs, rows, true);
        round_rows(end - begin, BLOCK, keys, w->probs, keys, w->half);
        multiply(g, w, OUTER, block, w->half, w->dy + begin * size, w->dv);
        multiply(g, w, SCORES, block, w->dy + begin * size, w->v, w->dprobs);
        ls__attention_slopes(begin, end, keys, g->scale, w->probs, w->dprobs);
        round_rows(end - begin, BLOCK, keys, w->dprobs, keys, w->half);
        multiply(g, w, OUTER, block, w->half, w->q + begin * size, w->dk);
        multiply(g, w, VALUES, block, w->half, w->k, w->block);
        store_rows(end - begin, size, w->block, dq + begin * stride, stride, g->accumulate);
    }
    store_rows(time, size, w->dk, dq + channels, stride, g->accumulate);
    store_rows(time, size, w->dv, dq + 2 * channels, stride, g->accumulate);
}

LS_INLINE void one_head(const struct attention_arguments *g, work *w, size_t item) {
    const ls__attention *s = &g->shape;
    size_t batch = item / s->heads, size = s->head_size, channels = s->heads * size;
    size_t y_at = batch * s->time * channels + item % s->heads * size;
    size_t at = batch * s->time * 3 * channels + item % s->heads * size, filled = g->blocks * BLOCK;
    ls__attention_row *rows = g->rows ? g->rows + item * s->time : NULL;
    round_rows(s->time, filled, size, g->qkv + at, 3 * channels, w->q);
    round_rows(s->time, filled, size, g->qkv + at + channels, 3 * channels, w->k);
    round_rows(s->time, filled, size, g->qkv + at + 2 * channels, 3 * channels, w->v);
    if (!g->dqkv) {
        forward_head(g, w, g->y + y_at, channels, rows);
        return;
    }
    round_rows(s->time, filled, size, g->dy + y_at, channels, w->dy);
    backward_head(g, w, at, rows);
}

/* Items are workers, each with its share of the heads. Plans were made for one thread, so that is what
 * oneDNN may use here, also where the caller is no part of a team. */
LS_KERNEL(attention_bf16_body) {
    const struct attention_arguments *g = arguments;
    size_t items = g->shape.batch * g->shape.heads;
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    for (size_t worker = begin; worker < end; worker++) {
        work w = {.worker = worker, .result = dnnl_success};
        lay_out(&w, g->scratch + worker * g->worker_bytes, g->blocks * BLOCK, g->shape.head_size);
        for (size_t item = items * worker / g->workers; item < items * (worker + 1) / g->workers;
             item++)
            one_head(g, &w, item);
        g->results[worker] = w.result;
    }
    omp_set_num_threads(before);
}

static ls_status attention_run(ls_device *device, struct attention_arguments *g, const char *what) {
    const ls__attention *s = &g->shape;
    const char *lacks = ls__cpu_lacks(device, LS_BF16);
    if (lacks)
        return ls__fail(LS_ERR_UNSUPPORTED, "%s in BF16: needs %s", what, lacks);
    size_t items = s->batch * s->heads, cost = s->time * s->time * s->head_size;
    if (items == 0 || s->time == 0)
        return LS_OK;
    g->workers = ls__min_size((size_t)device->threads, items);
    if (items * cost < LS__CPU_GRAIN)
        g->workers = 1;
    g->blocks = (s->time - 1) / BLOCK + 1;
    g->scale = 1.0F / sqrtf((float)s->head_size);
    LS_TRY(require_plans(device, s->head_size, g->workers, g->blocks));
    g->plans = ((ls__cpu *)device)->attention;
    g->worker_bytes = work_bytes(g->blocks * BLOCK, s->head_size, g->plans->scratch_bytes);
    void *memory;
    size_t bytes = g->workers * g->worker_bytes;
    LS_TRY(ls__cpu_scratch(device, bytes + g->workers * sizeof(dnnl_status_t), &memory));
    g->scratch = memory;
    g->results = (dnnl_status_t *)(g->scratch + bytes);
    ls__cpu_parallel(device, g->workers, LS__CPU_GRAIN, attention_bf16_body, g);
    for (size_t worker = 0; worker < g->workers; worker++)
        LS_TRY(ls__onednn_check(g->results[worker], what));
    return LS_OK;
}

ls_status ls__attention_bf16_forward(ls_device *device, const ls__attention *shape,
                                     const float *qkv, float *y, ls__attention_row *rows) {
    struct attention_arguments g = {.shape = *shape, .qkv = qkv, .y = y, .rows = rows};
    return attention_run(device, &g, "attention");
}

ls_status ls__attention_bf16_backward(ls_device *device, const ls__attention *shape,
                                      const float *qkv, const ls__attention_row *rows,
                                      const float *dy, float *dqkv, bool accumulate) {
    struct attention_arguments g = {.shape = *shape,
                                    .qkv = qkv,
                                    .dy = dy,
                                    .dqkv = dqkv,
                                    .rows = (ls__attention_row *)rows,
                                    .accumulate = accumulate};
    return attention_run(device, &g, "attention backward");
}
