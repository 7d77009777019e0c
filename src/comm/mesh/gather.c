/* Copies from rank to rank. p ranks:
 *
 *   all_gather     this rank's block to each of the others: p - 1 messages out and in
 *   gather         this rank's block to the root: 1 message out, p - 1 in on the root
 *   broadcast      the root sends its buffer to each of the others
 *   scatter        the root sends each of the others its block
 *   all_to_all     a block to each of the others: p - 1 messages out and in; in place in rounds of one
 *                  chunk a peer, through scratch memory. With counts of its own each rank shows them first:
 *                  16 p bytes to each of the others */
#include "base/error.h"
#include "comm/blocks.h"
#include "comm/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

static void copy(ls__mesh_lane to, ls__mesh_lane from) {
    if (to.left > 0 && to.at != from.at)
        memcpy(to.at, from.at, to.left);
}

/* Block r of the larger buffer. */
static ls__mesh_lane block(const ls__operation *op, const void *base, int r) {
    const size_t element = ls_dtype_size(op->dtype);
    return ls__mesh_lane_of(base, ls__block_first(op, r) * element,
                            ls__block_count(op, r) * element);
}

/* all_gather: everyone collects; gather: the root. */
ls_status ls__mesh_gather(ls__mesh *mesh, ls__operation *op) {
    const bool all = ls__operation_step(op) == LS__ALL_GATHER;
    const int me = mesh->base.rank;
    const ls__mesh_lane mine =
        ls__mesh_lane_of(op->send, 0, ls__block_count(op, me) * ls_dtype_size(op->dtype));
    mesh->table->begin(mesh, op);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        if (!peer->self && (all || rank == op->root))
            peer->out[0] = mine;
        if (!all && me != op->root)
            continue;
        if (!peer->self)
            peer->in[0] = block(op, op->recv, rank);
        else
            copy(block(op, op->recv, rank), mine);
    }
    return mesh->table->drive(mesh, op);
}

ls_status ls__mesh_broadcast(ls__mesh *mesh, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    mesh->table->begin(mesh, op);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        if (!peer->self && mesh->base.rank == op->root)
            peer->out[0] = ls__mesh_lane_of(op->send, 0, bytes);
        else if (!peer->self && rank == op->root)
            peer->in[0] = ls__mesh_lane_of(op->recv, 0, bytes);
    }
    return mesh->table->drive(mesh, op);
}

ls_status ls__mesh_scatter(ls__mesh *mesh, ls__operation *op) {
    const bool root = mesh->base.rank == op->root;
    const ls__mesh_lane mine = ls__mesh_lane_of(
        op->recv, 0, ls__block_count(op, mesh->base.rank) * ls_dtype_size(op->dtype));
    mesh->table->begin(mesh, op);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        if (peer->self && root)
            copy(mine, block(op, op->send, rank));
        else if (!peer->self && root)
            peer->out[0] = block(op, op->send, rank);
        else if (rank == op->root)
            peer->in[0] = mine;
    }
    return mesh->table->drive(mesh, op);
}

/* --- all_to_all -------------------------------------------------------------------------------- */

/* Chunk k of this rank's block for, and from, rank r: the same place. */
static ls__mesh_lane chunk_lane(const ls__mesh *mesh, const ls__operation *op, int r, size_t k) {
    ls__mesh_lane lane = block(op, op->recv, r);
    const size_t at = k * mesh->chunk < lane.left ? k * mesh->chunk : lane.left;
    const size_t left = lane.left - at;
    return ls__mesh_lane_of(lane.at, at, left < mesh->chunk ? left : mesh->chunk);
}

static ls_status exchange_in_place(ls__mesh *mesh, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    mesh->table->begin(mesh, op);
    for (size_t k = 0; k == 0 || k * mesh->chunk < bytes; k++) {
        for (int rank = 0; rank < mesh->base.size; rank++) {
            ls__mesh_peer *peer = mesh->peer[rank];
            if (peer->self)
                continue;
            peer->out[0] = chunk_lane(mesh, op, rank, k);
            peer->in[0] =
                ls__mesh_lane_of(mesh->scratch, (size_t)rank * mesh->chunk, peer->out[0].left);
        }
        LS_TRY(mesh->table->drive(mesh, op));
        for (int rank = 0; rank < mesh->base.size; rank++) {
            const ls__mesh_lane to = chunk_lane(mesh, op, rank, k);
            if (!mesh->peer[rank]->self)
                copy(to, ls__mesh_lane_of(mesh->scratch, (size_t)rank * mesh->chunk, to.left));
        }
    }
    return LS_OK;
}

ls_status ls__mesh_all_to_all(ls__mesh *mesh, ls__operation *op) {
    if (op->send == op->recv)
        return exchange_in_place(mesh, op);
    mesh->table->begin(mesh, op);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        if (!peer->self) {
            peer->out[0] = block(op, op->send, rank);
            peer->in[0] = block(op, op->recv, rank);
        } else {
            copy(block(op, op->recv, rank), block(op, op->send, rank));
        }
    }
    return mesh->table->drive(mesh, op);
}

/* Everyone shows its counts to everyone, and only then are blocks exchanged. */
static ls_status exchange_rows(ls__mesh *mesh, ls__operation *op, const ls__counts_rows *rows) {
    const int me = mesh->base.rank;
    const size_t bytes = rows->stride * sizeof *rows->first;
    size_t longest;
    ls__counts_show(rows, op, me);
    mesh->table->begin(mesh, op);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        if (rank == me)
            continue;
        mesh->peer[rank]->out[0] = ls__mesh_lane_of(ls__counts_row(rows, me), 0, bytes);
        mesh->peer[rank]->in[0] = ls__mesh_lane_of(ls__counts_row(rows, rank), 0, bytes);
    }
    LS_TRY(mesh->table->drive(mesh, op));
    return ls__counts_compare(rows, op, &longest);
}

ls_status ls__mesh_all_to_all_v(ls__mesh *mesh, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype), size = (size_t)mesh->base.size;
    const ls__counts_rows rows = {.first = calloc(2 * size * size, sizeof(uint64_t)),
                                  .stride = 2 * size,
                                  .size = mesh->base.size};
    if (!rows.first)
        return ls__operation_fail(LS_ERR_MEMORY, op, ls__own_name(&mesh->base),
                                  "no memory for the counts of %d ranks", mesh->base.size);
    ls_status status = exchange_rows(mesh, op, &rows);
    free(rows.first);
    LS_TRY(status);
    size_t at = 0;
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        const ls__mesh_lane in = ls__mesh_lane_of(op->recv, at, op->recv_counts[rank] * element);
        at += in.left;
        if (!peer->self) {
            peer->out[0] = block(op, op->send, rank);
            peer->in[0] = in;
        } else {
            copy(in, block(op, op->send, rank));
        }
    }
    return mesh->table->drive(mesh, op);
}
