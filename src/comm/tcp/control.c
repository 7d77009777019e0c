/* The connections of the heartbeat: a star around rank 0, apart from data, so that a beat never queues behind
 * a gradient. Every rank sends rank 0 its own state twice a second; rank 0 sends everybody its own, and
 * behind it what there is to tell of the others: who is silent, in a phase, or has left. One message is
 * 104 bytes; in a job where all is well a rank gets one, and rank 0 p - 1, a beat.
 *
 * Who gives up an operation says so here, too, at once: behind the data of a large operation its goodbye may be
 * stuck.
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

enum { BEAT = 1, FAILURE };

typedef struct head {
    uint32_t magic, kind, rank, flag; /* BEAT: seen; FAILURE: its status */
} head;

typedef struct beat {
    head head;
    uint64_t silent_ns, phase_age_ns, phase_extra_ns;
    char phase[LS__FLIGHT_NAME_BYTES];
} beat;

typedef struct failure {
    head head;
    uint64_t group;
    char text[sizeof((ls__failure *)0)->text];
} failure;

typedef union message {
    head head;
    beat beat;
    failure failure;
} message;

typedef struct line {
    int fd;           /* -1: none, or it is over */
    bool has_failure; /* it has been told of the job's first failure */
    size_t in_bytes, out_at, out_bytes;
    message in, out;
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
        ssize_t n = send(l->fd, (const char *)&l->out + l->out_at, l->out_bytes - l->out_at,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            l->out_at += (size_t)n;
        else if (n == 0 || errno != EINTR)
            return; /* not now, or it is over: reading tells, and takes in last words first */
    }
    l->out_at = l->out_bytes = 0;
}

/* True when the line takes another message. */
static bool has_room(line *l) {
    flush(l);
    return l->fd >= 0 && l->out_bytes == 0;
}

static void tell(line *l, int rank, const ls__pulse *pulse) {
    if (!has_room(l))
        return;
    l->out.beat =
        (beat){.head = {.magic = MAGIC, .kind = BEAT, .rank = (uint32_t)rank, .flag = pulse->seen},
               .silent_ns = pulse->silent_ns,
               .phase_age_ns = pulse->phase_age_ns,
               .phase_extra_ns = pulse->phase_extra_ns};
    memcpy(l->out.beat.phase, pulse->phase, sizeof l->out.beat.phase);
    l->out_bytes = sizeof l->out.beat;
    flush(l);
}

static void tell_failure(line *l, const ls__failure *f) {
    if (l->has_failure || f->rank < 0 || !has_room(l))
        return;
    l->out.failure = (failure){
        .head = {.magic = MAGIC, .kind = FAILURE, .rank = (uint32_t)f->rank, .flag = f->status},
        .group = f->group};
    memcpy(l->out.failure.text, f->text, sizeof l->out.failure.text);
    l->out_bytes = sizeof l->out.failure;
    l->has_failure = true;
    flush(l);
}

static bool is_worth_telling(const ls__pulse *pulse) {
    return !pulse->seen || pulse->silent_ns >= TOLD_NS || pulse->phase[0];
}

/* --- receiving ------------------------------------------------------------------------------------------------ */

static uint64_t at_most(uint64_t value) {
    return value < MOST_NS ? value : MOST_NS;
}

static bool is_valid(const struct ls__tcp_control *c, const head *h) {
    return h->magic == MAGIC && (h->kind == BEAT || h->kind == FAILURE) &&
           h->rank < (uint32_t)c->size;
}

/* Rank 0 hears every rank of itself only; the others hear rank 0 of all. */
static bool take_beat(const struct ls__tcp_control *c, int from, const beat *m, ls__pulse *pulse) {
    const int rank = (int)m->head.rank;
    if (rank == c->rank || (from != 0 && rank != from))
        return false;
    for (int r = 1; from == 0 && rank == 0 && r < c->size; r++)
        pulse[r] = (ls__pulse){.seen = true}; /* unless what follows says otherwise */
    ls__pulse *p = &pulse[rank];
    *p = (ls__pulse){.seen = m->head.flag != 0,
                     .silent_ns = rank == from ? 0 : at_most(m->silent_ns),
                     .phase_age_ns = at_most(m->phase_age_ns),
                     .phase_extra_ns = at_most(m->phase_extra_ns)};
    ls__flight_copy_text(p->phase, sizeof p->phase, m->phase, sizeof m->phase);
    return true;
}

