/* A job inside a program that already uses MPI. Part of liblockstep-comm; names no type of mpi.h, so it fits
 * every MPI that Lockstep has a module for (OpenMPI, MPICH; found by what the process has loaded).
 *
 *     MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
 *     MPI_Comm mine = ...;
 *     ls_job *job;
 *     if (ls_job_from_mpi(&job, &mine, NULL) != LS_OK) ...
 */
#ifndef LOCKSTEP_MPI_H
#define LOCKSTEP_MPI_H

#include <lockstep/job.h>

#ifdef __cplusplus
extern "C" {
#endif

/* `communicator` points to an MPI_Comm, whose ranks become those of the job. It is duplicated, so messages of
 * the job and of the program never meet, and the program keeps it. Collective over the communicator.
 *
 * MPI_THREAD_SERIALIZED or more is wanted where operations are started (ls_..._start) or the program has
 * several threads: with less, blocking calls of the main thread work, all else is LS_ERR_UNSUPPORTED. With
 * MPI_THREAD_SERIALIZED the program makes no MPI call of its own while operations of the job are running.
 * ls_job_finish comes before MPI_Finalize, which stays the program's. */
LS_API ls_status ls_job_from_mpi(ls_job **job, const void *communicator,
                                 const ls_job_options *options);

#ifdef __cplusplus
}
#endif
#endif
