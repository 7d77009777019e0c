/* all_to_all: every rank has a block for every other. Per rank, B bytes of send:
 *
 *   tiny     1 synchronisation; B written, B read
 *   mapped   2 synchronisations; B copied. Not in place, where blocks would be overwritten before they are
 *            read
 *   staged   1 synchronisation a chunk of 128 KiB of send; B copied in, B copied out
 *
 * all_to_all_v: ranks show each other their counts in one synchronisation, then go on as mapped or staged;
 * chunks as for the longest block of all. */
#include "comm/blocks.h"
#include "comm/shm/collective.h"

#include <string.h>

/* Elements [i, i + n) of the block for this rank, out of every half. */
static void take_blocks(const ls__shm *shm, const ls__operation *op, const size_t *counts,
                        uint32_t half, size_t i, size_t n) {
    const size_t element = ls_dtype_size(op->dtype), place = (size_t)shm->base.rank * n * element;
    char *to = op->recv;
    for (int r = 0; r < shm->base.size; r++) {
        const size_t count = counts ? counts[r] : op->count;
        if (count > i)
            memcpy(to + i * element, ls__shm_staging(shm, r, half) + place,
                   ls__min(n, count - i) * element);
        to += count * element;
    }
}

static ls_status exchange_staged(ls__shm *shm, ls__operation *op, size_t longest) {
    const size_t chunk = ls__shm_blocks_chunk(shm, op);
    for (size_t i = 0; i < longest; i += chunk) {
        uint32_t half = shm->staged++;
        ls__shm_stage_blocks(shm, op, ls__shm_staging(shm, shm->base.rank, half), i, chunk);
        LS_TRY(ls__shm_sync(shm, op));
        take_blocks(shm, op, op->recv_counts, half, i, chunk);
    }
    return LS_OK;
}

/* Whether any rank exchanges in place: its recv is its send. */
static bool any_in_place(const ls__shm *shm) {
    for (int r = 0; r < shm->base.size; r++) {
        const ls__shm_notice *notice = ls__shm_notice_of(shm, r);
        if (notice->send.region == notice->recv.region &&
            notice->send.offset == notice->recv.offset)
            return true;
    }
    return false;
}

ls_status ls__shm_all_to_all(ls__shm *shm, ls__operation *op) {
    const size_t block = op->count * ls_dtype_size(op->dtype), rank = (size_t)shm->base.rank;
    const size_t bytes = block * (size_t)shm->base.size;
    if (bytes <= LS__SHM_TINY_BYTES) {
        uint32_t half = shm->staged++;
        ls__shm_copy(ls__shm_staging(shm, shm->base.rank, half), op->send, bytes);
        LS_TRY(ls__shm_meet(shm, op));
        take_blocks(shm, op, NULL, half, 0, op->count);
        return LS_OK;
    }
    LS_TRY(ls__shm_meet_buffers(shm, op, bytes, bytes));
    if (!ls__shm_all_mapped(shm, false) || any_in_place(shm))
        return exchange_staged(shm, op, op->count);
    for (int r = 0; r < shm->base.size; r++)
        memcpy((char *)op->recv + (size_t)r * block,
               ls__shm_reach(shm, ls__shm_notice_of(shm, r)->send) + rank * block, block);
    return ls__shm_sync(shm, op);
}

/* --- all_to_all_v --------------------------------------------------------------------------------- */

static ls_status exchange_mapped(ls__shm *shm, ls__operation *op, const ls__counts_rows *rows) {
    const size_t element = ls_dtype_size(op->dtype);
    char *to = op->recv;
    for (int r = 0; r < shm->base.size; r++) {
        const char *from = ls__shm_reach(shm, ls__shm_notice_of(shm, r)->send);
        ls__shm_copy(to, from + ls__counts_before(rows, r, shm->base.rank) * element,
                     op->recv_counts[r] * element);
        to += op->recv_counts[r] * element;
    }
    return ls__shm_sync(shm, op);
}

ls_status ls__shm_all_to_all_v(ls__shm *shm, ls__operation *op) {
    const size_t bytes = ls__block_first(op, shm->base.size) * ls_dtype_size(op->dtype);
    const uint32_t half = shm->staged++;
    const ls__counts_rows rows = {.first = (uint64_t *)(void *)ls__shm_staging(shm, 0, half),
                                  .stride = 2 * LS__SHM_HALF_BYTES / sizeof(uint64_t),
                                  .size = shm->base.size};
    size_t longest;
    ls__counts_show(&rows, op, shm->base.rank);
    LS_TRY(ls__shm_meet_buffers(shm, op, bytes, 0));
    LS_TRY(ls__counts_compare(&rows, op, &longest));
    if (ls__shm_all_mapped(shm, false))
        return exchange_mapped(shm, op, &rows);
    return exchange_staged(shm, op, longest);
}
