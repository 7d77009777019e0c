/* What the collectives of a mesh share: its arrays, lanes, the arithmetic of the owner, and dispatch. */
#include "comm/mesh/mesh.h"

#include "base/error.h"
#include "comm/memory.h"
#include "comm/reduce.h"
#include <stdlib.h>
#include <string.h>

enum { SMALLEST_CHUNK = 16 * 1024, SCRATCH_BYTES = 64 << 20 };

/* Scratch for one chunk a peer: a grain each, less in large worlds. */
static size_t choose_chunk(const ls__transport *transport) {
    const size_t chunk = SCRATCH_BYTES / (size_t)transport->size / 64 * 64;
    return chunk > transport->grain ? transport->grain
                                    : (chunk < SMALLEST_CHUNK ? SMALLEST_CHUNK : chunk);
}

ls_status ls__mesh_make(ls__mesh *mesh) {
    const size_t n = (size_t)mesh->base.size;
    mesh->chunk = choose_chunk(&mesh->base);
    mesh->sources = calloc(n, sizeof(void *));
    mesh->weights = calloc(n, sizeof *mesh->weights);
    mesh->scratch = aligned_alloc(64, n * mesh->chunk);
    if (!mesh->sources || !mesh->weights || !mesh->scratch)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %zu ranks", n);
    return LS_OK;
}

void ls__mesh_free_all(ls__mesh *mesh) {
    while (mesh->memory) {
        ls__mesh_memory *block = mesh->memory;
        mesh->memory = block->next;
        ls__memory_unmap(block->memory, block->bytes);
        free(block);
    }
    free(mesh->sources);
    free(mesh->weights);
    free(mesh->scratch);
}

void ls__mesh_reset(ls__mesh *mesh) {
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        peer->in[0] = peer->in[1] = peer->out[0] = peer->out[1] = (ls__mesh_lane){0};
    }
}

ls__mesh_lane ls__mesh_lane_of(const void *base, size_t offset, size_t bytes) {
    return (ls__mesh_lane){.at = bytes > 0 ? (char *)base + offset : NULL, .left = bytes};
}

/* The global weight, after all headers are here. */
static double total_weight(ls__mesh *mesh, const ls__operation *op) {
    if (!op->weighted)
        return 1;
    for (int rank = 0; rank < mesh->base.size; rank++)
        mesh->weights[rank] =
            rank == mesh->base.rank ? op->header.weight : mesh->peer[rank]->weight;
    double total = ls__reduce_weights(mesh->weights, mesh->base.size);
    if (op->total)
        *op->total = total;
    return total;
}

void ls__mesh_reduce(ls__mesh *mesh, const ls__operation *op, void *to, size_t elements) {
    double total = total_weight(mesh, op);
    if (elements == 0)
        return;
    if (op->weighted && total == 0) {
        memset(to, 0, elements * ls_dtype_size(op->dtype));
        return;
    }
    ls__reduce(to, mesh->sources, mesh->base.size, elements, op->dtype, op->op,
               ls__reduce_scale(op->op, mesh->base.size, op->weighted, total));
}

ls_status ls__mesh_barrier(ls__mesh *mesh, ls__operation *op) {
    mesh->table->begin(mesh, op);
    return mesh->table->drive(mesh, op);
}

ls_status ls__mesh_run(ls__mesh *mesh, ls__operation *op) {
    switch (ls__operation_step(op)) {
    case LS__ALL_REDUCE:
    case LS__REDUCE:
        return ls__mesh_all_reduce(mesh, op);
    case LS__REDUCE_SCATTER:
        return ls__mesh_reduce_scatter(mesh, op);
    case LS__ALL_GATHER:
    case LS__GATHER:
        return ls__mesh_gather(mesh, op);
    case LS__SCATTER:
        return ls__mesh_scatter(mesh, op);
    case LS__ALL_TO_ALL:
        return ls__mesh_all_to_all(mesh, op);
    case LS__ALL_TO_ALL_V:
        return ls__mesh_all_to_all_v(mesh, op);
    case LS__BROADCAST:
        return ls__mesh_broadcast(mesh, op);
    case LS__BARRIER:
        return ls__mesh_barrier(mesh, op);
    case LS__ALLOC:
        return ls__mesh_alloc(mesh, op);
    case LS__FREE:
        return ls__mesh_free(mesh, op);
    default:
        return ls__operation_fail(LS_ERR_UNSUPPORTED, op, ls__own_name(&mesh->base),
                                  "%s: no operation %d", mesh->base.table->name,
                                  (int)ls__operation_step(op));
    }
}
