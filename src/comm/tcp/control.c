/* The connections of the heartbeat: a star around rank 0, apart from data, so that a beat never queues behind
 * a gradient. Every rank sends rank 0 its own state twice a second; rank 0 sends everybody its own, and
 * behind it what there is to tell of the others: who is silent, in a phase, or has left. One message is
 * 104 bytes; in a job where all is well a rank gets one, and rank 0 p - 1, a beat.
 *
 * Nothing here waits. A message that does not fit into the socket's buffer is finished later, and those that
 * would come behind it are dropped: the next beat tells the same. */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAGIC = 0x4c534254 /* "LSBT" */, ROUND_MS = 250 };
static const uint64_t TOLD_NS = UINT64_C(1000000000); /* a silence worth telling */
static const uint64_t MOST_NS = UINT64_MAX / 8;       /* bounds what a message says */

typedef struct message {
    uint32_t magic, rank, seen, reserved;
    uint64_t silent_ns, phase_age_ns, phase_extra_ns;
    char phase[LS__FLIGHT_NAME_BYTES];
} message;

typedef struct line {
    int fd; /* -1: none, or it is over */
    size_t in_bytes, out_at, out_bytes;
    unsigned char in[sizeof(message)], out[sizeof(message)];
} line;

struct ls__tcp_control {
    int rank, size;
    bool greeted; /* the pulses start as those of ranks that were there a moment ago */
    line line[];  /* (size) of rank 0; else only [0] is used */
};

/* --- sending ------------------------------------------------------------------------------------------------ */

static void end_line(line *l) {
    ls__tcp_close_fd(l->fd);
    l->fd = -1;
}

