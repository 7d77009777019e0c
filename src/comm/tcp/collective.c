/* What all collectives over tcp share. Every one starts with the header to and from every peer; the
 * first payload travels right behind it. The head of each file gives messages and bytes. */
#include "comm/tcp/tcp.h"

#include <string.h>

void ls__tcp_begin(ls__tcp *tcp, const ls__operation *op) {
    tcp->awaited = tcp->base.size - 1;
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        peer->weight = op->header.weight;
        if (peer->fd < 0)
            continue;
        peer->expect = LS__TCP_EXPECT_BEGIN;
        ls__tcp_queue(peer, LS__TCP_BEGIN, &op->header, sizeof op->header, NULL, 0);
    }
}

ls__tcp_lane ls__tcp_lane_of(const void *base, size_t offset, size_t bytes) {
    return (ls__tcp_lane){.at = bytes > 0 ? (char *)base + offset : NULL, .left = bytes};
}

/* The global weight, after all headers are here. */
static double total_weight(ls__tcp *tcp, const ls__operation *op) {
    if (!op->weighted)
        return 1;
    for (int rank = 0; rank < tcp->base.size; rank++)
        tcp->weights[rank] = rank == tcp->base.rank ? op->header.weight : tcp->peer[rank]->weight;
    double total = ls__reduce_weights(tcp->weights, tcp->base.size);
    if (op->total)
        *op->total = total;
    return total;
}

void ls__tcp_reduce(ls__tcp *tcp, const ls__operation *op, void *to, size_t elements) {
    double total = total_weight(tcp, op);
    if (elements == 0)
        return;
    if (op->weighted && total == 0) {
        memset(to, 0, elements * ls_dtype_size(op->dtype));
        return;
    }
    ls__reduce(to, tcp->sources, tcp->base.size, elements, op->dtype, op->op,
               ls__reduce_scale(op->op, tcp->base.size, op->weighted, total));
}

ls_status ls__tcp_barrier(ls__tcp *tcp, ls__operation *op) {
    ls__tcp_begin(tcp, op);
    return ls__tcp_drive(tcp, op);
}
