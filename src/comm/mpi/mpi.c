/* The transport's life: open, run one operation after another, abort, close. */
#include "comm/mpi/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Large messages take several looks on both sides before their bytes flow. */
enum { GRAIN_BYTES = 1 << 20 };

static void name_peer(const ls__mesh *mesh, int rank, char text[LS__MESH_NAME_BYTES]) {
    const ls__mpi_peer *peer = (const ls__mpi_peer *)mesh->peer[rank];
    if (peer->pid)
        snprintf(text, LS__MESH_NAME_BYTES, "rank %d (host %s, pid %lld)",
                 ls__name_of(&mesh->base, rank), peer->host, (long long)peer->pid);
    else
        snprintf(text, LS__MESH_NAME_BYTES, "rank %d", ls__name_of(&mesh->base, rank));
}

static void begin(ls__mesh *mesh, const ls__operation *operation) {
    ls__mpi *mpi = (ls__mpi *)mesh;
    mpi->header = operation->header;
    mpi->expected = mpi->gate = mesh->base.size - 1;
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__mpi_peer *peer = ls__mpi_peer_of(mpi, rank);
        peer->base.weight = operation->header.weight;
        peer->announces = peer->awaited = !peer->base.self;
    }
}

static ls_status drive(ls__mesh *mesh, ls__operation *operation) {
    return ls__mpi_drive((ls__mpi *)mesh, operation);
}

static const ls__mesh_table mesh_table = {.begin = begin, .drive = drive, .name = name_peer};

/* The reason that peers are told; the first one stays. */
static void set_reason(ls__mpi *mpi, const char *reason) {
    pthread_mutex_lock(&mpi->reason_lock);
    if (mpi->reason[0] == '\0')
        snprintf(mpi->reason, sizeof mpi->reason, "%.*s", (int)sizeof mpi->reason - 1,
                 *reason ? reason : "no reason given");
    pthread_mutex_unlock(&mpi->reason_lock);
}

static void give_up(ls__mpi *mpi, ls_status status, const char *text) {
    atomic_store(&mpi->aborted, true);
    set_reason(mpi, text);
    ls__mpi_say_goodbye(mpi, status, mpi->reason);
    /* The caller's buffers are its own again, where that can be had. */
    (void)ls__mpi_settle(mpi, false, 0.2);
}

static ls_status check_thread(const ls__mpi *mpi, const ls__operation *operation) {
    if (mpi->engine->may_call())
        return LS_OK;
    return ls__operation_fail(
        LS_ERR_UNSUPPORTED, operation, ls__own_name(&mpi->mesh.base),
        "MPI was initialised for calls of the main thread only, and this is another (started "
        "operations run in one); call MPI_Init_thread with MPI_THREAD_SERIALIZED or more");
}

static ls_status dispatch(ls__mpi *mpi, ls__operation *operation) {
    LS_TRY(check_thread(mpi, operation));
    if (atomic_load(&mpi->aborted))
        return ls__operation_fail(LS_ERR_STATE, operation, ls__own_name(&mpi->mesh.base),
                                  "this rank gave up: %s", mpi->reason);
    LS_TRY(ls__mpi_listen(mpi, operation));
    LS_TRY(ls__mpi_tell(mpi, operation));
    switch (ls__operation_step(operation)) {
    case LS__SEND:
        return ls__mpi_send(mpi, operation);
    case LS__RECV:
        return ls__mpi_recv(mpi, operation);
    case LS__SENDRECV:
        return ls__mpi_sendrecv(mpi, operation);
    default:
        return ls__mesh_run(&mpi->mesh, operation);
    }
}

static void reset(ls__mpi *mpi) {
    ls__mesh_reset(&mpi->mesh);
    for (int rank = 0; rank < mpi->mesh.base.size; rank++) {
        ls__mpi_peer *peer = ls__mpi_peer_of(mpi, rank);
        peer->announces = peer->awaited = peer->watched = false;
    }
    mpi->started_ns = ls__now_ns();
    mpi->arrived = mpi->expected = mpi->gate = 0;
    mpi->has_waited = false;
}

