/* send and recv, matched by their order for each pair of ranks: one header, then the payload. Up to 64 KiB
 * are copied and the send returns at once; a larger one waits for its recv and meanwhile watches what its
 * peer does instead. */
#include "comm/mpi/mpi.h"

#include <stdlib.h>
#include <string.h>

ls_status ls__mpi_early_push(ls__mpi_peer *peer, const ls__header *header) {
    ls__mpi_early *early = malloc(sizeof *early);
    if (!early)
        return ls__fail(LS_ERR_MEMORY, "no memory for a message of rank %d", peer->rank);
    *early = (ls__mpi_early){.header = *header};
    if (!peer->early)
        peer->early_end = &peer->early;
    *peer->early_end = early;
    peer->early_end = &early->next;
    return LS_OK;
}

bool ls__mpi_early_pop(ls__mpi_peer *peer, ls__header *header) {
    ls__mpi_early *early = peer->early;
    if (!early)
        return false;
    *header = early->header;
    peer->early = early->next;
    free(early);
    return true;
}

_Static_assert(LS__MPI_EAGER_BYTES <= 2 * LS__MPI_PIECE_BYTES, "a letter has room for its pieces");

static ls_status send_small(ls__mpi *mpi, ls__operation *op, size_t bytes) {
    ls__mpi_letter *letter = calloc(1, sizeof *letter + bytes);
    if (!letter)
        return ls__operation_fail(LS_ERR_MEMORY, op, ls__own_name(&mpi->mesh.base),
                                  "no memory for a message of %zu bytes", bytes);
    letter->header = op->header;
    letter->next = mpi->letters;
    mpi->letters = letter;
    LS_TRY(ls__mpi_send_start(mpi, op, &letter->header_slot, op->root, LS__MPI_HEADER,
                              &letter->header, sizeof letter->header));
    if (bytes > 0)
        memcpy(letter->payload, op->send, bytes);
    ls__mesh_lane lane = ls__mesh_lane_of(letter->payload, 0, bytes);
    for (int i = 0; lane.left > 0; i++) {
        char *at;
        const size_t n = ls__mpi_next_piece(&lane, &at);
        LS_TRY(ls__mpi_send_start(mpi, op, &letter->payload_slot[i], op->root, LS__MPI_PAYLOAD, at,
                                  n));
    }
    op->times.ready_ns = ls__now_ns();
    return LS_OK;
}

/* Starts a message to a peer. */
static ls_status post(ls__mpi *mpi, ls__operation *op) {
    ls__mpi_peer *peer = ls__mpi_peer_of(mpi, op->root);
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    ls__mpi_reap_letters(mpi);
    if (bytes <= LS__MPI_EAGER_BYTES)
        return send_small(mpi, op, bytes);
    mpi->header = op->header;
    peer->announces = peer->watched = true;
    peer->base.out[0] = ls__mesh_lane_of(op->send, 0, bytes);
    return LS_OK;
}

/* Takes the header that came early, or awaits it. */
static ls_status expect(ls__mpi *mpi, const ls__operation *op) {
    ls__mpi_peer *peer = ls__mpi_peer_of(mpi, op->root);
    ls__header theirs;
    mpi->expected = 1;
    peer->base.in[0] = ls__mesh_lane_of(op->recv, 0, op->count * ls_dtype_size(op->dtype));
    peer->awaited = !ls__mpi_early_pop(peer, &theirs);
    if (peer->awaited)
        return LS_OK;
    return ls__header_compare(&op->header, ls__own_name(&mpi->mesh.base), &theirs,
                              ls__name_of(&mpi->mesh.base, peer->rank));
}

ls_status ls__mpi_send(ls__mpi *mpi, ls__operation *op) {
    LS_TRY(post(mpi, op));
    return ls__mpi_drive(mpi, op);
}

ls_status ls__mpi_recv(ls__mpi *mpi, ls__operation *op) {
    LS_TRY(expect(mpi, op));
    return ls__mpi_drive(mpi, op);
}

ls_status ls__mpi_sendrecv(ls__mpi *mpi, ls__operation *op) {
    ls__operation send, recv;
    if (op->root == mpi->mesh.base.rank) { /* and from there */
        if (op->count > 0)
            memcpy(op->recv, op->send, op->count * ls_dtype_size(op->dtype));
        return LS_OK;
    }
    ls__sendrecv_split(op, mpi->mesh.base.rank, &send, &recv);
    LS_TRY(post(mpi, &send));
    LS_TRY(expect(mpi, &recv));
    return ls__mpi_drive(mpi, op);
}
