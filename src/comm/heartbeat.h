/* Is a rank that does not arrive slow, or has it stopped? One thread a job, apart from data and from
 * computing, beats twice a second with the phase the rank is in, and listens to the others: on the board
 * where they share one, else over connections of its own (tcp/control.c). A process that was stopped, or whose
 * machine or link is gone, beats no more, and whoever waits for it learns that long before the operation's
 * deadline; one that computes for long, or is stuck in something of its own, beats on.
 *
 * Cost: two wake-ups a second; a rank's beats are one cache line on the board, or 128 bytes to rank 0 and
 * a few back. */
#ifndef LS_COMM_HEARTBEAT_H
#define LS_COMM_HEARTBEAT_H

#include "comm/board.h"
#include <poll.h>

typedef struct ls__heartbeat ls__heartbeat;

/* What is known of another rank. */
typedef struct ls__pulse {
    bool seen;          /* it has beaten at least once, and has not left since */
    uint64_t silent_ns; /* since its last beat was seen; time this process slept does not count */
    char phase[LS__FLIGHT_NAME_BYTES]; /* "": none */
    uint64_t phase_age_ns;             /* how long it has been in it */
    uint64_t phase_extra_ns;           /* for how long deadlines stand still */
} ls__pulse;

/* The first failure that a rank of the job has told of. */
typedef struct ls__failure {
    int rank; /* of the world; -1: none */
    uint32_t status;
    uint64_t group;
    char text[512];
} ls__failure;

/* How beats travel where there is no board: called by one thread at a time. */
typedef struct ls__heartbeat_link {
    void *context;
    /* Descriptors to wait for, at most `most`: how many. */
    int (*watch)(void *context, struct pollfd *polls, int most);
    /* Takes in what has come: pulse[r] of the other ranks, whose silence and phases it also ages by
     * `passed` ns, and *failure where there is none yet. Tells of *failure, once; `beat`: it is time to
     * send `own`. */
    void (*serve)(void *context, const ls__pulse *own, ls__pulse *pulse, ls__failure *failure,
                  bool beat, uint64_t passed);
    void (*free)(void *context); /* when the heartbeat ends: it may outlive the transport */
} ls__heartbeat_link;

/* Seconds of silence that count as stopped: `given` where it is not 0, else LOCKSTEP_HEARTBEAT, else 10; INFINITY:
 * never. */
LS_SHARED ls_status ls__heartbeat_limit(double given_s, double *limit_s);

/* `board` is read, and its own slot written, until the stop. limit_s: silence that counts as stopped; INFINITY:
 * none does. A world of one has no thread: *heartbeat is NULL, which all below takes. */
ls_status ls__heartbeat_start(ls__heartbeat **heartbeat, ls__board *board, double limit_s);
/* Takes the link over; once. */
void ls__heartbeat_link_to(ls__heartbeat *heartbeat, const ls__heartbeat_link *link);
void ls__heartbeat_stop(ls__heartbeat *heartbeat);

/* The phase of this rank; NULL ends it. */
void ls__heartbeat_set_phase(ls__heartbeat *heartbeat, const char *phase, double extra_s);

/* Whether `rank` of the world has stopped; then `text` gets "has stopped: no heartbeat for 10.2 s ...". Any
 * thread. */
bool ls__heartbeat_stopped(ls__heartbeat *heartbeat, int rank, char *text, size_t bytes);
/* Whether more can come from `rank`: it has beaten, and nothing says that it left or died. */
bool ls__heartbeat_hears(ls__heartbeat *heartbeat, int rank);
/* ", in phase 'evaluation'" or "" */
void ls__heartbeat_phase(ls__heartbeat *heartbeat, int rank, char *text, size_t bytes);
/* This rank gave up an operation of `group`: those who wait in it are told, past any data that is under way. */
void ls__heartbeat_fail(ls__heartbeat *heartbeat, uint64_t group, ls_status status,
                        const char *text);
/* Whether another rank gave up an operation of `group`. */
bool ls__heartbeat_failure(ls__heartbeat *heartbeat, uint64_t group, ls__failure *failure);
/* The time so far during which deadlines stood still, because some rank was in a phase that allows it. */
uint64_t ls__heartbeat_paused_ns(const ls__heartbeat *heartbeat);

/* When the operation's wait ends; moves while deadlines stand still. */
static inline uint64_t ls__operation_deadline(const ls__heartbeat *heartbeat,
                                              const ls__operation *operation) {
    uint64_t paused = ls__heartbeat_paused_ns(heartbeat) - operation->paused_ns;
    return operation->deadline > UINT64_MAX - paused ? UINT64_MAX : operation->deadline + paused;
}

#endif
