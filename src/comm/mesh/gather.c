/* Copies from rank to rank. p ranks, n bytes:
 *
 *   all_gather   p - 1 messages of n / p bytes out, n (p - 1) / p in
 *   broadcast    the root sends n bytes to each of the others */
#include "comm/mesh/mesh.h"

#include <string.h>

ls_status ls__mesh_all_gather(ls__mesh *mesh, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    mesh->table->begin(mesh, op);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        ls__mesh_lane to = ls__mesh_lane_of(op->recv, (size_t)rank * bytes, bytes);
        if (!peer->self) {
            peer->out[0] = ls__mesh_lane_of(op->send, 0, bytes);
            peer->in[0] = to;
        } else if (bytes > 0 && to.at != op->send) {
            memcpy(to.at, op->send, bytes);
        }
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
