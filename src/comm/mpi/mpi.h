/* Inside the mpi transport: messages of an MPI library, loaded at run time, carry the bytes; the order of
 * sums, headers, deadlines and messages are Lockstep's own (src/comm/mesh).
 *
 *   engine.h, engine/   what is asked of MPI, and the module that answers
 *   load.c              which MPI, and where its module lies
 *   messages.c          one header or piece of a lane at a time
 *   drive.c             moves all peers until an operation is done
 *   point.c             send and recv
 *   goodbye.c           the last message of a rank, and waiting for what is under way
 *   mpi.c               open, run, abort, close */
#ifndef LS_COMM_MPI_MPI_H
#define LS_COMM_MPI_MPI_H

#include "base/clock.h"
#include "base/error.h"
#include "comm/heartbeat.h"
#include "comm/mesh/mesh.h"
#include "comm/mpi/engine.h"
#include <pthread.h>
#include <stdatomic.h>

enum {
    LS__MPI_HOST_BYTES = 64,
    LS__MPI_REASON_BYTES = 512,
    LS__MPI_EAGER_BYTES = 64 * 1024, /* a longer send waits for its recv */
    /* A lane goes in messages that MPI sends at once, without asking the receiver first: its question would
     * wait behind all that is on its way on the same connection, and the line would stand still meanwhile.
     * OpenMPI over TCP asks from 64 KiB on, its own header included. */
    LS__MPI_PIECE_BYTES = 60 * 1024,
    LS__MPI_WINDOW = 16, /* pieces of a lane under way */
};

/* Tags. Messages of one tag between two ranks keep their order. */
enum { LS__MPI_HEADER = 1, LS__MPI_LANE, LS__MPI_LANE_2, LS__MPI_PAYLOAD, LS__MPI_GOODBYE };

/* A message under way, or none. */
typedef struct ls__mpi_slot {
    bool active;
    ls__mpi_request request;
} ls__mpi_slot;

/* Pieces of a lane under way, the oldest first: messages of one tag end in their order. */
typedef struct ls__mpi_window {
    ls__mpi_slot slot[LS__MPI_WINDOW];
    unsigned first, count;
} ls__mpi_window;

typedef struct ls__mpi_goodbye {
    int32_t status; /* LS_OK: leaves in peace */
    char reason[LS__MPI_REASON_BYTES - 4];
} ls__mpi_goodbye;

/* A small send whose payload was copied, so that the call could return. */
typedef struct ls__mpi_letter {
    struct ls__mpi_letter *next;
    ls__mpi_slot header_slot, payload_slot[2]; /* one a piece */
    ls__header header;
    char payload[];
} ls__mpi_letter;

/* The header of a send that came before its recv. */
typedef struct ls__mpi_early {
    struct ls__mpi_early *next;
    ls__header header;
} ls__mpi_early;

typedef struct ls__mpi_peer {
    ls__mesh_peer base;
    int rank;
    int64_t pid;
    char host[LS__MPI_HOST_BYTES];
    bool announces; /* this operation's header is still to be sent */
    bool awaited;   /* a header is awaited, and lanes only after it */
    bool
        watched; /* this rank waits for it to take a send: its next header tells if it never will */
    bool held;   /* such a header, in `incoming`: of this rank's next operation, if all is well */
    uint64_t held_ns;
    uint64_t left_ns; /* when it was seen that it left; 0: it is there */
    ls__mpi_slot header_out, header_in;
    ls__mpi_window out[2], in[2]; /* of each lane */
    ls__header incoming;
    ls__mpi_early *early, **early_end;
} ls__mpi_peer;

