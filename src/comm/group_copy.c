/* The public operations that move elements as they are. */
#include "comm/call.h"

/* --- all_gather --- */

static ls__blocks_call describe_all_gather(const void *send, void *recv, ls_dtype dtype) {
    return (ls__blocks_call){
        .kind = LS__ALL_GATHER, .name = "all_gather", .send = send, .recv = recv, .dtype = dtype};
}

ls_status ls_all_gather(ls_group *group, const void *send, void *recv, size_t count,
                        ls_dtype dtype) {
    return ls__submit_even(group, describe_all_gather(send, recv, dtype), count, NULL);
}

ls_status ls_all_gather_start(ls_group *group, const void *send, void *recv, size_t count,
                              ls_dtype dtype, ls_work **work) {
    LS_TRY(ls__check_work("all_gather_start", work));
    return ls__submit_even(group, describe_all_gather(send, recv, dtype), count, work);
}

ls_status ls_all_gather_v(ls_group *group, const void *send, void *recv, const size_t *counts,
                          ls_dtype dtype) {
    return ls__submit_uneven(group, describe_all_gather(send, recv, dtype), counts, NULL);
}

ls_status ls_all_gather_v_start(ls_group *group, const void *send, void *recv, const size_t *counts,
                                ls_dtype dtype, ls_work **work) {
    LS_TRY(ls__check_work("all_gather_v_start", work));
    return ls__submit_uneven(group, describe_all_gather(send, recv, dtype), counts, work);
}

/* --- gather --- */

static ls__blocks_call describe_gather(const void *send, void *recv, ls_dtype dtype, int root) {
    return (ls__blocks_call){.kind = LS__GATHER,
                             .name = "gather",
                             .send = send,
                             .recv = recv,
                             .dtype = dtype,
                             .rooted = true,
                             .root = root};
}

ls_status ls_gather(ls_group *group, const void *send, void *recv, size_t count, ls_dtype dtype,
                    int root) {
    return ls__submit_even(group, describe_gather(send, recv, dtype, root), count, NULL);
}

ls_status ls_gather_start(ls_group *group, const void *send, void *recv, size_t count,
                          ls_dtype dtype, int root, ls_work **work) {
    LS_TRY(ls__check_work("gather_start", work));
    return ls__submit_even(group, describe_gather(send, recv, dtype, root), count, work);
}

ls_status ls_gather_v(ls_group *group, const void *send, void *recv, const size_t *counts,
                      ls_dtype dtype, int root) {
    return ls__submit_uneven(group, describe_gather(send, recv, dtype, root), counts, NULL);
}

ls_status ls_gather_v_start(ls_group *group, const void *send, void *recv, const size_t *counts,
                            ls_dtype dtype, int root, ls_work **work) {
    LS_TRY(ls__check_work("gather_v_start", work));
    return ls__submit_uneven(group, describe_gather(send, recv, dtype, root), counts, work);
}

/* --- scatter --- */

static ls__blocks_call describe_scatter(const void *send, void *recv, ls_dtype dtype, int root) {
    return (ls__blocks_call){.kind = LS__SCATTER,
                             .name = "scatter",
                             .send = send,
                             .recv = recv,
                             .dtype = dtype,
                             .rooted = true,
                             .root = root,
                             .sends_all = true};
}

ls_status ls_scatter(ls_group *group, const void *send, void *recv, size_t count, ls_dtype dtype,
                     int root) {
    return ls__submit_even(group, describe_scatter(send, recv, dtype, root), count, NULL);
}

ls_status ls_scatter_start(ls_group *group, const void *send, void *recv, size_t count,
                           ls_dtype dtype, int root, ls_work **work) {
    LS_TRY(ls__check_work("scatter_start", work));
    return ls__submit_even(group, describe_scatter(send, recv, dtype, root), count, work);
}

ls_status ls_scatter_v(ls_group *group, const void *send, void *recv, const size_t *counts,
                       ls_dtype dtype, int root) {
    return ls__submit_uneven(group, describe_scatter(send, recv, dtype, root), counts, NULL);
}

ls_status ls_scatter_v_start(ls_group *group, const void *send, void *recv, const size_t *counts,
                             ls_dtype dtype, int root, ls_work **work) {
    LS_TRY(ls__check_work("scatter_v_start", work));
    return ls__submit_uneven(group, describe_scatter(send, recv, dtype, root), counts, work);
}

/* --- all_to_all --- */

