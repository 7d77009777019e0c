/* PowerSGD (Vogels, Karimireddy, Jaggi: "PowerSGD: practical low-rank gradient compression for distributed
 * optimization", NeurIPS 2019, algorithms 1 and 2). A tensor of two or more dimensions is a matrix M (n, m)
 * of its first extent by the rest; of rank r, one step of the power iteration:
 *
 *     M = gradient + error               on each rank
 *     P = M Q                            (n, r); averaged over ranks
 *     orthogonalise the columns of P     Gram-Schmidt; the same on all ranks, as P is
 *     Q' = M^T P                         (m, r); error = M - P Q'^T; then averaged over ranks
 *     average = P Q'^T, and Q = Q'       warm start
 *
 * Averages are sums over ranks divided by the global weight, in the tree order of ls_all_reduce_weighted.
 * The error is what the rank's own Q' leaves, as line 7 of algorithm 2 has it: errors of all ranks add up
 * to what the average left out. Vectors, and matrices for which (n + m) r >= n m, travel in full, with
 * P. The first Q is normally distributed, a function of the tensor's name; columns that became zero are
 * drawn anew.
 *
 * Where a NaN or an infinity comes in, P has one on all ranks: the average then is NaN, which the optimizer
 * refuses, and error and Q stay as they were.
 *
 * Cost: two operations a bucket, (n + m) r elements instead of n m, and 6 r multiply-adds an element.
 * Memory: one more copy of the compressed gradients. */
#include "base/error.h"
#include "reducer/feedback.h"
#include "reducer/hooks.h"
#include "reducer/powersgd_products.h"
#include <lockstep/random.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tensor {
    size_t count, n, m;           /* count 0: not ours; n 0: travels in full */
    float *q;                     /* (r, m): Q transposed, equal on all ranks */
    const ls__feedback *feedback; /* its error, (n, m) */
} tensor;

typedef struct powersgd {
    ls_reducer_hook hook;
    char name[64];
    size_t rank; /* r */
    ls__cpu_level level;
    int64_t start, step;
    uint64_t seen;  /* the reducer's step that was counted last, plus 1 */
    tensor *tensor; /* (tensors), as the reducer's list */
    size_t tensors;
    ls__feedback_table errors; /* of each matrix */
    float *first;              /* of a bucket: P of each matrix, (n, r), and the tensors in full */
    float *local;              /* Q' of each, (r, m), of this rank, */
    float *mean;               /* and averaged */
} powersgd;

/* --- the matrices ------------------------------------------------------------------------------------ */

static ls__powersgd_shape shape_of(const powersgd *h, const tensor *t) {
    return (ls__powersgd_shape){.n = t->n, .m = t->m, .r = h->rank, .level = h->level};
}

/* Modified Gram-Schmidt over the columns of p (n, r), sums in f64. A column of which nothing is left
 * becomes zero. */
static void orthogonalise(float *p, size_t n, size_t r) {
    for (size_t k = 0; k < r; k++) {
        double square = 0;
        for (size_t j = 0; j < k; j++) {
            double along = 0;
            for (size_t i = 0; i < n; i++)
                along += (double)p[i * r + j] * p[i * r + k];
            for (size_t i = 0; i < n; i++)
                p[i * r + k] = (float)(p[i * r + k] - along * p[i * r + j]);
        }
        for (size_t i = 0; i < n; i++)
            square += (double)p[i * r + k] * p[i * r + k];
        double inverse = square > 0 ? 1 / sqrt(square) : 0;
        for (size_t i = 0; i < n; i++)
            p[i * r + k] = (float)(p[i * r + k] * inverse);
    }
}

