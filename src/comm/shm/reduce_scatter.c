/* reduce_scatter. Per rank, p ranks, B bytes of send:
 *
 *   tiny     1 synchronisation; B written, B read
 *   mapped   2 synchronisations; B read, B / p written
 *   staged   1 synchronisation a chunk of 128 KiB of send; B copied in, B read */
#include "comm/reduce.h"
#include "comm/shm/collective.h"

#include <string.h>

/* Copies elements [i, i + n) of every rank's block, block after block, into my half. */
static void stage_blocks(ls__shm *shm, const ls__operation *op, uint32_t half, size_t i, size_t n) {
    size_t element = ls_dtype_size(op->dtype);
    char *mine = ls__shm_staging(shm, shm->base.rank, half);
    for (int r = 0; r < shm->base.size; r++)
        ls__shm_copy(mine + (size_t)r * n * element,
                     (const char *)op->send + ((size_t)r * op->count + i) * element, n * element);
}

/* Reduces my block of what stage_blocks put there into elements [i, i + n) of recv. */
static void reduce_staged_block(ls__shm *shm, const ls__operation *op, uint32_t half, size_t i,
                                size_t n) {
    size_t element = ls_dtype_size(op->dtype);
    const void *source[LS__SHM_RANKS_MAX];
    for (int r = 0; r < shm->base.size; r++)
        source[r] = ls__shm_staging(shm, r, half) + (size_t)shm->base.rank * n * element;
    ls__reduce((char *)op->recv + i * element, source, shm->base.size, n, op->dtype, op->op,
               ls__reduce_scale(op->op, shm->base.size, false, 1));
}

static ls_status reduce_scatter_mapped(ls__shm *shm, ls__operation *op) {
    const void *source[LS__SHM_RANKS_MAX];
    size_t block = op->count * ls_dtype_size(op->dtype);
    for (int r = 0; r < shm->base.size; r++)
        source[r] =
            ls__shm_reach(shm, ls__shm_notice_of(shm, r)->send) + (size_t)shm->base.rank * block;
    ls__reduce(op->recv, source, shm->base.size, op->count, op->dtype, op->op,
               ls__reduce_scale(op->op, shm->base.size, false, 1));
    return ls__shm_sync(shm, op); /* nobody may change send before all have read it */
}

ls_status ls__shm_reduce_scatter(ls__shm *shm, ls__operation *op) {
    size_t block = op->count * ls_dtype_size(op->dtype), bytes = block * (size_t)shm->base.size;
    if (bytes <= LS__SHM_TINY_BYTES) {
        uint32_t half = shm->staged++;
        stage_blocks(shm, op, half, 0, op->count);
        LS_TRY(ls__shm_meet(shm, op, (ls__shm_notice){.status = LS_OK}));
        reduce_staged_block(shm, op, half, 0, op->count);
        return LS_OK;
    }
    LS_TRY(ls__shm_meet_buffers(shm, op, bytes, block));
    if (ls__shm_all_mapped(shm, false))
        return reduce_scatter_mapped(shm, op);
    size_t chunk = LS__SHM_HALF_BYTES / ls_dtype_size(op->dtype) / (size_t)shm->base.size;
    for (size_t i = 0; i < op->count; i += chunk) {
        uint32_t half = shm->staged++;
        size_t n = ls__min(chunk, op->count - i);
        stage_blocks(shm, op, half, i, n);
        LS_TRY(ls__shm_sync(shm, op));
        reduce_staged_block(shm, op, half, i, n);
    }
    return LS_OK;
}
