/* Environment -> place -> transport -> the world's group. All variables: docs/environment.md. */
#include "base/clock.h"
#include "base/error.h"
#include "comm/board.h"
#include "comm/cost_measure.h"
#include "comm/heartbeat.h"
#include "comm/started_by.h"
#include "comm/transport.h"
#include "comm/variables.h"
#include "comm/work.h"

#include <lockstep/mpi.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct ls_job {
    ls__job_place place;
    ls_job_options options;
    double timeout_s; /* of operations */
    ls__board board;
    ls_group *world;
};

/* --- reading variables ------------------------------------------------------------------------- */

/* How a rank reaches other machines. */
static ls_status read_network(ls__job_place *place, int streams) {
    place->streams = streams;
    place->interface = ls__variable("LOCKSTEP_INTERFACE");
    place->cost_table = ls__variable("LOCKSTEP_COST_TABLE");
    place->streams_given = ls__variable("LOCKSTEP_STREAMS") != NULL;
    const char *algorithm = ls__variable("LOCKSTEP_ALGORITHM");
    if (algorithm)
        (void)ls__algorithm_find(algorithm, &place->algorithm);
    return place->streams_given ? ls__variable_integer("LOCKSTEP_STREAMS", 1, 8, &place->streams)
                                : LS_OK;
}

/* An operation waits for ranks that compute the same; a start also for machines that boot. */
static ls_status read_timeouts(const ls_job_options *options, double *join_s, double *operation_s) {
    *join_s = 300;
    *operation_s = 60;
    LS_TRY(ls__variable_seconds("LOCKSTEP_TIMEOUT", "timeout_s", options->timeout_s, join_s));
    return ls__variable_seconds("LOCKSTEP_TIMEOUT", "timeout_s", options->timeout_s, operation_s);
}

static ls_status read_place(ls__job_place *place) {
    bool slurm = ls__started_by_slurm();
    LS_TRY(ls__started_by_check());
    LS_TRY(ls__variable_integer(slurm ? "SLURM_STEP_NUM_TASKS" : "WORLD_SIZE", 1, 1 << 20,
                                &place->world_size));
    LS_TRY(ls__variable_integer(slurm ? "SLURM_PROCID" : "RANK", 0, place->world_size - 1,
                                &place->rank));
    /* Without the local pair, every rank counts as alone on its machine unless memory is shared. */
    place->local_world_size = 1;
    if (ls__variable("LOCAL_WORLD_SIZE") || ls__variable("LOCAL_RANK")) {
        place->local_world_size = place->world_size;
        if (ls__variable("LOCAL_WORLD_SIZE"))
            LS_TRY(ls__variable_integer("LOCAL_WORLD_SIZE", 1, place->world_size,
                                        &place->local_world_size));
        LS_TRY(
            ls__variable_integer("LOCAL_RANK", 0, place->local_world_size - 1, &place->local_rank));
    }
    return LS_OK;
}

/* A record that cannot be written costs no job its life, but is said while it can be helped. */
static void check_flight_folder(const ls__job_place *place) {
    const char *folder = place->board->folder;
    char line[1200];
    if (!folder || !place->log)
        return;
    if ((mkdir(folder, 0777) == 0 || errno == EEXIST) && access(folder, W_OK | X_OK) == 0) {
        place->board->log = place->log; /* what is in the way later is told then */
        place->board->log_context = place->log_context;
        return;
    }
    snprintf(line, sizeof line, "rank %d: LOCKSTEP_FLIGHT: no record can be written to %.900s: %s",
             place->rank, folder, strerror(errno));
    place->log(place->log_context, LS_LOG_WARNING, line);
}

/* Before the transport opens, so that joining shows there too. */
static ls_status join_board(ls__job_place *place) {
    int fd = -1;
    if (ls__variable("LOCKSTEP_BOARD_FD"))
        LS_TRY(ls__variable_integer("LOCKSTEP_BOARD_FD", 0, INT_MAX, &fd));
    LS_TRY(ls__board_join(place->board, fd, place->rank, place->world_size,
                          ls__variable("LOCKSTEP_FLIGHT")));
    check_flight_folder(place);
    ls__flight_name_group(&place->board->mine->flight, 1, place->world_size, "world");
    LS_TRY(ls__heartbeat_start(&place->heartbeat, place->board, place->heartbeat_s));
    ls__heartbeat_set_phase(place->heartbeat, "joining", 0);
    return LS_OK;
}

