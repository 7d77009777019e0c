/* all_reduce. Per rank, p ranks, B bytes:
 *
 *   tiny     1 synchronisation; B written, p * B read; up to 32 bytes are part of the arrival's line
 *   mapped   2 synchronisations; B read and B written, no copy: each rank reduces its 1/p of the elements
 *            from all ranks and writes them to all
 *   staged   1 synchronisation a chunk of 128 KiB, and 2 more; B copied in and out but for a rank's own 1/p, which
 *            it reduces where it is; results go into the lines that their sources came in */
#include "comm/reduce.h"
#include "comm/shm/collective.h"

#include <string.h>

/* A result larger than what the caches hold is written past them: a line that is replaced as a whole need not
 * be read. In place it has been read anyway. */
static bool goes_around(const ls__shm *shm, const void *send, const void *recv, size_t bytes) {
    return send != recv && bytes > shm->cache_bytes / 2 / (size_t)shm->base.size;
}

static ls_status all_reduce_tiny(ls__shm *shm, ls__operation *op) {
    size_t bytes = op->count * ls_dtype_size(op->dtype);
    bool within = bytes <= LS__SHM_INLINE_BYTES;
    uint32_t half = shm->staged;
    if (within) {
        ls__shm_copy(ls__shm_next_notice(shm)->value, op->send, bytes);
    } else {
        ls__shm_copy(ls__shm_staging(shm, shm->base.rank, half), op->send, bytes);
        shm->staged++;
    }
    LS_TRY(ls__shm_meet(shm, op));
    double total = ls__shm_total_weight(shm, op);
    if (bytes > 0 && total == 0) {
        memset(op->recv, 0, bytes);
        return LS_OK;
    }
    const void *source[LS__SHM_RANKS_MAX];
    for (int r = 0; r < shm->base.size; r++)
        source[r] = within ? ls__shm_notice_of(shm, r)->value : ls__shm_staging(shm, r, half);
    ls__reduce_to(shm->level, &op->recv, 1, source, shm->base.size, op->count, op->dtype, op->op,
                  ls__reduce_scale(op->op, shm->base.size, op->weighted, total), false);
    ls__shm_ends_when_ready(op);
    return LS_OK;
}

static ls_status all_reduce_mapped(ls__shm *shm, ls__operation *op, double scale) {
    int size = shm->base.size, rank = shm->base.rank;
    size_t element = ls_dtype_size(op->dtype), n;
    size_t first = ls__shm_share_of(shm, op->count, element, rank, &n);
    const void *from[LS__SHM_RANKS_MAX];
    void *to[LS__SHM_RANKS_MAX];
    bool around = true;
    for (int r = 0; r < size; r++) {
        const ls__shm_notice *notice = ls__shm_notice_of(shm, r);
        char *send = ls__shm_reach(shm, notice->send), *recv = ls__shm_reach(shm, notice->recv);
        around = around && goes_around(shm, send, recv, op->count * element);
        from[r] = send + first * element;
        to[(r - rank + size) % size] = recv + first * element; /* this rank's own comes first */
    }
    ls__reduce_to(shm->level, to, size, from, size, n, op->dtype, op->op, scale, around);
    return ls__shm_sync(shm, op);
}

/* --- staged -----------------------------------------------------------------------------------------
 *
 * Chunk c goes through half c mod 2 of every rank. What rank r is to reduce of it, the others put into their halves;
 * r adds its own and writes the sum back into the same places, from where they take it:
 *
 *     put      half of this rank   <- send, the others' shares
 *     reduce   halves of all ranks <- their sums, and recv <- the sums: this rank's own share
 *     take     recv                <- half of this rank, the others' shares
 *
 * So a line of a half travels between two ranks and carries values both ways. What limits this is how many lines a core
 * fetches: for two ranks B of its buffer, B / 2 of the other rank's half and B / 2 of its own come back, 2 B. Halves
 * that others only read cost 3 B, because a line that another core holds must be fetched to be written, too. */

typedef struct chunk {
    size_t first, elements; /* of the operation's */
    size_t own, count;      /* this rank's share, within the chunk */
    uint32_t half;
} chunk;

static chunk chunk_of(const ls__shm *shm, const ls__operation *op, size_t index, uint32_t staged) {
    const size_t element = ls_dtype_size(op->dtype), most = LS__SHM_HALF_BYTES / element;
    chunk c = {.first = index * most, .half = staged + (uint32_t)index};
    c.elements = ls__min(most, op->count - c.first);
    c.own = ls__shm_share_of(shm, c.elements, element, shm->base.rank, &c.count);
    return c;
}

/* All of a chunk but `own` */
static void copy_others(char *to, const char *from, const chunk *c, size_t element) {
    const size_t behind = c->own + c->count;
    memcpy(to, from, c->own * element);
    memcpy(to + behind * element, from + behind * element, (c->elements - behind) * element);
}

static void reduce_own(ls__shm *shm, const ls__operation *op, const chunk *c, double scale) {
    const int size = shm->base.size, rank = shm->base.rank;
    const size_t element = ls_dtype_size(op->dtype), at = (c->first + c->own) * element;
    const void *from[LS__SHM_RANKS_MAX];
    void *to[LS__SHM_RANKS_MAX];
    to[0] = (char *)op->recv + at;
    for (int r = 0, others = 1; r < size; r++) {
        char *staged = ls__shm_staging(shm, r, c->half) + c->own * element;
        from[r] = r == rank ? (const char *)op->send + at : staged;
        if (r != rank)
            to[others++] = staged;
    }
    ls__reduce_to(shm->level, to, size, from, size, c->count, op->dtype, op->op, scale, false);
}

/* While a rank puts chunk c there, it reduces c - 1 and has taken c - 2, whose half is that of c. */
static ls_status all_reduce_staged(ls__shm *shm, ls__operation *op, double scale) {
    const size_t element = ls_dtype_size(op->dtype), most = LS__SHM_HALF_BYTES / element;
    const size_t chunks = op->count / most + (op->count % most != 0);
    const uint32_t staged = shm->staged;
    shm->staged += (uint32_t)chunks;
    for (size_t i = 0;; i++) {
        if (i >= 2) {
            const chunk c = chunk_of(shm, op, i - 2, staged);
            const char *half = ls__shm_staging(shm, shm->base.rank, c.half);
            copy_others((char *)op->recv + c.first * element, half, &c, element);
        }
        if (i == chunks + 1)
            return LS_OK;
        if (i < chunks) {
            const chunk c = chunk_of(shm, op, i, staged);
            char *half = ls__shm_staging(shm, shm->base.rank, c.half);
            copy_others(half, (const char *)op->send + c.first * element, &c, element);
        }
        if (i >= 1) {
            const chunk c = chunk_of(shm, op, i - 1, staged);
            reduce_own(shm, op, &c, scale);
        }
        LS_TRY(ls__shm_sync(shm, op));
    }
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
