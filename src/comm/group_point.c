/* The public operations between two ranks. */
#include "comm/call.h"

static ls_status check_peer(const char *name, const ls_group *group, const void *buffer,
                            size_t count, ls_dtype dtype, int peer) {
    LS_TRY(ls__check_common(name, group, count, 1, dtype));
    LS_TRY(ls__check_buffer(name, "buffer", buffer, count));
    LS_TRY(ls__check_rank(name, "peer", group, peer));
    if (peer == ls_group_rank(group))
        return ls__fail(LS_ERR_ARGUMENT, "%s: the peer is this rank itself (%d)", name, peer);
    return LS_OK;
}

static ls_status point_to_point(ls__kind kind, ls_group *group, const void *send, void *recv,
                                size_t count, ls_dtype dtype, int peer, ls_work **work) {
    LS_TRY(check_peer(ls__kind_name(kind), group, send ? send : recv, count, dtype, peer));
    ls__operation operation;
    ls__describe(&operation, kind, send, recv, count, dtype);
    operation.root = peer;
    operation.header.root = (uint32_t)(kind == LS__SEND ? peer : ls_group_rank(group));
    return ls__submit(group, &operation, work);
}

ls_status ls_send(ls_group *group, const void *buffer, size_t count, ls_dtype dtype, int to) {
    return point_to_point(LS__SEND, group, buffer, NULL, count, dtype, to, NULL);
}

ls_status ls_recv(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int from) {
    return point_to_point(LS__RECV, group, NULL, buffer, count, dtype, from, NULL);
}

ls_status ls_send_start(ls_group *group, const void *buffer, size_t count, ls_dtype dtype, int to,
                        ls_work **work) {
    LS_TRY(ls__check_work("send_start", work));
    return point_to_point(LS__SEND, group, buffer, NULL, count, dtype, to, work);
}

ls_status ls_recv_start(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int from,
                        ls_work **work) {
    LS_TRY(ls__check_work("recv_start", work));
    return point_to_point(LS__RECV, group, NULL, buffer, count, dtype, from, work);
}

/* --- sendrecv --------------------------------------------------------------------------------- */

static ls_status sendrecv(ls_group *group, const void *send, size_t send_count, int to, void *recv,
                          size_t recv_count, int from, ls_dtype dtype, ls_work **work) {
    const char *name = "sendrecv";
    LS_TRY(ls__check_common(name, group, send_count, 1, dtype));
    LS_TRY(ls__check_common(name, group, recv_count, 1, dtype));
    LS_TRY(ls__check_buffer(name, "send", send, send_count));
    LS_TRY(ls__check_buffer(name, "recv", recv, recv_count));
    LS_TRY(ls__check_rank(name, "to", group, to));
    LS_TRY(ls__check_rank(name, "from", group, from));
    const int rank = ls_group_rank(group);
    if ((to == rank) != (from == rank) || (to == rank && send_count != recv_count))
        return ls__fail(LS_ERR_ARGUMENT,
                        "%s: rank %d sends %zu elements to rank %d and receives %zu from rank %d; "
                        "with itself it can only exchange both, with equal counts",
                        name, rank, send_count, to, recv_count, from);
    const size_t element = ls_dtype_size(dtype);
    LS_TRY(ls__check_overlap(name, send, send_count * element, recv, recv_count * element, false));
    ls__operation operation;
    ls__describe(&operation, LS__SENDRECV, send, recv, send_count, dtype);
    operation.root = to;
    operation.header.root = (uint32_t)to;
    operation.from = from;
    operation.recv_count = recv_count;
    return ls__submit(group, &operation, work);
}

ls_status ls_sendrecv(ls_group *group, const void *send, size_t send_count, int to, void *recv,
                      size_t recv_count, int from, ls_dtype dtype) {
    return sendrecv(group, send, send_count, to, recv, recv_count, from, dtype, NULL);
}

ls_status ls_sendrecv_start(ls_group *group, const void *send, size_t send_count, int to,
                            void *recv, size_t recv_count, int from, ls_dtype dtype,
                            ls_work **work) {
    LS_TRY(ls__check_work("sendrecv_start", work));
    return sendrecv(group, send, send_count, to, recv, recv_count, from, dtype, work);
}
