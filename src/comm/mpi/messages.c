/* What travels between this rank and one peer: headers, then the lanes of the operation. Receives are
 * started only when the peer's header has shown that it is in the same operation, so that lengths fit. */
#include "comm/mpi/mpi.h"

#include <stdio.h>
#include <string.h>

ls_status ls__mpi_peer_error(const ls__mpi *mpi, const ls__operation *operation,
                             const ls__mpi_peer *peer, ls_status status, const char *what) {
    char name[LS__MESH_NAME_BYTES];
    mpi->mesh.table->name(&mpi->mesh, peer->rank, name);
    return ls__operation_fail(status, operation, ls__own_name(&mpi->mesh.base), "%s %s", name,
                              what);
}

ls_status ls__mpi_failed(const ls__mpi *mpi, const ls__operation *operation, int peer,
                         const char *text) {
    char what[LS__MPI_TEXT_BYTES + 32];
    if (peer < 0)
        return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&mpi->mesh.base), "%s",
                                  text);
    snprintf(what, sizeof what, "cannot be reached: %s", text);
    return ls__mpi_peer_error(mpi, operation, ls__mpi_peer_of(mpi, peer), LS_ERR_PEER, what);
}

ls_status ls__mpi_send_start(ls__mpi *mpi, const ls__operation *operation, ls__mpi_slot *slot,
                             int to, int tag, const void *data, size_t bytes) {
    char text[LS__MPI_TEXT_BYTES];
    if (mpi->engine->send(mpi->comm, to, tag, data, bytes, &slot->request, text))
        return ls__mpi_failed(mpi, operation, to, text);
    slot->active = true;
    return LS_OK;
}

ls_status ls__mpi_recv_start(ls__mpi *mpi, const ls__operation *operation, ls__mpi_slot *slot,
                             int from, int tag, void *data, size_t bytes) {
    char text[LS__MPI_TEXT_BYTES];
    if (mpi->engine->recv(mpi->comm, from, tag, data, bytes, &slot->request, text))
        return ls__mpi_failed(mpi, operation, from, text);
    slot->active = true;
    return LS_OK;
}

ls_status ls__mpi_test(ls__mpi *mpi, const ls__operation *operation, ls__mpi_slot *slot, int peer,
                       bool *moved) {
    char text[LS__MPI_TEXT_BYTES];
    bool done = false;
    if (!slot->active)
        return LS_OK;
    int failed = mpi->engine->test(&slot->request, &done, NULL, text);
    slot->active = !done;
    *moved = *moved || done;
    return failed ? ls__mpi_failed(mpi, operation, peer, text) : LS_OK;
}

/* --- headers --- */

static bool is_point(const ls__operation *op) {
    return op->header.kind == LS__SEND || op->header.kind == LS__RECV ||
           op->header.kind == LS__SENDRECV;
}

/* A send of up to 64 KiB may come before its recv; a longer one is waited for by its sender, who thus
 * will not come to this operation. */
static bool is_early(const ls__operation *op, const ls__mpi_peer *peer) {
    const ls__header *theirs = &peer->incoming;
    size_t element = ls_dtype_size((ls_dtype)theirs->dtype), bytes;
    return !(is_point(op) && peer->awaited) && theirs->magic == LS__HEADER_MAGIC &&
           theirs->kind == LS__SEND && element > 0 &&
           !__builtin_mul_overflow((size_t)theirs->count, element, &bytes) &&
           bytes <= LS__MPI_EAGER_BYTES;
}

/* What a header of `peer` must be equal to. */
static ls__header wanted(const ls__mpi *mpi, const ls__operation *op, const ls__header *theirs) {
    ls__operation send, recv;
    if (op->header.kind != LS__SENDRECV || theirs->kind != LS__SEND)
        return op->header;
    ls__sendrecv_split(op, mpi->mesh.base.rank, &send, &recv);
    return recv.header;
}

static ls_status take_header(ls__mpi *mpi, ls__operation *op, ls__mpi_peer *peer) {
    const ls__header *theirs = &peer->incoming;
    if (is_early(op, peer))
        return ls__mpi_early_push(peer, theirs);
    if (is_point(op) && theirs->kind == LS__SEND && !peer->awaited)
        return ls__mpi_peer_error(mpi, op, peer, LS_ERR_MISMATCH,
                                  "sends to this rank, which sends to it: with more than 64 KiB "
                                  "one of them must call ls_recv first, or both ls_sendrecv");
    const ls__header mine = wanted(mpi, op, theirs);
    LS_TRY(ls__header_compare(&mine, ls__own_name(&mpi->mesh.base), theirs,
                              ls__name_of(&mpi->mesh.base, peer->rank)));
    if (!peer->awaited) /* equal, but nobody here waits for it */
        return ls__mpi_peer_error(mpi, op, peer, LS_ERR_FORMAT, "sent a header that has no place");
    peer->base.weight = theirs->weight;
    peer->awaited = false;
    if (++mpi->arrived == mpi->expected) {
        op->times.ready_ns = ls__now_ns();
        op->times.last_rank = mpi->has_waited ? ls__header_last(theirs, peer->rank)
                                              : ls__header_last(&op->header, mpi->mesh.base.rank);
    }
    return LS_OK;
}