static bool all_finite(const float *values, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* Columns k of Q that are zero: r * m normal numbers by (tensor, step, k). */
static void draw_q(const powersgd *h, const tensor *t) {
    for (size_t k = 0; k < h->rank; k++) {
        float *column = t->q + k * t->m, four[4];
        bool zero = true;
        for (size_t j = 0; zero && j < t->m; j++)
            zero = column[j] == 0;
        for (size_t j = 0; zero && j < t->m; j += 4) {
            ls_random_normal4((uint64_t)h->step * h->rank + k, ls_random_stream(t->feedback->name),
                              j / 4, four);
            memcpy(column + j, four, (t->m - j < 4 ? t->m - j : 4) * sizeof *four);
        }
    }
}

/* --- one bucket ------------------------------------------------------------------------------------- */

/* data become M; returns the elements of `first`. */
static size_t compress(powersgd *h, const ls_hook_bucket *bucket) {
    float *to = h->first;
    for (size_t p = 0; p < bucket->pieces; p++) {
        const ls_hook_piece *piece = &bucket->piece[p];
        const tensor *t = &h->tensor[piece->param];
        if (t->n == 0) {
            memcpy(to, piece->data, t->count * sizeof *to);
            to += t->count;
            continue;
        }
        draw_q(h, t);
        ls__feedback_apply(t->feedback, piece->data);
        ls__powersgd_shape shape = shape_of(h, t);
        ls__powersgd_make_p(&shape, piece->data, t->q, to);
        to += t->n * h->rank;
    }
    return (size_t)(to - h->first);
}

/* first is averaged; returns the elements of `local` and `mean`. */
static size_t iterate(powersgd *h, const ls_hook_bucket *bucket) {
    float *p = h->first, *q = h->local;
    for (size_t i = 0; i < bucket->pieces; i++) {
        const ls_hook_piece *piece = &bucket->piece[i];
        const tensor *t = &h->tensor[piece->param];
        if (t->n == 0) {
            memcpy(piece->data, p, t->count * sizeof *p);
            p += t->count;
            continue;
        }
        orthogonalise(p, t->n, h->rank);
        ls__powersgd_shape shape = shape_of(h, t);
        ls__powersgd_make_q(&shape, piece->data, p, q);
        p += t->n * h->rank;
        q += t->m * h->rank;
    }
    return (size_t)(q - h->local);
}

/* One matrix: M in `matrix` becomes the average. */
static void decompress(const powersgd *h, const tensor *t, float *matrix, const float *p,
                       const float *local, const float *mean) {
    size_t r = h->rank;
    if (!all_finite(p, t->n * r) || !all_finite(mean, t->m * r)) {
        for (size_t i = 0; i < t->count; i++)
            matrix[i] = NAN;
        return;
    }
    ls__powersgd_shape shape = shape_of(h, t);
    ls__powersgd_finish(&shape, p, local, mean, matrix, t->feedback->error);
    memcpy(t->q, mean, t->m * r * sizeof *mean);
}

static void finish(powersgd *h, const ls_hook_bucket *bucket) {
    const float *p = h->first, *local = h->local, *mean = h->mean;
    for (size_t i = 0; i < bucket->pieces; i++) {
        const tensor *t = &h->tensor[bucket->piece[i].param];
        if (t->n == 0) {
            p += t->count;
            continue;
        }
        decompress(h, t, bucket->piece[i].data, p, local, mean);
        p += t->n * h->rank;
        local += t->m * h->rank;
        mean += t->m * h->rank;
    }
}

static ls_status reduce(void *context, ls_group *group, const ls_hook_bucket *bucket) {
    powersgd *h = context;
    if (h->seen != bucket->step + 1) {
        h->step++;
        h->seen = bucket->step + 1;
    }
    double weight = bucket->weight;
    if (h->step <= h->start)
        return ls_all_reduce_weighted(group, bucket->data, bucket->data, bucket->count, LS_F32,
                                      weight, NULL);
    size_t count = compress(h, bucket);
    LS_TRY(ls_all_reduce_weighted(group, h->first, h->first, count, LS_F32, weight, NULL));
    count = iterate(h, bucket);
    if (count > 0) /* the same on all ranks */
        LS_TRY(ls_all_reduce_weighted(group, h->local, h->mean, count, LS_F32, weight, NULL));
    finish(h, bucket);
    return LS_OK;
}

/* --- life ------------------------------------------------------------------------------------------- */

/* Count, n and m of a tensor; *first and *second grow by what it needs of the buckets' memory. */
static tensor measure(const powersgd *h, const ls_reducer_param *param, size_t *first,
                      size_t *second) {
    size_t count = ls__hook_elements(param), r = h->rank;
    size_t n = count && param->dims > 1 ? param->shape[0] : 0, m = n ? count / n : 0;
    if (n == 0 || (n + m) * r >= count) {
        *first += count;
        return (tensor){.count = count};
    }
    *first += n * r;
    *second += m * r;
    return (tensor){.count = count, .n = n, .m = m};
}

static ls_status attach_tensor(powersgd *h, const ls_reducer_param *param, size_t i, size_t *first,
                               size_t *second) {
    tensor *t = &h->tensor[i];
    *t = measure(h, param, first, second);
    if (t->n == 0)
        return LS_OK;
    LS_TRY(ls__feedback_add(&h->errors, i, param->name, t->count));
    t->feedback = h->errors.of_param[i];
    t->q = calloc(t->m * h->rank, sizeof *t->q);
    return t->q ? LS_OK
                : ls__fail(LS_ERR_MEMORY, "no memory for a Q of %zu elements", t->m * h->rank);
}

/* What attach took. */
static void release(powersgd *h) {
    for (size_t i = 0; i < h->tensors; i++)
        free(h->tensor[i].q);
    free(h->tensor);
    ls__feedback_free(&h->errors);
    free(h->first);
    free(h->local);
    free(h->mean);
    h->tensor = NULL;
    h->first = h->local = h->mean = NULL;
    h->tensors = 0;
}

static ls_status attach(void *context, const ls_group *group, const ls_reducer_param *params,
                        size_t count) {
    powersgd *h = context;
    (void)group;
    release(h); /* of a reducer that came to nothing: the hook is the caller's to use again */
    LS_TRY(ls__feedback_start(&h->errors, count));
    h->tensor = calloc(count ? count : 1, sizeof *h->tensor);
    if (!h->tensor)
        return ls__fail(LS_ERR_MEMORY, "no memory for %zu tensors", count);
    h->tensors = count;
    size_t first = 1, second = 1;
    for (size_t i = 0; i < count; i++)
        LS_TRY(attach_tensor(h, &params[i], i, &first, &second));
    h->first = calloc(first, sizeof *h->first);
    h->local = calloc(second, sizeof *h->local);
    h->mean = calloc(second, sizeof *h->mean);
    return h->first && h->local && h->mean ? LS_OK
                                           : ls__fail(LS_ERR_MEMORY, "no memory for its buffers");
}

static size_t memory(const void *context, size_t ranks, const ls_reducer_param *params,
                     size_t count, size_t *saved) {
    const powersgd *h = context;
    size_t first = 0, second = 0;
    (void)ranks;
    *saved = sizeof h->step;
    for (size_t i = 0; i < count; i++) {
        const tensor t = measure(h, &params[i], &first, &second);
        *saved += t.n ? (t.count + t.m * h->rank) * sizeof(float) : 0;
    }
    return *saved + (first + 2 * second) * sizeof(float);
}

/* The number of steps, then of each matrix its error and its Q. */
static size_t states(const void *context) {
    const powersgd *h = context;
    return 1 + 2 * h->errors.rows;
}

static void state(void *context, size_t i, ls_hook_state *s) {
    powersgd *h = context;
    if (i == 0) {
        *s = (ls_hook_state){
            .name = "powersgd.step", .dtype = LS_I64, .shape = {1}, .dims = 1, .data = &h->step};
        return;
    }
    const ls__feedback *row = &h->errors.row[(i - 1) / 2];
    const tensor *t = &h->tensor[row->param];
    bool error = (i - 1) % 2 == 0;
    *s = (ls_hook_state){.dtype = LS_F32,
                         .shape = {error ? t->n : h->rank, t->m},
                         .dims = 2,
                         .data = error ? row->error : t->q,
                         .per_rank = error};
    snprintf(s->name, sizeof s->name, "powersgd.%s.%s", error ? "error" : "q", row->name);
}

static void destroy(void *context) {
    release(context);
    free(context);
}

ls_status ls__hook_powersgd_create(ls_reducer_hook **hook, size_t rank, uint64_t start) {
    ls__cpu_level level;
    LS_TRY(ls__cpu_level_choose(getenv("LOCKSTEP_CPU"), &level));
    powersgd *h = calloc(1, sizeof *h);
    if (!h)
        return ls__fail(LS_ERR_MEMORY, "ls_hook_create: out of memory");
    h->level = level;
    h->rank = rank;
    h->start = (int64_t)start;
    snprintf(h->name, sizeof h->name, "powersgd:rank=%zu,start=%llu", rank,
             (unsigned long long)start);
    h->hook = (ls_reducer_hook){.name = h->name,
                                .whole_tensors = true,
                                .context = h,
                                .attach = attach,
                                .reduce = reduce,
                                .memory = memory,
                                .states = states,
                                .state = state,
                                .destroy = destroy};
    *hook = &h->hook;
    return LS_OK;
}
