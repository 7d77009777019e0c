/* The public collectives: arguments are checked here and nowhere below. */
#include "base/error.h"
#include "comm/transport.h"
#include "comm/work.h"

#include <math.h>

int ls_group_rank(const ls_group *group) {
    return group ? group->transport->rank : -1;
}

int ls_group_size(const ls_group *group) {
    return group ? group->transport->size : 0;
}

/* --- checks ---------------------------------------------------------------------------------- */

static bool is_float(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64 || dtype == LS_F16 || dtype == LS_BF16;
}

/* Group, dtype, and that the larger of the two buffers (count * blocks elements) can exist. */
static ls_status check_common(const char *name, const ls_group *group, size_t count, size_t blocks,
                              ls_dtype dtype) {
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "%s: group is NULL", name);
    if (ls_dtype_size(dtype) == 0)
        return ls__fail(LS_ERR_ARGUMENT, "%s: %d is no dtype", name, (int)dtype);
    size_t bytes;
    if (__builtin_mul_overflow(count, ls_dtype_size(dtype), &bytes) ||
        __builtin_mul_overflow(bytes, blocks, &bytes) || bytes > PTRDIFF_MAX)
        return ls__fail(LS_ERR_ARGUMENT, "%s: count %zu of %s is more than memory can hold", name,
                        count, ls_dtype_name(dtype));
    return LS_OK;
}

static ls_status check_buffer(const char *name, const char *which, const void *buffer,
                              size_t count) {
    if (!buffer && count > 0)
        return ls__fail(LS_ERR_ARGUMENT, "%s: %s is NULL with count %zu", name, which, count);
    return LS_OK;
}

/* `in_place` is the one position of the smaller buffer inside the larger that is allowed. */
static ls_status check_overlap(const char *name, const void *send, size_t send_bytes,
                               const void *recv, size_t recv_bytes, bool in_place) {
    uintptr_t a = (uintptr_t)send, b = (uintptr_t)recv;
    if (send_bytes == 0 || recv_bytes == 0 || in_place || a + send_bytes <= b ||
        b + recv_bytes <= a)
        return LS_OK;
    return ls__fail(LS_ERR_ARGUMENT,
                    "%s: send and recv overlap; want separate buffers or exactly in place", name);
}

static ls_status check_op(const char *name, ls_op op) {
    if ((unsigned)op >= LS_OP_COUNT)
        return ls__fail(LS_ERR_ARGUMENT, "%s: %d is no operation", name, (int)op);
    return LS_OK;
}

static ls_status check_rank(const char *name, const char *which, const ls_group *group, int rank) {
    if (rank < 0 || rank >= ls_group_size(group))
        return ls__fail(LS_ERR_ARGUMENT, "%s: %s is %d, want 0 to %d", name, which, rank,
                        ls_group_size(group) - 1);
    return LS_OK;
}

/* --- descriptions ---------------------------------------------------------------------------- */

static ls__operation describe(ls__kind kind, const void *send, void *recv, size_t count,
                              ls_dtype dtype) {
    ls__operation operation = {.send = send, .recv = recv, .count = count, .dtype = dtype};
    operation.header = (ls__header){.magic = LS__HEADER_MAGIC,
                                    .kind = (uint16_t)kind,
                                    .dtype = (uint8_t)dtype,
                                    .group = 1,
                                    .count = count};
    return operation;
}

/* Blocking when the caller has no place for a handle. */
static ls_status submit(ls_group *group, const ls__operation *operation, ls_work **work) {
    return work ? ls__work_start(group, operation, work) : ls__work_run(group, operation);
}

static ls_status check_work(const char *name, ls_work **work) {
    if (!work)
        return ls__fail(LS_ERR_ARGUMENT, "%s: work is NULL", name);
    *work = NULL;
    return LS_OK;
}

/* --- all_reduce ------------------------------------------------------------------------------ */

static ls_status check_all_reduce(const char *name, const ls_group *group, const void *send,
                                  const void *recv, size_t count, ls_dtype dtype) {
    LS_TRY(check_common(name, group, count, 1, dtype));
    LS_TRY(check_buffer(name, "send", send, count));
    LS_TRY(check_buffer(name, "recv", recv, count));
    size_t bytes = count * ls_dtype_size(dtype);
    return check_overlap(name, send, bytes, recv, bytes, send == recv);
}

static ls_status all_reduce(ls_group *group, const void *send, void *recv, size_t count,
                            ls_dtype dtype, ls_op op, ls_work **work) {
    LS_TRY(check_all_reduce("all_reduce", group, send, recv, count, dtype));
    LS_TRY(check_op("all_reduce", op));
    ls__operation operation = describe(LS__ALL_REDUCE, send, recv, count, dtype);
    operation.op = op;
    operation.header.op = (uint8_t)op;
    return submit(group, &operation, work);
}

