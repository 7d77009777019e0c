/* all_reduce. Per rank, p ranks, B bytes:
 *
 *   tiny     1 synchronisation; B written, p * B read; up to 32 bytes are part of the arrival's line
 *   mapped   2 synchronisations; B read and B written, no copy: each rank reduces its 1/p of the elements
 *            from all ranks and writes them to all
 *   staged   2 synchronisations a chunk of 128 KiB; B copied in, B reduced, B copied out */
#include "comm/reduce.h"
#include "comm/shm/collective.h"

#include <string.h>

static const size_t BLOCK_BYTES = 16384; /* reduced in the first-level cache, then written to all */

static ls_status all_reduce_tiny(ls__shm *shm, ls__operation *op) {
    size_t bytes = op->count * ls_dtype_size(op->dtype);
    bool within = bytes <= LS__SHM_INLINE_BYTES;
    uint32_t half = shm->staged;
    ls__shm_notice notice = {0};
    if (within) {
        ls__shm_copy(notice.value, op->send, bytes);
    } else {
        ls__shm_copy(ls__shm_staging(shm, shm->base.rank, half), op->send, bytes);
        shm->staged++;
    }
    LS_TRY(ls__shm_meet(shm, op, notice));
    double total = ls__shm_total_weight(shm, op);
    if (bytes > 0 && total == 0) {
        memset(op->recv, 0, bytes);
        return LS_OK;
    }
    const void *source[LS__SHM_RANKS_MAX];
    for (int r = 0; r < shm->base.size; r++)
        source[r] = within ? ls__shm_notice_of(shm, r)->value : ls__shm_staging(shm, r, half);
    ls__reduce(op->recv, source, shm->base.size, op->count, op->dtype, op->op,
               ls__reduce_scale(op->op, shm->base.size, op->weighted, total));
    return LS_OK;
}

static ls_status all_reduce_mapped(ls__shm *shm, ls__operation *op, double scale) {
    int size = shm->base.size, rank = shm->base.rank;
    size_t element = ls_dtype_size(op->dtype), n;
    size_t first = ls__shm_share_of(shm, op->count, element, rank, &n);
    char *send[LS__SHM_RANKS_MAX], *recv[LS__SHM_RANKS_MAX];
    for (int r = 0; r < size; r++) {
        const ls__shm_notice *notice = ls__shm_notice_of(shm, r);
        send[r] = ls__shm_reach(shm, notice->send);
        recv[r] = ls__shm_reach(shm, notice->recv);
    }
    size_t block = BLOCK_BYTES / element;
    for (size_t i = first; i < first + n; i += block) {
        const void *source[LS__SHM_RANKS_MAX];
        size_t elements = ls__min(block, first + n - i);
        for (int r = 0; r < size; r++)
            source[r] = send[r] + i * element;
        char *mine = recv[rank] + i * element;
        ls__reduce(mine, source, size, elements, op->dtype, op->op, scale);
        for (int r = 0; r < size; r++)
            if (r != rank)
                memcpy(recv[r] + i * element, mine, elements * element);
    }
    return ls__shm_sync(shm, op);
}

/* In a half, rank r's share of the chunk is read by rank r alone, so r writes its result there. */
static ls_status all_reduce_staged(ls__shm *shm, ls__operation *op, double scale) {
    int size = shm->base.size, rank = shm->base.rank;
    size_t element = ls_dtype_size(op->dtype), chunk = LS__SHM_HALF_BYTES / element, n;
    for (size_t i = 0; i < op->count; i += chunk) {
        uint32_t half = shm->staged++;
        size_t elements = ls__min(chunk, op->count - i);
        char *mine = ls__shm_staging(shm, rank, half);
        memcpy(mine, (const char *)op->send + i * element, elements * element);
        LS_TRY(ls__shm_sync(shm, op));
        const void *source[LS__SHM_RANKS_MAX];
        size_t first = ls__shm_share_of(shm, elements, element, rank, &n);
        for (int r = 0; r < size; r++)
            source[r] = ls__shm_staging(shm, r, half) + first * element;
        ls__reduce(mine + first * element, source, size, n, op->dtype, op->op, scale);
        LS_TRY(ls__shm_sync(shm, op));
        for (int r = 0; r < size; r++) {
            first = ls__shm_share_of(shm, elements, element, r, &n);
            memcpy((char *)op->recv + (i + first) * element,
                   ls__shm_staging(shm, r, half) + first * element, n * element);
        }
    }
    return LS_OK;
}

ls_status ls__shm_all_reduce(ls__shm *shm, ls__operation *op) {
    size_t bytes = op->count * ls_dtype_size(op->dtype);
    if (bytes <= LS__SHM_TINY_BYTES)
        return all_reduce_tiny(shm, op);
    LS_TRY(ls__shm_meet_buffers(shm, op, bytes, bytes));
    double total = ls__shm_total_weight(shm, op);
    if (total == 0) {
        memset(op->recv, 0, bytes);
        return LS_OK;
    }
    double scale = ls__reduce_scale(op->op, shm->base.size, op->weighted, total);
    if (ls__shm_all_mapped(shm, true))
        return all_reduce_mapped(shm, op, scale);
    return all_reduce_staged(shm, op, scale);
}
