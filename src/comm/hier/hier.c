/* The transport's life: who is where, the segment, the connections between machines; run, abort, close. */
#include "comm/hier/hier.h"

#include "comm/cost_measure.h"
#include "comm/shm/segment.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_GRAINS = 8, SMALLEST_SLICE = 16 * 1024 };

/* Integers are divided once, by the number of all ranks, which no step knows; uneven blocks have no slices. */
static bool pays(const ls__operation *op) {
    if (op->counts)
        return false;
    const bool is_float =
        op->dtype == LS_F32 || op->dtype == LS_F64 || ls__hier_is_narrow(op->dtype);
    return op->op != LS_AVG || is_float;
}

/* Messages between two ranks are paired by their order, so no other rank looks at them here. */
static bool is_point(const ls__operation *op) {
    return op->header.kind == LS__SEND || op->header.kind == LS__RECV ||
           op->header.kind == LS__SENDRECV;
}

/* Who came last shows at the meeting; behind it all come at once. */
static ls_status run_flat(ls__hier *hier, ls__operation *op) {
    if (is_point(op))
        return hier->flat->table->run(hier->flat, op);
    LS_TRY(ls__hier_meet(hier, op));
    const ls_work_times met = op->times;
    LS_TRY(hier->flat->table->run(hier->flat, op));
    op->times.ready_ns = met.ready_ns;
    op->times.last_rank = met.last_rank;
    return LS_OK;
}

static ls_status dispatch(ls__hier *hier, ls__operation *op) {
    const ls__kind kind = ls__operation_step(op);
    if (hier->base.algorithm == LS__FLAT && kind != LS__ALLOC && kind != LS__FREE)
        return run_flat(hier, op);
    switch (kind) {
    case LS__ALL_REDUCE:
        if (!pays(op) || ls__hier_goes_flat(hier, op->count * ls_dtype_size(op->dtype)))
            return run_flat(hier, op);
        return ls__hier_all_reduce(hier, op);
    case LS__REDUCE_SCATTER:
        return pays(op) ? ls__hier_reduce_scatter(hier, op) : run_flat(hier, op);
    case LS__ALL_GATHER:
        return op->counts ? run_flat(hier, op) : ls__hier_all_gather(hier, op);
    case LS__BROADCAST:
        return ls__hier_broadcast(hier, op);
    case LS__BARRIER:
        return ls__hier_barrier(hier, op);
    case LS__ALLOC:
        return ls__hier_alloc(hier, op);
    case LS__FREE:
        return ls__hier_free(hier, op);
    default:
        return run_flat(hier, op);
    }
}

/* Everyone this rank is connected with hears of it: the ranks here, those of this index elsewhere, and, for
 * operations that go the flat way, all. */
static void abort_hier(ls__transport *transport, ls_status status, const char *reason) {
    ls__hier *hier = (ls__hier *)transport;
    hier->local->table->abort(hier->local, status, reason);
    for (int s = 0; s < hier->streams; s++)
        hier->wire[s].transport->table->abort(hier->wire[s].transport, status, reason);
    hier->flat->table->abort(hier->flat, status, reason);
}

/* What is rank 1 of two inside may be rank 7 of the group, and another one in the world. */
static void give_names(ls__hier *hier) {
    const int local = hier->map.local, machines = hier->map.machines;
    for (int index = 0; index < local; index++)
        hier->names[index] =
            ls__name_of(&hier->base, ls__hier_rank_of(hier, hier->map.here, index));
    for (int machine = 0; machine < machines; machine++)
        hier->names[local + machine] =
            ls__name_of(&hier->base, ls__hier_rank_of(hier, machine, hier->map.index));
    hier->local->names = hier->names;
    for (int s = 0; s < hier->streams && hier->wire[s].transport; s++)
        hier->wire[s].transport->names = hier->names + local;
    hier->flat->names = hier->base.names;
}

static ls_status run(ls__transport *transport, ls__operation *operation) {
    ls__hier *hier = (ls__hier *)transport;
    if (!hier->local->names || hier->flat->names != transport->names)
        give_names(hier);
    hier->last_here = -1;
    hier->met = false;
    ls_status status = dispatch(hier, operation);
    if (status != LS_OK && status != LS_ERR_ARGUMENT) {
        char text[1024];
        snprintf(text, sizeof text, "%s", ls_error_text());
        abort_hier(transport, status, text);
        for (int s = 0; s < hier->streams; s++) /* the caller's buffers are its own again */
            (void)ls__hier_wire_wait(&hier->wire[s], hier->wire[s].given, NULL);
        ls__fail(status, "%s", text);
    }
    return status;
}

