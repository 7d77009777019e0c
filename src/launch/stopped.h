/* A rank that is stopped (SIGSTOP, SIGTTIN) is missed by the ranks that wait for it: theirs are the heartbeats. When
 * the others have ended nobody waits for it but the launcher, which would wait without end. Of several machines the last
 * one whose ranks have not ended is told so by the meeting. */
#ifndef LS_LAUNCH_STOPPED_H
#define LS_LAUNCH_STOPPED_H

#include "launch/job.h"

/* What waitpid(WUNTRACED | WCONTINUED) told of a rank that has not ended. */
void ls__stopped_see(ls__rank *rank, int wait_status);
/* Ends the ranks that stayed stopped for the limit of a heartbeat (LOCKSTEP_HEARTBEAT) while all that is left of the
 * round was stopped too; true while that may come. A round of which no rank has ended may be stopped for as long as its
 * user likes, and so may one of which ranks are left on more than one machine. */
bool ls__stopped_meet(ls__launch_job *job, uint64_t now);

#endif
