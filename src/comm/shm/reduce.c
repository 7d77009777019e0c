/* reduce. Per rank, p ranks, B bytes:
 *
 *   tiny     1 synchronisation; B written, p * B read by the root
 *   mapped   2 synchronisations; B read, B / p written, no copy: each rank reduces its 1/p of the elements
 *            from all ranks into the root's recv
 *   staged   2 synchronisations a chunk of 128 KiB; B copied in, B reduced, B copied out by the root */
#include "comm/reduce.h"
#include "comm/shm/collective.h"

#include <string.h>

static ls_status reduce_tiny(ls__shm *shm, ls__operation *op, size_t bytes) {
    const void *source[LS__SHM_RANKS_MAX];
    uint32_t half = shm->staged++;
    ls__shm_copy(ls__shm_staging(shm, shm->base.rank, half), op->send, bytes);
    LS_TRY(ls__shm_meet(shm, op));
    if (op->root != shm->base.rank)
        return LS_OK;
    for (int r = 0; r < shm->base.size; r++)
        source[r] = ls__shm_staging(shm, r, half);
    ls__reduce(op->recv, source, shm->base.size, op->count, op->dtype, op->op,
               ls__reduce_scale(op->op, shm->base.size, false, 1));
    return LS_OK;
}

static ls_status reduce_mapped(ls__shm *shm, ls__operation *op, char *to) {
    const size_t element = ls_dtype_size(op->dtype);
    const void *source[LS__SHM_RANKS_MAX];
    size_t n;
    const size_t first = ls__shm_share_of(shm, op->count, element, shm->base.rank, &n);
    for (int r = 0; r < shm->base.size; r++)
        source[r] = ls__shm_reach(shm, ls__shm_notice_of(shm, r)->send) + first * element;
    void *share = to + first * element;
    ls__reduce_to(shm->level, &share, 1, source, shm->base.size, n, op->dtype, op->op,
                  ls__reduce_scale(op->op, shm->base.size, false, 1), false);
    return ls__shm_sync(shm, op);
}

/* In a half, rank r's share of the chunk is read by rank r alone, so r writes its result there. */
static ls_status reduce_staged(ls__shm *shm, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype), chunk = LS__SHM_HALF_BYTES / element;
    const double scale = ls__reduce_scale(op->op, shm->base.size, false, 1);
    const int size = shm->base.size, rank = shm->base.rank;
    for (size_t i = 0; i < op->count; i += chunk) {
        const void *source[LS__SHM_RANKS_MAX];
        size_t elements = ls__min(chunk, op->count - i), n;
        uint32_t half = shm->staged++;
        char *mine = ls__shm_staging(shm, rank, half);
        memcpy(mine, (const char *)op->send + i * element, elements * element);
        LS_TRY(ls__shm_sync(shm, op));
        size_t first = ls__shm_share_of(shm, elements, element, rank, &n);
        for (int r = 0; r < size; r++)
            source[r] = ls__shm_staging(shm, r, half) + first * element;
        void *share = mine + first * element;
        ls__reduce_to(shm->level, &share, 1, source, size, n, op->dtype, op->op, scale, false);
        LS_TRY(ls__shm_sync(shm, op));
        for (int r = 0; r < size && rank == op->root; r++) {
            first = ls__shm_share_of(shm, elements, element, r, &n);
            memcpy((char *)op->recv + (i + first) * element,
                   ls__shm_staging(shm, r, half) + first * element, n * element);
        }
    }
    return LS_OK;
}

ls_status ls__shm_reduce(ls__shm *shm, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    if (bytes <= LS__SHM_TINY_BYTES)
        return reduce_tiny(shm, op, bytes);
    LS_TRY(ls__shm_meet_buffers(shm, op, bytes, op->root == shm->base.rank ? bytes : 0));
    char *to = ls__shm_reach(shm, ls__shm_notice_of(shm, op->root)->recv);
    if (to && ls__shm_all_mapped(shm, false))
        return reduce_mapped(shm, op, to);
    return reduce_staged(shm, op);
}
