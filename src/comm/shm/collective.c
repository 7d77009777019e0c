#include "comm/shm/collective.h"

#include "comm/blocks.h"
#include "comm/reduce.h"
#include <string.h>

char *ls__shm_staging(const ls__shm *shm, int r, uint32_t half) {
    size_t index = (size_t)r * 2 + (half & 1);
    return (char *)shm->control + ls__shm_staging_offset(shm->base.size) +
           index * LS__SHM_HALF_BYTES;
}

void ls__shm_copy(void *to, const void *from, size_t bytes) {
    if (bytes > 0 && to != from)
        memcpy(to, from, bytes);
}

double ls__shm_total_weight(const ls__shm *shm, const ls__operation *op) {
    double weight[LS__SHM_RANKS_MAX];
    if (!op->weighted)
        return 1;
    for (int r = 0; r < shm->base.size; r++)
        weight[r] = ls__shm_notice_of(shm, r)->weight;
    double total = ls__reduce_weights(weight, shm->base.size);
    if (op->total)
        *op->total = total;
    return total;
}

size_t ls__shm_share_of(const ls__shm *shm, size_t count, size_t element, int r, size_t *n) {
    size_t size = (size_t)shm->base.size, line = 64 / element;
    size_t share = (count / size + (count % size != 0) + line - 1) / line * line;
    size_t first = ls__min(share * (size_t)r, count);
    *n = ls__min(share, count - first);
    return first;
}

bool ls__shm_all_mapped(const ls__shm *shm, bool recv_too) {
    for (int r = 0; r < shm->base.size; r++) {
        const ls__shm_notice *notice = ls__shm_notice_of(shm, r);
        if (!notice->send.region || (recv_too && !notice->recv.region))
            return false;
    }
    return true;
}

ls_status ls__shm_meet_buffers(ls__shm *shm, ls__operation *op, size_t send_bytes,
                               size_t recv_bytes) {
    ls__shm_notice *notice = ls__shm_next_notice(shm);
    notice->send = ls__shm_locate(shm, op->send, send_bytes);
    notice->recv = ls__shm_locate(shm, op->recv, recv_bytes);
    return ls__shm_meet(shm, op);
}

size_t ls__shm_blocks_chunk(const ls__shm *shm, const ls__operation *op) {
    return LS__SHM_HALF_BYTES / ls_dtype_size(op->dtype) / (size_t)shm->base.size;
}

void ls__shm_stage_blocks(const ls__shm *shm, const ls__operation *op, char *half, size_t i,
                          size_t n) {
    const size_t element = ls_dtype_size(op->dtype);
    for (int r = 0; r < shm->base.size; r++) {
        const size_t count = ls__block_count(op, r);
        if (count > i)
            memcpy(half + (size_t)r * n * element,
                   (const char *)op->send + (ls__block_first(op, r) + i) * element,
                   ls__min(n, count - i) * element);
    }
}