static void close_hier(ls__transport *transport) {
    ls__hier *hier = (ls__hier *)transport;
    for (int s = 0; s < hier->streams; s++)
        ls__hier_wire_close(&hier->wire[s]);
    if (hier->local)
        hier->local->table->close(hier->local);
    if (hier->flat)
        hier->flat->table->close(hier->flat);
    free(hier->map.machine);
    free(hier->weights);
    free(hier->names);
    free(hier);
}

/* Connections for the part, then shared memory inside of machines where that helps there. */
static ls_status split(ls__transport *transport, int color, int key, uint64_t deadline,
                       ls__transport **part) {
    ls__hier *hier = (ls__hier *)transport;
    ls__job_place place = hier->place;
    LS_TRY(hier->flat->table->split(hier->flat, color, key, deadline, part));
    if (!*part || (*part)->size == 1)
        return LS_OK;
    const uint64_t now = ls__now_ns();
    place.rank = (*part)->rank;
    place.world_size = (*part)->size;
    place.timeout_s = deadline > now ? (double)(deadline - now) * 1e-9 : 0;
    return ls__hier_open(part, &place);
}

/* --- open ---------------------------------------------------------------------------------------- */

typedef struct opening {
    ls__transport *flat;
    ls__job_place *place;
    uint64_t deadline;
    uint64_t gathers; /* operations of its own on `flat` */
    ls__hier_card *cards;
    ls__hier_map map;
    ls__transport *local;
} opening;

static ls_status gather(opening *o, const void *mine, void *all, size_t bytes) {
    return ls__transport_gather(o->flat, ++o->gathers, mine, all, bytes, o->deadline);
}

/* LS_OK on all ranks, or what the first that failed has. */
static ls_status agree(opening *o, ls_status mine) {
    const int32_t status = (int32_t)mine;
    int32_t *all = calloc((size_t)o->flat->size, sizeof *all);
    char text[512];
    snprintf(text, sizeof text, "%s", mine == LS_OK ? "" : ls_error_text());
    if (!all)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %d ranks", o->flat->size);
    ls_status result = gather(o, &status, all, sizeof status);
    for (int rank = 0; result == LS_OK && rank < o->flat->size; rank++)
        if (all[rank] != LS_OK)
            result =
                ls__fail((ls_status)all[rank], "rank %d cannot share its machine's memory", rank);
    free(all);
    return mine == LS_OK ? result : ls__fail(mine, "%s", text);
}

/* The ranks of this machine get one segment. Fails here or elsewhere: nobody uses it. */
static ls_status share_segment(opening *o, int listener, int *fd) {
    const ls__hier_card *leader = &o->cards[o->map.leader];
    *fd = -1;
    if (o->map.local == 1)
        return LS_OK;
    if (o->map.leader != o->place->rank)
        return ls__hier_take(leader, fd, o->deadline);
    LS_TRY(ls__segment_create(fd, o->map.local));
    return ls__hier_give(listener, leader, *fd, o->map.local - 1, o->deadline);
}

/* Where everyone is. */
static ls_status look_around(opening *o, int *listener) {
    ls__hier_card mine;
    o->cards = calloc((size_t)o->flat->size, sizeof *o->cards);
    if (!o->cards)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %d ranks", o->flat->size);
    LS_TRY(ls__hier_card_make(&mine, o->place));
    LS_TRY(ls__hier_listen(&mine, listener));
    LS_TRY(gather(o, &mine, o->cards, sizeof mine));
    LS_TRY(ls__hier_map_make(&o->map, o->cards, o->flat->size, o->flat->rank));
    o->place->local_rank = o->map.index;
    o->place->local_world_size = o->map.local;
    return LS_OK;
}

static ls_status join_segment(opening *o, int fd) {
    ls__job_place here = *o->place;
    here.rank = o->map.index;
    here.world_size = o->map.local;
    here.heartbeat = NULL; /* it knows ranks by their names, which follow */
    if (here.world_size == 1)
        return ls__self_open(&o->local, &here);
    LS_TRY(ls__shm_open(&o->local, &here, fd));
    o->local->heartbeat = o->place->heartbeat;
    return LS_OK;
}

/* Where ranks have memory to share, or are alone and want several connections, which then are taken in turn. */
static bool gains(const opening *o) {
    return o->map.regular &&
           (o->map.local > 1 || (o->cards[0].streams_given && o->cards[0].streams > 1));
}

/* *wanted: all machines share memory and the job gains from it. A machine that cannot share memory, though
 * it should, is a reason to go the flat way, not to fail: the reason is logged. */
