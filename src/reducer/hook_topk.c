/* Of each tensor only the `ratio` of elements that are largest in absolute value travels; what does not is
 * added to the next step's gradient (error feedback; Stich, Cordonnier, Jaggi: "Sparsified SGD with
 * memory", NeurIPS 2018). For a tensor of n elements on rank r:
 *
 *     a = gradient + error           k = ceil(ratio * n)
 *     sent = the k elements of a with the largest |a|; of equal ones those that come first; zeros are
 *            not sent
 *     error = a where not sent, 0 where sent
 *     average = (sum over ranks, in their order, of what they sent) / weight
 *
 * Cost: two operations a bucket, counts and then (index, value) pairs: 8 k bytes from each rank to all, so
 * it pays where ratio * ranks is well below 1. Memory: one more copy of the gradients. */
#include "base/error.h"
#include "reducer/feedback.h"
#include "reducer/hooks.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pair {
    uint32_t index; /* in the bucket */
    float value;
} pair;

typedef struct topk {
    ls_reducer_hook hook;
    char name[64];
    double ratio;
    ls__feedback_table errors; /* of each tensor that is ours */
    int ranks, rank;
    pair *mine,
        *all; /* (room), (ranks, room): all that is kept, enough for a bucket of everything */
    size_t room;
    int64_t *sent;  /* (ranks) pairs */
    size_t *counts; /* (ranks) of 32-bit numbers */
} topk;

/* --- choosing -------------------------------------------------------------------------------------- */

/* k of a tensor of `count` elements */
static size_t kept(const topk *h, size_t count) {
    return (size_t)ceil(h->ratio * (double)count);
}

/* |x| as a number that orders alike; NaN is above all. */
static uint32_t key_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

/* The keep'th largest key, and how many equal to it belong to the first `keep`. By counting its digits from
 * the highest: 11, 10 and 10 bits. */
static uint32_t threshold(const float *a, size_t count, size_t keep, size_t *equal) {
    static const int shift[] = {20, 10, 0}, bits[] = {11, 10, 10};
    uint32_t prefix = 0;
    for (int pass = 0; pass < 3; pass++) {
        size_t histogram[1 << 11] = {0};
        int above = shift[pass] + bits[pass];
        for (size_t i = 0; i < count; i++) {
            uint32_t key = key_of(a[i]);
            if (key >> above == prefix >> above)
                histogram[key >> shift[pass] & ((1u << bits[pass]) - 1)]++;
        }
        uint32_t digit = (1u << bits[pass]) - 1;
        while (digit > 0 && histogram[digit] < keep)
            keep -= histogram[digit--];
        prefix |= digit << shift[pass];
    }
    *equal = keep;
    return prefix;
}

/* Appends the `keep` elements of `a` that are sent; what is not becomes the error. Returns how many are. */
static size_t choose(const ls__feedback *t, size_t keep, const float *a, uint32_t first, pair *to) {
    size_t equal, n = 0;
    uint32_t limit = threshold(a, t->count, keep, &equal);
    for (size_t i = 0; i < t->count; i++) {
        uint32_t key = key_of(a[i]);
        bool sends = key > limit || (key == limit && equal > 0);
        if (key == limit && equal > 0)
            equal--;
        t->error[i] = sends || !isfinite(a[i]) ? 0 : a[i]; /* a NaN must not stay for ever */
        if (sends && key > 0)
            to[n++] = (pair){.index = first + (uint32_t)i, .value = a[i]};
    }
    return n;
}

/* --- one bucket ------------------------------------------------------------------------------------ */

static size_t compress(topk *h, const ls_hook_bucket *bucket) {
    size_t n = 0;
    for (size_t p = 0; p < bucket->pieces; p++) {
        const ls_hook_piece *piece = &bucket->piece[p];
        const ls__feedback *t = h->errors.of_param[piece->param];
        ls__feedback_apply(t, piece->data);
        n += choose(t, kept(h, t->count), piece->data, (uint32_t)(piece->data - bucket->data),
                    h->mine + n);
    }
    return n;
}

static ls_status exchange(topk *h, ls_group *group, size_t n) {
    h->sent[h->rank] = (int64_t)n;
    LS_TRY(ls_all_gather(group, &h->sent[h->rank], h->sent, 1, LS_I64));
    size_t total = 0;
    for (int rank = 0; rank < h->ranks; rank++) {
        if (h->sent[rank] < 0 || (size_t)h->sent[rank] > h->room)
            return ls__fail(LS_ERR_MISMATCH, "topk: rank %d sends %lld elements, want 0 to %zu",
                            rank, (long long)h->sent[rank], h->room);
        h->counts[rank] = 2 * (size_t)h->sent[rank];
        total += h->counts[rank];
    }
    return total ? ls_all_gather_v(group, h->mine, h->all, h->counts, LS_I32) : LS_OK;
}

