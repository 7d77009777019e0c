/* Collectives inside one machine. B = bytes of a buffer, p = ranks. Three ways:
 *
 *   tiny       every rank puts its value into its staging half before it arrives; after one
 *              synchronisation everyone reads all. 1 synchronisation, p * B read by every rank.
 *   mapped     buffers lie in memory of ls_group_alloc, so ranks read and write each other's. Each rank
 *              reduces its 1/p of the elements from all ranks and writes them to all.
 *              2 synchronisations, per rank B read and B written, no copy.
 *   staged     anything else, through the staging halves in chunks. Per chunk 1 or 2 synchronisations.
 *
 * Which way is taken depends only on what all ranks have seen of each other, so all take the same.
 *
 * Staging halves alternate. Half k + 2 overwrites half k: the rank has then passed a synchronisation
 * after half k + 1 was written, and nobody reaches that one before having read all of half k. */
#include "comm/reduce.h"
#include "comm/shm/layout.h"

#include <string.h>

static const size_t BLOCK_BYTES = 16384; /* reduced in the first-level cache, then written to all */

/* --- staging -------------------------------------------------------------------------------------- */

static char *staging(const ls__shm *shm, int r, uint32_t half) {
    size_t index = (size_t)r * 2 + (half & 1);
    return (char *)shm->control + ls__shm_staging_offset(shm->base.size) +
           index * LS__SHM_HALF_BYTES;
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes > 0 && to != from)
        memcpy(to, from, bytes);
}

static size_t min(size_t a, size_t b) {
    return a < b ? a : b;
}

/* --- the parts of a reduction that all ways share --------------------------------------------------- */

/* Each rank's weight, summed in tree order; 1 for operations without weights. */
static double total_weight(const ls__shm *shm, const ls__operation *op) {
    double weight[LS__SHM_RANKS_MAX];
    if (!op->weighted)
        return 1;
    for (int r = 0; r < shm->base.size; r++)
        weight[r] = ls__shm_notice_of(shm, r)->header.weight;
    double total = ls__reduce_weights(weight, shm->base.size);
    if (op->total)
        *op->total = total;
    return total;
}

/* Elements [first, first + n) of `count` that rank r reduces: contiguous, whole cache lines. */
static size_t share_of(const ls__shm *shm, size_t count, size_t element, int r, size_t *n) {
    size_t size = (size_t)shm->base.size, line = 64 / element;
    size_t share = (count / size + (count % size != 0) + line - 1) / line * line;
    size_t first = min(share * (size_t)r, count);
    *n = min(share, count - first);
    return first;
}

/* Whether all ranks' send (and, if wanted, recv) buffers are mapped here. */
static bool all_mapped(const ls__shm *shm, bool recv_too) {
    for (int r = 0; r < shm->base.size; r++) {
        const ls__shm_notice *notice = ls__shm_notice_of(shm, r);
        if (!notice->send.region || (recv_too && !notice->recv.region))
            return false;
    }
    return true;
}

static ls_status meet_with_buffers(ls__shm *shm, ls__operation *op, size_t send_bytes,
                                   size_t recv_bytes) {
    ls__shm_notice notice = {.send = ls__shm_locate(shm, op->send, send_bytes),
                             .recv = ls__shm_locate(shm, op->recv, recv_bytes)};
    return ls__shm_meet(shm, op, notice);
}

/* --- all_reduce ------------------------------------------------------------------------------------- */

static ls_status all_reduce_tiny(ls__shm *shm, ls__operation *op) {
    uint32_t half = shm->staged++;
    size_t bytes = op->count * ls_dtype_size(op->dtype);
    copy(staging(shm, shm->base.rank, half), op->send, bytes);
    LS_TRY(ls__shm_meet(shm, op, (ls__shm_notice){.status = LS_OK}));
    double total = total_weight(shm, op);
    if (bytes > 0 && total == 0) {
        memset(op->recv, 0, bytes);
        return LS_OK;
    }
    const void *source[LS__SHM_RANKS_MAX];
    for (int r = 0; r < shm->base.size; r++)
        source[r] = staging(shm, r, half);
    ls__reduce(op->recv, source, shm->base.size, op->count, op->dtype, op->op,
               ls__reduce_scale(op->op, shm->base.size, op->weighted, total));
    return LS_OK;
}

