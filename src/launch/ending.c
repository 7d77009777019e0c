/* How a round ends early: the first rank that fails, or a signal to the launcher, starts a sequence of
 * deadlines at whose end no process of any rank is left. */
#include "launch/job.h"

#include "base/clock.h"
#include "base/error.h"
#include "comm/shm/segment.h"
#include "launch/stopped.h"
#include <signal.h>
#include <sys/wait.h>

static const double TERMINATE_S = 0.4;
/* Ends within this time are seen as simultaneous: then the likelier cause is the first. An end that only tells of
 * another rank's makes way for a cause however late that comes, as long as no rank was told to end. */
static const uint64_t TOGETHER_NS = 100000000;

static bool has_processes(const ls__rank *rank) {
    return rank->pid && (!rank->exited || rank->group_left);
}

static void signal_rank(ls__rank *rank, int signal_number) {
    if (!has_processes(rank))
        return;
    if (!rank->exited)
        rank->signal_sent = signal_number;
    kill(-rank->pid, signal_number);
}

void ls__job_signal_all(ls__launch_job *job, int signal_number) {
    for (int i = 0; i < job->started; i++)
        signal_rank(&job->ranks[i], signal_number);
}

/* 0: the end was a consequence, as far as one can tell; more: likelier to be the cause. */
static int likelihood(const ls__rank *rank) {
    if (rank->signal)
        return 2;
    return ls__end_is_consequence(rank->signal, rank->exit_code) ? 0 : 1;
}

static void note_failure(ls__launch_job *job, const ls__rank *rank) {
    if (job->ending || rank->signal_sent)
        return;
    if (job->first_failure < 0) {
        job->first_failure = rank->local;
        ls__member_failed(job);
        return;
    }
    const ls__rank *first = &job->ranks[job->first_failure];
    const bool together = rank->exited_ns - first->exited_ns < TOGETHER_NS;
    if ((together || likelihood(first) == 0) && likelihood(rank) > likelihood(first))
        job->first_failure = rank->local;
}

static void begin_ending(ls__launch_job *job, const ls__rank *rank) {
    char reason[120];
    ls__end_describe(rank->signal, rank->exit_code, reason, sizeof reason);
    /* A segment that cannot be told costs the survivors their own message, no more: they are ended. */
    if (job->segment_fd >= 0)
        ls__segment_abort(job->segment_fd, rank->number, reason);
    ls__job_end_ranks(job);
}

void ls__job_end_ranks(ls__launch_job *job) {
    const double grace = job->options->fail_grace_s;
    uint64_t kill = ls__deadline_ns(grace + TERMINATE_S);
    if (!job->terminate_ns && (!job->kill_ns || kill < job->kill_ns)) {
        job->terminate_ns = ls__deadline_ns(grace);
        job->kill_ns = kill;
    }
}

/* The group is empty, so its number may be given to somebody else: nobody signals it any more. */
static void group_gone(ls__rank *rank) {
    rank->group_left = false;
    if (rank->exit_code == 0 && rank->signal == 0)
        ls__board_mark_absent(&rank->job->board, rank->number);
    ls__watcher_remove(&rank->job->watcher, rank->pid);
}

/* Children whose parent, the rank, is gone come to the launcher (PR_SET_CHILD_SUBREAPER): without this a
 * container with a lazy init keeps them as zombies. The rank itself was reaped by the loop. */
static void reap_group(ls__rank *rank) {
    while (waitpid(-rank->pid, NULL, WNOHANG) > 0)
        continue;
    if (kill(-rank->pid, 0) != 0)
        group_gone(rank);
}

void ls__job_rank_exited(ls__rank *rank) {
    ls__launch_job *job = rank->job;
    rank->exited = true;
    rank->exited_ns = ls__now_ns();
    rank->leftover_ns = ls__deadline_ns(LS__LEFTOVER_S);
    rank->cut_ns = ls__deadline_ns(LS__CUT_S);
    job->running--;
    rank->group_left = true;
    reap_group(rank);
    if (rank->exit_code == 0 && rank->signal == 0)
        return;
    note_failure(job, rank);
    begin_ending(job, rank);
}

double ls__job_longest_grace(const ls__launch_options *options) {
    return options->grace_s > options->fail_grace_s ? options->grace_s : options->fail_grace_s;
}

int ls__job_signal_for_ranks(int signal_number) {
    return signal_number == SIGPIPE || signal_number == SIGHUP ? SIGTERM : signal_number;
}

void ls__job_forward(ls__launch_job *job, int signal_number) {
    for (int i = 0; i < job->started; i++) {
        if (job->ranks[i].pid && !job->ranks[i].exited)
            kill(-job->ranks[i].pid, signal_number);
    }
}

void ls__job_stop_ranks(ls__launch_job *job, int signal_number) {
    bool unread =
        signal_number == SIGPIPE; /* nobody reads what they write: no reason to wait for it */
    int sent = ls__job_signal_for_ranks(signal_number);
    uint64_t deadline = ls__deadline_ns(unread ? LS__LAUNCH_FAIL_GRACE_S : job->options->grace_s);
    job->ending = true;
    ls__job_signal_all(job, sent);
    ls__job_signal_all(job, SIGCONT); /* a stopped process sees the other one only then */
    for (int i = 0; i < job->started; i++) {
        if (job->ranks[i].pid && !job->ranks[i].exited)
            job->ranks[i].signal_sent = sent;
    }
    if (!job->kill_ns || deadline < job->kill_ns)
        job->kill_ns = deadline;
}

void ls__job_kill_ranks(ls__launch_job *job) {
    job->ending = true;
    job->kill_ns = ls__now_ns();
    for (int s = 0; s < LS__STREAMS; s++) {
        ls__sink_close(&job->sinks[s]);
        job->sinks[s].error = 1;
    }
}

/* The rank's process is gone; what its children still hold ends here. */
static bool meet_rank_deadlines(ls__rank *rank, uint64_t now) {
    if (!rank->exited)
        return false;
    if (rank->group_left)
        reap_group(rank);
    if (rank->group_left && now >= rank->leftover_ns) {
        kill(-rank->pid, SIGKILL);
        rank->leftover_ns = UINT64_MAX;
    }
    if (rank->group_left && now >= rank->cut_ns)
        group_gone(rank); /* killed; somebody else is to reap it */
    return rank->group_left || rank->streams[LS__STDOUT].open || rank->streams[LS__STDERR].open;
}

bool ls__job_meet_deadlines(ls__launch_job *job) {
    uint64_t now = ls__now_ns();
    bool waiting = false;
    for (int i = 0; i < job->started; i++)
        waiting |= meet_rank_deadlines(&job->ranks[i], now);
    waiting |= ls__stopped_meet(job, now);
    if (job->running == 0)
        return ls__orphans_meet(job, now) || waiting;
    if (job->kill_ns && now >= job->kill_ns) {
        ls__job_signal_all(job, SIGKILL);
    } else if (job->terminate_ns && now >= job->terminate_ns) {
        job->terminate_ns = 0;
        ls__job_signal_all(job, SIGTERM);
        for (int i = 0; i < job->started; i++) {
            if (has_processes(&job->ranks[i]))
                kill(-job->ranks[i].pid, SIGCONT); /* a stopped process sees SIGTERM only then */
        }
    }
    return waiting || job->kill_ns;
}
