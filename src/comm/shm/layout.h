/* What lies where in the segment, and this process's view of it.
 *
 *     control | one slot a rank | staging: 2 halves a rank | mailboxes: one an ordered pair | regions...
 *
 * Regions (ls_group_alloc) come and go behind the rest; the file grows with them. Everything that two
 * processes write and read at the same time is _Atomic; everything else is written before an arrival
 * and read after it. */
#ifndef LS_COMM_SHM_LAYOUT_H
#define LS_COMM_SHM_LAYOUT_H

#include "base/level.h"
#include "comm/shm/segment.h"
#include "comm/transport.h"
#include <sched.h>
#include <stdatomic.h>

enum {
    LS__SHM_VERSION = 2,
    LS__SHM_RANKS_MAX = 256,
    LS__SHM_REASON_BYTES = 768,
    LS__SHM_HALF_BYTES = 128 * 1024, /* staging; two halves a rank stay in the second-level cache */
    LS__SHM_TINY_BYTES = 2048,       /* up to here a value is in place before the arrival */
    LS__SHM_INLINE_BYTES = 32,       /* up to here it is part of the arrival */
    LS__SHM_CELLS = 4,               /* of a mailbox */
    LS__SHM_CELL_BYTES = 8192 - 128,
};

/* The number of arrivals starts short of where it wraps around, so every job passes that place. */
#define LS__SHM_FIRST_ARRIVAL (UINT32_MAX - 40)

/* Where a buffer is, for the other ranks: `region` 0 is memory only its own rank can see. */
typedef struct ls__shm_place {
    uint64_t region;
    uint64_t offset; /* bytes from the start of the region (of all ranks' parts) */
} ls__shm_place;

/* What a rank tells the others when it arrives at a meeting. */
typedef struct ls__shm_notice {
    uint64_t identity; /* ls__header_identity: equal headers, equal numbers */
    uint64_t arrived_ns;
    double weight; /* of the header */
    union {        /* as the operation has it */
        struct {
            ls__shm_place send, recv;
        };
        char value[LS__SHM_INLINE_BYTES]; /* travels with the arrival */
        uint32_t status;                  /* outcome of this rank's share of an allocation */
    };
} ls__shm_notice;

/* An arrival: one cache line, so one look tells whether a rank is there, whether it does the same, and what
 * it brings. `stamp` is the number of the arrival, written last. */
typedef struct ls__shm_arrival {
    _Alignas(64) _Atomic uint32_t stamp;
    ls__shm_notice notice;
} ls__shm_arrival;

/* A place to sleep: `bell` changes whenever there is something new to look at. */
typedef struct ls__shm_bell {
    _Alignas(64) _Atomic uint32_t bell;
    _Atomic uint32_t sleepers;
} ls__shm_bell;

typedef struct ls__shm_slot {
    /* In turn, see ls__shm_meet. Others read these all the time, so nothing else is in their lines. */
    ls__shm_arrival arrival[2];
    _Alignas(64) ls__header header[2];      /* the same, in full: read where identities differ */
    _Atomic uint32_t pid;                   /* 0: not there yet */
    _Atomic uint64_t start_time;            /* of the process, so that a reused pid is told apart */
    _Atomic uint32_t left;                  /* ls_job_finish was called */
    _Atomic uint64_t doing;                 /* doing.c; 0: no operation */
    _Atomic uint64_t waits;                 /* doing.c; for a message; 0: not asleep for one */
    cpu_set_t cores;                        /* it may run on; written before it joins */
    ls__shm_bell mail;                      /* something moved in one of this rank's mailboxes */
    char own_reason[LS__SHM_REASON_BYTES];  /* why this rank gave up, written by itself */
    char told_reason[LS__SHM_REASON_BYTES]; /* what became of it, written by the launcher */
    _Atomic uint32_t own_written, told_written; /* LS__SHM_WRITTEN when the words are there */
    _Atomic uint32_t own_status;                /* an ls_status, written before `aborted` */
} ls__shm_slot;

