/* Reductions. p ranks, n bytes of send:
 *
 * Of two ways the cheaper one (comm/cost.h) is taken:
 *
 *   all_reduce          one-shot: p - 1 messages of n bytes out and in, in rounds of one chunk a peer; everyone
 *                       adds all
 *   all_reduce          pairwise: slice j goes to rank j, which adds the p slices in tree order and
 *                       sends the sum to all; 2 n (p - 1) / p bytes out and in, in rounds of one chunk
 *                       a peer; a round sends chunk k of the slices and chunk k - 1 of the sums
 *   reduce              one-shot: n bytes to the root, which adds all: n (p - 1) in
 *   reduce              pairwise: as all_reduce, but the sums go to the root only: n out, n (p - 1) / p in, the
 *                       root 2 n (p - 1) / p in
 *   reduce_scatter      the first half of it: n (p - 1) / p out and in */
#include "comm/blocks.h"
#include "comm/mesh/mesh.h"

#include "base/error.h"

/* Who gets the sums. */
static bool gets_sums(const ls__operation *op, int rank) {
    return ls__operation_step(op) == LS__ALL_REDUCE ||
           (ls__operation_step(op) == LS__REDUCE && rank == op->root);
}

/* Elements [first, first + count). */
static void set_all_lanes(ls__mesh *mesh, const ls__operation *op, size_t first, size_t count) {
    const size_t element = ls_dtype_size(op->dtype), bytes = count * element;
    const bool adds = gets_sums(op, mesh->base.rank);
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        char *scratch = mesh->scratch + (size_t)rank * mesh->chunk;
        const ls__mesh_lane mine = ls__mesh_lane_of(op->send, first * element, bytes);
        mesh->sources[rank] = peer->self ? mine.at : scratch;
        if (peer->self)
            continue;
        if (gets_sums(op, rank))
            peer->out[0] = mine;
        if (adds)
            peer->in[0] = ls__mesh_lane_of(scratch, 0, bytes);
    }
}

static ls_status one_shot(ls__mesh *mesh, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype), most = mesh->chunk / element;
    mesh->table->begin(mesh, op);
    for (size_t first = 0; first == 0 || first < op->count; first += most) {
        const size_t left = op->count - first, count = left < most ? left : most;
        set_all_lanes(mesh, op, first, count);
        LS_TRY(mesh->table->drive(mesh, op));
        if (gets_sums(op, mesh->base.rank))
            ls__mesh_reduce(mesh, op, count > 0 ? (char *)op->recv + first * element : NULL, count);
    }
    return LS_OK;
}

/* Which elements belong to which rank, and how they are cut into chunks. */
typedef struct slices {
    const ls__operation *op;
    bool whole;   /* sums are collected: slice r starts at r * count + min(r, rest) ... */
    size_t count; /* ... and that many slices are one longer; else slices are blocks */
    size_t rest;
    size_t chunk;   /* elements */
    size_t element; /* bytes */
} slices;

static size_t slice_first(const slices *s, int rank) {
    const size_t r = (size_t)rank;
    if (!s->whole)
        return ls__block_first(s->op, rank);
    return r * s->count + (r < s->rest ? r : s->rest);
}

/* Elements of chunk k of a rank's slice. */
static size_t chunk_count(const slices *s, int rank, size_t k) {
    const size_t at = k * s->chunk;
    const size_t count =
        s->whole ? s->count + ((size_t)rank < s->rest) : ls__block_count(s->op, rank);
    const size_t left = count > at ? count - at : 0;
    return left < s->chunk ? left : s->chunk;
}

static ls__mesh_lane chunk_lane(const slices *s, const void *base, int rank, size_t k) {
    return ls__mesh_lane_of(base, (slice_first(s, rank) + k * s->chunk) * s->element,
                            chunk_count(s, rank, k) * s->element);
}

/* Where the sum of this rank's chunk k goes: to its place where it stays; else it only passes through. */
static char *sum_of(const ls__mesh *mesh, const slices *s, size_t k) {
    const int me = mesh->base.rank;
    if (chunk_count(s, me, k) == 0)
        return NULL;
    if (s->whole && !gets_sums(s->op, me))
        return mesh->scratch + (size_t)me * mesh->chunk;
    return (char *)s->op->recv + ((s->whole ? slice_first(s, me) : 0) + k * s->chunk) * s->element;
}

/* Round k: chunk k of the slices towards their owners, the sums of chunk k - 1 towards who gets them. */
static void set_lanes(ls__mesh *mesh, const slices *s, size_t k) {
    const int me = mesh->base.rank;
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mesh_peer *peer = mesh->peer[rank];
        if (peer->self)
            continue;
        peer->out[0] = chunk_lane(s, s->op->send, rank, k);
        peer->in[0] = ls__mesh_lane_of(mesh->scratch, (size_t)rank * mesh->chunk,
                                       chunk_count(s, me, k) * s->element);
        if (k > 0 && gets_sums(s->op, rank))
            peer->out[1] =
                ls__mesh_lane_of(sum_of(mesh, s, k - 1), 0, chunk_count(s, me, k - 1) * s->element);
        if (k > 0 && gets_sums(s->op, me))
            peer->in[1] = chunk_lane(s, s->op->recv, rank, k - 1);
    }
}

static void reduce_chunk(ls__mesh *mesh, const slices *s, size_t k) {
    const int me = mesh->base.rank;
    for (int rank = 0; rank < mesh->base.size; rank++)
        mesh->sources[rank] = rank == me ? chunk_lane(s, s->op->send, me, k).at
                                         : mesh->scratch + (size_t)rank * mesh->chunk;
    ls__mesh_reduce(mesh, s->op, sum_of(mesh, s, k), chunk_count(s, me, k));
}

/* `longest`: elements of the longest slice. */
static ls_status reduce_slices(ls__mesh *mesh, ls__operation *op, const slices *s, size_t longest) {
    const size_t rounds = longest / s->chunk + (longest % s->chunk > 0);
    mesh->table->begin(mesh, op);
    for (size_t k = 0; k == 0 || k < rounds + s->whole; k++) {
        set_lanes(mesh, s, k);
        LS_TRY(mesh->table->drive(mesh, op));
        reduce_chunk(mesh, s, k);
    }
    return LS_OK;
}

ls_status ls__mesh_all_reduce(ls__mesh *mesh, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype), size = (size_t)mesh->base.size;
    if (size == 1) {
        mesh->sources[0] = op->send;
        ls__mesh_reduce(mesh, op, op->recv, op->count);
        return LS_OK;
    }
    if (ls__cost_choose(&mesh->base.cost, mesh->base.algorithm, mesh->base.size,
                        op->count * element, mesh->chunk) == LS__ONE_SHOT)
        return one_shot(mesh, op);
    const slices s = {.op = op,
                      .whole = true,
                      .count = op->count / size,
                      .rest = op->count % size,
                      .chunk = mesh->chunk / element,
                      .element = element};
    return reduce_slices(mesh, op, &s, s.count + (s.rest > 0));
}

ls_status ls__mesh_reduce_scatter(ls__mesh *mesh, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype);
    const slices s = {.op = op, .chunk = mesh->chunk / element, .element = element};
    return reduce_slices(mesh, op, &s, ls__block_longest(op, mesh->base.size));
}
