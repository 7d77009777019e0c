/* send and recv, matched by their order for each pair of ranks. Up to 64 KiB the payload travels with
 * the header and the send returns at once; the receiver keeps what comes before its recv, up to
 * 16 MiB. A larger send offers its header and waits until the recv wants it. A sendrecv does both at
 * once, so two of them, or one and a send and recv in any order, do not wait for each other. */
#include "comm/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>

/* Queues the message, or the offer of a large one, without waiting. */
static void post(ls__tcp_peer *peer, const ls__operation *send, uint32_t offer) {
    const size_t bytes = send->count * ls_dtype_size(send->dtype);
    if (bytes <= LS__TCP_EAGER_BYTES) {
        peer->expect = LS__TCP_ANY;
        ls__tcp_queue(peer, LS__TCP_SEND, &send->header, sizeof send->header, send->send, bytes);
    } else {
        peer->awaits_want = true;
        ls__tcp_queue(peer, offer, &send->header, sizeof send->header, NULL, 0);
    }
}

ls_status ls__tcp_send(ls__tcp *tcp, ls__operation *op) {
    post(tcp->peer[op->root], op, LS__TCP_OFFER);
    return ls__tcp_drive(tcp, op);
}

static ls_status take_early(ls__tcp *tcp, ls__operation *op, ls__tcp_peer *peer,
                            const ls__tcp_message *message) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    LS_TRY(ls__tcp_compare(tcp, op, peer, &message->header));
    if (message->offered) {
        peer->base.in[0] = (ls__mesh_lane){.at = op->recv, .left = bytes};
        ls__tcp_accept(peer, &message->header);
        return LS_OK;
    }
    if (message->bytes != bytes)
        return ls__operation_fail(LS_ERR_FORMAT, op, ls__own_name(&tcp->mesh.base),
                                  "rank %d sent %zu bytes under a header of %zu", peer->rank,
                                  message->bytes, bytes);
    if (bytes > 0)
        memcpy(op->recv, message->data, bytes);
    op->times.ready_ns = ls__now_ns();
    op->times.last_rank = tcp->mesh.base.rank;
    return LS_OK;
}

/* Takes what came early, or expects it. */
static ls_status expect(ls__tcp *tcp, ls__operation *recv) {
    ls__tcp_peer *peer = tcp->peer[recv->root];
    ls__tcp_message *message = ls__tcp_inbox_pop(peer);
    if (message) {
        ls_status status = take_early(tcp, recv, peer, message);
        free(message);
        return status;
    }
    peer->expect = LS__TCP_EXPECT_MESSAGE;
    peer->base.in[0] =
        (ls__mesh_lane){.at = recv->recv, .left = recv->count * ls_dtype_size(recv->dtype)};
    return LS_OK;
}

ls_status ls__tcp_recv(ls__tcp *tcp, ls__operation *op) {
    LS_TRY(expect(tcp, op));
    return ls__tcp_drive(tcp, op);
}

ls_status ls__tcp_sendrecv(ls__tcp *tcp, ls__operation *op) {
    ls__operation send, recv;
    ls__sendrecv_split(op, tcp->mesh.base.rank, &send, &recv);
    if (op->root == tcp->mesh.base.rank) {
        if (op->count > 0)
            memcpy(op->recv, op->send, op->count * ls_dtype_size(op->dtype));
        return LS_OK;
    }
    post(tcp->peer[op->root], &send, LS__TCP_OFFER_BOTH);
    LS_TRY(expect(tcp, &recv));
    return ls__tcp_drive(tcp, op);
}
