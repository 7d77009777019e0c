/* The module for one MPI: compiled with its mpi.h, linked with its library. See ../engine.h.
 *
 * MPI is one thing a process has, so what is known about it stands here in static variables. */
#include "comm/mpi/engine.h"

#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ls__mpi_comm {
    MPI_Comm handle;
    int rank, size;
};

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request fits its place");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int level = -1; /* MPI_THREAD_...; -1: not asked yet */
static bool is_ours;   /* MPI_Init was called here */
static int open_comms; /* of all jobs */
static bool
    keep_initialized; /* a job ended badly: MPI_Finalize would wait for ranks that do not come */

/* Calls exclude each other unless MPI itself takes several at a time. */
static void enter(void) {
    if (level != MPI_THREAD_MULTIPLE)
        pthread_mutex_lock(&lock);
}

static void leave(void) {
    if (level != MPI_THREAD_MULTIPLE)
        pthread_mutex_unlock(&lock);
}

static int explain(int code, const char *what, char *text) {
    char words[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(code, words, &length);
    for (char *c = words; *c; c++)
        *c = *c == '\n' ? ' ' : *c;
    snprintf(text, LS__MPI_TEXT_BYTES, "%s: %.400s", what, words);
    return 1;
}

static int initialize(char *text) {
    int was = 0, ended = 0, main_thread = 0;
    MPI_Initialized(&was);
    MPI_Finalized(&ended);
    if (ended) {
        snprintf(text, LS__MPI_TEXT_BYTES,
                 "MPI was finalised before and cannot be initialised twice in a process; keep the "
                 "first job open as long as jobs are wanted");
        return 1;
    }
    if (was) {
        MPI_Query_thread(&level);
        return 0;
    }
    if (explain(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread", text))
        return 1;
    is_ours = true;
    return explain(MPI_Is_thread_main(&main_thread), "MPI_Is_thread_main", text);
}

/* Errors of `comm` come back as codes from now on. */
static int adopt(MPI_Comm handle, ls__mpi_comm **comm, char *text) {
    ls__mpi_comm *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(text, LS__MPI_TEXT_BYTES, "no memory for a communicator");
        return 1;
    }
    c->handle = handle;
    if (explain(MPI_Comm_set_errhandler(handle, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler",
                text) ||
        explain(MPI_Comm_rank(handle, &c->rank), "MPI_Comm_rank", text) ||
        explain(MPI_Comm_size(handle, &c->size), "MPI_Comm_size", text)) {
        free(c);
        return 1;
    }
    open_comms++;
    *comm = c;
    return 0;
}

/* The user's communicator keeps its own error handler, but not while it is ours to use. */
static int duplicate(MPI_Comm from, ls__mpi_comm **comm, char *text) {
    MPI_Errhandler before;
    MPI_Comm copy = MPI_COMM_NULL;
    if (from == MPI_COMM_NULL) {
        snprintf(text, LS__MPI_TEXT_BYTES, "the communicator is MPI_COMM_NULL");
        return 1;
    }
    MPI_Comm_get_errhandler(from, &before);
    MPI_Comm_set_errhandler(from, MPI_ERRORS_RETURN);
    int failed = explain(MPI_Comm_dup(from, &copy), "MPI_Comm_dup", text);
    MPI_Comm_set_errhandler(from, before);
    MPI_Errhandler_free(&before);
    return failed ? failed : adopt(copy, comm, text);
}

static int open_comm(ls__mpi_comm **comm, const void *handle, char *text) {
    int was = 0;
    *comm = NULL;
    MPI_Initialized(&was);
    if (handle && !was) {
        snprintf(text, LS__MPI_TEXT_BYTES, "MPI is not initialised, so there is no communicator");
        return 1;
    }
    pthread_mutex_lock(&lock);
    int failed = initialize(text);
    if (!failed)
        failed = duplicate(handle ? *(const MPI_Comm *)handle : MPI_COMM_WORLD, comm, text);
    pthread_mutex_unlock(&lock);
    return failed;
}

static int split(ls__mpi_comm *parent, int color, int key, ls__mpi_comm **comm, char *text) {
    MPI_Comm part = MPI_COMM_NULL;
    *comm = NULL;
    enter();
    int failed =
        explain(MPI_Comm_split(parent->handle, color < 0 ? MPI_UNDEFINED : color, key, &part),
                "MPI_Comm_split", text);
    if (!failed && part != MPI_COMM_NULL)
        failed = adopt(part, comm, text);
    leave();
    return failed;
}

static void close_comm(ls__mpi_comm *comm, bool clean) {
    pthread_mutex_lock(&lock);
    if (clean)
        MPI_Comm_free(&comm->handle);
    else
        keep_initialized = true;
    bool last = --open_comms == 0;
    free(comm);
    if (last && is_ours && !keep_initialized)
        MPI_Finalize();
    pthread_mutex_unlock(&lock);
}

static int rank_of(const ls__mpi_comm *comm) {
    return comm->rank;
}

static int size_of(const ls__mpi_comm *comm) {
    return comm->size;
}

static void put(ls__mpi_request *to, MPI_Request from) {
    memset(to, 0, sizeof *to);
    memcpy(to, &from, sizeof from); /* NOLINT(bugprone-sizeof-expression): the handle itself */
}

static MPI_Request get(const ls__mpi_request *from) {
    MPI_Request request;
    memcpy(&request, from, sizeof request); /* NOLINT(bugprone-sizeof-expression) */
    return request;
}

static int send_start(ls__mpi_comm *comm, int to, int tag, const void *data, size_t bytes,
                      ls__mpi_request *request, char *text) {
    MPI_Request r = MPI_REQUEST_NULL;
    enter();
    int failed = explain(MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, comm->handle, &r),
                         "MPI_Isend", text);
    leave();
    put(request, r); /* NOLINT(clang-analyzer-optin.mpi.MPI-Checker): test() waits for it */
    return failed;
}

static int recv_start(ls__mpi_comm *comm, int from, int tag, void *data, size_t bytes,
                      ls__mpi_request *request, char *text) {
    MPI_Request r = MPI_REQUEST_NULL;
    enter();
    int failed = explain(MPI_Irecv(data, (int)bytes, MPI_BYTE, from < 0 ? MPI_ANY_SOURCE : from,
                                   tag, comm->handle, &r),
                         "MPI_Irecv", text);
    leave();
    put(request, r); /* NOLINT(clang-analyzer-optin.mpi.MPI-Checker): test() waits for it */
    return failed;
}

static int test(ls__mpi_request *request, bool *done, int *from, char *text) {
    MPI_Request r = get(request);
    MPI_Status status;
    int flag = 0, cancelled = 0;
    status.MPI_SOURCE = MPI_ANY_SOURCE;
    enter();
    int failed = explain(MPI_Test(&r, &flag, &status), "MPI_Test", text);
    if (!failed && flag)
        MPI_Test_cancelled(&status, &cancelled);
    leave();
    *done = failed || flag;
    if (*done)
        memset(request, 0, sizeof *request);
    if (from)
        *from = flag && !cancelled ? status.MPI_SOURCE : -1;
    return failed;
}

static void cancel(ls__mpi_request *request) {
    MPI_Request r = get(request);
    enter();
    MPI_Cancel(&r);
    leave();
}

static bool may_call(void) {
    int is_main = 1;
    if (level < MPI_THREAD_SERIALIZED)
        MPI_Is_thread_main(&is_main);
    return is_main;
}

static bool takes_threads(void) {
    return level >= MPI_THREAD_SERIALIZED;
}

static void describe(char *text, size_t bytes) {
    char words[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(words, &length);
    for (char *c = words; *c; c++)
        *c = *c == '\n' || *c == '\t' ? ' ' : *c;
    /* "Open MPI v4.1.4, package: ..." and "MPICH Version:      4.0.2 MPICH Release date: ..." */
    size_t end = strcspn(words, ",");
    char *release = strstr(words, " MPICH Release");
    if (release && (size_t)(release - words) < end)
        end = (size_t)(release - words);
    snprintf(text, bytes, "%.*s", (int)end, words);
}

static const ls__mpi_engine engine = {
    .version = LS__MPI_ENGINE_VERSION,
    .open = open_comm,
    .split = split,
    .close = close_comm,
    .rank = rank_of,
    .size = size_of,
    .send = send_start,
    .recv = recv_start,
    .test = test,
    .cancel = cancel,
    .may_call = may_call,
    .takes_threads = takes_threads,
    .describe = describe,
};

__attribute__((visibility("default"))) const ls__mpi_engine *ls__mpi_engine_get(void) {
    return &engine;
}
