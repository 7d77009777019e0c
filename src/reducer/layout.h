/* Where each gradient lies in the flat memory, and which ranges of it are reduced together.
 *
 *     memory    | gradient a   |u|pad| gradient b           |u|pad| gradient c |u|
 *     buckets   |<------- 0 ------->|<------- 1 ------->|<------- 2 ------->|
 *
 * Directly behind the last element of each gradient stands one more element of its dtype, its used
 * mark (u), and then zeros up to the next multiple of 64 bytes. Gradients follow each other in ready
 * order without other gaps, so the memory is one stream that is cut into buckets: after `cap` bytes,
 * or where the dtype changes. A cut may go through a gradient, and it stays contiguous; its mark rides
 * in the bucket where the gradient ends, so no bucket needs a trailer, which would tear such a
 * gradient apart. The price is at most 64 bytes a parameter.
 *
 * With a hook, buckets also end where gradients that it gets are followed by such that it does not get, or the
 * other way round; and if it wants whole tensors, no cut goes through those.
 *
 * The size of the memory does not depend on the order, and everything is allocated for the worst
 * order at creation: ls__layout_arrange cannot fail. */
#ifndef LS_REDUCER_LAYOUT_H
#define LS_REDUCER_LAYOUT_H

#include "reducer/align.h"
#include <lockstep/reducer.h>

/* The place of one parameter. */
typedef struct ls__place {
    size_t offset; /* from the start of the memory, in bytes */
    size_t bytes;  /* the gradient alone: its used mark stands at offset + bytes */
    size_t extent; /* gradient, mark and padding; 0: frozen, has no place */
    ls_dtype dtype;
    bool full;                        /* averaged in full, also where there is a hook */
    size_t first_bucket, last_bucket; /* inclusive */
} ls__place;

typedef struct ls__bucket {
    size_t offset, bytes;
    ls_dtype dtype;
    bool full;      /* not the hook's; without a hook all are */
    size_t members; /* gradients that lie in it, also in part */
} ls__bucket;

typedef struct ls__layout {
    size_t count;
    ls__place *place; /* (count) */
    size_t bucket_count, bucket_limit;
    ls__bucket *bucket; /* (bucket_limit), the first bucket_count are in use */
    size_t bytes;       /* of the memory; at least 64 */
    size_t first_cap, cap;
    bool hooked, whole; /* there is a hook; it wants whole tensors */
} ls__layout;

/* Sizes and memory; no order yet. `hook`: NULL, or the one that will reduce. The caps, in bytes and at least 64, are rounded down to multiples of
 * 64. LS_ERR_RANGE where sizes overflow. Free it also after a failure. */
ls_status ls__layout_create(ls__layout *layout, const ls_reducer_param *params, size_t count,
                            size_t first_cap, size_t cap, const ls_reducer_hook *hook);
/* Places all parameters in this order, a permutation of 0..count-1. There is always a bucket: without
 * trainable parameters it holds 64 zero bytes, so that the weight still has a message to travel in. */
void ls__layout_arrange(ls__layout *layout, const size_t *order);
void ls__layout_free(ls__layout *layout);

#endif
