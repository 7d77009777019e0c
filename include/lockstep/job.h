/* A job: the processes ("ranks") that train together. Part of liblockstep-comm.
 *
 *     ls_job *job;
 *     if (ls_job_init(&job, NULL) != LS_OK) { fprintf(stderr, "%s\n", ls_error_text()); return 1; }
 *     ls_group *world = ls_job_world(job);
 *     ...
 *     ls_job_finish(job);
 *
 * Where the job comes from, in this order:
 *   - LOCKSTEP_SHM_FD is set (by `lockstep run`): shared memory, inherited; no name, no port;
 *   - RANK and WORLD_SIZE are set: tcp; rank 0 listens on MASTER_ADDR:MASTER_PORT;
 *   - mpirun of OpenMPI or MPICH started several processes: mpi (docs/clusters.md);
 *   - none of these: a world of one.
 * With tcp and mpi, ranks that share a machine go through shared memory there.
 * LOCKSTEP_TRANSPORT=shm|tcp|mpi forces one. All variables: docs/environment.md. */
#ifndef LOCKSTEP_JOB_H
#define LOCKSTEP_JOB_H

#include <lockstep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_job ls_job;     /* opaque */
typedef struct ls_group ls_group; /* opaque; see group.h */

typedef enum ls_log_level {
    LS_LOG_ERROR = 1,
    LS_LOG_WARNING,
    LS_LOG_INFO,
    LS_LOG_DEBUG
} ls_log_level;

/* Receives one line without newline. May be called from any thread of the library. */
typedef void (*ls_log_fn)(void *context, ls_log_level level, const char *line);

/* Zero-initialise; zero means the default. */
typedef struct ls_job_options {
    double
        timeout_s; /* bound of every wait; default LOCKSTEP_TIMEOUT, else 60, and 300 for joining */
    /* A rank that has not beaten for so long has stopped (SIGSTOP, a frozen machine, a cut link), and is
     * LS_ERR_PEER to those who wait for it. Beats come from a thread of their own, whatever a rank
     * computes. Default LOCKSTEP_HEARTBEAT (seconds, or "off"), else 10; INFINITY: never. */
    double heartbeat_s;
    ls_log_fn log;      /* where messages go; default: nowhere, the library does not print */
    void *log_context;  /* handed to log */
    ls_log_level level; /* default LS_LOG_WARNING */
} ls_job_options;

/* Joins the job described by the environment. Collective: returns once all ranks are there, or
 * LS_ERR_TIMEOUT with the missing ranks named. `options` may be NULL. A process may hold several jobs,
 * but only one from one environment. On failure *job is NULL. */
LS_API ls_status ls_job_init(ls_job **job, const ls_job_options *options);

/* Leaves: waits for started operations, closes connections, unmaps memory. NULL is allowed. Leaving
 * is no collective; peers that still wait for this rank get LS_ERR_PEER. No other thread may be inside
 * of a call on the job's groups. Works, reducers, ddps, local_sgds and checkpointers that are left may still be waited
 * for and destroyed, in any order; their other calls are LS_ERR_STATE, and gradients in a reducer's memory are gone. */
LS_API void ls_job_finish(ls_job *job);

/* Says what this rank does where others may have to wait for it: "saving checkpoint", "evaluation". The name
 * (cut at 63 bytes) stands in their messages and in reports. While any rank is in a phase, the deadlines
 * of all ranks stand still, for at most extra_seconds after the phase began (0: not at all). `phase` NULL
 * ends it; phases do not nest. No collective; any thread. */
LS_API ls_status ls_job_set_phase(ls_job *job, const char *phase, double extra_seconds);

/* This process among all of the job, 0 .. world size - 1. Any thread, as the getters below. */
LS_API int ls_job_rank(const ls_job *job);
LS_API int ls_job_world_size(const ls_job *job);
/* This process among those of its machine, 0 .. local world size - 1. */
LS_API int ls_job_local_rank(const ls_job *job);
LS_API int ls_job_local_world_size(const ls_job *job);
/* "shm", "tcp", "mpi", "self" (a world of one), or "shm+tcp", "shm+mpi": the first inside machines, the other
 * between them */
LS_API const char *ls_job_transport(const ls_job *job);
/* The group of all ranks; owned by the job. Groups made of it are ended with it. */
LS_API ls_group *ls_job_world(ls_job *job);

#ifdef __cplusplus
}
#endif
#endif
