/* How many connections a rank has to its fellows on the other machines: as many as were asked for, else twice as
 * many as long as that carries a quarter more. One fills a link whose round trip is short; long and lossy ones,
 * and those above 10 Gbit/s, want several. */
#include "comm/cost_measure.h"
#include "comm/hier/hier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIAL_STREAMS_MAX = 4, TRIALS = 3, TRIAL_MS = 5 };
static const double WANTED_GAIN = 1.25;

static ls_status open_one(ls__hier *hier, uint64_t deadline) {
    ls__transport *part;
    ls__hier_wire *wire = &hier->wire[hier->streams];
    LS_TRY(hier->flat->table->split(hier->flat, hier->map.index, hier->map.here, deadline, &part));
    part->cost = hier->place.costs.between;
    part->algorithm = hier->place.algorithm;
    part->names = hier->names + hier->map.local;
    part->heartbeat = hier->flat->heartbeat;
    LS_TRY(ls__hier_wire_open(wire, part, !hier->flat->one_thread));
    hier->streams++;
    return LS_OK;
}

/* Seconds of a sum of `count` floats on each stream, all at once. */
static ls_status try_once(ls__hier *hier, float *buffer, size_t count, uint64_t deadline,
                          double *seconds) {
    uint64_t ticket[LS__HIER_STREAMS_MAX];
    const uint64_t before = ls__now_ns();
    for (int s = 0; s < hier->streams; s++) {
        ls__operation op = {.header = {.magic = LS__HEADER_MAGIC,
                                       .kind = LS__ALL_REDUCE,
                                       .dtype = LS_F32,
                                       .count = count},
                            .send = buffer + (size_t)s * count,
                            .recv = buffer + (size_t)s * count,
                            .count = count,
                            .dtype = LS_F32,
                            .deadline = deadline};
        ticket[s] = ls__hier_wire_start(&hier->wire[s], &op, false);
    }
    for (int s = 0; s < hier->streams; s++)
        LS_TRY(ls__hier_wire_wait(&hier->wire[s], ticket[s], NULL));
    *seconds = (double)(ls__now_ns() - before) * 1e-9;
    return LS_OK;
}

/* Bytes per second over all streams, as rank 0 sees them: the best of a few. */
static ls_status carried(ls__hier *hier, float *buffer, size_t count, uint64_t deadline,
                         double *bytes_per_s) {
    double best = INFINITY, seconds;
    for (int i = 0; i < TRIALS; i++) {
        LS_TRY(try_once(hier, buffer, count, deadline, &seconds));
        best = seconds < best ? seconds : best;
    }
    *bytes_per_s = (double)hier->streams * (double)count * sizeof *buffer / best;
    return ls__cost_share(hier->flat, bytes_per_s, sizeof *bytes_per_s, deadline);
}

static void close_down_to(ls__hier *hier, int streams) {
    while (hier->streams > streams)
        ls__hier_wire_close(&hier->wire[--hier->streams]);
}

/* Twice as many as there are, which stay where they carry more. */
static ls_status try_more(ls__hier *hier, float *buffer, size_t count, uint64_t deadline,
                          double *speed, bool *better) {
    const int before = hier->streams;
    double faster;
    while (hier->streams < 2 * before)
        LS_TRY(open_one(hier, deadline));
    LS_TRY(carried(hier, buffer, count, deadline, &faster));
    *better = faster > WANTED_GAIN * *speed;
    if (!*better)
        close_down_to(hier, before);
    else {
        hier->streams_gain *= faster / *speed;
        *speed = faster;
    }
    return LS_OK;
}

static ls_status search(ls__hier *hier, uint64_t deadline) {
    const size_t most = hier->flat->grain / sizeof(float);
    const double fit = hier->place.costs.between.bytes_per_s * TRIAL_MS * 1e-3 / sizeof(float);
    const size_t count = fit < (double)most ? (size_t)fit + 1 : most;
    float *buffer = calloc(TRIAL_STREAMS_MAX, count * sizeof *buffer);
    double speed;
    bool better = true;
    if (!buffer)
        return ls__fail(LS_ERR_MEMORY, "no memory to measure the network");
    ls_status status = carried(hier, buffer, count, deadline, &speed);
    while (status == LS_OK && better && 2 * hier->streams <= TRIAL_STREAMS_MAX)
        status = try_more(hier, buffer, count, deadline, &speed, &better);
    free(buffer);
    return status;
}

ls_status ls__hier_open_streams(ls__hier *hier, uint64_t deadline) {
    const int wanted = hier->streams;
    const bool known = ls__cost_is_known(&hier->place.costs.between);
    hier->streams = 0;
    hier->streams_gain = 1;
    LS_TRY(open_one(hier, deadline));
    LS_TRY(
        ls__cost_learn(hier->flat, hier->wire[0].transport, hier->local, &hier->place, deadline));
    hier->base.cost = hier->flat->cost;
    hier->base.algorithm = hier->flat->algorithm;
    while (hier->streams < wanted)
        LS_TRY(open_one(hier, deadline));
    if (!hier->place.streams_given && !hier->flat->one_thread && !known)
        LS_TRY(search(hier, deadline));
    hier->place.streams = hier->streams; /* of groups made of this one, too */
    return LS_OK;
}
