/* The memory that all ranks of one machine map. The launcher creates it before it starts the ranks,
 * who inherit the descriptor (LOCKSTEP_SHM_FD): it has no name, so nothing can be left behind. */
#ifndef LS_COMM_SHM_SEGMENT_H
#define LS_COMM_SHM_SEGMENT_H

#include "base/error.h"

/* Whether that many ranks can share memory. */
LS_SHARED ls_status ls__segment_check(int ranks);
/* A memfd with an initialised control area for `ranks` ranks; close-on-exec is set, the launcher
 * clears it for the ranks it starts. */
LS_SHARED ls_status ls__segment_create(int *fd, int ranks);

/* Tells everyone who waits in the segment that `rank` is gone, and why (one line: "was killed by signal 9
 * (Killed)"). Their waits end at once with LS_ERR_PEER. The first reason stays. */
LS_SHARED ls_status ls__segment_abort(int fd, int rank, const char *reason);

#endif
