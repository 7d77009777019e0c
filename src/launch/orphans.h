/* Processes that a rank has started and that have left its process group: who called setsid, or was started twice over
 * (a daemon). While their parent lives they are its children; then the kernel gives them to the launcher, which asked
 * for that (PR_SET_CHILD_SUBREAPER), so when the ranks of a round have ended they can be told by their parent.
 *
 * A launcher may stand in a program that has children of its own, or be process 1 of a container. Those are never touched;
 * and as what others leave behind comes to it too, there an orphan has to have this job's token in its environment. */
#ifndef LS_LAUNCH_ORPHANS_H
#define LS_LAUNCH_ORPHANS_H

#include <lockstep/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ls__launch_job;

typedef struct ls__orphans {
    int reaper_before; /* what this process was for orphans */
    pid_t *foreign;    /* (foreign_count) its children from before the job */
    size_t foreign_count;
    bool shared;      /* orphans of others come to this process too */
    bool failed;      /* no memory for a child */
    uint64_t seen_ns; /* since when orphans are waited for; 0: they are not */
    bool given_up;    /* in this round */
} ls__orphans;

/* From now on this process gets the orphans; those that have ended are to be reaped. */
ls_status ls__orphans_open(ls__orphans *orphans);
void ls__orphans_close(ls__orphans *orphans);

/* A round begins. */
void ls__orphans_begin(ls__orphans *orphans);
/* Reaps those that have ended. */
void ls__orphans_reap(struct ls__launch_job *job);
/* All ranks of the round have ended: their orphans have LS__LEFTOVER_S and are killed. True while some live; those
 * that do not end even so are named and left. */
bool ls__orphans_meet(struct ls__launch_job *job, uint64_t now);

#endif
