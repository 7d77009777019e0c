#include "comm/call.h"

#include "comm/blocks.h"
#include "comm/work.h"
#include <string.h>

/* --- checks ---------------------------------------------------------------------------------- */

static ls_status check_bytes(const char *name, size_t count, size_t blocks, ls_dtype dtype) {
    size_t bytes;
    if (__builtin_mul_overflow(count, ls_dtype_size(dtype), &bytes) ||
        __builtin_mul_overflow(bytes, blocks, &bytes) || bytes > PTRDIFF_MAX)
        return ls__fail(LS_ERR_ARGUMENT, "%s: count %zu of %s is more than memory can hold", name,
                        count, ls_dtype_name(dtype));
    return LS_OK;
}

ls_status ls__check_common(const char *name, const ls_group *group, size_t count, size_t blocks,
                           ls_dtype dtype) {
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "%s: group is NULL", name);
    if (ls_dtype_size(dtype) == 0)
        return ls__fail(LS_ERR_ARGUMENT, "%s: %d is no dtype", name, (int)dtype);
    return check_bytes(name, count, blocks, dtype);
}

ls_status ls__check_counts(const char *name, const ls_group *group, const size_t *counts,
                           ls_dtype dtype, size_t *total) {
    LS_TRY(ls__check_common(name, group, 0, 1, dtype));
    if (!counts)
        return ls__fail(LS_ERR_ARGUMENT, "%s: counts is NULL; want one for each of %d ranks", name,
                        ls_group_size(group));
    *total = 0;
    for (int r = 0; r < ls_group_size(group); r++)
        if (__builtin_add_overflow(*total, counts[r], total))
            return ls__fail(LS_ERR_ARGUMENT,
                            "%s: the counts up to rank %d are more than memory "
                            "can hold",
                            name, r);
    return check_bytes(name, *total, 1, dtype);
}

ls_status ls__check_buffer(const char *name, const char *which, const void *buffer, size_t count) {
    if (!buffer && count > 0)
        return ls__fail(LS_ERR_ARGUMENT, "%s: %s is NULL with count %zu", name, which, count);
    return LS_OK;
}

ls_status ls__check_overlap(const char *name, const void *send, size_t send_bytes, const void *recv,
                            size_t recv_bytes, bool in_place) {
    uintptr_t a = (uintptr_t)send, b = (uintptr_t)recv;
    if (send_bytes == 0 || recv_bytes == 0 || in_place || a + send_bytes <= b ||
        b + recv_bytes <= a)
        return LS_OK;
    return ls__fail(LS_ERR_ARGUMENT,
                    "%s: send and recv overlap; want separate buffers or exactly in place", name);
}

ls_status ls__check_op(const char *name, ls_op op) {
    if ((unsigned)op >= LS_OP_COUNT)
        return ls__fail(LS_ERR_ARGUMENT, "%s: %d is no operation", name, (int)op);
    return LS_OK;
}

ls_status ls__check_rank(const char *name, const char *which, const ls_group *group, int rank) {
    if (rank < 0 || rank >= ls_group_size(group))
        return ls__fail(LS_ERR_ARGUMENT, "%s: %s is %d, want 0 to %d", name, which, rank,
                        ls_group_size(group) - 1);
    return LS_OK;
}

ls_status ls__check_work(const char *name, ls_work **work) {
    if (!work)
        return ls__fail(LS_ERR_ARGUMENT, "%s: work is NULL", name);
    *work = NULL;
    return LS_OK;
}

/* --- descriptions ---------------------------------------------------------------------------- */

void ls__describe(ls__operation *operation, ls__kind kind, const void *send, void *recv,
                  size_t count, ls_dtype dtype) {
    memset(operation, 0, sizeof *operation);
    operation->header.magic = LS__HEADER_MAGIC;
    operation->header.kind = (uint16_t)kind;
    operation->header.dtype = (uint8_t)dtype;
    operation->header.count = count;
    operation->send = send;
    operation->recv = recv;
    operation->count = count;
    operation->dtype = dtype;
}

ls_status ls__submit(ls_group *group, ls__operation *operation, ls_work **work) {
    return work ? ls__work_start(group, operation, work) : ls__work_run(group, operation);
}

/* --- blocks ---------------------------------------------------------------------------------- */

/* The buffers of this rank: with a root, only the root has the larger one. */
static ls_status check_blocks(const ls_group *group, const ls__blocks_call *call, size_t total,
                              const ls__operation *operation) {
    const int rank = ls_group_rank(group);
    const size_t element = ls_dtype_size(call->dtype), mine = ls__block_count(operation, rank);
    const size_t first = ls__block_first(operation, rank);
    const void *larger = call->sends_all ? call->send : call->recv;
    const void *smaller = call->sends_all ? call->recv : call->send;
    LS_TRY(ls__check_buffer(call->name, call->sends_all ? "recv" : "send", smaller, mine));
    if (call->rooted && call->root != rank)
        return LS_OK;
    LS_TRY(ls__check_buffer(call->name, call->sends_all ? "send" : "recv", larger, total));
    bool in_place = (uintptr_t)smaller == (uintptr_t)larger + first * element;
    return ls__check_overlap(call->name, larger, total * element, smaller, mine * element,
                             in_place);
}

static ls_status submit_blocks(ls_group *group, const ls__blocks_call *call, size_t total,
                               ls__operation *operation, ls_work **work) {
    LS_TRY(ls__check_op(call->name, call->op));
    if (call->rooted)
        LS_TRY(ls__check_rank(call->name, "root", group, call->root));
    LS_TRY(check_blocks(group, call, total, operation));
    operation->op = call->op;
    operation->header.op = (uint8_t)call->op;
    operation->root = call->root;
    operation->header.root = (uint32_t)call->root;
    return ls__submit(group, operation, work);
}

ls_status ls__submit_even(ls_group *group, ls__blocks_call call, size_t count, ls_work **work) {
    const size_t size = group ? (size_t)ls_group_size(group) : 1;
    LS_TRY(ls__check_common(call.name, group, count, size, call.dtype));
    ls__operation operation;
    ls__describe(&operation, call.kind, call.send, call.recv, count, call.dtype);
    return submit_blocks(group, &call, count * size, &operation, work);
}

ls_status ls__submit_uneven(ls_group *group, ls__blocks_call call, const size_t *counts,
                            ls_work **work) {
    size_t total;
    LS_TRY(ls__check_counts(call.name, group, counts, call.dtype, &total));
    ls__operation operation;
    ls__describe(&operation, call.kind, call.send, call.recv, counts[ls_group_rank(group)],
                 call.dtype);
    operation.counts = counts;
    operation.header.count = total;
    operation.header.counts = ls__counts_hash(counts, ls_group_size(group));
    return submit_blocks(group, &call, total, &operation, work);
}
