#include "comm/heartbeat.h"

#include "base/clock.h"
#include "comm/variables.h"
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

static const double PERIOD_S = 0.5;

struct ls__heartbeat {
    ls__board *board;
    double limit_s;
    uint64_t period_ns;
    _Atomic uint64_t paused_ns;
    pthread_mutex_t lock; /* guards what follows; held for moments only */
    bool stop;
    ls__pulse own;
    uint64_t own_since_ns;
    ls__pulse *pulse; /* (ranks) */
    uint64_t *beats;  /* (ranks) on the board, when last looked at */
    ls__failure failure;
    bool linked;
    ls__heartbeat_link link;
    /* the thread's own */
    int wake_fd;
    struct pollfd *polls; /* wake_fd, then the link's */
    int most_polls;
    pthread_t thread;
};

/* --- the board's part ----------------------------------------------------------------------------------- */

/* Texts are shared as words, under a version that is odd while they change. */
static void show_phase(ls__board_slot *slot, const ls__pulse *own, uint64_t since_ns) {
    uint64_t words[LS__BOARD_PHASE_WORDS];
    memcpy(words, own->phase, sizeof words);
    atomic_fetch_add(&slot->phase_version, 1);
    for (int i = 0; i < LS__BOARD_PHASE_WORDS; i++)
        atomic_store(&slot->phase[i], words[i]);
    atomic_store(&slot->phase_since_ns, since_ns);
    atomic_store(&slot->phase_extra_ns, own->phase_extra_ns);
    atomic_fetch_add(&slot->phase_version, 1);
}

static void look_at_slot(ls__heartbeat *h, int rank, uint64_t now, uint64_t passed) {
    const ls__board_slot *slot = &h->board->slot[rank];
    ls__pulse *pulse = &h->pulse[rank];
    uint64_t beats = atomic_load(&slot->beats);
    if (!atomic_load(&slot->pid) || atomic_load(&slot->left)) {
        *pulse = (ls__pulse){.seen = false};
        return;
    }
    if (beats != h->beats[rank]) {
        pulse->seen = true;
        pulse->silent_ns = 0;
    } else {
        pulse->silent_ns += passed;
    }
    h->beats[rank] = beats;
    uint64_t since = 0;
    if (ls__board_read_phase(slot, pulse->phase, &since, &pulse->phase_extra_ns))
        pulse->phase_age_ns = now > since ? now - since : 0;
}

/* --- the thread ------------------------------------------------------------------------------------------- */

static bool pauses(const ls__pulse *pulse) {
    return pulse->phase[0] && pulse->phase_age_ns < pulse->phase_extra_ns;
}

/* Called with the lock. `passed` is at most two periods: while this process was stopped itself, it could hear
 * nobody, and blames nobody. */
static void beat(ls__heartbeat *h, uint64_t now, uint64_t passed) {
    int own_rank = h->board->rank;
    atomic_fetch_add(&h->board->mine->beats, 1);
    h->own.phase_age_ns = now - h->own_since_ns;
    bool paused = pauses(&h->own);
    for (int r = 0; r < h->board->ranks; r++) {
        if (r == own_rank)
            continue;
        if (h->board->mapped && !h->linked)
            look_at_slot(h, r, now, passed);
        paused |= pauses(&h->pulse[r]);
    }
    if (paused)
        atomic_fetch_add(&h->paused_ns, passed);
}

