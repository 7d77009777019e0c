/* A transport made of two: shared memory among the ranks of one machine, and one between machines, among the
 * ranks that have the same index on each. A reduction adds inside first, so that a machine sends and receives
 * every element once, not once for each of its ranks; its ranks share that work by 1/p slices.
 *
 *   place.c   who is on which machine; pass.c hands the segment to the ranks of this one
 *   wire.c    the thread that runs what goes between machines, while this one goes on inside
 *   reduce.c  all_reduce, reduce_scatter; copy.c the other operations that pay; all else goes the flat way
 *   streams.c how many connections a rank has between machines; choose.c two steps or flat
 *   hier.c    open, run, abort, close
 *
 * Bits: with p ranks on every machine, p a power of two and each machine's ranks consecutive, the sum inside
 * a machine is a subtree of the tree over all ranks, and the tree over machines is what is left of it. Other
 * placements stay flat.
 *
 * Headers: each step carries the header of the whole operation. The first one compares it among the ranks of
 * this machine, the next among those with one index, which together is all with all. */
#ifndef LS_COMM_HIER_HIER_H
#define LS_COMM_HIER_HIER_H

#include "base/clock.h"
#include "base/error.h"
#include "comm/transport.h"
#include <pthread.h>

enum {
    LS__HIER_HOST_BYTES = 64,
    LS__HIER_SECRET_BYTES = 16,
    LS__HIER_STREAMS_MAX = 8,
    LS__HIER_SLOTS_MAX = 2 * (LS__HIER_STREAMS_MAX + 1) + 1,
};

/* --- place.c --- */

/* What a rank tells all others about where it is. */
typedef struct ls__hier_card {
    char host[LS__HIER_HOST_BYTES]; /* boot id, or LOCKSTEP_HOST_ID */
    uint64_t pid_space,
        net_space; /* inodes of the namespaces: processes that cannot see each other are apart */
    unsigned char
        secret[LS__HIER_SECRET_BYTES]; /* names the leader's socket, and proves who may ask there */
    int32_t pid;
    int32_t streams;       /* wanted between machines; rank 0's counts */
    int32_t streams_given; /* exactly so many */
} ls__hier_card;

typedef struct ls__hier_map {
    int machines, here; /* how many, and this one; numbered by their lowest ranks */
    int local, index;   /* ranks on this machine, and this rank among them */
    int *machine;       /* (world) of each rank */
    int leader;         /* the lowest rank here */
    bool
        regular; /* as many ranks on each, consecutive, a power of two: sums may be made in two steps */
} ls__hier_map;

ls_status ls__hier_card_make(ls__hier_card *card, const ls__job_place *place);
/* `cards` (world). Free map->machine. */
ls_status ls__hier_map_make(ls__hier_map *map, const ls__hier_card *cards, int world, int rank);

/* --- pass.c --- */

/* The leader's listening socket; its name is made of the secret. Before anyone is told the secret. */
ls_status ls__hier_listen(const ls__hier_card *card, int *socket);
/* Gives `fd` to `count` processes that know the secret and belong to this user. */
ls_status ls__hier_give(int socket, const ls__hier_card *card, int fd, int count,
                        uint64_t deadline);
ls_status ls__hier_take(const ls__hier_card *leader, int *fd, uint64_t deadline);

/* --- wire.c --- */

enum { LS__HIER_QUEUE = 8 };

/* Runs operations of one transport, in order, in a thread of its own. */
typedef struct ls__hier_wire {
    ls__transport *transport; /* owned */
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, running;
    ls__operation queue[LS__HIER_QUEUE];
    uint64_t given, done; /* operations, ever */
    ls_status status;     /* of the first that failed */
    char text[1024];
} ls__hier_wire;

/* Takes the transport over, also on failure. Without a thread, operations run when they are given. */
ls_status ls__hier_wire_open(ls__hier_wire *wire, ls__transport *transport, bool has_thread);
/* Waits for what runs and ends the transport. */
void ls__hier_wire_close(ls__hier_wire *wire);
/* Gives an operation; its buffers must stay until it is waited for. Returns its number for the wait. `alone`:
 * the caller has nothing else to do meanwhile, and runs it itself where nothing is before it. */
uint64_t ls__hier_wire_start(ls__hier_wire *wire, const ls__operation *operation, bool alone);
/* `times` (may be NULL) of operation `number`, if it is one of the last LS__HIER_QUEUE. */
ls_status ls__hier_wire_wait(ls__hier_wire *wire, uint64_t number, ls_work_times *times);

