#include "launch/stopped.h"

#include "base/clock.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

void ls__stopped_see(ls__rank *rank, int wait_status) {
    rank->stopped = WIFSTOPPED(wait_status);
}

ls__rest ls__stopped_rest(const ls__launch_job *job) {
    bool ended = false;
    for (int i = 0; i < job->started; i++) {
        const ls__rank *rank = &job->ranks[i];
        if (!rank->pid || (!rank->exited && !rank->stopped))
            return LS__REST_NONE;
        ended |= rank->exited;
    }
    return ended ? LS__REST_SOME_ENDED : job->started ? LS__REST_STOPPED : LS__REST_NONE;
}

void ls__stopped_is_stuck(ls__launch_job *job, bool stuck) {
    job->stuck_ns = stuck ? ls__now_ns() : 0;
}

static void end_rank(const ls__rank *rank) {
    fprintf(stderr,
            "%s: rank %d is stopped and the others have ended: not waited for longer than %g s "
            "(LOCKSTEP_HEARTBEAT)\n",
            rank->job->command, rank->number, rank->job->stopped_s);
    kill(-rank->pid, SIGKILL); /* not noted as sent: its end is a failure */
}

bool ls__stopped_meet(ls__launch_job *job, uint64_t now) {
    if (!job->stuck_ns || !job->running || !isfinite(job->stopped_s))
        return false;
    if ((double)(now - job->stuck_ns) * 1e-9 < job->stopped_s)
        return true;
    for (int i = 0; i < job->started; i++) {
        ls__rank *rank = &job->ranks[i];
        if (rank->exited || !rank->stopped)
            continue;
        end_rank(rank);
        rank->stopped = false; /* once */
    }
    return true;
}