ls_status ls_all_reduce(ls_group *group, const void *send, void *recv, size_t count, ls_dtype dtype,
                        ls_op op) {
    return all_reduce(group, send, recv, count, dtype, op, NULL);
}

ls_status ls_all_reduce_start(ls_group *group, const void *send, void *recv, size_t count,
                              ls_dtype dtype, ls_op op, ls_work **work) {
    LS_TRY(check_work("all_reduce_start", work));
    return all_reduce(group, send, recv, count, dtype, op, work);
}

static ls_status all_reduce_weighted(ls_group *group, const void *send, void *recv, size_t count,
                                     ls_dtype dtype, double weight, double *total, ls_work **work) {
    LS_TRY(check_all_reduce("all_reduce_weighted", group, send, recv, count, dtype));
    if (!is_float(dtype))
        return ls__fail(LS_ERR_ARGUMENT, "all_reduce_weighted: dtype is %s, want a float",
                        ls_dtype_name(dtype));
    if (!isfinite(weight) || weight < 0)
        return ls__fail(LS_ERR_ARGUMENT,
                        "all_reduce_weighted: weight is %g, want a finite number, 0 or more",
                        weight);
    ls__operation operation = describe(LS__ALL_REDUCE, send, recv, count, dtype);
    operation.op = LS_SUM;
    operation.weighted = true;
    operation.total = total;
    operation.header.op = LS_SUM | LS__OP_WEIGHTED;
    operation.header.weight = weight;
    return submit(group, &operation, work);
}

ls_status ls_all_reduce_weighted(ls_group *group, const void *send, void *recv, size_t count,
                                 ls_dtype dtype, double weight, double *total) {
    return all_reduce_weighted(group, send, recv, count, dtype, weight, total, NULL);
}

ls_status ls_all_reduce_weighted_start(ls_group *group, const void *send, void *recv, size_t count,
                                       ls_dtype dtype, double weight, double *total,
                                       ls_work **work) {
    LS_TRY(check_work("all_reduce_weighted_start", work));
    return all_reduce_weighted(group, send, recv, count, dtype, weight, total, work);
}

/* --- reduce_scatter, all_gather --------------------------------------------------------------- */

static ls_status reduce_scatter(ls_group *group, const void *send, void *recv, size_t count,
                                ls_dtype dtype, ls_op op, ls_work **work) {
    const char *name = "reduce_scatter";
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "%s: group is NULL", name);
    size_t size = (size_t)ls_group_size(group), rank = (size_t)ls_group_rank(group);
    LS_TRY(check_common(name, group, count, size, dtype));
    LS_TRY(check_op(name, op));
    LS_TRY(check_buffer(name, "send", send, count));
    LS_TRY(check_buffer(name, "recv", recv, count));
    size_t bytes = count * ls_dtype_size(dtype);
    bool in_place = (uintptr_t)recv == (uintptr_t)send + rank * bytes;
    LS_TRY(check_overlap(name, send, size * bytes, recv, bytes, in_place));
    ls__operation operation = describe(LS__REDUCE_SCATTER, send, recv, count, dtype);
    operation.op = op;
    operation.header.op = (uint8_t)op;
    return submit(group, &operation, work);
}

ls_status ls_reduce_scatter(ls_group *group, const void *send, void *recv, size_t count,
                            ls_dtype dtype, ls_op op) {
    return reduce_scatter(group, send, recv, count, dtype, op, NULL);
}

ls_status ls_reduce_scatter_start(ls_group *group, const void *send, void *recv, size_t count,
                                  ls_dtype dtype, ls_op op, ls_work **work) {
    LS_TRY(check_work("reduce_scatter_start", work));
    return reduce_scatter(group, send, recv, count, dtype, op, work);
}

static ls_status all_gather(ls_group *group, const void *send, void *recv, size_t count,
                            ls_dtype dtype, ls_work **work) {
    const char *name = "all_gather";
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "%s: group is NULL", name);
    size_t size = (size_t)ls_group_size(group), rank = (size_t)ls_group_rank(group);
    LS_TRY(check_common(name, group, count, size, dtype));
    LS_TRY(check_buffer(name, "send", send, count));
    LS_TRY(check_buffer(name, "recv", recv, count));
    size_t bytes = count * ls_dtype_size(dtype);
    bool in_place = (uintptr_t)send == (uintptr_t)recv + rank * bytes;
    LS_TRY(check_overlap(name, send, bytes, recv, size * bytes, in_place));
    ls__operation operation = describe(LS__ALL_GATHER, send, recv, count, dtype);
    return submit(group, &operation, work);
}