static ls_status try_local(opening *o, int listener, bool *wanted) {
    int fd = -1;
    *wanted = o->map.local == o->flat->size || gains(o);
    if (!*wanted)
        return LS_OK;
    ls_status status = agree(o, share_segment(o, listener, &fd));
    if (status == LS_OK)
        status = agree(o, join_segment(o, fd));
    if (fd >= 0)
        close(fd);
    if (status == LS_OK)
        return LS_OK;
    *wanted = false;
    if (o->place->log) {
        char line[1100];
        snprintf(line, sizeof line, "rank %d: memory is not shared: %s", o->place->rank,
                 ls_error_text());
        o->place->log(o->place->log_context, LS_LOG_WARNING, line);
    }
    if (o->local)
        o->local->table->close(o->local);
    o->local = NULL;
    return LS_OK;
}

/* Slots, pack and unpack, each rank's in memory that the ranks of this machine map. */
static ls_status get_memory(ls__hier *hier, uint64_t deadline) {
    const size_t local = (size_t)hier->map.local, machines = (size_t)hier->map.machines;
    const size_t grain = hier->flat->grain;
    size_t slice = CHUNK_GRAINS * grain / local;
    slice = slice > grain ? grain : slice < SMALLEST_SLICE ? SMALLEST_SLICE : slice;
    if (slice < machines * 64)
        slice = machines * 64; /* room for an element of every machine's at least */
    hier->slice_bytes = slice;
    hier->ahead = hier->streams + 1;
    const size_t slots = 2 * (size_t)hier->ahead + 1;
    void *memory = NULL;
    ls__operation alloc = {.header = {.magic = LS__HEADER_MAGIC, .kind = LS__ALLOC},
                           .bytes = slice * (2 * slots + 2 * local),
                           .memory = &memory,
                           .deadline = deadline};
    alloc.times.begin_ns = ls__now_ns();
    LS_TRY(ls__hier_run_local(hier, &alloc));
    char *at = memory;
    for (size_t i = 0; i < slots; i++, at += 2 * slice) {
        hier->slot[i].slice = at;
        hier->slot[i].out = at + slice;
    }
    hier->pack = at;
    hier->unpack = at + local * slice;
    return LS_OK;
}

static ls_status make(ls__transport **transport, opening *o) {
    ls__hier *hier = calloc(1, sizeof *hier);
    if (!hier)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    if (o->map.local > 1)
        snprintf(hier->name, sizeof hier->name, "%s+", o->local->table->name);
    strcat(hier->name, o->flat->table->name);
    hier->table = (ls__transport_table){.name = hier->name,
                                        .run = run,
                                        .close = close_hier,
                                        .abort = abort_hier,
                                        .split = split,
                                        .explain = ls__hier_explain};
    hier->base =
        (ls__transport){.table = &hier->table, .rank = o->flat->rank, .size = o->flat->size};
    hier->flat = o->flat;
    hier->local = o->local;
    hier->map = o->map;
    hier->streams = o->cards[0].streams;
    hier->place = *o->place;
    hier->place.streams_given = o->cards[0].streams_given;
    hier->weights = calloc((size_t)hier->map.local, sizeof *hier->weights);
    hier->names = calloc((size_t)(hier->map.local + hier->map.machines), sizeof *hier->names);
    o->flat = o->local = NULL;
    o->map.machine = NULL;
    ls_status status = LS_OK;
    if (!hier->weights || !hier->names)
        status = ls__fail(LS_ERR_MEMORY, "no memory for %d ranks", hier->map.local);
    if (status == LS_OK) {
        give_names(hier);
        status = ls__hier_open_streams(hier, o->deadline);
    }
    if (status == LS_OK)
        status = get_memory(hier, o->deadline);
    *o->place = hier->place;
    if (status == LS_OK)
        *transport = &hier->base;
    else
        close_hier(&hier->base);
    return status;
}

/* On one machine nothing is left to do for the connections. */
static void keep_local_only(ls__transport **transport, opening *o) {
    o->flat->table->close(o->flat);
    *transport = o->local;
    o->flat = o->local = NULL;
}

ls_status ls__hier_open(ls__transport **transport, ls__job_place *place) {
    opening o = {.flat = *transport, .place = place, .deadline = ls__deadline_ns(place->timeout_s)};
    int listener = -1;
    bool wanted = false;
    ls_status status;
    LS_TRY_OUT(look_around(&o, &listener));
    LS_TRY_OUT(try_local(&o, listener, &wanted));
    if (wanted && o.map.machines == 1)
        keep_local_only(transport, &o);
    else if (wanted)
        status = make(transport, &o);
    else
        status = ls__cost_learn(o.flat, o.flat, NULL, place, o.deadline);
out:
    if (listener >= 0)
        close(listener);
    if (status != LS_OK && o.flat)
        o.flat->table->close(o.flat);
    if (status != LS_OK && o.local)
        o.local->table->close(o.local);
    if (status != LS_OK)
        *transport = NULL;
    free(o.map.machine);
    free(o.cards);
    return status;
}
