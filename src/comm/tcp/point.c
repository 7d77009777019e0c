/* send and recv, matched by their order for each pair of ranks. Up to 64 KiB the payload travels with
 * the header and the send returns at once; the receiver keeps what comes before its recv, up to
 * 16 MiB. A larger send offers its header and waits until the recv wants it. */
#include "comm/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>

ls_status ls__tcp_send(ls__tcp *tcp, ls__operation *op) {
    ls__tcp_peer *peer = tcp->peer[op->root];
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    if (bytes <= LS__TCP_EAGER_BYTES) {
        peer->expect = LS__TCP_ANY;
        ls__tcp_queue(peer, LS__TCP_SEND, &op->header, sizeof op->header, op->send, bytes);
    } else {
        peer->expect = LS__TCP_EXPECT_WANT;
        ls__tcp_queue(peer, LS__TCP_OFFER, &op->header, sizeof op->header, NULL, 0);
    }
    return ls__tcp_drive(tcp, op);
}

static ls_status take_early(ls__tcp *tcp, ls__operation *op, ls__tcp_peer *peer,
                            const ls__tcp_message *message) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    LS_TRY(ls__tcp_compare(tcp, op, peer, &message->header));
    if (message->bytes != bytes)
        return ls__operation_fail(LS_ERR_FORMAT, op, tcp->base.rank,
                                  "rank %d sent %zu bytes under a header of %zu", peer->rank,
                                  message->bytes, bytes);
    if (bytes > 0)
        memcpy(op->recv, message->data, bytes);
    op->times.ready_ns = ls__now_ns();
    op->times.last_rank = tcp->base.rank;
    return LS_OK;
}

ls_status ls__tcp_recv(ls__tcp *tcp, ls__operation *op) {
    ls__tcp_peer *peer = tcp->peer[op->root];
    ls__tcp_message *message = ls__tcp_inbox_pop(peer);
    if (message) {
        ls_status status = take_early(tcp, op, peer, message);
        free(message);
        return status;
    }
    peer->expect = LS__TCP_EXPECT_MESSAGE;
    peer->in[0] = (ls__tcp_lane){.at = op->recv, .left = op->count * ls_dtype_size(op->dtype)};
    return ls__tcp_drive(tcp, op);
}