static void flush(line *l) {
    while (l->fd >= 0 && l->out_at < l->out_bytes) {
        ssize_t n =
            send(l->fd, l->out + l->out_at, l->out_bytes - l->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            l->out_at += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        else if (n == 0 || errno != EINTR)
            return; /* it is over: reading tells, and takes in last words first */
    }
    l->out_at = l->out_bytes = 0;
}

static void tell(line *l, int rank, const ls__pulse *pulse) {
    flush(l);
    if (l->fd < 0 || l->out_bytes > 0)
        return;
    message m = {.magic = MAGIC,
                 .rank = (uint32_t)rank,
                 .seen = pulse->seen,
                 .silent_ns = pulse->silent_ns,
                 .phase_age_ns = pulse->phase_age_ns,
                 .phase_extra_ns = pulse->phase_extra_ns};
    memcpy(m.phase, pulse->phase, sizeof m.phase);
    memcpy(l->out, &m, sizeof m);
    l->out_bytes = sizeof m;
    flush(l);
}

static bool is_worth_telling(const ls__pulse *pulse) {
    return !pulse->seen || pulse->silent_ns >= TOLD_NS || pulse->phase[0];
}

/* --- receiving ------------------------------------------------------------------------------------------------ */

static uint64_t at_most(uint64_t value) {
    return value < MOST_NS ? value : MOST_NS;
}

/* Rank 0 hears every rank of itself only; the others hear rank 0 of all. */
static bool take(const struct ls__tcp_control *c, int from, const message *m, ls__pulse *pulse) {
    if (m->magic != MAGIC || m->rank >= (uint32_t)c->size || (int)m->rank == c->rank ||
        (from != 0 && (int)m->rank != from))
        return false;
    for (int r = 1; from == 0 && m->rank == 0 && r < c->size; r++)
        pulse[r] = (ls__pulse){.seen = true}; /* unless what follows says otherwise */
    ls__pulse *p = &pulse[m->rank];
    *p = (ls__pulse){.seen = m->seen != 0,
                     .silent_ns = (int)m->rank == from ? 0 : at_most(m->silent_ns),
                     .phase_age_ns = at_most(m->phase_age_ns),
                     .phase_extra_ns = at_most(m->phase_extra_ns)};
    ls__flight_copy_text(p->phase, sizeof p->phase, m->phase, sizeof m->phase);
    return true;
}

/* The line is over: the rank left or died, which the data's connections tell. Without rank 0 nothing is known
 * of anybody. */
static void lose(const struct ls__tcp_control *c, int from, ls__pulse *pulse) {
    for (int r = 0; r < c->size; r++) {
        if (r == from || from == 0)
            pulse[r] = (ls__pulse){.seen = false};
    }
}

static void receive(struct ls__tcp_control *c, int from, ls__pulse *pulse) {
    line *l = &c->line[from];
    while (l->fd >= 0) {
        ssize_t n = recv(l->fd, l->in + l->in_bytes, sizeof l->in - l->in_bytes, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        message m;
        bool good = n > 0;
        l->in_bytes += good ? (size_t)n : 0;
        if (good && l->in_bytes == sizeof m) {
            memcpy(&m, l->in, sizeof m);
            l->in_bytes = 0;
            good = take(c, from, &m, pulse);
        }
        if (!good) {
            end_line(l);
            lose(c, from, pulse);
        }
    }
}

/* --- for the heartbeat ------------------------------------------------------------------------------------------ */

static int lines_of(const struct ls__tcp_control *c) {
    return c->rank == 0 ? c->size : 1;
}

static int watch(void *context, struct pollfd *polls, int most) {
    const struct ls__tcp_control *c = context;
    int count = 0;
    for (int r = 0; r < lines_of(c) && count < most; r++) {
        if (c->line[r].fd >= 0)
            polls[count++] = (struct pollfd){.fd = c->line[r].fd, .events = POLLIN};
    }
    return count;
}

static void send_all(struct ls__tcp_control *c, const ls__pulse *own, const ls__pulse *pulse) {
    ls__pulse mine = *own;
    mine.seen = true;
    for (int to = 0; to < lines_of(c); to++) {
        line *l = &c->line[to];
        if (l->fd < 0)
            continue;
        tell(l, c->rank, &mine);
        for (int r = 1; c->rank == 0 && r < c->size; r++) {
            if (r != to && is_worth_telling(&pulse[r]))
                tell(l, r, &pulse[r]);
        }
    }
}

/* What rank 0 does not repeat ages by itself; silence is counted by those who listen themselves. */
static void age(const struct ls__tcp_control *c, ls__pulse *pulse, uint64_t passed) {
    for (int r = 0; r < c->size; r++) {
        pulse[r].phase_age_ns += passed;
        if (pulse[r].seen && (c->rank == 0 || r == 0))
            pulse[r].silent_ns += passed;
    }
}

static void serve(void *context, const ls__pulse *own, ls__pulse *pulse, bool beat,
                  uint64_t passed) {
    struct ls__tcp_control *c = context;
    for (int r = 0; !c->greeted && r < lines_of(c); r++)
        pulse[r].seen = c->line[r].fd >= 0;
    c->greeted = true;
    age(c, pulse, passed);
    for (int r = 0; r < lines_of(c); r++)
        receive(c, r, pulse);
    if (beat)
        send_all(c, own, pulse);
}

/* --- making the connections ---------------------------------------------------------------------------------------- */

static bool is_missing(const void *context, int rank) {
    const ls__tcp_join *join = context;
    return rank != 0 && join->control->line[rank].fd < 0;
}

static ls_status admit(ls__tcp_join *join, ls__tcp_guest *guest) {
    const ls__tcp_hello *theirs = &guest->theirs;
    bool fits = theirs->order == LS__TCP_ORDER && theirs->version == LS__TCP_VERSION &&
                theirs->world == (uint32_t)join->world && theirs->rank < theirs->world;
    if (!fits || !is_missing(join, (int)theirs->rank)) {
        ls__tcp_close_fd(guest->fd);
        return ls__fail(LS_ERR_MISMATCH, "rank 0: rank %u of %u connects a second time",
                        theirs->rank, theirs->world);
    }
    join->control->line[theirs->rank].fd = guest->fd;
    ls__tcp_set_options(guest->fd);
    return LS_OK;
}

static ls_status collect_round(ls__tcp_join *join, ls__tcp_lobby *lobby, struct pollfd *polls) {
    char missing[256];
    struct pollfd *lobby_polls = polls + join->world;
    ls__tcp_rank_list(missing, sizeof missing, join->world, is_missing, join);
    if (ls__now_ns() >= join->deadline)
        return ls__fail(
            LS_ERR_TIMEOUT,
            "rank 0: timed out after %g s waiting for ranks %s to connect for heartbeats",
            join->place->timeout_s, missing);
    for (int rank = 0; rank < join->world; rank++)
        polls[rank] = (struct pollfd){.fd = join->fd[rank], .events = POLLIN};
    ls__tcp_lobby_poll(lobby, lobby_polls);
    int ms = ls__tcp_poll_ms(join->deadline);
    if (poll(polls, (nfds_t)join->world + (nfds_t)lobby->size + 1, ms < ROUND_MS ? ms : ROUND_MS) <
            0 &&
        errno != EINTR)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "rank 0: poll");
    for (int rank = 1; rank < join->world; rank++) {
        if (polls[rank].revents != 0) /* only a failure can come now */
            LS_TRY(ls__tcp_note_recv(join, rank, LS__TCP_FAIL, NULL, 0));
    }
    ls__tcp_guest guest;
    while (ls__tcp_lobby_serve(lobby, lobby_polls, &guest))
        LS_TRY(admit(join, &guest));
    return ls__tcp_lobby_status(lobby);
}

ls_status ls__tcp_control_collect(ls__tcp_join *join) {
    ls__tcp_lobby lobby;
    LS_TRY(ls__tcp_lobby_open(&lobby, join, LS__TCP_CONTROL));
    size_t count = (size_t)join->world + (size_t)lobby.size + 1;
    struct pollfd *polls = calloc(count, sizeof *polls);
    ls_status status = polls ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory for %zu polls", count);
    for (int rank = 1; rank < join->world && status == LS_OK; rank++) {
        while (status == LS_OK && is_missing(join, rank))
            status = collect_round(join, &lobby, polls);
    }
    free(polls);
    ls__tcp_lobby_close(&lobby);
    return status;
}

ls_status ls__tcp_control_dial(ls__tcp_join *join) {
    return ls__tcp_dial(join, LS__TCP_CONTROL, 0, &join->control->line[0].fd);
}

/* --- its life -------------------------------------------------------------------------------------------------------- */

ls_status ls__tcp_control_create(struct ls__tcp_control **control, int rank, int size) {
    size_t lines = rank == 0 ? (size_t)size : 1;
    struct ls__tcp_control *c = calloc(1, sizeof *c + lines * sizeof(line));
    *control = c;
    if (!c)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %d ranks", size);
    c->rank = rank;
    c->size = size;
    for (size_t i = 0; i < lines; i++)
        c->line[i].fd = -1;
    return LS_OK;
}

static void end(void *context) {
    ls__tcp_control_free(context);
}

void ls__tcp_control_start(struct ls__tcp_control *control, ls__heartbeat *heartbeat) {
    const ls__heartbeat_link link = {
        .context = control, .watch = watch, .serve = serve, .free = end};
    ls__heartbeat_link_to(heartbeat, &link);
}

void ls__tcp_control_free(struct ls__tcp_control *control) {
    for (int r = 0; control && r < lines_of(control); r++)
        end_line(&control->line[r]);
    free(control);
}