static void take_failure(line *l, const failure *m, ls__failure *f) {
    l->has_failure = true; /* it knows */
    if (f->rank >= 0)
        return;
    *f = (ls__failure){.rank = (int)m->head.rank, .status = m->head.flag, .group = m->group};
    ls__flight_copy_text(f->text, sizeof f->text, m->text, sizeof m->text);
}

/* The line is over: the rank left or died, which the data's connections tell. Without rank 0 nothing new is
 * heard of anybody: who was silent by then stays so, the others are not blamed. */
static void lose(const struct ls__tcp_control *c, int from, ls__pulse *pulse) {
    for (int r = 0; r < c->size; r++) {
        if (r == from || (from == 0 && pulse[r].silent_ns < TOLD_NS))
            pulse[r] = (ls__pulse){.seen = false};
    }
}

/* 1 a message is complete, 0 not yet, -1 the line is over or garbled */
static int fill(const struct ls__tcp_control *c, line *l) {
    for (;;) {
        size_t want = sizeof l->in.head;
        if (l->in_bytes >= want) {
            if (!is_valid(c, &l->in.head))
                return -1;
            want = l->in.head.kind == BEAT ? sizeof l->in.beat : sizeof l->in.failure;
        }
        if (l->in_bytes == want)
            return 1;
        ssize_t n = recv(l->fd, (char *)&l->in + l->in_bytes, want - l->in_bytes, MSG_DONTWAIT);
        if (n > 0)
            l->in_bytes += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        else if (n == 0 || errno != EINTR)
            return -1;
    }
}

static void receive(struct ls__tcp_control *c, int from, ls__pulse *pulse, ls__failure *f) {
    line *l = &c->line[from];
    while (l->fd >= 0) {
        int got = fill(c, l);
        if (got == 0)
            return;
        if (got > 0 && l->in.head.kind == FAILURE)
            take_failure(l, &l->in.failure, f);
        else if (got > 0 && !take_beat(c, from, &l->in.beat, pulse))
            got = -1;
        l->in_bytes = 0;
        if (got < 0) {
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
    const bool listens = c->rank == 0 || c->line[0].fd < 0;
    for (int r = 0; r < c->size; r++) {
        pulse[r].phase_age_ns += passed;
        if (pulse[r].seen && (listens || r == 0))
            pulse[r].silent_ns += passed;
    }
}

static void serve(void *context, const ls__pulse *own, ls__pulse *pulse, ls__failure *f, bool due,
                  uint64_t passed) {
    struct ls__tcp_control *c = context;
    for (int r = 0; !c->greeted && r < lines_of(c); r++)
        pulse[r].seen = c->line[r].fd >= 0;
    c->greeted = true;
    age(c, pulse, passed);
    for (int r = 0; r < lines_of(c); r++)
        receive(c, r, pulse, f);
    for (int r = 0; r < lines_of(c); r++)
        tell_failure(&c->line[r], f);
    if (due)
        send_all(c, own, pulse);
}

void ls__tcp_control_adopt(struct ls__tcp_control *control, int rank, int fd) {
    control->line[rank].fd = fd;
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
    ls__tcp_control_adopt(join->control, (int)theirs->rank, guest->fd);
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
    int fd;
    LS_TRY(ls__tcp_dial(join, LS__TCP_CONTROL, 0, &fd));
    ls__tcp_control_adopt(join->control, 0, fd);
    return LS_OK;
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

ls__heartbeat_link ls__tcp_control_link(struct ls__tcp_control *control) {
    return (ls__heartbeat_link){.context = control, .watch = watch, .serve = serve, .free = end};
}

void ls__tcp_control_start(struct ls__tcp_control *control, ls__heartbeat *heartbeat) {
    const ls__heartbeat_link link = ls__tcp_control_link(control);
    ls__heartbeat_link_to(heartbeat, &link);
}

void ls__tcp_control_free(struct ls__tcp_control *control) {
    for (int r = 0; control && r < lines_of(control); r++)
        end_line(&control->line[r]);
    free(control);
}
