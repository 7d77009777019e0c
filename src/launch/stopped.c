#include "launch/stopped.h"

#include "base/clock.h"
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

void ls__stopped_see(ls__rank *rank, int wait_status) {
    rank->stopped_ns = WIFSTOPPED(wait_status) ? ls__now_ns() : 0;
}

/* When the last of the ranks came to its end or its stop; 0: one is running, or none has ended, elsewhere either. */
static uint64_t standstill(const ls__launch_job *job) {
    uint64_t since = job->alone_ns;
    bool ended = job->plan.nodes > 1;
    for (int i = 0; i < job->started; i++) {
        const ls__rank *rank = &job->ranks[i];
        uint64_t at = rank->exited ? rank->exited_ns : rank->stopped_ns;
        if (!rank->pid || !at)
            return 0;
        ended |= rank->exited;
        since = at > since ? at : since;
    }
    return ended ? since : 0;
}

static void end_rank(const ls__rank *rank) {
    fprintf(stderr,
            "%s: rank %d is stopped and the others have ended: not waited for longer than %g s "
            "(LOCKSTEP_HEARTBEAT)\n",
            rank->job->command, rank->number, rank->job->stopped_s);
    kill(-rank->pid, SIGKILL); /* not noted as sent: its end is a failure */
}

bool ls__stopped_meet(ls__launch_job *job, uint64_t now) {
    const bool last = job->plan.ranks == job->plan.world || job->alone_ns;
    uint64_t since = job->running && last && isfinite(job->stopped_s) ? standstill(job) : 0;
    if (!since)
        return false;
    if ((double)(now - since) * 1e-9 < job->stopped_s)
        return true;
    for (int i = 0; i < job->started; i++) {
        ls__rank *rank = &job->ranks[i];
        if (rank->exited || !rank->stopped_ns)
            continue;
        end_rank(rank);
        rank->stopped_ns = 0; /* once */
    }
    return true;
}