ls_status ls_all_gather(ls_group *group, const void *send, void *recv, size_t count,
                        ls_dtype dtype) {
    return all_gather(group, send, recv, count, dtype, NULL);
}

ls_status ls_all_gather_start(ls_group *group, const void *send, void *recv, size_t count,
                              ls_dtype dtype, ls_work **work) {
    LS_TRY(check_work("all_gather_start", work));
    return all_gather(group, send, recv, count, dtype, work);
}

/* --- broadcast, barrier ----------------------------------------------------------------------- */

static ls_status broadcast(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int root,
                           ls_work **work) {
    LS_TRY(check_common("broadcast", group, count, 1, dtype));
    LS_TRY(check_buffer("broadcast", "buffer", buffer, count));
    LS_TRY(check_rank("broadcast", "root", group, root));
    ls__operation operation = describe(LS__BROADCAST, buffer, buffer, count, dtype);
    operation.root = root;
    operation.header.root = (uint32_t)root;
    return submit(group, &operation, work);
}

ls_status ls_broadcast(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int root) {
    return broadcast(group, buffer, count, dtype, root, NULL);
}

ls_status ls_broadcast_start(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int root,
                             ls_work **work) {
    LS_TRY(check_work("broadcast_start", work));
    return broadcast(group, buffer, count, dtype, root, work);
}

static ls_status barrier(ls_group *group, ls_work **work) {
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "barrier: group is NULL");
    ls__operation operation = describe(LS__BARRIER, NULL, NULL, 0, LS_U8);
    return submit(group, &operation, work);
}

ls_status ls_barrier(ls_group *group) {
    return barrier(group, NULL);
}

ls_status ls_barrier_start(ls_group *group, ls_work **work) {
    LS_TRY(check_work("barrier_start", work));
    return barrier(group, work);
}

/* --- send, recv ------------------------------------------------------------------------------- */

static ls_status check_peer(const char *name, const ls_group *group, const void *buffer,
                            size_t count, ls_dtype dtype, int peer) {
    LS_TRY(check_common(name, group, count, 1, dtype));
    LS_TRY(check_buffer(name, "buffer", buffer, count));
    LS_TRY(check_rank(name, "peer", group, peer));
    if (peer == ls_group_rank(group))
        return ls__fail(LS_ERR_ARGUMENT, "%s: the peer is this rank itself (%d)", name, peer);
    return LS_OK;
}

static ls_status point_to_point(ls__kind kind, ls_group *group, const void *send, void *recv,
                                size_t count, ls_dtype dtype, int peer, ls_work **work) {
    LS_TRY(check_peer(ls__kind_name(kind), group, send ? send : recv, count, dtype, peer));
    ls__operation operation = describe(kind, send, recv, count, dtype);
    operation.root = peer;
    operation.header.root = (uint32_t)(kind == LS__SEND ? peer : ls_group_rank(group));
    return submit(group, &operation, work);
}

ls_status ls_send(ls_group *group, const void *buffer, size_t count, ls_dtype dtype, int to) {
    return point_to_point(LS__SEND, group, buffer, NULL, count, dtype, to, NULL);
}

ls_status ls_recv(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int from) {
    return point_to_point(LS__RECV, group, NULL, buffer, count, dtype, from, NULL);
}

ls_status ls_send_start(ls_group *group, const void *buffer, size_t count, ls_dtype dtype, int to,
                        ls_work **work) {
    LS_TRY(check_work("send_start", work));
    return point_to_point(LS__SEND, group, buffer, NULL, count, dtype, to, work);
}

ls_status ls_recv_start(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int from,
                        ls_work **work) {
    LS_TRY(check_work("recv_start", work));
    return point_to_point(LS__RECV, group, NULL, buffer, count, dtype, from, work);
}

/* --- memory ----------------------------------------------------------------------------------- */

ls_status ls_group_alloc(ls_group *group, size_t bytes, void **memory) {
    if (!group || !memory)
        return ls__fail(LS_ERR_ARGUMENT, "group_alloc: %s is NULL", group ? "memory" : "group");
    *memory = NULL;
    ls__operation operation = describe(LS__ALLOC, NULL, NULL, bytes, LS_U8);
    operation.bytes = bytes > 0 ? bytes : 1; /* nothing still has an address of its own */
    operation.memory = memory;
    return submit(group, &operation, NULL);
}

ls_status ls_group_free(ls_group *group, void *memory) {
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "group_free: group is NULL");
    ls__operation operation = describe(LS__FREE, NULL, NULL, 0, LS_U8);
    operation.memory = &memory;
    return submit(group, &operation, NULL);
}
