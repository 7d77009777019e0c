#include "comm/cost_measure.h"

#include "base/clock.h"
#include "comm/reduce.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    SYNC_ROUNDS = 6, /* the first of them wake everything up */
    FIRST_BYTES = 32 * 1024,
    LAST_BYTES = 2 << 20,
    LONG_ENOUGH_US = 3000,
    ADD_BYTES = 256 * 1024,
};

/* Operations of this file are of group 0: no user's call is compared with them. */
static ls_status run(ls__transport *transport, ls__operation op, uint64_t deadline) {
    op.header = (ls__header){.magic = LS__HEADER_MAGIC,
                             .kind = (uint16_t)op.step,
                             .dtype = (uint8_t)op.dtype,
                             .op = (uint8_t)op.op,
                             .count = op.count,
                             .root = (uint32_t)op.root};
    op.deadline = deadline;
    op.times = (ls_work_times){.begin_ns = ls__now_ns(), .last_rank = -1};
    return transport->table->run(transport, &op);
}

static ls_status all_reduce(ls__transport *transport, const void *send, void *recv, size_t count,
                            ls_dtype dtype, ls_op reduction, uint64_t deadline) {
    const ls__operation op = {.step = LS__ALL_REDUCE,
                              .send = send,
                              .recv = recv,
                              .count = count,
                              .dtype = dtype,
                              .op = reduction};
    return run(transport, op, deadline);
}

ls_status ls__cost_share(ls__transport *flat, void *data, size_t bytes, uint64_t deadline) {
    const ls__operation op = {
        .step = LS__BROADCAST, .send = data, .recv = data, .count = bytes, .dtype = LS_U8};
    return run(flat, op, deadline);
}

/* Seconds of one sum, the shortest of `rounds`, of the slowest rank. */
static ls_status time_sum(ls__transport *transport, float *buffer, size_t bytes, int rounds,
                          uint64_t deadline, double *seconds) {
    double shortest = INFINITY;
    for (int i = 0; i < rounds; i++) {
        const uint64_t before = ls__now_ns();
        LS_TRY(all_reduce(transport, buffer, buffer, bytes / sizeof *buffer, LS_F32, LS_SUM,
                          deadline));
        const double took = (double)(ls__now_ns() - before) * 1e-9;
        shortest = took < shortest ? took : shortest;
    }
    return all_reduce(transport, &shortest, seconds, 1, LS_F64, LS_MAX, deadline);
}

/* Bytes per second and source; alone, it needs nobody. */
static double time_adding(float *buffer) {
    const size_t half = ADD_BYTES / sizeof *buffer;
    const void *const sources[] = {buffer, buffer + half};
    double shortest = INFINITY;
    for (int i = 0; i < 4; i++) {
        const uint64_t before = ls__now_ns();
        ls__reduce(buffer, sources, 2, half, LS_F32, LS_SUM, 1);
        const double took = (double)(ls__now_ns() - before + 1) * 1e-9;
        shortest = took < shortest ? took : shortest;
    }
    return 2 * ADD_BYTES / shortest;
}

/* The rest of a pairwise sum, without its steps and adding, is the wire's. */
static void conclude(ls__cost *cost, int ranks, size_t bytes, double seconds) {
    const double n = (double)bytes, p = ranks;
    double rest = seconds - 2 * cost->sync_s - n / cost->add_per_s;
    if (rest < seconds / 10) /* noise: adding took it all */
        rest = seconds / 10;
    cost->bytes_per_s = 2 * n * (p - 1) / p / rest;
}

static ls_status measure(ls__transport *transport, float *buffer, uint64_t deadline,
                         ls__cost *cost) {
    const double adding = time_adding(buffer);
    double seconds;
    memset(buffer, 0, LAST_BYTES);
    LS_TRY(all_reduce(transport, &adding, &cost->add_per_s, 1, LS_F64, LS_MIN, deadline));
    LS_TRY(time_sum(transport, buffer, sizeof *buffer, SYNC_ROUNDS, deadline, &cost->sync_s));
    transport->algorithm = LS__PAIRWISE; /* what `conclude` reckons with */
    size_t bytes = FIRST_BYTES;
    for (;; bytes *= 4) {
        LS_TRY(time_sum(transport, buffer, bytes, 2, deadline, &seconds));
        if (seconds > LONG_ENOUGH_US * 1e-6 || bytes * 4 > LAST_BYTES)
            break;
    }
    conclude(cost, transport->size, bytes, seconds);
    return LS_OK;
}

ls_status ls__cost_measure(ls__transport *transport, uint64_t deadline) {
    const ls__algorithm before = transport->algorithm;
    ls__cost cost = {0};
    void *buffer = NULL;
    if (transport->size == 1)
        return LS_OK;
    const ls__operation get = {.step = LS__ALLOC, .bytes = LAST_BYTES, .memory = &buffer};
    const ls__operation give = {.step = LS__FREE, .memory = &buffer};
    LS_TRY(run(transport, get, deadline));
    transport->cost = cost;
    ls_status status = measure(transport, buffer, deadline, &cost);
    transport->algorithm = before;
    if (status == LS_OK)
        status = run(transport, give, deadline);
    if (status == LS_OK)
        transport->cost = cost;
    return status;
}

/* --- agreeing --- */

typedef struct settings {
    int32_t status; /* LS_OK, or why rank 0 cannot go on: in `text` */
    int32_t algorithm;
    ls__costs costs;
    char text[512];
} settings;

static void read_table(settings *s, const ls__job_place *place) {
    s->algorithm = (int32_t)place->algorithm;
    if (place->cost_table)
        s->status = (int32_t)ls__cost_table_read(place->cost_table, &s->costs);
    if (s->status != LS_OK)
        snprintf(s->text, sizeof s->text, "%s", ls_error_text());
}

static void set_costs(ls__transport *flat, ls__transport *between, ls__transport *local,
                      const ls__job_place *place) {
    flat->cost = between->cost = place->costs.between;
    flat->algorithm = between->algorithm = place->algorithm;
    if (local)
        local->cost = place->costs.inside;
}

ls_status ls__cost_learn(ls__transport *flat, ls__transport *between, ls__transport *local,
                         ls__job_place *place, uint64_t deadline) {
    settings s = {.status = LS_OK};
    if (ls__cost_is_known(&place->costs.between)) {
        set_costs(flat, between, local, place);
        return LS_OK;
    }
    if (flat->rank == 0)
        read_table(&s, place);
    LS_TRY(ls__cost_share(flat, &s, sizeof s, deadline));
    if (s.status != LS_OK)
        return ls__fail((ls_status)s.status, "LOCKSTEP_COST_TABLE of rank 0: %s", s.text);
    const bool measures = !ls__cost_is_known(&s.costs.between);
    if (measures && local)
        LS_TRY(ls__cost_measure(local, deadline));
    if (measures)
        LS_TRY(ls__cost_measure(between, deadline));
    if (measures)
        s.costs.between = between->cost;
    if (measures && local)
        s.costs.inside = local->cost;
    if (measures)
        LS_TRY(ls__cost_share(flat, &s.costs, sizeof s.costs, deadline));
    place->algorithm = (ls__algorithm)s.algorithm;
    place->costs = s.costs;
    set_costs(flat, between, local, place);
    return LS_OK;
}
