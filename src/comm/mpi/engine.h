/* What Lockstep asks of an MPI library, as a table of functions that names no type of mpi.h: OpenMPI and
 * MPICH differ in every type, so each gets a module of its own, compiled from engine/engine.c against its
 * headers and loaded when it is wanted. Neither the library nor the command links MPI.
 *
 * Functions return 0 or, with one line in `text`, anything else. Any thread may call, one at a time is let
 * in where MPI does not take several. */
#ifndef LS_COMM_MPI_ENGINE_H
#define LS_COMM_MPI_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LS__MPI_ENGINE_VERSION = 1, LS__MPI_TEXT_BYTES = 512 };

/* A pending send or receive; 0 none. */
typedef struct ls__mpi_request {
    uint64_t handle;
} ls__mpi_request;

typedef struct ls__mpi_comm
    ls__mpi_comm; /* a communicator of our own: its messages meet no others */

typedef struct ls__mpi_engine {
    uint32_t version;
    /* A duplicate of *handle, which is an MPI_Comm, or of MPI_COMM_WORLD where handle is NULL: then MPI is
     * initialised if it is not yet, and finalised by the last close. Collective over the communicator. */
    int (*open)(ls__mpi_comm **comm, const void *handle, char *text);
    /* As MPI_Comm_split; color below 0: *comm is NULL. Collective over `parent`. */
    int (*split)(ls__mpi_comm *parent, int color, int key, ls__mpi_comm **comm, char *text);
    /* `clean`: all messages have ended, so that the communicator can be freed and MPI finalised. */
    void (*close)(ls__mpi_comm *comm, bool clean);
    int (*rank)(const ls__mpi_comm *comm);
    int (*size)(const ls__mpi_comm *comm);
    /* Started; at most INT_MAX bytes. */
    int (*send)(ls__mpi_comm *comm, int to, int tag, const void *data, size_t bytes,
                ls__mpi_request *request, char *text);
    /* from -1: anyone */
    int (*recv)(ls__mpi_comm *comm, int from, int tag, void *data, size_t bytes,
                ls__mpi_request *request, char *text);
    /* *done: ended, and *request is none again; `from` (may be NULL): who sent. */
    int (*test)(ls__mpi_request *request, bool *done, int *from, char *text);
    /* Gives a receive up that nobody may ever send to; test then ends it. */
    void (*cancel)(ls__mpi_request *request);
    /* True in a thread that may call: always, but for MPI that takes calls of the main thread only. */
    bool (*may_call)(void);
    /* Calls of other threads than the main one are allowed, one at a time at least. */
    bool (*takes_threads)(void);
    /* "Open MPI v4.1.4", for people */
    void (*describe)(char *text, size_t bytes);
} ls__mpi_engine;

/* The one symbol of a module. */
const ls__mpi_engine *ls__mpi_engine_get(void);

#endif
