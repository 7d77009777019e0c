/* all_reduce. Per rank, p ranks, B bytes:
 *
 *   tiny     1 synchronisation; B written, p * B read; up to 32 bytes are part of the arrival's line
 *   mapped   2 synchronisations; B read and B written, no copy: each rank reduces its 1/p of the elements
 *            from all ranks and writes them to all
 *   direct   (two ranks) 1 synchronisation a chunk of 64 KiB, not waited for at once, and 2 more; B copied
 *            in, 2 B read, B written: each rank reduces everything for itself
 *   staged   2 synchronisations a chunk of 128 KiB, and 1; B copied in, B reduced, B copied out */
#include "comm/reduce.h"
#include "comm/shm/collective.h"

#include <string.h>

/* With more ranks, reading everything from all of them is more than copying a result out. */
enum { DIRECT_RANKS = 2 };

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

/* --- direct ----------------------------------------------------------------------------------------- */

enum { QUARTERS = 4, QUARTER_BYTES = 2 * LS__SHM_HALF_BYTES / QUARTERS };

/* The two halves of a rank, cut in four. Chunk c lies in quarter c mod 4. */
static char *quarter(const ls__shm *shm, int r, size_t chunk) {
    return ls__shm_staging(shm, r, 0) + chunk % QUARTERS * QUARTER_BYTES;
}

/* A rank puts chunk c + 1 there before it waits for chunk c of the others, so that it is rarely waited for.
 * Chunk c + 1 overwrites chunk c - 3: this rank has then seen all arrive with chunk c - 1, and they reduced
 * c - 3 before that. The synchronisations around free the halves that other operations use. */
static ls_status all_reduce_direct(ls__shm *shm, ls__operation *op, double scale) {
    int size = shm->base.size;
    size_t element = ls_dtype_size(op->dtype), most = QUARTER_BYTES / element;
    size_t chunks = op->count / most + (op->count % most != 0);
    const bool around = goes_around(shm, op->send, op->recv, op->count * element);
    uint32_t arrival = 0;
    for (size_t c = 0; c <= chunks; c++) {
        const uint32_t before = arrival;
        if (c < chunks) {
            size_t n = ls__min(most, op->count - c * most);
            memcpy(quarter(shm, shm->base.rank, c), (const char *)op->send + c * QUARTER_BYTES,
                   n * element);
            arrival = ls__shm_arrive(shm);
        }
        if (c == 0)
            continue;
        LS_TRY(ls__shm_await(shm, op, before));
        const void *from[DIRECT_RANKS];
        for (int r = 0; r < size; r++)
            from[r] = quarter(shm, r, c - 1);
        void *to = (char *)op->recv + (c - 1) * QUARTER_BYTES;
        ls__reduce_to(shm->level, &to, 1, from, size, ls__min(most, op->count - (c - 1) * most),
                      op->dtype, op->op, scale, around);
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
        void *to = mine + first * element;
        ls__reduce_to(shm->level, &to, 1, source, size, n, op->dtype, op->op, scale, false);
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
    if (shm->base.size <= DIRECT_RANKS)
        return all_reduce_direct(shm, op, scale);
    return all_reduce_staged(shm, op, scale);
}
