/* Copies from rank to rank. p ranks, n bytes:
 *
 *   all_gather   p - 1 messages of n / p bytes out, n (p - 1) / p in
 *   broadcast    the root sends n bytes to each of the others */
#include "comm/tcp/tcp.h"

#include <string.h>

ls_status ls__tcp_all_gather(ls__tcp *tcp, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    ls__tcp_begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        ls__tcp_lane to = ls__tcp_lane_of(op->recv, (size_t)rank * bytes, bytes);
        if (peer->fd >= 0) {
            peer->out[0] = ls__tcp_lane_of(op->send, 0, bytes);
            peer->in[0] = to;
        } else if (bytes > 0 && to.at != op->send) {
            memcpy(to.at, op->send, bytes);
        }
    }
    return ls__tcp_drive(tcp, op);
}

ls_status ls__tcp_broadcast(ls__tcp *tcp, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    ls__tcp_begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd >= 0 && tcp->base.rank == op->root)
            peer->out[0] = ls__tcp_lane_of(op->send, 0, bytes);
        else if (peer->fd >= 0 && rank == op->root)
            peer->in[0] = ls__tcp_lane_of(op->recv, 0, bytes);
    }
    return ls__tcp_drive(tcp, op);
}