static ls_status add_up(topk *h, const ls_hook_bucket *bucket) {
    float scale = (float)(1 / bucket->total);
    const pair *at = h->all;
    memset(bucket->data, 0, bucket->count * sizeof *bucket->data);
    for (int rank = 0; rank < h->ranks; rank++)
        for (int64_t i = 0; i < h->sent[rank]; i++, at++) {
            if (at->index >= bucket->count)
                return ls__fail(LS_ERR_MISMATCH, "topk: rank %d sent element %u of %zu", rank,
                                (unsigned)at->index, bucket->count);
            bucket->data[at->index] += at->value;
        }
    for (size_t i = 0; i < bucket->count; i++)
        bucket->data[i] *= scale;
    return LS_OK;
}

static ls_status reduce(void *context, ls_group *group, const ls_hook_bucket *bucket) {
    topk *h = context;
    LS_TRY(exchange(h, group, compress(h, bucket)));
    return add_up(h, bucket);
}

/* --- life ------------------------------------------------------------------------------------------ */

static ls_status attach_tensor(topk *h, const ls_reducer_param *param, size_t i) {
    size_t count = ls__hook_elements(param);
    if (count == 0)
        return LS_OK;
    if (count > UINT32_MAX / 2)
        return ls__fail(LS_ERR_RANGE, "%s has %zu elements, want at most %u", param->name, count,
                        UINT32_MAX / 2);
    h->room += kept(h, count);
    return ls__feedback_add(&h->errors, i, param->name, count);
}

/* What attach took. */
static void release(topk *h) {
    ls__feedback_free(&h->errors);
    free(h->sent);
    free(h->counts);
    free(h->mine);
    free(h->all);
    h->sent = NULL;
    h->counts = NULL;
    h->mine = h->all = NULL;
    h->room = 0;
}

static ls_status attach(void *context, const ls_group *group, const ls_reducer_param *params,
                        size_t count) {
    topk *h = context;
    release(h); /* of a reducer that came to nothing: the hook is the caller's to use again */
    LS_TRY(ls__feedback_start(&h->errors, count));
    h->ranks = ls_group_size(group);
    h->rank = ls_group_rank(group);
    for (size_t i = 0; i < count; i++)
        LS_TRY(attach_tensor(h, &params[i], i));
    h->sent = calloc((size_t)h->ranks, sizeof *h->sent);
    h->counts = calloc((size_t)h->ranks, sizeof *h->counts);
    h->mine = calloc(h->room ? h->room : 1, sizeof *h->mine);
    h->all = calloc(h->room ? h->room * (size_t)h->ranks : 1, sizeof *h->all);
    return h->sent && h->counts && h->mine && h->all
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY, "no memory for %zu pairs", h->room);
}

static size_t memory(const void *context, size_t ranks, const ls_reducer_param *params,
                     size_t count, size_t *saved) {
    size_t pairs = 0;
    *saved = 0;
    for (size_t i = 0; i < count; i++) {
        size_t elements = ls__hook_elements(&params[i]);
        pairs += kept(context, elements);
        *saved += elements * sizeof(float);
    }
    return *saved + (1 + ranks) * pairs * sizeof(pair);
}

static size_t states(const void *context) {
    const topk *h = context;
    return h->errors.rows;
}

static void state(void *context, size_t i, ls_hook_state *s) {
    const topk *h = context;
    const ls__feedback *t = &h->errors.row[i];
    snprintf(s->name, sizeof s->name, "topk.error.%s", t->name);
    s->dtype = LS_F32;
    s->dims = 1;
    s->shape[0] = t->count;
    s->data = t->error;
    s->per_rank = true;
}

static void destroy(void *context) {
    release(context);
    free(context);
}

ls_status ls__hook_topk_create(ls_reducer_hook **hook, double ratio) {
    topk *h = calloc(1, sizeof *h);
    if (!h)
        return ls__fail(LS_ERR_MEMORY, "ls_hook_create: out of memory");
    h->ratio = ratio;
    snprintf(h->name, sizeof h->name, "topk:ratio=%.10g", ratio);
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