/* --- the transport --- */

/* A place for one chunk under way. */
typedef struct ls__hier_slot {
    char *slice;         /* what this rank has to do with between machines */
    char *out;           /* what comes of it where that is of another size */
    size_t first, count; /* elements of the operation that the chunk covers */
    size_t each;         /* elements of one rank's slice */
    int stream;
    uint64_t ticket; /* 0: nothing goes between machines */
    double total;
    bool alone; /* the only chunk of its operation */
} ls__hier_slot;

typedef struct ls__hier {
    ls__transport base;
    char name[32]; /* "shm+tcp" */
    ls__transport_table table;
    ls__transport *flat;  /* all ranks, owned */
    ls__transport *local; /* this machine's, owned */
    ls__hier_map map;
    ls__job_place place;
    int streams;
    double streams_gain; /* how much more they carry than one, where that was measured; else 1 */
    ls__hier_wire wire[LS__HIER_STREAMS_MAX];
    int *names; /* (local), then (machines): ranks as messages call them */
    size_t slice_bytes;
    double *weights; /* (local) */
    double weight;   /* the sum of this machine, for the operation under way */
    int last_here;   /* index of this machine's rank that came last to it; -1: not known yet */
    bool met;        /* its times say when all machines had come, and who was last */
    int ahead;       /* chunks that are begun before one goes on to its next stage */
    ls__hier_slot slot[LS__HIER_SLOTS_MAX];
    char *mapped; /* all slots and the two below, in memory that the ranks of this machine map */
    char *pack;   /* (local, slice): what is put in order, or widened, before it is reduced */
    char *unpack; /* (local, slice) */
} ls__hier;

/* An operation for one of the two transports, as a step of `operation`. */
static inline bool ls__hier_is_narrow(ls_dtype dtype) {
    return dtype == LS_F16 ||
           dtype == LS_BF16; /* summed in f32, also on its way between machines */
}
ls__operation ls__hier_step(const ls__operation *operation, ls__kind step);
ls_status ls__hier_run_local(ls__hier *hier, ls__operation *step);
/* For the header of a step between machines. */
uint32_t ls__hier_last(const ls__hier *hier);
/* Of the operation's first step between machines: when all had arrived, and who was last. */
void ls__hier_note_times(ls__hier *hier, ls__operation *operation, const ls_work_times *times);
/* Compares headers of all ranks: for operations that go the flat way, where no one would look here. */
ls_status ls__hier_meet(ls__hier *hier, ls__operation *operation);
/* Chunks of an operation go through two or three stages; several are under way. A stage starts what goes
 * between machines by ls__hier_launch, and the next one finds it done. */
typedef ls_status (*ls__hier_stage)(ls__hier *hier, ls__operation *operation, ls__hier_slot *slot);
typedef struct ls__hier_plan {
    size_t elements, per_chunk;
    ls__hier_stage begin, middle, finish; /* middle may be NULL */
} ls__hier_plan;
ls_status ls__hier_pipeline(ls__hier *hier, ls__operation *operation, const ls__hier_plan *plan);
void ls__hier_launch(ls__hier *hier, ls__hier_slot *slot, const ls__operation *step);
static inline int ls__hier_rank_of(const ls__hier *hier, int machine, int index) {
    return machine * hier->map.local + index;
}

/* --- streams.c --- */

/* Opens wire[0 .. streams - 1], learns what the network costs, and opens more where that carries more. */
ls_status ls__hier_open_streams(ls__hier *hier, uint64_t deadline);

/* --- choose.c --- */

/* An all_reduce of so many bytes is better sent from every rank to every rank, or that is asked for. */
bool ls__hier_goes_flat(const ls__hier *hier, size_t bytes);
void ls__hier_explain(const ls__transport *transport, const ls__cost_question *question,
                      ls__cost_answer *answer);

ls_status ls__hier_all_reduce(ls__hier *hier, ls__operation *operation);
ls_status ls__hier_reduce_scatter(ls__hier *hier, ls__operation *operation);
ls_status ls__hier_all_gather(ls__hier *hier, ls__operation *operation);
ls_status ls__hier_broadcast(ls__hier *hier, ls__operation *operation);
ls_status ls__hier_barrier(ls__hier *hier, ls__operation *operation);
ls_status ls__hier_alloc(ls__hier *hier, ls__operation *operation);
ls_status ls__hier_free(ls__hier *hier, ls__operation *operation);

#endif