typedef struct ls__shm_control {
    uint64_t magic;
    uint32_t version;
    uint32_t ranks;
    ls__shm_bell all;      /* for those who sleep until all have arrived */
    _Atomic uint32_t rung; /* the latest arrival that `all` was rung for */
    /* 0, or 1 + the rank that ended the job first; LS__SHM_TOLD says whose words to read. Set by one
     * compare-and-swap after the words were written, so that a process killed halfway locks nothing. */
    _Alignas(64) _Atomic uint32_t aborted;
    ls__shm_slot slot[];
} ls__shm_control;

enum { LS__SHM_TOLD = 0x10000, LS__SHM_WRITTEN = 2 };

/* One direction between two ranks: a ring of cells. `head` is written by the sender, `tail` by the
 * receiver. A message is its header, then its bytes in as many cells as they take. */
typedef struct ls__shm_mailbox {
    _Alignas(64) _Atomic uint32_t head;
    _Alignas(64) _Atomic uint32_t tail;
    _Atomic uint32_t refused; /* the receiver found a header that is not the one it wanted */
    struct {
        _Alignas(64) ls__header header;
        char data[LS__SHM_CELL_BYTES];
    } cell[LS__SHM_CELLS];
} ls__shm_mailbox;

/* Offsets into the segment. */
size_t ls__shm_staging_offset(int ranks);
size_t ls__shm_mailbox_offset(int ranks);
size_t ls__shm_control_bytes(int ranks); /* all of it; regions begin here; whole pages */

/* Maps the control area of `fd` after checking that it is one. */
ls_status ls__shm_map(int fd, ls__shm_control **control, size_t *mapped);

/* Rings after a change that a sleeper on `bell` may wait for. */
void ls__shm_ring(ls__shm_bell *bell);
void ls__shm_ring_everyone(ls__shm_control *control);

/* --- this process's view ---------------------------------------------------------------------- */

typedef struct ls__shm_region {
    uint64_t id;     /* 1, 2, ...: equal on all ranks, because all allocate in the same order */
    uint64_t offset; /* in the segment */
    size_t slice;    /* bytes of each rank, whole pages */
    char *base;      /* all ranks' slices */
    struct ls__shm_region *next; /* by offset */
} ls__shm_region;

typedef struct ls__shm {
    ls__transport base;
    int fd;
    bool crowded;        /* ranks outnumber cores */
    ls__cpu_level level; /* of the kernels */
    size_t cache_bytes;  /* of the largest cache */
    ls__shm_control *control;
    size_t mapped;
    uint32_t arrivals; /* number of this rank's latest */
    uint32_t met;      /* of the latest that was a meeting */
    uint32_t staged;   /* halves used so far */
    ls__shm_region *regions;
    uint64_t last_region;
    /* of a part: the job's segment, and where its ranks are there; else `control` and NULL, as they are */
    ls__shm_control *root;
    int *root_slot; /* (size), owned */
    ls__job_place place;
    uint64_t splits; /* operations of ls__shm_split */
} ls__shm;

static inline ls__shm_slot *ls__shm_my_slot(const ls__shm *shm) {
    return &shm->control->slot[shm->base.rank];
}

/* --- sync.c: waiting ---------------------------------------------------------------------------- */

/* Something that becomes true: *word has reached `target` (32-bit counters that wrap around). */
typedef struct ls__shm_condition {
    const _Atomic uint32_t *word;
    const struct ls__shm *everyone; /* instead of a word: all ranks' arrival number `target` */
    uint32_t target;
    ls__shm_bell *bell;
    int peer; /* the one rank that can make it true; -1: all that have not arrived */
    const struct ls__shm_condition *or_else; /* this one suffices, too; rings the same bell */
} ls__shm_condition;

bool ls__shm_reached(const ls__shm_condition *condition);
/* Rank r has made its arrival `number`. */
bool ls__shm_has_arrived(const ls__shm *shm, int r, uint32_t number);