static ls_status step_headers(ls__mpi *mpi, ls__operation *op, ls__mpi_peer *peer, bool *moved) {
    if (peer->announces) {
        peer->announces = false;
        LS_TRY(ls__mpi_send_start(mpi, op, &peer->header_out, peer->rank, LS__MPI_HEADER,
                                  &mpi->header, sizeof mpi->header));
    }
    LS_TRY(ls__mpi_test(mpi, op, &peer->header_out, peer->rank, moved));
    for (;;) {
        bool came = peer->held && peer->awaited;
        if (peer->held ? !came : !peer->awaited && !peer->watched)
            return LS_OK;
        if (!came && !peer->header_in.active)
            LS_TRY(ls__mpi_recv_start(mpi, op, &peer->header_in, peer->rank, LS__MPI_HEADER,
                                      &peer->incoming, sizeof peer->incoming));
        LS_TRY(ls__mpi_test(mpi, op, &peer->header_in, peer->rank, &came));
        if (!came)
            return LS_OK;
        *moved = true;
        peer->held = peer->watched && !peer->awaited && !is_early(op, peer);
        if (peer->held)
            peer->held_ns = ls__now_ns();
        else
            LS_TRY(take_header(mpi, op, peer));
    }
}

/* --- lanes --- */

size_t ls__mpi_next_piece(ls__mesh_lane *lane, char **at) {
    size_t n = lane->left < LS__MPI_PIECE_BYTES ? lane->left : LS__MPI_PIECE_BYTES;
    *at = lane->at;
    lane->at += n;
    lane->left -= n;
    return n;
}

/* Takes out what has ended, the oldest first. */
static ls_status reap(ls__mpi *mpi, const ls__operation *op, ls__mpi_window *window, int peer,
                      bool *moved) {
    while (window->count > 0) {
        ls__mpi_slot *oldest = &window->slot[window->first];
        LS_TRY(ls__mpi_test(mpi, op, oldest, peer, moved));
        if (oldest->active)
            break;
        window->first = (window->first + 1) % LS__MPI_WINDOW;
        window->count--;
    }
    return LS_OK;
}

/* Starts pieces as long as there is room. */
static ls_status fill(ls__mpi *mpi, const ls__operation *op, ls__mpi_window *window,
                      ls__mesh_lane *lane, int peer, int tag, bool receives) {
    char *at;
    while (lane->left > 0 && window->count < LS__MPI_WINDOW) {
        ls__mpi_slot *slot = &window->slot[(window->first + window->count) % LS__MPI_WINDOW];
        size_t n = ls__mpi_next_piece(lane, &at);
        LS_TRY(receives ? ls__mpi_recv_start(mpi, op, slot, peer, tag, at, n)
                        : ls__mpi_send_start(mpi, op, slot, peer, tag, at, n));
        window->count++;
    }
    return LS_OK;
}

static ls_status step_lanes(ls__mpi *mpi, ls__operation *op, ls__mpi_peer *peer, bool *moved) {
    const int tag = is_point(op) ? LS__MPI_PAYLOAD : LS__MPI_LANE;
    const bool may_receive = !peer->awaited && mpi->arrived >= mpi->gate;
    for (int i = 0; i < 2; i++) {
        if (may_receive)
            LS_TRY(fill(mpi, op, &peer->in[i], &peer->base.in[i], peer->rank, tag + i, true));
        LS_TRY(fill(mpi, op, &peer->out[i], &peer->base.out[i], peer->rank, tag + i, false));
        LS_TRY(reap(mpi, op, &peer->out[i], peer->rank, moved));
        LS_TRY(reap(mpi, op, &peer->in[i], peer->rank, moved));
    }
    return LS_OK;
}

/* While this rank waits for its send to be taken, the peer went on to something else: right behind having
 * taken it, or instead of that. Then MPI would have told within this time. */
static const uint64_t HELD_NS = 500 * UINT64_C(1000000);

static bool is_pending(const ls__mpi_peer *peer) {
    for (int i = 0; i < 2; i++)
        if (peer->out[i].count > 0 || peer->in[i].count > 0 || peer->base.out[i].left > 0 ||
            peer->base.in[i].left > 0)
            return true;
    return peer->awaited || peer->header_out.active;
}

ls_status ls__mpi_step(ls__mpi *mpi, ls__operation *operation, ls__mpi_peer *peer, bool *pending,
                       bool *moved) {
    LS_TRY(step_headers(mpi, operation, peer, moved));
    LS_TRY(step_lanes(mpi, operation, peer, moved));
    *pending = is_pending(peer);
    if (*pending && peer->held && ls__now_ns() - peer->held_ns > HELD_NS)
        return take_header(mpi, operation, peer);
    return LS_OK;
}
