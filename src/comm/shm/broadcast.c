/* broadcast, scatter: one rank gives. Per rank, p ranks, B bytes of the root's send:
 *
 *   tiny     1 synchronisation; B copied in by the root and out by the others
 *   mapped   2 synchronisations; B copied by all but the root
 *   staged   1 synchronisation a chunk of 128 KiB; B copied in by the root and out by the others
 *
 * scatter: B / p each instead of B where something is copied out. */
#include "comm/blocks.h"
#include "comm/shm/collective.h"

#include <string.h>

ls_status ls__shm_broadcast(ls__shm *shm, ls__operation *op) {
    size_t bytes = op->count * ls_dtype_size(op->dtype);
    bool root = op->root == shm->base.rank;
    if (bytes <= LS__SHM_TINY_BYTES) {
        char *half = ls__shm_staging(shm, op->root, shm->staged++);
        if (root)
            ls__shm_copy(half, op->send, bytes);
        LS_TRY(ls__shm_meet(shm, op));
        if (!root)
            ls__shm_copy(op->recv, half, bytes);
        return LS_OK;
    }
    LS_TRY(ls__shm_meet_buffers(shm, op, bytes, bytes));
    const char *from = ls__shm_reach(shm, ls__shm_notice_of(shm, op->root)->send);
    if (from) {
        if (!root)
            memcpy(op->recv, from, bytes);
        return ls__shm_sync(shm, op);
    }
    for (size_t i = 0; i < bytes; i += LS__SHM_HALF_BYTES) {
        char *half = ls__shm_staging(shm, op->root, shm->staged++);
        size_t n = ls__min(LS__SHM_HALF_BYTES, bytes - i);
        if (root)
            memcpy(half, (const char *)op->send + i, n);
        LS_TRY(ls__shm_sync(shm, op));
        if (!root)
            memcpy((char *)op->recv + i, half, n);
    }
    return LS_OK;
}

static ls_status scatter_tiny(ls__shm *shm, ls__operation *op, size_t bytes) {
    const size_t element = ls_dtype_size(op->dtype);
    char *half = ls__shm_staging(shm, op->root, shm->staged++);
    if (op->root == shm->base.rank)
        ls__shm_copy(half, op->send, bytes);
    LS_TRY(ls__shm_meet(shm, op));
    ls__shm_copy(op->recv, half + ls__block_first(op, shm->base.rank) * element,
                 op->count * element);
    return LS_OK;
}

ls_status ls__shm_scatter(ls__shm *shm, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype), rank = (size_t)shm->base.rank;
    const size_t bytes = ls__block_first(op, shm->base.size) * element;
    const bool root = op->root == shm->base.rank;
    if (bytes <= LS__SHM_TINY_BYTES)
        return scatter_tiny(shm, op, bytes);
    LS_TRY(ls__shm_meet_buffers(shm, op, root ? bytes : 0, op->count * element));
    const char *from = ls__shm_reach(shm, ls__shm_notice_of(shm, op->root)->send);
    if (from) {
        ls__shm_copy(op->recv, from + ls__block_first(op, shm->base.rank) * element,
                     op->count * element);
        return ls__shm_sync(shm, op);
    }
    const size_t chunk = ls__shm_blocks_chunk(shm, op);
    const size_t longest = ls__block_longest(op, shm->base.size);
    for (size_t i = 0; i < longest; i += chunk) {
        char *half = ls__shm_staging(shm, op->root, shm->staged++);
        if (root)
            ls__shm_stage_blocks(shm, op, half, i, chunk);
        LS_TRY(ls__shm_sync(shm, op));
        if (op->count > i)
            memcpy((char *)op->recv + i * element, half + rank * chunk * element,
                   ls__min(chunk, op->count - i) * element);
    }
    return LS_OK;
}