ls_status ls__shm_wait(ls__shm *shm, const ls__operation *operation,
                       const ls__shm_condition *condition);
/* Arrives and waits until all ranks have. Orders memory: what a rank wrote before is seen after. */
ls_status ls__shm_sync(ls__shm *shm, const ls__operation *operation);
/* Where this rank's next meeting tells its places, value or status: written there at once, in the line that
 * the others read. */
static inline ls__shm_notice *ls__shm_next_notice(const ls__shm *shm) {
    return &ls__shm_my_slot(shm)->arrival[(shm->arrivals + 1) & 1].notice;
}
/* Arrives with that notice and the operation's header, and compares the headers of all ranks. Fills ready_ns
 * and last_rank the first time an operation calls it. */
ls_status ls__shm_meet(ls__shm *shm, ls__operation *operation);
/* Nothing worth a look at the clock has happened since the last rank arrived. */
static inline void ls__shm_ends_when_ready(ls__operation *op) {
    if (op->untimed)
        op->times.end_ns = op->times.ready_ns;
}
/* What rank r told at the last ls__shm_meet; valid until this rank's next arrival. */
const ls__shm_notice *ls__shm_notice_of(const ls__shm *shm, int r);

/* --- doing.c ------------------------------------------------------------------------------------ */

typedef struct ls__shm_doing {
    int kind;          /* ls__kind; 0: none */
    uint64_t sequence; /* modulo 2^56 */
} ls__shm_doing;

/* NULL: nothing any more. */
void ls__shm_show_doing(const ls__shm *shm, const ls__operation *operation);
ls__shm_doing ls__shm_doing_of(const ls__shm *shm, int r);
/* What this rank goes to sleep for; condition NULL: it does not sleep any more. */
void ls__shm_show_wait(const ls__shm *shm, const ls__operation *operation,
                       const ls__shm_condition *condition);
/* Whether the condition of a message cannot come true, because the other rank waits for this one. */
ls_status ls__shm_find_standoff(const ls__shm *shm, const ls__operation *operation,
                                const ls__shm_condition *condition);

/* --- split.c ------------------------------------------------------------------------------------ */

ls_status ls__shm_split(ls__transport *transport, int color, int key, uint64_t deadline,
                        ls__transport **part);

/* --- process.c ---------------------------------------------------------------------------------- */

/* Start time of a process in clock ticks since boot; 0 where unknown. */
uint64_t ls__process_start_time(uint32_t pid);
/* The process has ended, also when nobody has waited for it yet. */
bool ls__process_gone(uint32_t pid, uint64_t start_time);

/* --- region.c ----------------------------------------------------------------------------------- */

ls_status ls__shm_alloc(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_free(ls__shm *shm, ls__operation *operation);
void ls__shm_unmap_regions(ls__shm *shm);
/* Where this rank's buffer is; region 0 for memory outside of regions. */
ls__shm_place ls__shm_locate(const ls__shm *shm, const void *buffer, size_t bytes);
/* Another rank's place in this process; NULL for region 0. */
char *ls__shm_reach(const ls__shm *shm, ls__shm_place place);

/* --- all_reduce.c, reduce.c, reduce_scatter.c, gather.c, broadcast.c, exchange.c, mailbox.c ------- */

void ls__shm_explain(const ls__transport *transport, const ls__cost_question *question,
                     ls__cost_answer *answer);
ls_status ls__shm_all_reduce(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_reduce_scatter(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_reduce(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_gather(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_broadcast(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_scatter(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_all_to_all(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_all_to_all_v(ls__shm *shm, ls__operation *operation);
ls__shm_mailbox *ls__shm_mailbox_between(const ls__shm *shm, int from, int to);
ls_status ls__shm_send(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_recv(ls__shm *shm, ls__operation *operation);
ls_status ls__shm_sendrecv(ls__shm *shm, ls__operation *operation);

#endif
