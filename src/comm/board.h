/* The board of a job: one slot a rank, in which the rank shows what it does. Under a launcher the board is
 * memory that the launcher made and all ranks of the machine map (LOCKSTEP_BOARD_FD, a descriptor without
 * a name, as the segment's): the launcher reads it when a rank has died, whatever transport the job uses.
 * Without one it is the rank's own slot in its own memory. */
#ifndef LS_COMM_BOARD_H
#define LS_COMM_BOARD_H

#include "comm/flight.h"
#include <lockstep/job.h>

enum { LS__BOARD_PHASE_WORDS = LS__FLIGHT_NAME_BYTES / 8 };

typedef struct ls__board_slot {
    _Alignas(64) _Atomic uint32_t pid; /* 0: nobody has come */
    _Atomic uint32_t left;             /* ls_job_finish was called */
    _Atomic uint32_t absent;           /* set by the launcher: ended before it came */
    _Atomic int64_t clock_offset_ns;   /* CLOCK_REALTIME - CLOCK_MONOTONIC */
    char host[LS__FLIGHT_NAME_BYTES];  /* written before `pid` */
    /* the heartbeat's (heartbeat.c) */
    _Alignas(64) _Atomic uint64_t beats;
    _Atomic uint32_t phase_version; /* odd: the phase is being written */
    _Atomic uint64_t phase_since_ns, phase_extra_ns;
    _Atomic uint64_t phase[LS__BOARD_PHASE_WORDS]; /* text */
    ls__flight flight;
} ls__board_slot;

/* A process's view of it. */
typedef struct ls__board {
    int ranks;            /* of the job */
    int rank;             /* this one; -1: the launcher */
    size_t mapped;        /* bytes; 0: `mine` is the only slot, in ordinary memory */
    ls__board_slot *slot; /* (ranks), where mapped */
    ls__board_slot *mine; /* NULL: the launcher */
    char *folder;         /* where this rank writes its record itself; NULL: nowhere */
    /* Is told once when that cannot be done; NULL: nobody. Set after ls__board_join. */
    ls_log_fn log;
    void *log_context;
} ls__board;

/* This rank's machine; "?" where unknown. */
static inline const char *ls__board_host(const ls__board *board) {
    return board && board->mine ? board->mine->host : "?";
}

static inline ls__flight *ls__board_flight(const ls__board *board) {
    return board ? &board->mine->flight : NULL;
}

/* The launcher's part: a memfd (close-on-exec) for `ranks` ranks, mapped. */
LS_SHARED ls_status ls__board_create(ls__board *board, int ranks, int *fd);
/* A rank's part. `fd` -1: no launcher; then `folder` (may be NULL) gets this rank's record. A board that is none, or whose slot another living process holds, is
 * as good as none: nothing of a job depends on it. */
ls_status ls__board_join(ls__board *board, int fd, int rank, int ranks, const char *folder);
/* This rank's first error; further ones are consequences. Keeps the thread's error text. */
void ls__board_fail(ls__board *board, const char *text);
/* `leaves`: this rank has ended in peace. */
LS_SHARED void ls__board_close(ls__board *board, bool leaves);

/* The launcher's word that the process of `rank` has ended, with code 0, and never came: whoever waits for
 * it to join waits in vain. Nothing where it did come. */
LS_SHARED void ls__board_mark_absent(ls__board *board, int rank);
/* False where nobody can tell. */
bool ls__board_is_absent(const ls__board *board, int rank);

/* What rank `rank` shows (the own rank where the board is not shared), as of `taken_ns`. */
LS_SHARED void ls__board_read(const ls__board *board, int rank, uint64_t taken_ns,
                              ls__flight_record *record);

/* The phase shown in a slot; false while it changes. */
bool ls__board_read_phase(const ls__board_slot *slot, char phase[LS__FLIGHT_NAME_BYTES],
                          uint64_t *since_ns, uint64_t *extra_ns);

#endif