/* --- choosing a transport ----------------------------------------------------------------------- */

enum { TCP_STREAMS = 1, MPI_STREAMS = 2 };

typedef enum choice { SELF, SHM, TCP, MPI } choice;

/* From SHM on. */
const char *const ls__transport_words[] = {"shm", "tcp", "mpi", NULL};

static choice choose(void) {
    const char *forced = ls__variable("LOCKSTEP_TRANSPORT");
    for (int c = SHM; forced && c <= MPI; c++) {
        if (strcmp(forced, ls__transport_words[c - SHM]) == 0)
            return (choice)c;
    }
    if (ls__variable("LOCKSTEP_SHM_FD"))
        return SHM;
    if (ls__variable("RANK") || ls__variable("WORLD_SIZE") || ls__started_by_slurm())
        return TCP;
    return ls__mpi_launcher() || ls__variable("LOCKSTEP_MPI") ? MPI : SELF;
}

/* LOCKSTEP_TRANSPORT alone makes no rank of a process. */
static ls_status check_started(const char *needed, const char *transport) {
    if (ls__variable(needed))
        return LS_OK;
    return ls__fail(
        LS_ERR_ARGUMENT,
        "LOCKSTEP_TRANSPORT is %s, but %s is not set: start ranks with lockstep run -n N "
        "--transport %s%s",
        transport, needed, transport,
        strcmp(transport, "tcp") == 0 ? ", or give each RANK, WORLD_SIZE, MASTER_ADDR and "
                                        "MASTER_PORT (docs/environment.md)"
                                      : ", which makes the memory and hands it to them");
}

static ls_status open_shm(ls__transport **transport, ls__job_place *place) {
    int fd;
    LS_TRY(check_started("LOCKSTEP_SHM_FD", "shm"));
    LS_TRY(ls__variable_integer("LOCKSTEP_SHM_FD", 0, INT_MAX, &fd));
    LS_TRY(read_place(place));
    if (ls__variable("LOCAL_WORLD_SIZE") && place->local_world_size != place->world_size)
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "LOCAL_WORLD_SIZE is %d and WORLD_SIZE %d: shared memory joins the ranks of "
            "one machine only; use LOCKSTEP_TRANSPORT=tcp",
            place->local_world_size, place->world_size);
    place->local_world_size = place->world_size;
    if (!ls__variable("LOCAL_RANK"))
        place->local_rank = place->rank;
    LS_TRY(join_board(place));
    return ls__shm_open(transport, place, fd);
}

static ls_status open_self(ls__transport **transport, ls__job_place *place) {
    LS_TRY(join_board(place));
    return ls__self_open(transport, place);
}

/* Ranks of one machine share memory, unless LOCKSTEP_TRANSPORT names what all are to go through. */
static ls_status join_inside(ls__transport **transport, ls__job_place *place) {
    if (!ls__variable("LOCKSTEP_TRANSPORT"))
        return ls__hier_open(transport, place);
    ls_status status =
        ls__cost_learn(*transport, *transport, NULL, place, ls__deadline_ns(place->timeout_s));
    if (status != LS_OK) {
        (*transport)->table->close(*transport);
        *transport = NULL;
    }
    return status;
}

#ifdef LOCKSTEP_WITH_TCP
/* Where rank 0 listens. A launcher that holds a socket for it says so beside MASTER_PORT, which is for programs that
 * bind theirs themselves. */
