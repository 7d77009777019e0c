/* What a transport offers to the groups above it. A transport moves bytes for one group and knows
 * nothing of queues, threads or the public API: group.c checks arguments, numbers the operations and
 * calls `run` for one operation at a time, always from one thread at a time. */
#ifndef LS_COMM_TRANSPORT_H
#define LS_COMM_TRANSPORT_H

#include "base/error.h"
#include "comm/cost.h"
#include <lockstep/group.h>
#include <stdbool.h>

typedef enum ls__kind {
    LS__ALL_REDUCE = 1,
    LS__REDUCE_SCATTER,
    LS__ALL_GATHER,
    LS__BROADCAST,
    LS__BARRIER,
    LS__SEND,
    LS__RECV,
    LS__ALLOC, /* ls_group_alloc and ls_group_free are collectives too: the header check covers them */
    LS__FREE,
    LS__REDUCE,
    LS__GATHER,
    LS__SCATTER,
    LS__ALL_TO_ALL,
    LS__ALL_TO_ALL_V,
    LS__SENDRECV, /* its messages travel as LS__SEND: a send or recv of the peer is the other half */
    LS__SPLIT,    /* ls_group_split; its step is an all_gather */
} ls__kind;

/* "all_reduce", ...; "?" for no kind */
LS_SHARED const char *ls__kind_name(int kind);
/* "sum", "weighted sum", ... of header.op; "?" for none */
LS_SHARED const char *ls__op_name(unsigned op);

/* What travels with every operation and is compared on arrival. A fixed layout of 48 bytes, also on
 * the wire (little-endian; the tcp handshake refuses other byte orders). */
typedef struct ls__header {
    uint32_t magic;    /* LS__HEADER_MAGIC */
    uint16_t kind;     /* ls__kind; a recv shows its peer LS__SEND */
    uint8_t dtype;     /* ls_dtype */
    uint8_t op;        /* ls_op, with LS__OP_WEIGHTED for ls_all_reduce_weighted */
    uint64_t group;    /* identity of the group, equal on all its ranks */
    uint64_t sequence; /* collectives: 1, 2, ... per group; send/recv: per ordered pair of ranks */
    uint64_t count;    /* elements; uneven forms: the sum of counts, LS__ALL_TO_ALL_V: 0 */
    uint32_t root;     /* of one with a root; send: to */
    uint32_t counts;   /* uneven forms: hash of all counts, never 0; else 0 */
    double weight;     /* this rank's weight; not compared */
    uint32_t
        last; /* of those it speaks for, who came last: its number + 1, 0: its sender; not compared */
    uint32_t reserved;
} ls__header;

enum { LS__HEADER_MAGIC = 0x314b534c /* "LSK1" */, LS__OP_WEIGHTED = 0x80 };

enum { LS__LAST_UNKNOWN = INT32_MAX };

/* When this header is the last to arrive: the rank for ls_work_times.last_rank. */
static inline int ls__header_last(const ls__header *header, int sender) {
    if (header->last == LS__LAST_UNKNOWN)
        return -1;
    return header->last ? (int)header->last - 1 : sender;
}

/* What messages say about the group of an operation. */
typedef struct ls__group_label {
    const char *name;
    int rank, size;   /* this rank in the group */
    const int *names; /* (size) each rank's number in the world; NULL: they are the same */
} ls__group_label;

/* The number in the world of a rank of the group; `label` NULL: the world. -1 and the like stay. */
static inline int ls__label_rank(const ls__group_label *label, int rank) {
    return label && label->names && rank >= 0 && rank < label->size ? label->names[rank] : rank;
}

/* One operation. Reductions: result = tree sum (or op) over ranks, then `* scale` where scale is
 * 1/size for LS_AVG of floats and 1/(total weight) for weighted ones (ls__reduce_scale). */
