/* Gradients rounded to 16 bits for the way. For each element, with 2^e the power of two at or above the
 * global weight:
 *
 *     average = (sum over ranks of round(gradient * 2^-e)) * (2^e / weight)
 *
 * The sum is made in f32 in the order of the tree and rounded to 16 bits once (ls_all_reduce). Scaling by
 * 2^-e comes first because f16 ends at 65504: what is rounded has the size of an average, not of a sum
 * over samples. Too large becomes infinity, which all ranks see, and the optimizer refuses. Goes through a
 * buffer of 1 MiB, in memory that local ranks map. No state. */
#include "base/error.h"
#include "base/half.h"
#include "reducer/hooks.h"
#include <math.h>
#include <stdlib.h>

enum { CHUNK = 512 * 1024 }; /* elements */

typedef struct half {
    ls_reducer_hook hook;
    ls_dtype wire;
    uint16_t *
        buffer; /* (CHUNK) of ls_group_alloc, made in the first step and not in attach, since that is a
                         collective, and fails on all ranks or none; the job's to the end */
} half;

static ls_status reduce_chunk(half *h, ls_group *group, float *data, size_t count, float shrink,
                              float grow) {
    for (size_t i = 0; i < count; i++)
        data[i] *= shrink;
    bool bf16 = h->wire == LS_BF16;
    (bf16 ? ls__f32_to_bf16 : ls__f32_to_f16)(h->buffer, data, count);
    LS_TRY(ls_all_reduce(group, h->buffer, h->buffer, count, h->wire, LS_SUM));
    (bf16 ? ls__bf16_to_f32 : ls__f16_to_f32)(data, h->buffer, count);
    for (size_t i = 0; i < count; i++)
        data[i] *= grow;
    return LS_OK;
}

static ls_status reduce(void *context, ls_group *group, const ls_hook_bucket *bucket) {
    half *h = context;
    int exponent;
    double fraction =
        frexp(bucket->total, &exponent); /* total = fraction * 2^exponent, in [0.5, 1) */
    if (fraction == 0.5)
        exponent--;
    float shrink = ldexpf(1, -exponent), grow = (float)(ldexp(1, exponent) / bucket->total);
    if (!h->buffer)
        LS_TRY(ls_group_alloc(group, CHUNK * sizeof *h->buffer, (void **)&h->buffer));
    for (size_t at = 0; at < bucket->count; at += CHUNK) {
        size_t left = bucket->count - at;
        LS_TRY(
            reduce_chunk(h, group, bucket->data + at, left < CHUNK ? left : CHUNK, shrink, grow));
    }
    return LS_OK;
}

static size_t memory(const void *context, size_t ranks, const ls_reducer_param *params,
                     size_t count, size_t *saved) {
    (void)context, (void)ranks, (void)params, (void)count;
    *saved = 0;
    return CHUNK * sizeof(uint16_t);
}

ls_status ls__hook_half_create(ls_reducer_hook **hook, ls_dtype wire) {
    half *h = calloc(1, sizeof *h);
    if (!h)
        return ls__fail(LS_ERR_MEMORY, "ls_hook_create: out of memory");
    h->wire = wire;
    h->hook = (ls_reducer_hook){.name = wire == LS_BF16 ? "bf16" : "f16",
                                .context = h,
                                .reduce = reduce,
                                .memory = memory,
                                .destroy = free};
    *hook = &h->hook;
    return LS_OK;
}
