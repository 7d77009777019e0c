/* Blocks of an operation's larger buffer: block r is what rank r gives or gets, and they lie one behind
 * the other in rank order. All of `count` elements, or as `counts` says. */
#ifndef LS_COMM_BLOCKS_H
#define LS_COMM_BLOCKS_H

#include "comm/transport.h"

/* Elements of block r. */
size_t ls__block_count(const ls__operation *operation, int r);
/* Elements before block r; r = size: all. */
size_t ls__block_first(const ls__operation *operation, int r);
/* Elements of the longest block of a group of `size`. */
size_t ls__block_longest(const ls__operation *operation, int size);
/* What header.counts holds; never 0. */
uint32_t ls__counts_hash(const size_t *counts, int size);

/* --- all_to_all_v: every rank has counts of its own, and shows them to all in a row ---------------- */

/* The row of rank r begins at first + r * stride: what it sends to each, then what it expects of each. */
typedef struct ls__counts_rows {
    uint64_t *first;
    size_t stride;
    int size; /* of the group */
} ls__counts_rows;

static inline uint64_t *ls__counts_row(const ls__counts_rows *rows, int r) {
    return rows->first + rows->stride * (size_t)r;
}

/* Writes rank r's row. */
void ls__counts_show(const ls__counts_rows *rows, const ls__operation *operation, int r);
/* LS_ERR_MISMATCH where a rank sends what its receiver does not expect; all ranks look at all pairs, so
 * all find the same. *longest: elements of the longest block. */
ls_status ls__counts_compare(const ls__counts_rows *rows, const ls__operation *operation,
                             size_t *longest);
/* Elements before the block of rank `to` in the send buffer of rank r. */
size_t ls__counts_before(const ls__counts_rows *rows, int r, int to);

#endif
