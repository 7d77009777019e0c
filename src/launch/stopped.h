/* A rank that is stopped (SIGSTOP, SIGTTIN) is missed by the ranks that wait for it: theirs are the heartbeats. When
 * the others have ended nobody waits for it but the launchers, which would wait without end. So each tells the meeting
 * whether its ranks are at rest, and the meeting tells all when the whole round is stuck. */
#ifndef LS_LAUNCH_STOPPED_H
#define LS_LAUNCH_STOPPED_H

#include "launch/job.h"

/* Of the ranks of this machine. */
typedef enum ls__rest {
    LS__REST_NONE,       /* one at least runs */
    LS__REST_STOPPED,    /* all are stopped */
    LS__REST_SOME_ENDED, /* all are stopped or have ended, and one at least has ended */
} ls__rest;

/* What waitpid(WUNTRACED | WCONTINUED) told of a rank that has not ended. */
void ls__stopped_see(ls__rank *rank, int wait_status);
ls__rest ls__stopped_rest(const ls__launch_job *job);
/* What the meeting says: all ranks of the round are at rest, and some have ended. A round of which none has ended may be
 * stopped for as long as its user likes. */
void ls__stopped_is_stuck(ls__launch_job *job, bool stuck);
/* Ends the ranks that are stopped when the round has been stuck for the limit of a heartbeat (LOCKSTEP_HEARTBEAT);
 * true while that may come. */
bool ls__stopped_meet(ls__launch_job *job, uint64_t now);

#endif