static void *beat_on(void *argument) {
    ls__heartbeat *h = argument;
    uint64_t last = ls__now_ns(), next = last;
    prctl(PR_SET_NAME, "lockstep-beat");
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        uint64_t now = ls__now_ns(), passed = 0;
        bool due = now >= next;
        if (due) {
            passed = now - last < 2 * h->period_ns ? now - last : 2 * h->period_ns;
            beat(h, now, passed);
            last = now;
            next = now + h->period_ns;
        }
        int count = 1;
        h->polls[0] = (struct pollfd){.fd = h->wake_fd, .events = POLLIN};
        if (h->linked) {
            h->link.serve(h->link.context, &h->own, h->pulse, &h->failure, due, passed);
            count += h->link.watch(h->link.context, h->polls + 1, h->most_polls - 1);
        }
        pthread_mutex_unlock(&h->lock);
        now = ls__now_ns();
        (void)poll(h->polls, (nfds_t)count, now < next ? (int)((next - now) / 1000000) + 1 : 0);
        uint64_t rings;
        if (h->polls[0].revents && read(h->wake_fd, &rings, sizeof rings) > 0)
            next = 0; /* something changed: the others should know now */
        pthread_mutex_lock(&h->lock);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static void wake(ls__heartbeat *h) {
    const uint64_t one = 1;
    ssize_t written = write(h->wake_fd, &one, sizeof one);
    (void)written; /* it cannot fail: the counter is far from full */
}

/* --- its life ----------------------------------------------------------------------------------------------- */

static void free_all(ls__heartbeat *h) {
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    free(h->pulse);
    free(h->beats);
    free(h->polls);
    free(h);
}

ls_status ls__heartbeat_limit(double given_s, double *limit_s) {
    const char *text = ls__variable("LOCKSTEP_HEARTBEAT");
    bool off = text && strcmp(text, "off") == 0;
    *limit_s = off ? INFINITY : 10;
    if (off && given_s == 0)
        return LS_OK;
    return ls__variable_seconds("LOCKSTEP_HEARTBEAT", "heartbeat_s", given_s, limit_s);
}

ls_status ls__heartbeat_start(ls__heartbeat **heartbeat, ls__board *board, double limit_s) {
    *heartbeat = NULL;
    if (board->ranks < 2)
        return LS_OK;
    size_t ranks = (size_t)board->ranks;
    ls__heartbeat *h = calloc(1, sizeof *h);
    if (!h)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    h->board = board;
    h->limit_s = limit_s;
    h->failure.rank = -1;
    h->period_ns = (uint64_t)(fmin(PERIOD_S, limit_s / 4) * 1e9);
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->pulse = calloc(ranks, sizeof *h->pulse);
    h->beats = calloc(ranks, sizeof *h->beats);
    h->most_polls = board->ranks + 1;
    h->polls = calloc((size_t)h->most_polls, sizeof *h->polls);
    int error = 0;
    if (h->wake_fd < 0 || !h->pulse || !h->beats || !h->polls) {
        free_all(h);
        return ls__fail(LS_ERR_MEMORY, "no memory or open file for the job's heartbeat");
    }
    pthread_mutex_init(&h->lock, NULL);
    sigset_t all, before;
    sigfillset(&all); /* signals belong to the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&h->thread, NULL, beat_on, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        pthread_mutex_destroy(&h->lock);
        free_all(h);
        return ls__fail_errno(LS_ERR_SYSTEM, error, "cannot create the job's heartbeat");
    }
    *heartbeat = h;
    return LS_OK;
}

void ls__heartbeat_link_to(ls__heartbeat *h, const ls__heartbeat_link *link) {
    pthread_mutex_lock(&h->lock);
    h->link = *link;
    h->linked = true;
    memset(h->pulse, 0, (size_t)h->board->ranks * sizeof *h->pulse);
    pthread_mutex_unlock(&h->lock);
    wake(h);
}

void ls__heartbeat_stop(ls__heartbeat *h) {
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_mutex_unlock(&h->lock);
    wake(h);
    pthread_join(h->thread, NULL);
    pthread_mutex_destroy(&h->lock);
    if (h->linked)
        h->link.free(h->link.context);
    free_all(h);
}

/* --- asking ------------------------------------------------------------------------------------------------- */

void ls__heartbeat_set_phase(ls__heartbeat *h, const char *phase, double extra_s) {
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->own = (ls__pulse){.seen = true, .phase_extra_ns = (uint64_t)(fmin(extra_s, 1e9) * 1e9)};
    if (phase)
        ls__flight_copy_text(h->own.phase, sizeof h->own.phase, phase, sizeof h->own.phase);
    h->own_since_ns = ls__now_ns();
    show_phase(h->board->mine, &h->own, h->own_since_ns);
    pthread_mutex_unlock(&h->lock);
    wake(h);
}

static ls__pulse pulse_of(ls__heartbeat *h, int rank) {
    ls__pulse none = {.seen = false};
    if (!h || rank < 0 || rank >= h->board->ranks)
        return none;
    pthread_mutex_lock(&h->lock);
    ls__pulse pulse = h->pulse[rank];
    pthread_mutex_unlock(&h->lock);
    return pulse;
}

bool ls__heartbeat_stopped(ls__heartbeat *h, int rank, char *text, size_t bytes) {
    ls__pulse pulse = pulse_of(h, rank);
    if (!pulse.seen || (double)pulse.silent_ns * 1e-9 < h->limit_s)
        return false;
    char phase[LS__FLIGHT_NAME_BYTES + 32] = "";
    if (pulse.phase[0])
        snprintf(phase, sizeof phase, ", last seen in phase '%s'", pulse.phase);
    snprintf(
        text, bytes,
        "has stopped: no heartbeat for %.1f s%s (a process that was stopped on purpose, as by a "
        "debugger, wants a larger LOCKSTEP_HEARTBEAT, or off)",
        (double)pulse.silent_ns * 1e-9, phase);
    return true;
}

bool ls__heartbeat_hears(ls__heartbeat *h, int rank) {
    return pulse_of(h, rank).seen;
}

void ls__heartbeat_phase(ls__heartbeat *h, int rank, char *text, size_t bytes) {
    ls__pulse pulse = pulse_of(h, rank);
    text[0] = '\0';
    if (pulse.phase[0])
        snprintf(text, bytes, ", in phase '%s'", pulse.phase);
}

/* At once and here: the process may end before the thread's turn. */
void ls__heartbeat_fail(ls__heartbeat *h, uint64_t group, ls_status status, const char *text) {
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    if (h->failure.rank < 0) {
        h->failure =
            (ls__failure){.rank = h->board->rank, .status = (uint32_t)status, .group = group};
        ls__flight_copy_text(h->failure.text, sizeof h->failure.text, text, sizeof h->failure.text);
        if (h->linked)
            h->link.serve(h->link.context, &h->own, h->pulse, &h->failure, false, 0);
    }
    pthread_mutex_unlock(&h->lock);
}

bool ls__heartbeat_failure(ls__heartbeat *h, uint64_t group, ls__failure *failure) {
    if (!h)
        return false;
    pthread_mutex_lock(&h->lock);
    *failure = h->failure;
    pthread_mutex_unlock(&h->lock);
    return failure->rank >= 0 && failure->rank != h->board->rank && failure->group == group;
}

uint64_t ls__heartbeat_paused_ns(const ls__heartbeat *h) {
    return h ? atomic_load_explicit(&h->paused_ns, memory_order_relaxed) : 0;
}