static ls_status all_reduce_mapped(ls__shm *shm, ls__operation *op, double scale) {
    int size = shm->base.size, rank = shm->base.rank;
    size_t element = ls_dtype_size(op->dtype), n;
    size_t first = share_of(shm, op->count, element, rank, &n);
    char *send[LS__SHM_RANKS_MAX], *recv[LS__SHM_RANKS_MAX];
    for (int r = 0; r < size; r++) {
        const ls__shm_notice *notice = ls__shm_notice_of(shm, r);
        send[r] = ls__shm_reach(shm, notice->send);
        recv[r] = ls__shm_reach(shm, notice->recv);
    }
    size_t block = BLOCK_BYTES / element;
    for (size_t i = first; i < first + n; i += block) {
        const void *source[LS__SHM_RANKS_MAX];
        size_t elements = min(block, first + n - i);
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
        size_t elements = min(chunk, op->count - i);
        char *mine = staging(shm, rank, half);
        memcpy(mine, (const char *)op->send + i * element, elements * element);
        LS_TRY(ls__shm_sync(shm, op));
        const void *source[LS__SHM_RANKS_MAX];
        size_t first = share_of(shm, elements, element, rank, &n);
        for (int r = 0; r < size; r++)
            source[r] = staging(shm, r, half) + first * element;
        ls__reduce(mine + first * element, source, size, n, op->dtype, op->op, scale);
        LS_TRY(ls__shm_sync(shm, op));
        for (int r = 0; r < size; r++) {
            first = share_of(shm, elements, element, r, &n);
            memcpy((char *)op->recv + (i + first) * element,
                   staging(shm, r, half) + first * element, n * element);
        }
    }
    return LS_OK;
}

ls_status ls__shm_all_reduce(ls__shm *shm, ls__operation *op) {
    size_t bytes = op->count * ls_dtype_size(op->dtype);
    if (bytes <= LS__SHM_TINY_BYTES)
        return all_reduce_tiny(shm, op);
    LS_TRY(meet_with_buffers(shm, op, bytes, bytes));
    double total = total_weight(shm, op);
    if (total == 0) {
        memset(op->recv, 0, bytes);
        return LS_OK;
    }
    double scale = ls__reduce_scale(op->op, shm->base.size, op->weighted, total);
    if (all_mapped(shm, true))
        return all_reduce_mapped(shm, op, scale);
    return all_reduce_staged(shm, op, scale);
}

/* --- reduce_scatter ----------------------------------------------------------------------------------- */

/* Copies elements [i, i + n) of every rank's block, block after block, into my half. */
static void stage_blocks(ls__shm *shm, const ls__operation *op, uint32_t half, size_t i, size_t n) {
    size_t element = ls_dtype_size(op->dtype);
    char *mine = staging(shm, shm->base.rank, half);
    for (int r = 0; r < shm->base.size; r++)
        copy(mine + (size_t)r * n * element,
             (const char *)op->send + ((size_t)r * op->count + i) * element, n * element);
}

