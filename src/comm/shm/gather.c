/* all_gather, and gather, which differs in who reads. Per rank, p ranks, B bytes of send:
 *
 *   tiny     1 synchronisation; B written, p * B read
 *   mapped   2 synchronisations; p * B copied. A gather into a mapped recv: B copied by every rank
 *   staged   1 synchronisation a chunk of 128 KiB of send; B copied in, p * B copied out
 *
 * "p * B" on the root of a gather only, 0 on the others. Blocks need not be equal: B is then the longest
 * for the choice of the way and the number of chunks. */
#include "comm/blocks.h"
#include "comm/shm/collective.h"

#include <string.h>

static bool wants_result(const ls__shm *shm, const ls__operation *op) {
    return ls__operation_step(op) == LS__ALL_GATHER || op->root == shm->base.rank;
}

/* Elements [i, i + n) of each rank's block out of the halves. */
static void gather_staged(const ls__shm *shm, const ls__operation *op, uint32_t half, size_t i,
                          size_t n) {
    const size_t element = ls_dtype_size(op->dtype);
    for (int r = 0; r < shm->base.size && wants_result(shm, op); r++) {
        const size_t count = ls__block_count(op, r);
        if (count > i)
            memcpy((char *)op->recv + (ls__block_first(op, r) + i) * element,
                   ls__shm_staging(shm, r, half), ls__min(n, count - i) * element);
    }
}

static ls_status gather_mapped(ls__shm *shm, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype);
    for (int r = 0; r < shm->base.size && wants_result(shm, op); r++) {
        /* in place, this rank's own block is where it belongs */
        const void *from =
            r == shm->base.rank ? op->send : ls__shm_reach(shm, ls__shm_notice_of(shm, r)->send);
        ls__shm_copy((char *)op->recv + ls__block_first(op, r) * element, from,
                     ls__block_count(op, r) * element);
    }
    return ls__shm_sync(shm, op);
}

ls_status ls__shm_gather(ls__shm *shm, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype),
                 longest = ls__block_longest(op, shm->base.size);
    const size_t chunk = LS__SHM_HALF_BYTES / element, mine = op->count * element;
    if (longest * element <= LS__SHM_TINY_BYTES) {
        uint32_t half = shm->staged++;
        ls__shm_copy(ls__shm_staging(shm, shm->base.rank, half), op->send, mine);
        LS_TRY(ls__shm_meet(shm, op));
        gather_staged(shm, op, half, 0, longest);
        return LS_OK;
    }
    const size_t all = ls__block_first(op, shm->base.size) * element;
    LS_TRY(ls__shm_meet_buffers(shm, op, mine, wants_result(shm, op) ? all : 0));
    if (ls__operation_step(op) == LS__GATHER && ls__shm_notice_of(shm, op->root)->recv.region) {
        char *to = ls__shm_reach(shm, ls__shm_notice_of(shm, op->root)->recv);
        ls__shm_copy(to + ls__block_first(op, shm->base.rank) * element, op->send, mine);
        return ls__shm_sync(shm, op);
    }
    if (ls__shm_all_mapped(shm, false))
        return gather_mapped(shm, op);
    for (size_t i = 0; i < longest; i += chunk) {
        uint32_t half = shm->staged++;
        if (op->count > i)
            memcpy(ls__shm_staging(shm, shm->base.rank, half), (const char *)op->send + i * element,
                   ls__min(chunk, op->count - i) * element);
        LS_TRY(ls__shm_sync(shm, op));
        gather_staged(shm, op, half, i, chunk);
    }
    return LS_OK;
}
