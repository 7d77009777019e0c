/* Copies from rank to rank. p ranks:
 *
 *   all_gather     this rank's block to each of the others: p - 1 messages out and in
 *   gather         this rank's block to the root: 1 message out, p - 1 in on the root
 *   broadcast      the root sends its buffer to each of the others
 *   scatter        the root sends each of the others its block
 *   all_to_all     a block to each of the others: p - 1 messages out and in; in place in rounds of one
 *                  chunk a peer, through scratch memory. With counts of its own each rank shows them first:
 *                  16 p bytes to each of the others */
#include "comm/blocks.h"
#include "comm/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>

static void copy(ls__tcp_lane to, ls__tcp_lane from) {
    if (to.left > 0 && to.at != from.at)
        memcpy(to.at, from.at, to.left);
}

/* Block r of the larger buffer. */
static ls__tcp_lane block(const ls__operation *op, const void *base, int r) {
    const size_t element = ls_dtype_size(op->dtype);
    return ls__tcp_lane_of(base, ls__block_first(op, r) * element,
                           ls__block_count(op, r) * element);
}

/* all_gather: everyone collects; gather: the root. */
ls_status ls__tcp_gather(ls__tcp *tcp, ls__operation *op) {
    const bool all = op->header.kind == LS__ALL_GATHER;
    const int me = tcp->base.rank;
    const ls__tcp_lane mine =
        ls__tcp_lane_of(op->send, 0, ls__block_count(op, me) * ls_dtype_size(op->dtype));
    ls__tcp_begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd >= 0 && (all || rank == op->root))
            peer->out[0] = mine;
        if (!all && me != op->root)
            continue;
        if (peer->fd >= 0)
            peer->in[0] = block(op, op->recv, rank);
        else
            copy(block(op, op->recv, rank), mine);
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

ls_status ls__tcp_scatter(ls__tcp *tcp, ls__operation *op) {
    const bool root = tcp->base.rank == op->root;
    const ls__tcp_lane mine = ls__tcp_lane_of(
        op->recv, 0, ls__block_count(op, tcp->base.rank) * ls_dtype_size(op->dtype));
    ls__tcp_begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd < 0 && root)
            copy(mine, block(op, op->send, rank));
        else if (peer->fd >= 0 && root)
            peer->out[0] = block(op, op->send, rank);
        else if (rank == op->root)
            peer->in[0] = mine;
    }
    return ls__tcp_drive(tcp, op);
}

/* --- all_to_all -------------------------------------------------------------------------------- */

/* Chunk k of this rank's block for, and from, rank r: the same place. */
static ls__tcp_lane chunk_lane(const ls__tcp *tcp, const ls__operation *op, int r, size_t k) {
    ls__tcp_lane lane = block(op, op->recv, r);
    const size_t at = k * tcp->chunk < lane.left ? k * tcp->chunk : lane.left;
    const size_t left = lane.left - at;
    return ls__tcp_lane_of(lane.at, at, left < tcp->chunk ? left : tcp->chunk);
}

static ls_status exchange_in_place(ls__tcp *tcp, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    ls__tcp_begin(tcp, op);
    for (size_t k = 0; k == 0 || k * tcp->chunk < bytes; k++) {
        for (int rank = 0; rank < tcp->base.size; rank++) {
            ls__tcp_peer *peer = tcp->peer[rank];
            if (peer->fd < 0)
                continue;
            peer->out[0] = chunk_lane(tcp, op, rank, k);
            peer->in[0] =
                ls__tcp_lane_of(tcp->scratch, (size_t)rank * tcp->chunk, peer->out[0].left);
        }
        LS_TRY(ls__tcp_drive(tcp, op));
        for (int rank = 0; rank < tcp->base.size; rank++) {
            const ls__tcp_lane to = chunk_lane(tcp, op, rank, k);
            if (tcp->peer[rank]->fd >= 0)
                copy(to, ls__tcp_lane_of(tcp->scratch, (size_t)rank * tcp->chunk, to.left));
        }
    }
    return LS_OK;
}

ls_status ls__tcp_all_to_all(ls__tcp *tcp, ls__operation *op) {
    if (op->send == op->recv)
        return exchange_in_place(tcp, op);
    ls__tcp_begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd >= 0) {
            peer->out[0] = block(op, op->send, rank);
            peer->in[0] = block(op, op->recv, rank);
        } else {
            copy(block(op, op->recv, rank), block(op, op->send, rank));
        }
    }
    return ls__tcp_drive(tcp, op);
}

/* Everyone shows its counts to everyone, and only then are blocks exchanged. */
static ls_status exchange_rows(ls__tcp *tcp, ls__operation *op, const ls__counts_rows *rows) {
    const int me = tcp->base.rank;
    const size_t bytes = rows->stride * sizeof *rows->first;
    size_t longest;
    ls__counts_show(rows, op, me);
    ls__tcp_begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        if (rank == me)
            continue;
        tcp->peer[rank]->out[0] = ls__tcp_lane_of(ls__counts_row(rows, me), 0, bytes);
        tcp->peer[rank]->in[0] = ls__tcp_lane_of(ls__counts_row(rows, rank), 0, bytes);
    }
    LS_TRY(ls__tcp_drive(tcp, op));
    return ls__counts_compare(rows, op, &longest);
}

ls_status ls__tcp_all_to_all_v(ls__tcp *tcp, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype), size = (size_t)tcp->base.size;
    const ls__counts_rows rows = {.first = calloc(2 * size * size, sizeof(uint64_t)),
                                  .stride = 2 * size,
                                  .size = tcp->base.size};
    if (!rows.first)
        return ls__operation_fail(LS_ERR_MEMORY, op, tcp->base.rank,
                                  "no memory for the counts of %d ranks", tcp->base.size);
    ls_status status = exchange_rows(tcp, op, &rows);
    free(rows.first);
    LS_TRY(status);
    size_t at = 0;
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        const ls__tcp_lane in = ls__tcp_lane_of(op->recv, at, op->recv_counts[rank] * element);
        at += in.left;
        if (peer->fd >= 0) {
            peer->out[0] = block(op, op->send, rank);
            peer->in[0] = in;
        } else {
            copy(in, block(op, op->send, rank));
        }
    }
    return ls__tcp_drive(tcp, op);
}