typedef struct ls__mpi {
    ls__mesh mesh;
    const ls__mpi_engine *engine;
    ls__mpi_comm *comm;
    ls__header header; /* of the operation under way */
    uint64_t started_ns;
    int arrived, expected; /* headers of it */
    int gate;      /* headers without which nothing is received: all agree on a collective first */
    bool *pending; /* (size) something is left to do with that peer */
    bool has_waited;

    ls__mpi_goodbye heard; /* where the next goodbye arrives */
    ls__mpi_slot hearing;
    const ls__mpi_peer *told_by; /* the first one who gave up; NULL: nobody */
    ls__mpi_goodbye told;
    ls__mpi_goodbye said;
    ls__mpi_slot *saying; /* (size) */
    bool has_said;
    ls__mpi_letter *letters;

    pthread_mutex_t lock; /* held by run, close and the sending part of abort */
    _Atomic bool aborted;
    pthread_mutex_t reason_lock;
    char reason[LS__MPI_REASON_BYTES];
} ls__mpi;

static inline ls__mpi_peer *ls__mpi_peer_of(const ls__mpi *mpi, int rank) {
    return (ls__mpi_peer *)mpi->mesh.peer[rank];
}

/* --- load.c --- */

/* `which`: "openmpi", "mpich" or NULL, for the one that has started or already runs in this process. */
ls_status ls__mpi_load(const ls__mpi_engine **engine, const char *which);

/* --- messages.c --- */

/* LS_ERR_PEER with MPI's words. */
ls_status ls__mpi_failed(const ls__mpi *mpi, const ls__operation *operation, int peer,
                         const char *text);
/* "rank 3 (host a, pid 17)" and then `format`. */
ls_status ls__mpi_peer_error(const ls__mpi *mpi, const ls__operation *operation,
                             const ls__mpi_peer *peer, ls_status status, const char *what);
ls_status ls__mpi_send_start(ls__mpi *mpi, const ls__operation *operation, ls__mpi_slot *slot,
                             int to, int tag, const void *data, size_t bytes);
ls_status ls__mpi_recv_start(ls__mpi *mpi, const ls__operation *operation, ls__mpi_slot *slot,
                             int from, int tag, void *data, size_t bytes);
/* *moved: it was under way and has ended. */
ls_status ls__mpi_test(ls__mpi *mpi, const ls__operation *operation, ls__mpi_slot *slot, int peer,
                       bool *moved);
/* Takes the next message off the front of a lane: its bytes, which start at *at. */
size_t ls__mpi_next_piece(ls__mesh_lane *lane, char **at);
/* One look at everything `peer` has to do with the operation; *pending: something is left. */
ls_status ls__mpi_step(ls__mpi *mpi, ls__operation *operation, ls__mpi_peer *peer, bool *pending,
                       bool *moved);

/* --- drive.c --- */

ls_status ls__mpi_drive(ls__mpi *mpi, ls__operation *operation);

/* --- goodbye.c --- */

/* Has anyone left or given up? Notes it; fails only where MPI does. */
ls_status ls__mpi_listen(ls__mpi *mpi, const ls__operation *operation);
/* The error of who has given up, once it is sure that this operation cannot end any more. */
ls_status ls__mpi_tell(const ls__mpi *mpi, const ls__operation *operation);
/* Tells everyone, once. The lock is held. */
void ls__mpi_say_goodbye(ls__mpi *mpi, ls_status status, const char *reason);
/* Leaving: takes in the others' goodbyes, so that no message is left over. True: all have left or do. */
bool ls__mpi_hear_farewells(ls__mpi *mpi, double seconds);
/* Ends what is under way, cancelling receives (of goodbyes too when `leaving`), within a bounded time. True:
 * nothing is left. */
bool ls__mpi_settle(ls__mpi *mpi, bool leaving, double seconds);
/* Frees small sends that were delivered. */
void ls__mpi_reap_letters(ls__mpi *mpi);
void ls__mpi_free_letters(ls__mpi *mpi);

/* --- point.c --- */

ls_status ls__mpi_send(ls__mpi *mpi, ls__operation *operation);
ls_status ls__mpi_recv(ls__mpi *mpi, ls__operation *operation);
ls_status ls__mpi_sendrecv(ls__mpi *mpi, ls__operation *operation);
/* Keeps the header of a send that came early; takes the oldest one out: false when there is none. */
ls_status ls__mpi_early_push(ls__mpi_peer *peer, const ls__header *header);
bool ls__mpi_early_pop(ls__mpi_peer *peer, ls__header *header);

#endif
