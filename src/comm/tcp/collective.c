/* The collectives. Every one starts with the header to and from every peer; the first payload travels
 * right behind it. p ranks, n bytes:
 *
 *   all_reduce, small   one-shot: p - 1 messages of n bytes out and in; everyone adds all
 *   all_reduce          pairwise: slice j goes to rank j, which adds the p slices in tree order and
 *                       sends the sum to all; 2 n (p - 1) / p bytes out and in, in rounds of one chunk
 *                       a peer; a round sends chunk k of the slices and chunk k - 1 of the sums
 *   reduce_scatter      the first half of it: n (p - 1) / p out and in
 *   all_gather          p - 1 messages of n / p bytes out, n (p - 1) / p in
 *   broadcast           the root sends n bytes to each of the others
 *   barrier             headers only */
#include "comm/tcp/tcp.h"

#include "comm/memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every peer's header is awaited, and this rank's sent; lanes may be set before or after. */
static void begin(ls__tcp *tcp, const ls__operation *op) {
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        peer->weight = op->header.weight;
        if (peer->fd < 0)
            continue;
        peer->expect = LS__TCP_EXPECT_BEGIN;
        ls__tcp_queue(peer, LS__TCP_BEGIN, &op->header, sizeof op->header, NULL, 0);
    }
}

static ls__tcp_lane lane(const void *base, size_t offset, size_t bytes) {
    return (ls__tcp_lane){.at = bytes > 0 ? (char *)base + offset : NULL, .left = bytes};
}

/* The global weight, after all headers are here. */
static double total_weight(ls__tcp *tcp, const ls__operation *op) {
    if (!op->weighted)
        return 1;
    for (int rank = 0; rank < tcp->base.size; rank++)
        tcp->weights[rank] = rank == tcp->base.rank ? op->header.weight : tcp->peer[rank]->weight;
    double total = ls__reduce_weights(tcp->weights, tcp->base.size);
    if (op->total)
        *op->total = total;
    return total;
}

/* tcp->sources hold every rank's part of the result. */
static void reduce(ls__tcp *tcp, const ls__operation *op, void *to, size_t elements) {
    double total = total_weight(tcp, op);
    if (elements == 0)
        return;
    if (op->weighted && total == 0) {
        memset(to, 0, elements * ls_dtype_size(op->dtype));
        return;
    }
    ls__reduce(to, tcp->sources, tcp->base.size, elements, op->dtype, op->op,
               ls__reduce_scale(op->op, tcp->base.size, op->weighted, total));
}

/* --- reductions -------------------------------------------------------------------------------- */

static ls_status all_reduce_one_shot(ls__tcp *tcp, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        char *scratch = tcp->scratch + (size_t)rank * tcp->chunk;
        tcp->sources[rank] = peer->fd < 0 ? op->send : scratch;
        if (peer->fd < 0)
            continue;
        peer->out[0] = lane(op->send, 0, bytes);
        peer->in[0] = lane(scratch, 0, bytes);
    }
    LS_TRY(ls__tcp_drive(tcp, op));
    reduce(tcp, op, op->recv, op->count);
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

static ls__tcp_lane chunk_lane(const slices *s, const void *base, int rank, size_t k) {
    return lane(base, (slice_first(s, rank) + k * s->chunk) * s->element,
                chunk_count(s, rank, k) * s->element);
}

/* Round k: chunk k of the slices towards their owners, the sums of chunk k - 1 towards all. */
static void set_lanes(ls__tcp *tcp, const ls__operation *op, const slices *s, size_t k) {
    const int me = tcp->base.rank;
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd < 0)
            continue;
        peer->out[0] = chunk_lane(s, op->send, rank, k);
        peer->in[0] =
            lane(tcp->scratch, (size_t)rank * tcp->chunk, chunk_count(s, me, k) * s->element);
        if (!s->gather || k == 0)
            continue;
        peer->out[1] = chunk_lane(s, op->recv, me, k - 1);
        peer->in[1] = chunk_lane(s, op->recv, rank, k - 1);
    }
}

static void reduce_chunk(ls__tcp *tcp, const ls__operation *op, const slices *s, size_t k) {
    const int me = tcp->base.rank;
    const size_t count = chunk_count(s, me, k);
    char *to = op->recv;
    for (int rank = 0; rank < tcp->base.size; rank++)
        tcp->sources[rank] = rank == me ? chunk_lane(s, op->send, me, k).at
                                        : tcp->scratch + (size_t)rank * tcp->chunk;
    if (count > 0)
        to += ((s->gather ? slice_first(s, me) : 0) + k * s->chunk) * s->element;
    reduce(tcp, op, to, count);
}

static ls_status reduce_slices(ls__tcp *tcp, ls__operation *op, const slices *s) {
    const size_t longest = s->count + (s->rest > 0);
    const size_t rounds = longest / s->chunk + (longest % s->chunk > 0);
    begin(tcp, op);
    for (size_t k = 0; k == 0 || k < rounds + s->gather; k++) {
        set_lanes(tcp, op, s, k);
        LS_TRY(ls__tcp_drive(tcp, op));
        reduce_chunk(tcp, op, s, k);
    }
    return LS_OK;
}

