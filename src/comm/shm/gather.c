/* all_gather. Per rank, p ranks, B bytes of send:
 *
 *   tiny     1 synchronisation; B written, p * B read
 *   mapped   2 synchronisations; p * B copied
 *   staged   1 synchronisation a chunk of 128 KiB of send; B copied in, p * B copied out */
#include "comm/shm/collective.h"

#include <string.h>

/* Bytes [i, i + n) of each rank's block out of the halves. */
static void gather_staged(ls__shm *shm, const ls__operation *op, uint32_t half, size_t block,
                          size_t i, size_t n) {
    for (int r = 0; r < shm->base.size; r++)
        ls__shm_copy((char *)op->recv + (size_t)r * block + i, ls__shm_staging(shm, r, half), n);
}

ls_status ls__shm_all_gather(ls__shm *shm, ls__operation *op) {
    size_t block = op->count * ls_dtype_size(op->dtype);
    if (block <= LS__SHM_TINY_BYTES) {
        uint32_t half = shm->staged++;
        ls__shm_copy(ls__shm_staging(shm, shm->base.rank, half), op->send, block);
        LS_TRY(ls__shm_meet(shm, op, (ls__shm_notice){.status = LS_OK}));
        gather_staged(shm, op, half, block, 0, block);
        return LS_OK;
    }
    LS_TRY(ls__shm_meet_buffers(shm, op, block, block * (size_t)shm->base.size));
    if (ls__shm_all_mapped(shm, false)) {
        for (int r = 0; r < shm->base.size; r++) {
            /* in place, this rank's own block is where it belongs */
            const void *from = r == shm->base.rank
                                   ? op->send
                                   : ls__shm_reach(shm, ls__shm_notice_of(shm, r)->send);
            ls__shm_copy((char *)op->recv + (size_t)r * block, from, block);
        }
        return ls__shm_sync(shm, op);
    }
    for (size_t i = 0; i < block; i += LS__SHM_HALF_BYTES) {
        uint32_t half = shm->staged++;
        size_t n = ls__min(LS__SHM_HALF_BYTES, block - i);
        memcpy(ls__shm_staging(shm, shm->base.rank, half), (const char *)op->send + i, n);
        LS_TRY(ls__shm_sync(shm, op));
        gather_staged(shm, op, half, block, i, n);
    }
    return LS_OK;
}
