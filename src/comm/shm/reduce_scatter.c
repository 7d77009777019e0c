/* reduce_scatter. Per rank, p ranks, B bytes of send:
 *
 *   tiny     1 synchronisation; B written, B read
 *   mapped   2 synchronisations; B read, B / p written
 *   staged   1 synchronisation a chunk of 128 KiB of send; B copied in, B read
 *
 * Blocks need not be equal: the longest then gives the number of chunks, its p-fold stands for B. */
#include "comm/blocks.h"
#include "comm/reduce.h"
#include "comm/shm/collective.h"

/* Elements [i, i + n) of recv from all sources. */
static void reduce_block(const ls__shm *shm, const ls__operation *op, const void *const *source,
                         size_t i, size_t n) {
    if (op->count > i)
        ls__reduce((char *)op->recv + i * ls_dtype_size(op->dtype), source, shm->base.size,
                   ls__min(n, op->count - i), op->dtype, op->op,
                   ls__reduce_scale(op->op, shm->base.size, false, 1));
}

static ls_status reduce_scatter_tiny(ls__shm *shm, ls__operation *op, size_t bytes) {
    const size_t before = ls__block_first(op, shm->base.rank) * ls_dtype_size(op->dtype);
    const void *source[LS__SHM_RANKS_MAX];
    uint32_t half = shm->staged++;
    ls__shm_copy(ls__shm_staging(shm, shm->base.rank, half), op->send, bytes);
    LS_TRY(ls__shm_meet(shm, op));
    for (int r = 0; r < shm->base.size; r++)
        source[r] = ls__shm_staging(shm, r, half) + before;
    reduce_block(shm, op, source, 0, op->count);
    return LS_OK;
}

static ls_status reduce_scatter_mapped(ls__shm *shm, ls__operation *op) {
    const size_t before = ls__block_first(op, shm->base.rank) * ls_dtype_size(op->dtype);
    const void *source[LS__SHM_RANKS_MAX];
    for (int r = 0; r < shm->base.size; r++)
        source[r] = ls__shm_reach(shm, ls__shm_notice_of(shm, r)->send) + before;
    reduce_block(shm, op, source, 0, op->count);
    return ls__shm_sync(shm, op); /* nobody may change send before all have read it */
}

ls_status ls__shm_reduce_scatter(ls__shm *shm, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype);
    const size_t bytes = ls__block_first(op, shm->base.size) * element;
    if (bytes <= LS__SHM_TINY_BYTES)
        return reduce_scatter_tiny(shm, op, bytes);
    LS_TRY(ls__shm_meet_buffers(shm, op, bytes, op->count * element));
    if (ls__shm_all_mapped(shm, false))
        return reduce_scatter_mapped(shm, op);
    const size_t chunk = ls__shm_blocks_chunk(shm, op);
    const size_t longest = ls__block_longest(op, shm->base.size);
    for (size_t i = 0; i < longest; i += chunk) {
        const void *source[LS__SHM_RANKS_MAX];
        uint32_t half = shm->staged++;
        ls__shm_stage_blocks(shm, op, ls__shm_staging(shm, shm->base.rank, half), i, chunk);
        LS_TRY(ls__shm_sync(shm, op));
        for (int r = 0; r < shm->base.size; r++)
            source[r] = ls__shm_staging(shm, r, half) + (size_t)shm->base.rank * chunk * element;
        reduce_block(shm, op, source, i, chunk);
    }
    return LS_OK;
}
