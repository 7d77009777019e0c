/* What has started this process as a rank, where it is not the launcher. */
#ifndef LS_COMM_STARTED_BY_H
#define LS_COMM_STARTED_BY_H

#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

/* srun, as one of several tasks, and nothing between it and this process that says ranks of its own. */
LS_SHARED bool ls__started_by_slurm(void);

/* LS_ERR_ARGUMENT with a table where several say which rank this is, and not the same. What a launcher or torchrun has
 * started may be below srun or mpirun: then only its own word counts. */
ls_status ls__started_by_check(void);

/* The rendezvous file of ranks that have no MASTER_ADDR: LOCKSTEP_RENDEZVOUS_FILE, or under srun a name made of job and step in
 * the folder that the tasks run in. False where there is none. */
LS_SHARED bool ls__meet_path(char *path, size_t bytes);

#endif