static ls_status run(ls__transport *transport, ls__operation *operation) {
    ls__mpi *mpi = (ls__mpi *)transport;
    pthread_mutex_lock(&mpi->lock);
    operation->times.last_rank = transport->size == 1 ? 0 : -1;
    reset(mpi);
    ls_status status = dispatch(mpi, operation);
    if (status != LS_OK && status != LS_ERR_ARGUMENT) {
        char text[1024];
        snprintf(text, sizeof text, "%s", ls_error_text());
        if (mpi->engine->may_call())
            give_up(mpi, status, text);
        ls__fail(status, "%s", text);
    }
    pthread_mutex_unlock(&mpi->lock);
    return status;
}

static void abort_mpi(ls__transport *transport, ls_status status, const char *reason) {
    ls__mpi *mpi = (ls__mpi *)transport;
    set_reason(mpi, reason);
    atomic_store(&mpi->aborted, true);
    pthread_mutex_lock(&mpi->lock);
    if (mpi->engine->may_call())
        give_up(mpi, status, reason);
    pthread_mutex_unlock(&mpi->lock);
}

static void free_all(ls__mpi *mpi) {
    for (int rank = 0; mpi->mesh.peer && rank < mpi->mesh.base.size; rank++) {
        ls__mpi_peer *peer = ls__mpi_peer_of(mpi, rank);
        ls__header header;
        while (peer && ls__mpi_early_pop(peer, &header))
            ;
        free(peer);
    }
    ls__mesh_free_all(&mpi->mesh);
    ls__mpi_free_letters(mpi);
    pthread_mutex_destroy(&mpi->lock);
    pthread_mutex_destroy(&mpi->reason_lock);
    free(mpi->mesh.peer);
    free(mpi->saying);
    free(mpi->pending);
    free(mpi);
}

static void close_mpi(ls__transport *transport) {
    ls__mpi *mpi = (ls__mpi *)transport;
    pthread_mutex_lock(&mpi->lock);
    bool heard_all = false, settled = true;
    if (mpi->engine->may_call()) {
        ls__mpi_say_goodbye(mpi, LS_OK, "");
        heard_all = ls__mpi_hear_farewells(mpi, 1);
        settled = ls__mpi_settle(mpi, true, 1);
    }
    /* After a failure MPI is left as it is unless all ranks are leaving: MPI_Finalize waits for them. */
    bool clean = settled && (heard_all || !atomic_load(&mpi->aborted));
    pthread_mutex_unlock(&mpi->lock);
    mpi->engine->close(mpi->comm, clean);
    if (settled) /* else MPI may still write into what is ours: better lost than torn */
        free_all(mpi);
}

static ls_status split(ls__transport *transport, int color, int key, uint64_t deadline,
                       ls__transport **part);

static const ls__transport_table table = {"mpi",     run,   close_mpi,
                                          abort_mpi, split, ls__mesh_explain};

/* --- open --- */

static ls_status add_peers(ls__mpi *mpi) {
    const size_t n = (size_t)mpi->mesh.base.size;
    mpi->mesh.peer = calloc(n, sizeof(ls__mesh_peer *));
    mpi->saying = calloc(n, sizeof *mpi->saying);
    mpi->pending = calloc(n, sizeof *mpi->pending);
    if (!mpi->mesh.peer || !mpi->saying || !mpi->pending)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %zu ranks", n);
    for (size_t rank = 0; rank < n; rank++) {
        ls__mpi_peer *peer = calloc(1, sizeof *peer);
        if (!peer)
            return ls__fail(LS_ERR_MEMORY, "no memory for a job of %zu ranks", n);
        peer->rank = (int)rank;
        peer->base.self = peer->rank == mpi->mesh.base.rank;
        mpi->mesh.peer[rank] = &peer->base;
    }
    return LS_OK;
}

/* Who is where, for messages; the first operation, so that all ranks are there afterwards. */
static ls_status introduce(ls__mpi *mpi, uint64_t deadline) {
    typedef struct card {
        char host[LS__MPI_HOST_BYTES];
        int64_t pid;
    } card;
    const size_t n = (size_t)mpi->mesh.base.size;
    card mine = {.pid = getpid()}, *all = calloc(n, sizeof *all);
    ls_status status = LS_OK;
    if (!all)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %zu ranks", n);
    (void)gethostname(mine.host, sizeof mine.host - 1);
    LS_TRY_OUT(ls__transport_gather(&mpi->mesh.base, 0, &mine, all, sizeof mine, deadline));
    for (size_t rank = 0; rank < n; rank++) {
        ls__mpi_peer *peer = ls__mpi_peer_of(mpi, (int)rank);
        memcpy(peer->host, all[rank].host, sizeof peer->host - 1);
        peer->pid = all[rank].pid;
    }
out:
    free(all);
    return status;
}