/* Reduces my block of what stage_blocks put there into elements [i, i + n) of recv. */
static void reduce_staged_block(ls__shm *shm, const ls__operation *op, uint32_t half, size_t i,
                                size_t n) {
    size_t element = ls_dtype_size(op->dtype);
    const void *source[LS__SHM_RANKS_MAX];
    for (int r = 0; r < shm->base.size; r++)
        source[r] = staging(shm, r, half) + (size_t)shm->base.rank * n * element;
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
    LS_TRY(meet_with_buffers(shm, op, bytes, block));
    if (all_mapped(shm, false))
        return reduce_scatter_mapped(shm, op);
    size_t chunk = LS__SHM_HALF_BYTES / ls_dtype_size(op->dtype) / (size_t)shm->base.size;
    for (size_t i = 0; i < op->count; i += chunk) {
        uint32_t half = shm->staged++;
        size_t n = min(chunk, op->count - i);
        stage_blocks(shm, op, half, i, n);
        LS_TRY(ls__shm_sync(shm, op));
        reduce_staged_block(shm, op, half, i, n);
    }
    return LS_OK;
}

/* --- all_gather ---------------------------------------------------------------------------------------- */

/* Bytes [i, i + n) of each rank's block out of the halves. */
static void gather_staged(ls__shm *shm, const ls__operation *op, uint32_t half, size_t block,
                          size_t i, size_t n) {
    for (int r = 0; r < shm->base.size; r++)
        copy((char *)op->recv + (size_t)r * block + i, staging(shm, r, half), n);
}

ls_status ls__shm_all_gather(ls__shm *shm, ls__operation *op) {
    size_t block = op->count * ls_dtype_size(op->dtype);
    if (block <= LS__SHM_TINY_BYTES) {
        uint32_t half = shm->staged++;
        copy(staging(shm, shm->base.rank, half), op->send, block);
        LS_TRY(ls__shm_meet(shm, op, (ls__shm_notice){.status = LS_OK}));
        gather_staged(shm, op, half, block, 0, block);
        return LS_OK;
    }
    LS_TRY(meet_with_buffers(shm, op, block, block * (size_t)shm->base.size));
    if (all_mapped(shm, false)) {
        for (int r = 0; r < shm->base.size; r++) {
            /* in place, this rank's own block is where it belongs */
            const void *from = r == shm->base.rank
                                   ? op->send
                                   : ls__shm_reach(shm, ls__shm_notice_of(shm, r)->send);
            copy((char *)op->recv + (size_t)r * block, from, block);
        }
        return ls__shm_sync(shm, op);
    }
    for (size_t i = 0; i < block; i += LS__SHM_HALF_BYTES) {
        uint32_t half = shm->staged++;
        size_t n = min(LS__SHM_HALF_BYTES, block - i);
        memcpy(staging(shm, shm->base.rank, half), (const char *)op->send + i, n);
        LS_TRY(ls__shm_sync(shm, op));
        gather_staged(shm, op, half, block, i, n);
    }
    return LS_OK;
}

/* --- broadcast ------------------------------------------------------------------------------------------ */

ls_status ls__shm_broadcast(ls__shm *shm, ls__operation *op) {
    size_t bytes = op->count * ls_dtype_size(op->dtype);
    bool root = op->root == shm->base.rank;
    if (bytes <= LS__SHM_TINY_BYTES) {
        char *half = staging(shm, op->root, shm->staged++);
        if (root)
            copy(half, op->send, bytes);
        LS_TRY(ls__shm_meet(shm, op, (ls__shm_notice){.status = LS_OK}));
        if (!root)
            copy(op->recv, half, bytes);
        return LS_OK;
    }
    LS_TRY(meet_with_buffers(shm, op, bytes, bytes));
    const char *from = ls__shm_reach(shm, ls__shm_notice_of(shm, op->root)->send);
    if (from) {
        if (!root)
            memcpy(op->recv, from, bytes);
        return ls__shm_sync(shm, op);
    }
    for (size_t i = 0; i < bytes; i += LS__SHM_HALF_BYTES) {
        char *half = staging(shm, op->root, shm->staged++);
        size_t n = min(LS__SHM_HALF_BYTES, bytes - i);
        if (root)
            memcpy(half, (const char *)op->send + i, n);
        LS_TRY(ls__shm_sync(shm, op));
        if (!root)
            memcpy((char *)op->recv + i, half, n);
    }
    return LS_OK;
}