typedef struct ls__operation {
    ls__header header;
    ls__kind
        step; /* what is to be done where that is a step of the operation in the header; else 0 */
    const ls__group_label *label; /* NULL: the world */
    const void *send;             /* layouts as group.h gives them for each kind */
    void *recv;
    size_t count; /* elements of a block; uneven forms: of this rank's block */
    /* (size) uneven forms: elements of every rank's block; LS__ALL_TO_ALL_V: of the blocks of send. NULL:
     * every block is `count` long. Belongs to the caller, as the buffers do. */
    const size_t *counts;
    const size_t *recv_counts; /* (size) LS__ALL_TO_ALL_V: of the blocks of recv */
    ls_dtype dtype;
    ls_op op;
    bool weighted;
    bool beside;  /* run by the group's own thread, while the program's goes on */
    bool untimed; /* nobody asks for its times but the flight recorder: to 0.1 us is good enough */
    int root;     /* of one with a root; send, recv: the peer; sendrecv: the one sent to */
    int from;     /* sendrecv, as the two that follow */
    size_t recv_count;
    uint64_t recv_sequence;
    double *total;           /* weighted: receives the global weight, may be NULL */
    size_t bytes;            /* LS__ALLOC: bytes per rank */
    void **memory;           /* LS__ALLOC: receives the memory; LS__FREE: *memory is freed */
    struct ls__split *split; /* LS__SPLIT */
    double timeout_s;        /* the group's when the operation was submitted */
    uint64_t deadline;       /* ls__now_ns clock; set when it begins: see ls__operation_deadline */
    uint64_t paused_ns;      /* ls__heartbeat_paused_ns when it began */
    ls_work_times times;     /* the transport fills ready_ns and last_rank, and may fill end_ns */
} ls__operation;

static inline ls__kind ls__operation_step(const ls__operation *operation) {
    return operation->step ? operation->step : (ls__kind)operation->header.kind;
}

typedef struct ls__transport ls__transport;

typedef struct ls__transport_table {
    const char *name; /* "shm" */
    /* Runs one operation to its end. Bounded by operation->deadline. The message on error names this
     * rank, the operation, its sequence number, the peer, the value seen and the value wanted. */
    ls_status (*run)(ls__transport *transport, ls__operation *operation);
    /* Ends the transport; peers that wait for this rank are told. */
    void (*close)(ls__transport *transport);
    /* This rank gives up because of `reason` (one line): peers get LS_ERR_PEER with it, at once, or
     * LS_ERR_MISMATCH where `status` is that. Any thread, also while `run` is running. */
    void (*abort)(ls__transport *transport, ls_status status, const char *reason);
    /* A transport of the same sort for the ranks that give the same color, in the order of key and rank,
     * whose messages meet no others. Collective over `transport`, and an operation of it: `run` is not
     * running. Bounded by `deadline`. color below 0: *part is NULL. NULL where it cannot be done. */
    ls_status (*split)(ls__transport *transport, int color, int key, uint64_t deadline,
                       ls__transport **part);
    /* Which ways there are to answer `question`, what each would take, and which would be taken. The costs
     * are known. NULL: there is only one way. */
    void (*explain)(const ls__transport *transport, const ls__cost_question *question,
                    ls__cost_answer *answer);
} ls__transport_table;

struct ls__transport {
    const ls__transport_table *table;
    int rank, size;   /* in the group */
    const int *names; /* (size) what messages call each rank; NULL: its number here. Not owned */
    size_t grain;  /* between machines: bytes of a message that keep the network busy meanwhile */
    ls__cost cost; /* of an exchange among these ranks; equal on all of them */
    ls__algorithm algorithm;         /* LS__BY_COST, or what is asked for; equal on all of them */
    bool one_thread;                 /* only the thread that opened it may run operations */
    struct ls__board *board;         /* the job's; may be NULL */
    struct ls__heartbeat *heartbeat; /* the job's; may be NULL: it knows ranks by their names */
};

static inline int ls__name_of(const ls__transport *transport, int rank) {
    return transport->names ? transport->names[rank] : rank;
}
static inline int ls__own_name(const ls__transport *transport) {
    return ls__name_of(transport, transport->rank);
}

/* What a transport's ranks tell each other before a group has it, or beside the group's operations: `bytes` from each
 * into `all` (size, bytes). Such operations are of group 0, and numbered by who makes them: equal on all ranks. */
ls_status ls__transport_gather(ls__transport *transport, uint64_t number, const void *mine,
                               void *all, size_t bytes, uint64_t deadline);