static ls_status all_to_all(ls_group *group, const void *send, void *recv, size_t count,
                            ls_dtype dtype, ls_work **work) {
    const char *name = "all_to_all";
    const size_t size = group ? (size_t)ls_group_size(group) : 1;
    LS_TRY(ls__check_common(name, group, count, size, dtype));
    LS_TRY(ls__check_buffer(name, "send", send, count));
    LS_TRY(ls__check_buffer(name, "recv", recv, count));
    const size_t bytes = count * size * ls_dtype_size(dtype);
    LS_TRY(ls__check_overlap(name, send, bytes, recv, bytes, send == recv));
    ls__operation operation;
    ls__describe(&operation, LS__ALL_TO_ALL, send, recv, count, dtype);
    return ls__submit(group, &operation, work);
}

ls_status ls_all_to_all(ls_group *group, const void *send, void *recv, size_t count,
                        ls_dtype dtype) {
    return all_to_all(group, send, recv, count, dtype, NULL);
}

ls_status ls_all_to_all_start(ls_group *group, const void *send, void *recv, size_t count,
                              ls_dtype dtype, ls_work **work) {
    LS_TRY(ls__check_work("all_to_all_start", work));
    return all_to_all(group, send, recv, count, dtype, work);
}

static ls_status all_to_all_v(ls_group *group, const void *send, const size_t *send_counts,
                              void *recv, const size_t *recv_counts, ls_dtype dtype,
                              ls_work **work) {
    const char *name = "all_to_all_v";
    size_t sent, received;
    LS_TRY(ls__check_counts(name, group, send_counts, dtype, &sent));
    LS_TRY(ls__check_counts(name, group, recv_counts, dtype, &received));
    const int rank = ls_group_rank(group);
    if (send_counts[rank] != recv_counts[rank])
        return ls__fail(LS_ERR_ARGUMENT, "%s: rank %d sends %zu elements to itself and expects %zu",
                        name, rank, send_counts[rank], recv_counts[rank]);
    const size_t element = ls_dtype_size(dtype);
    LS_TRY(ls__check_buffer(name, "send", send, sent));
    LS_TRY(ls__check_buffer(name, "recv", recv, received));
    LS_TRY(ls__check_overlap(name, send, sent * element, recv, received * element, false));
    ls__operation operation;
    ls__describe(&operation, LS__ALL_TO_ALL_V, send, recv, 0, dtype);
    operation.count = send_counts[rank];
    operation.counts = send_counts;
    operation.recv_counts = recv_counts;
    return ls__submit(group, &operation, work);
}

ls_status ls_all_to_all_v(ls_group *group, const void *send, const size_t *send_counts, void *recv,
                          const size_t *recv_counts, ls_dtype dtype) {
    return all_to_all_v(group, send, send_counts, recv, recv_counts, dtype, NULL);
}

ls_status ls_all_to_all_v_start(ls_group *group, const void *send, const size_t *send_counts,
                                void *recv, const size_t *recv_counts, ls_dtype dtype,
                                ls_work **work) {
    LS_TRY(ls__check_work("all_to_all_v_start", work));
    return all_to_all_v(group, send, send_counts, recv, recv_counts, dtype, work);
}

/* --- broadcast, barrier --- */

static ls_status broadcast(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int root,
                           ls_work **work) {
    LS_TRY(ls__check_common("broadcast", group, count, 1, dtype));
    LS_TRY(ls__check_buffer("broadcast", "buffer", buffer, count));
    LS_TRY(ls__check_rank("broadcast", "root", group, root));
    ls__operation operation;
    ls__describe(&operation, LS__BROADCAST, buffer, buffer, count, dtype);
    operation.root = root;
    operation.header.root = (uint32_t)root;
    return ls__submit(group, &operation, work);
}

ls_status ls_broadcast(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int root) {
    return broadcast(group, buffer, count, dtype, root, NULL);
}

ls_status ls_broadcast_start(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int root,
                             ls_work **work) {
    LS_TRY(ls__check_work("broadcast_start", work));
    return broadcast(group, buffer, count, dtype, root, work);
}

static ls_status barrier(ls_group *group, ls_work **work) {
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "barrier: group is NULL");
    ls__operation operation;
    ls__describe(&operation, LS__BARRIER, NULL, NULL, 0, LS_U8);
    return ls__submit(group, &operation, work);
}

ls_status ls_barrier(ls_group *group) {
    return barrier(group, NULL);
}

ls_status ls_barrier_start(ls_group *group, ls_work **work) {
    LS_TRY(ls__check_work("barrier_start", work));
    return barrier(group, work);
}
