/* What all collectives inside one machine share. B = bytes of a buffer, p = ranks. Three ways:
 *
 *   tiny       every rank puts its value into its staging half before it arrives; after one
 *              synchronisation everyone reads what it wants of all.
 *   mapped     buffers lie in memory of ls_group_alloc, so ranks read and write each other's: no copies.
 *   staged     anything else, through the staging halves in chunks.
 *
 * The head of each file gives bytes and synchronisations. Which way is taken depends only on what all
 * ranks have seen of each other, so all take the same.
 *
 * Staging halves alternate. Half k + 2 overwrites half k: the rank has then passed a synchronisation
 * after half k + 1 was written, and nobody reaches that one before having read all of half k. */
#ifndef LS_COMM_SHM_COLLECTIVE_H
#define LS_COMM_SHM_COLLECTIVE_H

#include "comm/shm/layout.h"

static inline size_t ls__min(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Nothing to do for no bytes, or where they are already. */
void ls__shm_copy(void *to, const void *from, size_t bytes);
/* Rank r's staging half number `half`. */
char *ls__shm_staging(const ls__shm *shm, int r, uint32_t half);
/* After meeting: each rank's weight, summed in tree order; 1 for operations without weights. */
double ls__shm_total_weight(const ls__shm *shm, const ls__operation *op);
/* Elements [first, first + n) of `count` that rank r reduces: contiguous, whole cache lines. */
size_t ls__shm_share_of(const ls__shm *shm, size_t count, size_t element, int r, size_t *n);
/* After ls__shm_meet_buffers: whether all ranks' send (and, if wanted, recv) buffers are mapped here. */
bool ls__shm_all_mapped(const ls__shm *shm, bool recv_too);
/* Elements [i, i + n) of every block of send into `half`, in places of n elements; n at most
 * ls__shm_blocks_chunk. */
void ls__shm_stage_blocks(const ls__shm *shm, const ls__operation *op, char *half, size_t i,
                          size_t n);
size_t ls__shm_blocks_chunk(const ls__shm *shm, const ls__operation *op);
/* ls__shm_meet with the places of both buffers. */
ls_status ls__shm_meet_buffers(ls__shm *shm, ls__operation *op, size_t send_bytes,
                               size_t recv_bytes);

#endif