ls_status ls__tcp_all_reduce(ls__tcp *tcp, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype), size = (size_t)tcp->base.size;
    if (size == 1 || op->count * element <= LS__TCP_ONE_SHOT_BYTES)
        return size == 1 ? (tcp->sources[0] = op->send, reduce(tcp, op, op->recv, op->count), LS_OK)
                         : all_reduce_one_shot(tcp, op);
    const slices s = {.count = op->count / size,
                      .rest = op->count % size,
                      .chunk = tcp->chunk / element,
                      .element = element,
                      .gather = true};
    return reduce_slices(tcp, op, &s);
}

ls_status ls__tcp_reduce_scatter(ls__tcp *tcp, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype);
    const slices s = {.count = op->count, .chunk = tcp->chunk / element, .element = element};
    return reduce_slices(tcp, op, &s);
}

/* --- copies ------------------------------------------------------------------------------------ */

ls_status ls__tcp_all_gather(ls__tcp *tcp, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        ls__tcp_lane to = lane(op->recv, (size_t)rank * bytes, bytes);
        if (peer->fd >= 0) {
            peer->out[0] = lane(op->send, 0, bytes);
            peer->in[0] = to;
        } else if (bytes > 0 && to.at != op->send) {
            memcpy(to.at, op->send, bytes);
        }
    }
    return ls__tcp_drive(tcp, op);
}

ls_status ls__tcp_broadcast(ls__tcp *tcp, ls__operation *op) {
    const size_t bytes = op->count * ls_dtype_size(op->dtype);
    begin(tcp, op);
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd >= 0 && tcp->base.rank == op->root)
            peer->out[0] = lane(op->send, 0, bytes);
        else if (peer->fd >= 0 && rank == op->root)
            peer->in[0] = lane(op->recv, 0, bytes);
    }
    return ls__tcp_drive(tcp, op);
}

ls_status ls__tcp_barrier(ls__tcp *tcp, ls__operation *op) {
    begin(tcp, op);
    return ls__tcp_drive(tcp, op);
}

/* --- memory ------------------------------------------------------------------------------------ */

/* Everyone says whether it has the memory: one byte a rank in `has`. */
static ls_status agree(ls__tcp *tcp, ls__operation *op, bool has) {
    char *flags = tcp->scratch;
    char text[512];
    snprintf(text, sizeof text, "%s", has ? "" : ls_error_text());
    begin(tcp, op);
    flags[tcp->base.rank] = has;
    for (int rank = 0; rank < tcp->base.size; rank++) {
        if (tcp->peer[rank]->fd < 0)
            continue;
        tcp->peer[rank]->out[0] = lane(flags, (size_t)tcp->base.rank, 1);
        tcp->peer[rank]->in[0] = lane(flags, (size_t)rank, 1);
    }
    LS_TRY(ls__tcp_drive(tcp, op));
    /* Failing breaks the group and the peers hear of it. One more round, whatever comes of it, so that
     * all have read all flags by then and everyone's error is this one. */
    if (memchr(flags, 0, (size_t)tcp->base.size)) {
        begin(tcp, op);
        (void)ls__tcp_drive(tcp, op);
    }
    if (!has)
        return ls__operation_fail(LS_ERR_MEMORY, op, tcp->base.rank, "%s", text);
    for (int rank = 0; rank < tcp->base.size; rank++)
        if (!flags[rank])
            return ls__operation_fail(LS_ERR_MEMORY, op, tcp->base.rank,
                                      "rank %d (host %s, pid %lld) has no memory for %zu bytes",
                                      rank, tcp->peer[rank]->host, (long long)tcp->peer[rank]->pid,
                                      op->bytes);
    return LS_OK;
}

ls_status ls__tcp_alloc(ls__tcp *tcp, ls__operation *op) {
    ls__tcp_memory *block = calloc(1, sizeof *block);
    bool has = block && ls__memory_map(&block->memory, op->bytes) == LS_OK;
    ls_status status = agree(tcp, op, has);
    if (status != LS_OK || !has) { /* without it agree has failed */
        if (has)
            ls__memory_unmap(block->memory, op->bytes);
        free(block);
        return status;
    }
    block->bytes = op->bytes;
    block->next = tcp->memory;
    tcp->memory = block;
    *op->memory = block->memory;
    return LS_OK;
}

ls_status ls__tcp_free(ls__tcp *tcp, ls__operation *op) {
    LS_TRY(ls__tcp_barrier(tcp, op));
    if (!*op->memory)
        return LS_OK;
    for (ls__tcp_memory **link = &tcp->memory; *link; link = &(*link)->next) {
        ls__tcp_memory *block = *link;
        if (block->memory != *op->memory)
            continue;
        *link = block->next;
        ls__memory_unmap(block->memory, block->bytes);
        free(block);
        return LS_OK;
    }
    return ls__operation_fail(LS_ERR_ARGUMENT, op, tcp->base.rank,
                              "%p was not given by ls_group_alloc", *op->memory);
}
