/* Collectives among ranks that exchange bytes pair by pair, written once for whatever carries the bytes.
 *
 * An operation sets, for every peer, lanes: what goes to it and where what comes from it belongs. `drive`
 * then moves all of them at once and returns when all are through; the header of the operation travels to
 * and from every peer before the first lane that follows `begin`. The head of each file gives the cost.
 *
 *   collective.c  what the operations share; reduce.c, gather.c, memory.c the operations; explain.c which of
 *                 two ways a sum goes, in words */
#ifndef LS_COMM_MESH_MESH_H
#define LS_COMM_MESH_MESH_H

#include "comm/transport.h"

enum { LS__MESH_NAME_BYTES = 128 };

typedef struct ls__mesh_lane {
    char *at;
    size_t left;
} ls__mesh_lane;

typedef struct ls__mesh_peer {
    bool self;
    double weight;               /* from its header of this operation */
    ls__mesh_lane in[2], out[2]; /* in this order */
} ls__mesh_peer;

typedef struct ls__mesh_memory {
    struct ls__mesh_memory *next;
    void *memory;
    size_t bytes;
} ls__mesh_memory;

typedef struct ls__mesh ls__mesh;

/* What the carrier of the bytes brings. */
typedef struct ls__mesh_table {
    /* An operation begins: its header goes to every peer, and every peer's is awaited. No lane receives
     * before all headers are here: nobody's data are touched before all agree. */
    void (*begin)(ls__mesh *mesh, const ls__operation *operation);
    /* Until all lanes are through; bounded by the operation's deadline. */
    ls_status (*drive)(ls__mesh *mesh, ls__operation *operation);
    /* "rank 3 (host a, pid 17)" */
    void (*name)(const ls__mesh *mesh, int rank, char text[LS__MESH_NAME_BYTES]);
} ls__mesh_table;

struct ls__mesh {
    ls__transport base;
    const ls__mesh_table *table;
    ls__mesh_peer **peer; /* (size) the first members of what the carrier keeps of each */
    const void **sources; /* (size) */
    double *weights;      /* (size) */
    char *scratch;        /* (size, chunk) */
    size_t chunk;         /* bytes a peer and round, equal on all ranks */
    ls__mesh_memory *memory;
};

/* The arrays but `peer`; free_ also what ls_group_alloc gave and was not given back. */
ls_status ls__mesh_make(ls__mesh *mesh);
void ls__mesh_free_all(ls__mesh *mesh);
/* Lanes of an operation that is over. */
void ls__mesh_reset(ls__mesh *mesh);

/* Runs the operations that the files here know; LS_ERR_UNSUPPORTED for others. */
ls_status ls__mesh_run(ls__mesh *mesh, ls__operation *operation);

/* Of both carriers' tables. */
void ls__mesh_explain(const ls__transport *transport, const ls__cost_question *question,
                      ls__cost_answer *answer);

ls__mesh_lane ls__mesh_lane_of(const void *base, size_t offset, size_t bytes);
/* mesh->sources hold every rank's part of the result. */
void ls__mesh_reduce(ls__mesh *mesh, const ls__operation *operation, void *to, size_t elements);

ls_status ls__mesh_all_reduce(ls__mesh *mesh, ls__operation *operation); /* and reduce */
ls_status ls__mesh_reduce_scatter(ls__mesh *mesh, ls__operation *operation);
ls_status ls__mesh_gather(ls__mesh *mesh, ls__operation *operation); /* and all_gather */
ls_status ls__mesh_scatter(ls__mesh *mesh, ls__operation *operation);
ls_status ls__mesh_all_to_all(ls__mesh *mesh, ls__operation *operation);
ls_status ls__mesh_all_to_all_v(ls__mesh *mesh, ls__operation *operation);
ls_status ls__mesh_broadcast(ls__mesh *mesh, ls__operation *operation);
ls_status ls__mesh_barrier(ls__mesh *mesh, ls__operation *operation);
ls_status ls__mesh_alloc(ls__mesh *mesh, ls__operation *operation);
ls_status ls__mesh_free(ls__mesh *mesh, ls__operation *operation);

#endif
