/* ls_group_alloc between machines: private memory, but on all ranks or none. One byte and a header a peer. */
#include "comm/mesh/mesh.h"

#include "base/error.h"
#include "comm/memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everyone says whether it has the memory: one byte a rank in `has`. */
static ls_status agree(ls__mesh *mesh, ls__operation *op, bool has) {
    char *flags = mesh->scratch;
    char text[512];
    snprintf(text, sizeof text, "%s", has ? "" : ls_error_text());
    mesh->table->begin(mesh, op);
    flags[mesh->base.rank] = has;
    for (int rank = 0; rank < mesh->base.size; rank++) {
        if (mesh->peer[rank]->self)
            continue;
        mesh->peer[rank]->out[0] = ls__mesh_lane_of(flags, (size_t)mesh->base.rank, 1);
        mesh->peer[rank]->in[0] = ls__mesh_lane_of(flags, (size_t)rank, 1);
    }
    LS_TRY(mesh->table->drive(mesh, op));
    /* Failing breaks the group and the peers hear of it. One more round, whatever comes of it, so that
     * all have read all flags by then and everyone's error is this one. */
    if (memchr(flags, 0, (size_t)mesh->base.size)) {
        mesh->table->begin(mesh, op);
        (void)mesh->table->drive(mesh, op);
    }
    if (!has)
        return ls__operation_fail(LS_ERR_MEMORY, op, ls__own_name(&mesh->base), "%s", text);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        if (flags[rank])
            continue;
        mesh->table->name(mesh, rank, text);
        return ls__operation_fail(LS_ERR_MEMORY, op, ls__own_name(&mesh->base),
                                  "%s has no memory for %zu bytes", text, op->bytes);
    }
    return LS_OK;
}

ls_status ls__mesh_alloc(ls__mesh *mesh, ls__operation *op) {
    ls__mesh_memory *block = calloc(1, sizeof *block);
    bool has = block && ls__memory_map(&block->memory, op->bytes) == LS_OK;
    ls_status status = agree(mesh, op, has);
    if (status != LS_OK || !has) { /* without it agree has failed */
        if (has)
            ls__memory_unmap(block->memory, op->bytes);
        free(block);
        return status;
    }
    block->bytes = op->bytes;
    block->next = mesh->memory;
    mesh->memory = block;
    *op->memory = block->memory;
    return LS_OK;
}

ls_status ls__mesh_free(ls__mesh *mesh, ls__operation *op) {
    LS_TRY(ls__mesh_barrier(mesh, op));
    if (!*op->memory)
        return LS_OK;
    for (ls__mesh_memory **link = &mesh->memory; *link; link = &(*link)->next) {
        ls__mesh_memory *block = *link;
        if (block->memory != *op->memory)
            continue;
        *link = block->next;
        ls__memory_unmap(block->memory, block->bytes);
        free(block);
        return LS_OK;
    }
    return ls__operation_fail(LS_ERR_ARGUMENT, op, ls__own_name(&mesh->base),
                              "%p was not given by ls_group_alloc", *op->memory);
}
