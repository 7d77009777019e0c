/* The heartbeat's connections for ranks that something else joins (mpi): rank 0 listens and tells over that transport
 * where, and with which key. A network on which that cannot be costs the job its heartbeat, not its start: a rank that
 * has stopped is then found by the operation's deadline. */
#include "comm/tcp/tcp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A network that lets nobody through costs every start so long. */
static const double WAIT_S = 10;

static const ls__tcp_names names = {
    .address = "LOCKSTEP_INTERFACE", .port = "the port", .first = "rank 0", .all = "ranks"};

/* What each rank tells; all but `status` from rank 0. */
typedef struct offer {
    ls__tcp_card card;
    unsigned char key[LS__TCP_KEY_BYTES];
    uint32_t status; /* an ls_status */
    uint32_t reserved;
} offer;

typedef struct meeting {
    ls__transport *transport;
    ls__tcp_join join;
    offer *offers; /* (world) */
    uint64_t gathers;
} meeting;

static ls_status gather(meeting *m, const offer *mine) {
    return ls__transport_gather(m->transport, ++m->gathers, mine, m->offers, sizeof *mine,
                                ls__deadline_ns(m->join.place->timeout_s));
}

static ls_status listen_for_all(ls__tcp_join *join, offer *mine) {
    ls__tcp_address address = {.bytes = sizeof address.raw};
    LS_TRY(ls__tcp_find_address(join->place, &address));
    LS_TRY(ls__tcp_listen(&names, &address, join->world + 16, &join->listener));
    LS_TRY(ls__tcp_card_make(&mine->card, &address));
    ls__tcp_nonce(join->key);
    memcpy(mine->key, join->key, sizeof mine->key);
    return LS_OK;
}

static ls_status prepare(meeting *m, offer *mine) {
    ls__tcp_join *join = &m->join;
    const size_t n = (size_t)join->world;
    unsigned char unused[LS__TCP_KEY_BYTES];
    LS_TRY(ls__tcp_key(NULL, unused)); /* starts libsodium */
    join->fd = malloc(n * sizeof *join->fd);
    join->table = calloc(n, sizeof *join->table);
    if (!join->fd || !join->table)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %zu ranks", n);
    for (size_t rank = 0; rank < n; rank++)
        join->fd[rank] = -1;
    LS_TRY(ls__tcp_control_create(&join->control, join->rank, join->world));
    return join->rank == 0 ? listen_for_all(join, mine) : LS_OK;
}

static ls_status connect_all(meeting *m) {
    ls__tcp_join *join = &m->join;
    join->deadline = ls__deadline_ns(fmin(WAIT_S, join->place->timeout_s));
    if (join->rank == 0)
        return ls__tcp_control_collect(join);
    join->table[0] = m->offers[0].card;
    memcpy(join->key, m->offers[0].key, sizeof join->key);
    return ls__tcp_control_dial(join);
}

/* After a gather: the lowest rank that failed, -1 for none. */
static int first_failed(const meeting *m) {
    for (int rank = 0; rank < m->join.world; rank++)
        if (m->offers[rank].status != LS_OK)
            return rank;
    return -1;
}

/* *failed as above, equal on all ranks; its rank has *why. Errors are those of the transport. */
static ls_status meet(meeting *m, int *failed, char *why, size_t bytes) {
    offer mine = {.status = LS_OK};
    mine.status = (uint32_t)prepare(m, &mine);
    if (mine.status != LS_OK)
        snprintf(why, bytes, "%s", ls_error_text());
    LS_TRY(gather(m, &mine));
    *failed = first_failed(m);
    if (*failed >= 0)
        return LS_OK;
    mine.status = (uint32_t)connect_all(m);
    if (mine.status != LS_OK)
        snprintf(why, bytes, "%s", ls_error_text());
    LS_TRY(gather(m, &mine));
    *failed = first_failed(m);
    return LS_OK;
}

ls_status ls__tcp_control_beside(ls__transport *transport, const ls__job_place *place) {
    if (!place->heartbeat || !isfinite(place->heartbeat_s))
        return LS_OK;
    meeting m = {.transport = transport,
                 .join = {.place = place,
                          .names = &names,
                          .has_token = true,
                          .rank = transport->rank,
                          .world = transport->size,
                          .gone = -1,
                          .listener = -1}};
    char why[512] = "";
    int failed = -1;
    ls_status status = LS_OK;
    m.offers = calloc((size_t)m.join.world, sizeof *m.offers);
    if (!m.offers)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %d ranks", m.join.world);
    LS_TRY_OUT(meet(&m, &failed, why, sizeof why));
    if (failed < 0) {
        ls__tcp_control_start(m.join.control, place->heartbeat);
        m.join.control = NULL;
    } else if (failed == m.join.rank) {
        ls__tcp_log(place, LS_LOG_WARNING,
                    "rank %d: the job has no heartbeat, LOCKSTEP_TIMEOUT has to find who has "
                    "stopped: %s",
                    failed, why);
    }
out:
    ls__tcp_close_fd(m.join.listener);
    ls__tcp_control_free(m.join.control);
    free(m.join.fd);
    free(m.join.table);
    free(m.offers);
    return status;
}
