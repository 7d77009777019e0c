/* Reductions. p ranks, n bytes:
 *
 *   all_reduce, small   one-shot: p - 1 messages of n bytes out and in; everyone adds all
 *   all_reduce          pairwise: slice j goes to rank j, which adds the p slices in tree order and
 *                       sends the sum to all; 2 n (p - 1) / p bytes out and in, in rounds of one chunk
 *                       a peer; a round sends chunk k of the slices and chunk k - 1 of the sums
 *   reduce_scatter      the first half of it: n (p - 1) / p out and in */
#include "comm/mesh/mesh.h"

#include "base/error.h"

static ls_status all_reduce_one_shot(ls__mesh *mesh, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    mesh->table->begin(mesh, op);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        char *scratch = mesh->scratch + (size_t)rank * mesh->chunk;
        mesh->sources[rank] = peer->self ? op->send : scratch;
        if (peer->self)
            continue;
        peer->out[0] = ls__mesh_lane_of(op->send, 0, bytes);
        peer->in[0] = ls__mesh_lane_of(scratch, 0, bytes);
    }
    LS_TRY(mesh->table->drive(mesh, op));
    ls__mesh_reduce(mesh, op, op->recv, op->count);
    return LS_OK;
}

/* Which elements belong to which rank, and how they are cut into chunks. */
typedef struct slices {
    size_t count;   /* elements: slice r starts at r * count + min(r, rest) */
    size_t rest;    /* that many slices are one longer */
    size_t chunk;   /* elements */
    size_t element; /* bytes */
    bool gather;    /* the sums go to all, at the same place */
} slices;

static size_t slice_first(const slices *s, int rank) {
    size_t r = (size_t)rank;
    return r * s->count + (r < s->rest ? r : s->rest);
}

/* Elements of chunk k of a rank's slice. */
static size_t chunk_count(const slices *s, int rank, size_t k) {
    size_t count = s->count + ((size_t)rank < s->rest), at = k * s->chunk;
    size_t left = count > at ? count - at : 0;
    return left < s->chunk ? left : s->chunk;
}

static ls__mesh_lane chunk_lane(const slices *s, const void *base, int rank, size_t k) {
    return ls__mesh_lane_of(base, (slice_first(s, rank) + k * s->chunk) * s->element,
                            chunk_count(s, rank, k) * s->element);
}

/* Round k: chunk k of the slices towards their owners, the sums of chunk k - 1 towards all. */
static void set_lanes(ls__mesh *mesh, const ls__operation *op, const slices *s, size_t k) {
    const int me = mesh->base.rank;
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        if (peer->self)
            continue;
        peer->out[0] = chunk_lane(s, op->send, rank, k);
        peer->in[0] = ls__mesh_lane_of(mesh->scratch, (size_t)rank * mesh->chunk,
                                       chunk_count(s, me, k) * s->element);
        if (!s->gather || k == 0)
            continue;
        peer->out[1] = chunk_lane(s, op->recv, me, k - 1);
        peer->in[1] = chunk_lane(s, op->recv, rank, k - 1);
    }
}

static void reduce_chunk(ls__mesh *mesh, const ls__operation *op, const slices *s, size_t k) {
    const int me = mesh->base.rank;
    const size_t count = chunk_count(s, me, k);
    char *to = op->recv;
    for (int rank = 0; rank < mesh->base.size; rank++)
        mesh->sources[rank] = rank == me ? chunk_lane(s, op->send, me, k).at
                                         : mesh->scratch + (size_t)rank * mesh->chunk;
    if (count > 0)
        to += ((s->gather ? slice_first(s, me) : 0) + k * s->chunk) * s->element;
    ls__mesh_reduce(mesh, op, to, count);
}

static ls_status reduce_slices(ls__mesh *mesh, ls__operation *op, const slices *s) {
    const size_t longest = s->count + (s->rest > 0);
    const size_t rounds = longest / s->chunk + (longest % s->chunk > 0);
    mesh->table->begin(mesh, op);
    for (size_t k = 0; k == 0 || k < rounds + s->gather; k++) {
        set_lanes(mesh, op, s, k);
        LS_TRY(mesh->table->drive(mesh, op));
        reduce_chunk(mesh, op, s, k);
    }
    return LS_OK;
}

ls_status ls__mesh_all_reduce(ls__mesh *mesh, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype), size = (size_t)mesh->base.size;
    if (size == 1 || op->count * element <= LS__MESH_ONE_SHOT_BYTES)
        return size == 1 ? (mesh->sources[0] = op->send,
                            ls__mesh_reduce(mesh, op, op->recv, op->count), LS_OK)
                         : all_reduce_one_shot(mesh, op);
    const slices s = {.count = op->count / size,
                      .rest = op->count % size,
                      .chunk = mesh->chunk / element,
                      .element = element,
                      .gather = true};
    return reduce_slices(mesh, op, &s);
}

ls_status ls__mesh_reduce_scatter(ls__mesh *mesh, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype);
    const slices s = {.count = op->count, .chunk = mesh->chunk / element, .element = element};
    return reduce_slices(mesh, op, &s);
}