static ls_status make(ls__mpi **made, const ls__mpi_engine *engine, ls__mpi_comm *comm) {
    ls__mpi *mpi = calloc(1, sizeof *mpi);
    ls_status status;
    if (!mpi)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    mpi->mesh.base = (ls__transport){.table = &table,
                                     .rank = engine->rank(comm),
                                     .size = engine->size(comm),
                                     .grain = GRAIN_BYTES};
    mpi->mesh.table = &mesh_table;
    mpi->engine = engine;
    mpi->comm = comm;
    pthread_mutex_init(&mpi->lock, NULL);
    pthread_mutex_init(&mpi->reason_lock, NULL);
    LS_TRY_OUT(add_peers(mpi));
    LS_TRY_OUT(ls__mesh_make(&mpi->mesh));
    *made = mpi;
    return LS_OK;
out:
    free_all(mpi);
    return status;
}

/* Takes `comm` over, also on failure. */
static ls_status open_comm(ls__transport **transport, const ls__mpi_engine *engine,
                           ls__mpi_comm *comm, uint64_t deadline) {
    ls__mpi *mpi = NULL;
    *transport = NULL;
    ls_status status = make(&mpi, engine, comm);
    if (status != LS_OK) {
        engine->close(comm, true);
        return status;
    }
    const ls__operation begin_hearing = {.header = {.kind = LS__ALL_GATHER}};
    LS_TRY_OUT(ls__mpi_recv_start(mpi, &begin_hearing, &mpi->hearing, -1, LS__MPI_GOODBYE,
                                  &mpi->heard, sizeof mpi->heard));
    mpi->mesh.base.one_thread = !engine->takes_threads();
    LS_TRY_OUT(introduce(mpi, deadline));
    *transport = &mpi->mesh.base;
    return LS_OK;
out:
    close_mpi(&mpi->mesh.base);
    return status;
}

/* MPI_Comm_split has no bound of its own: a barrier that has one comes first. */
static ls_status split(ls__transport *transport, int color, int key, uint64_t deadline,
                       ls__transport **part) {
    ls__mpi *mpi = (ls__mpi *)transport;
    char text[LS__MPI_TEXT_BYTES] = "";
    ls__mpi_comm *comm = NULL;
    ls__operation meet = {.header = {.magic = LS__HEADER_MAGIC, .kind = LS__BARRIER},
                          .deadline = deadline};
    *part = NULL;
    LS_TRY(run(transport, &meet));
    if (mpi->engine->split(mpi->comm, color, key, &comm, text))
        return ls__fail(LS_ERR_PEER, "cannot split the job: %s", text);
    return comm ? open_comm(part, mpi->engine, comm, deadline) : LS_OK;
}

/* An MPI that another's mpirun started sees one process only, and the job would be N jobs of one rank. */
static ls_status check_size(const ls__mpi_engine *engine, ls__mpi_comm *comm) {
    const int wanted = ls__mpi_launcher_size(), size = engine->size(comm);
    if (wanted == 0 || wanted == size)
        return LS_OK;
    return ls__fail(LS_ERR_ARGUMENT,
                    "%s's mpirun started %d ranks, but the MPI in use sees %d: LOCKSTEP_MPI or the "
                    "program names another MPI than the mpirun that started it",
                    ls__mpi_launcher(), wanted, size);
}

ls_status ls__mpi_open(ls__transport **transport, ls__job_place *place, const char *which,
                       const void *handle) {
    char text[LS__MPI_TEXT_BYTES] = "";
    const ls__mpi_engine *engine;
    ls__mpi_comm *comm;
    *transport = NULL;
    LS_TRY(ls__mpi_load(&engine, which));
    if (engine->open(&comm, handle, text))
        return ls__fail(LS_ERR_SYSTEM, "cannot join through MPI: %s", text);
    if (!handle) {
        ls_status status = check_size(engine, comm);
        if (status != LS_OK) {
            engine->close(comm, true);
            return status;
        }
    }
    LS_TRY(open_comm(transport, engine, comm, ls__deadline_ns(place->timeout_s)));
    place->rank = (*transport)->rank;
    place->world_size = (*transport)->size;
    return LS_OK;
}