static ls_status read_port(ls__job_place *place, int *port) {
    LS_TRY(ls__variable_integer(ls__variable("LOCKSTEP_PORT") ? "LOCKSTEP_PORT" : "MASTER_PORT", 1,
                                65535, port));
    if (place->rank != 0 || !ls__variable("LOCKSTEP_LISTEN_FD"))
        return LS_OK;
    int listens = 0;
    socklen_t bytes = sizeof listens;
    LS_TRY(ls__variable_integer("LOCKSTEP_LISTEN_FD", 0, INT_MAX, &place->listener));
    if (getsockopt(place->listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || !listens)
        return ls__fail(
            LS_ERR_ARGUMENT,
            "LOCKSTEP_LISTEN_FD is %d, no socket that listens; it is set by the launcher "
            "and good for one job of one process",
            place->listener);
    place->listens = true;
    (void)fcntl(place->listener, F_SETFD, FD_CLOEXEC);
    (void)fcntl(place->listener, F_SETFL, O_RDWR | O_NONBLOCK);
    return LS_OK;
}
#endif

static ls_status open_tcp(ls__transport **transport, ls__job_place *place) {
    if (!ls__variable("RANK") && !ls__started_by_slurm())
        LS_TRY(check_started("WORLD_SIZE", "tcp"));
    LS_TRY(read_place(place));
    if (place->world_size == 1 && !ls__variable("LOCKSTEP_TRANSPORT"))
        return open_self(transport, place);
    LS_TRY(read_network(place, TCP_STREAMS));
#ifdef LOCKSTEP_WITH_TCP
    char path[4096];
    int port;
    if (!ls__variable("MASTER_ADDR") && ls__meet_path(path, sizeof path)) {
        LS_TRY(join_board(place));
        LS_TRY(ls__tcp_open_by_file(transport, place, path, ls__variable("LOCKSTEP_TOKEN")));
        return join_inside(transport, place);
    }
    if (!ls__variable("MASTER_ADDR"))
        return ls__fail(LS_ERR_ARGUMENT, "MASTER_ADDR is not set; want the address of rank 0, or "
                                         "LOCKSTEP_RENDEZVOUS_FILE");
    LS_TRY(read_port(place, &port));
    LS_TRY(join_board(place));
    LS_TRY(ls__tcp_open(transport, place, ls__variable("MASTER_ADDR"), port,
                        ls__variable("LOCKSTEP_TOKEN")));
    return join_inside(transport, place);
#else
    return ls__fail(LS_ERR_UNSUPPORTED, "RANK and WORLD_SIZE ask for tcp, which this build lacks; "
                                        "build with libsodium or use the launcher");
#endif
}

/* Only the communicator tells rank and size. */
static ls_status join_mpi(ls__transport **transport, ls__job_place *place, const char *which,
                          const void *handle) {
    LS_TRY(read_network(place, MPI_STREAMS));
    LS_TRY(ls__mpi_open(transport, place, which, handle));
    ls_status status = join_board(place);
    (*transport)->heartbeat = place->heartbeat;
#ifdef LOCKSTEP_WITH_TCP
    if (status == LS_OK)
        status = ls__tcp_control_beside(*transport, place);
#endif
    if (status == LS_OK)
        return join_inside(transport, place);
    (*transport)->table->close(*transport);
    *transport = NULL;
    return status;
}

static ls_status open_mpi(ls__transport **transport, ls__job_place *place) {
    LS_TRY(ls__started_by_check());
    const char *which = ls__variable("LOCKSTEP_MPI");
    return join_mpi(transport, place, which ? which : ls__mpi_launcher(), NULL);
}

/* `handle` is not used: everything is in the environment. */
static ls_status open_transport(ls__transport **transport, ls__job_place *place,
                                const void *handle) {
    (void)handle;
    choice chosen = choose();
    if (chosen == SHM)
        return open_shm(transport, place);
    if (chosen == TCP)
        return open_tcp(transport, place);
    if (chosen == MPI)
        return open_mpi(transport, place);
    return open_self(transport, place);
}

/* --- the job ------------------------------------------------------------------------------------ */

/* Handed to transports as place->log; drops what is below the wanted level. */
static void log_line(void *context, ls_log_level level, const char *line) {
    const ls_job *job = context;
    if (job->options.log && level <= job->options.level)
        job->options.log(job->options.log_context, level, line);
}

typedef ls_status (*opener)(ls__transport **transport, ls__job_place *place, const void *handle);

static ls_status create(ls_job **job, const ls_job_options *options, opener open_it,
                        const void *handle) {
    *job = NULL;
    ls_job *j = calloc(1, sizeof *j);
    if (!j)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    if (options)
        j->options = *options;
    if (!j->options.level)
        j->options.level = LS_LOG_WARNING;
    j->place = (ls__job_place){.world_size = 1, .local_world_size = 1};
    j->place.board = &j->board;
    j->place.log = log_line;
    j->place.log_context = j;
    ls_status status;
    ls__transport *transport = NULL;
    LS_TRY_OUT(ls__variables_check());
    LS_TRY_OUT(read_timeouts(&j->options, &j->place.timeout_s, &j->timeout_s));
    LS_TRY_OUT(ls__heartbeat_limit(j->options.heartbeat_s, &j->place.heartbeat_s));
    LS_TRY_OUT(open_it(&transport, &j->place, handle));
    transport->heartbeat = j->place.heartbeat;
    transport->board = &j->board;
    ls__heartbeat_set_phase(j->place.heartbeat, NULL, 0);
    LS_TRY_OUT(ls__group_create(&j->world, transport, j->timeout_s, &j->board));
    *job = j;
    return LS_OK;
out:
    ls__heartbeat_stop(j->place.heartbeat);
    ls__board_close(&j->board, false);
    free(j);
    return status;
}

ls_status ls_job_init(ls_job **job, const ls_job_options *options) {
    if (!job)
        return ls__fail(LS_ERR_ARGUMENT, "job_init: job is NULL");
    return create(job, options, open_transport, NULL);
}

static ls_status open_handle(ls__transport **transport, ls__job_place *place, const void *handle) {
    return join_mpi(transport, place, NULL, handle);
}

ls_status ls_job_from_mpi(ls_job **job, const void *communicator, const ls_job_options *options) {
    if (!job || !communicator)
        return ls__fail(LS_ERR_ARGUMENT, "job_from_mpi: %s is NULL", job ? "communicator" : "job");
    return create(job, options, open_handle, communicator);
}

void ls_job_finish(ls_job *job) {
    if (!job)
        return;
    bool at_home = *job->world->at_home;
    ls__group_destroy(job->world);
    if (at_home) /* a child has no such thread */
        ls__heartbeat_stop(job->place.heartbeat);
    ls__board_close(&job->board, at_home);
    free(job);
}

ls_status ls_job_set_phase(ls_job *job, const char *phase, double extra_seconds) {
    if (!job)
        return ls__fail(LS_ERR_ARGUMENT, "job_set_phase: job is NULL");
    if (!(extra_seconds >= 0))
        return ls__fail(LS_ERR_ARGUMENT, "job_set_phase: extra_seconds is %g, want 0 or more",
                        extra_seconds);
    if (phase && !*phase)
        return ls__fail(LS_ERR_ARGUMENT, "job_set_phase: phase is empty; NULL ends one");
    if (!*job->world->at_home)
        return ls__fail(LS_ERR_STATE,
                        "job_set_phase: this process was forked from rank %d and is "
                        "no rank itself",
                        job->place.rank);
    ls__heartbeat_set_phase(job->place.heartbeat, phase, phase ? extra_seconds : 0);
    return LS_OK;
}

int ls_job_rank(const ls_job *job) {
    return job ? job->place.rank : -1;
}

int ls_job_world_size(const ls_job *job) {
    return job ? job->place.world_size : 0;
}

int ls_job_local_rank(const ls_job *job) {
    return job ? job->place.local_rank : -1;
}

int ls_job_local_world_size(const ls_job *job) {
    return job ? job->place.local_world_size : 0;
}

const char *ls_job_transport(const ls_job *job) {
    return job ? job->world->transport->table->name : NULL;
}

ls_group *ls_job_world(ls_job *job) {
    return job ? job->world : NULL;
}