/* What job.c found in the environment. */
typedef struct ls__job_place {
    int rank, world_size, local_rank, local_world_size;
    double timeout_s;                /* of joining */
    double heartbeat_s;              /* silence that counts as stopped */
    struct ls__board *board;         /* where this rank shows what it does */
    struct ls__heartbeat *heartbeat; /* NULL in a world of one */
    int streams;             /* connections that a rank uses between machines at a time, 1 to 8 */
    bool streams_given;      /* asked for; else more are taken where that helps */
    ls__algorithm algorithm; /* asked for; rank 0's counts */
    const char *cost_table;  /* file to take the costs from; NULL: they are measured */
    ls__costs costs;         /* once they are known */
    bool
        listens; /* tcp, rank 0: `listener` is a socket that listens already, the launcher's; taken over */
    int listener;
    const char
        *interface; /* tcp: name or address of the network interface; NULL: as the rendezvous */
    /* For messages of the transport's own life ("waiting for ranks 2, 3"); may be NULL. */
    void (*log)(void *context, ls_log_level level, const char *line);
    void *log_context;
} ls__job_place;

/* What LOCKSTEP_TRANSPORT may be, NULL ends. job.c */
extern const char *const ls__transport_words[];

/* One opener for each transport. */
ls_status ls__self_open(ls__transport **transport, const ls__job_place *place);
ls_status ls__shm_open(ls__transport **transport, const ls__job_place *place, int segment_fd);
/* token may be NULL: then only loopback addresses are allowed */
ls_status ls__tcp_open(ls__transport **transport, const ls__job_place *place, const char *address,
                       int port, const char *token);

/* The same where nobody knows rank 0's address beforehand: tcp/meet.c */
ls_status ls__tcp_open_by_file(ls__transport **transport, ls__job_place *place, const char *path,
                               const char *token);

/* Gives place->heartbeat connections of its own where `transport`, which joins all ranks, has none: tcp/beside.c. Where
 * the network allows none that is logged, and is no error. Collective. */
ls_status ls__tcp_control_beside(ls__transport *transport, const ls__job_place *place);

/* Whether OpenMPI's or MPICH's launcher has started this process as one of several: "openmpi", "mpich" or
 * NULL. */
const char *ls__mpi_launcher(void);
int ls__mpi_launcher_size(void); /* ranks that it says it started; 0: none did */
/* "Open MPI v4.1.4": loads the module of `which`; a process should do that for one of them only. */
ls_status ls__mpi_describe(const char *which, char *text, size_t bytes);
/* `which` names the MPI ("openmpi", "mpich"; NULL: whichever there is).
 * `handle`: NULL or a pointer to an MPI_Comm. Fills rank and world size of `place`. */
ls_status ls__mpi_open(ls__transport **transport, ls__job_place *place, const char *which,
                       const void *handle);

/* Looks which ranks of *transport share a machine. Where that helps, *transport becomes one that goes through
 * shared memory inside of machines, and keeps or closes the old one; else it stays. Collective. Fills the
 * local rank and size of `place`. On failure *transport is closed and NULL. */
ls_status ls__hier_open(ls__transport **transport, ls__job_place *place);

/* Compares two headers; LS_OK or LS_ERR_MISMATCH with a message that names both ranks, what differs,
 * the value of each and what to do. Used by all transports, so the words are the same. */
ls_status ls__header_compare(const ls__header *mine, int my_rank, const ls__header *other,
                             int other_rank);

/* The two halves of a sendrecv on `rank`, as a send and a recv would be described. */
void ls__sendrecv_split(const ls__operation *operation, int rank, ls__operation *send,
                        ls__operation *recv);

/* A number for all that ls__header_compare compares: where two differ, so do the headers. */
uint64_t ls__header_identity(const ls__header *header);

/* Fails with "all_reduce #17 of group world on rank 0: ..."; `rank` is this rank's in the world, and its
 * number in the group is added where it is another. */
ls_status ls__operation_fail(ls_status status, const ls__operation *operation, int rank,
                             const char *format, ...) LS_PRINTF(4, 5);

#endif
