/* This machine's part in the job: its ranks begin and end as the meeting of the launchers says, which is here or behind
 * a link. A launcher that loses the meeting ends its ranks, for nobody would tell it what becomes of the others, and
 * calls again where the job may go on without it. */
#include "launch/job.h"

#include "base/clock.h"
#include "base/error.h"
#include "launch/exit_code.h"
#include "launch/link.h"
#include "launch/meeting.h"
#include "launch/rendezvous.h"
#include "launch/stopped.h"
#include "launch/wire.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct ls__member {
    ls__launch_job *job;
    ls__rendezvous *rendezvous;           /* NULL: the meeting has it */
    ls__link *link;                       /* to the meeting; NULL: here, or not (any more) */
    char address[LS__PLAN_ADDRESS_BYTES]; /* of the meeting, as it was reached */
    char id[LS__NONCE_BYTES];             /* by which the meeting knows it when it calls again */

    ls__rest told_rest; /* to the meeting, last */

    /* a call under way, in a thread of libuv's */
    uv_work_t work;
    bool calling;
    atomic_bool cancel;
    bool listens; /* nobody was there: the others meet here */
    int fd;
    ls_status status;
    char error[1024];
} ls__member;

static bool is_elastic(const ls__launch_options *options) {
    return options->max_nodes > options->min_nodes;
}

/* --- the call -------------------------------------------------------------------------------------- */

static void do_call(uv_work_t *work) {
    ls__member *m = work->data;
    m->status = ls__rendezvous_call(m->rendezvous, m->job->options->join_timeout_s, &m->cancel,
                                    &m->listens, &m->fd, m->address);
    snprintf(m->error, sizeof m->error, "%s", m->status == LS_OK ? "" : ls_error_text());
}

static void on_message(void *context, const json_t *message);
static void on_gone(void *context, const char *why);

static void say_hello(ls__member *m) {
    const ls__launch_options *options = m->job->options;
    json_t *message = ls__wire_make("hello");
    ls__wire_put_number(message, "min_nodes", options->min_nodes);
    ls__wire_put_number(message, "max_nodes", options->max_nodes);
    ls__wire_put_number(message, "ranks", options->ranks);
    ls__wire_put_number(message, "node_rank", options->has_node_rank ? options->node_rank : -1);
    ls__wire_put_number(message, "grace_s", (int64_t)ls__job_longest_grace(options) + 1);
    ls__wire_put_text(message, "id", m->id);
    ls__link_send(m->link, message);
}

/* What had the port is gone: the others meet here. */
static ls_status become_meeting(ls__member *m) {
    ls__launch_job *job = m->job;
    LS_TRY(ls__meeting_open(job, m->rendezvous));
    fprintf(stderr, "%s: listening on %s now\n", job->command, ls__rendezvous_where(m->rendezvous));
    job->member = NULL;
    free(m);
    return LS_OK;
}

static void after_call(uv_work_t *work, int status) {
    static const ls__link_calls calls = {.message = on_message, .gone = on_gone};
    ls__member *m = work->data;
    ls__launch_job *job = m->job;
    m->calling = false;
    if (status == 0 && m->status == LS_OK && m->listens && !job->over) {
        ls_status opened = become_meeting(m);
        if (opened == LS_OK) { /* and there is no `m` any more */
            ls__job_settle(job);
            return;
        }
        m->status = opened;
        snprintf(m->error, sizeof m->error, "%s", ls_error_text());
    } else if (status == 0 && m->status == LS_OK && job->over) {
        if (m->fd >= 0)
            close(m->fd);
    } else if (status == 0 && m->status == LS_OK) {
        m->link = ls__link_open(&job->loop, m->fd, &calls, m);
        if (m->link)
            say_hello(m);
    }
    if (!m->link && !job->over) {
        job->status = m->status != LS_OK ? m->status : LS_ERR_MEMORY;
        snprintf(job->error, sizeof job->error, "%s",
                 *m->error ? m->error : "no memory for the connection to the launcher to meet");
        ls__member_over(job, LS__EXIT_FAILURE);
    }
    ls__job_settle(job);
}

static ls_status call(ls__member *m) {
    m->calling = true;
    m->work.data = m;
    sigset_t before;
    /* the first call makes the threads of the loop, which are to hold them for good */
    ls__signals_hold(&before);
    int error = uv_queue_work(&m->job->loop, &m->work, do_call, after_call);
    sigprocmask(SIG_SETMASK, &before, NULL);
    m->calling = error == 0;
    return error
               ? ls__fail(LS_ERR_SYSTEM, "cannot call the launcher to meet: %s", uv_strerror(error))
               : LS_OK;
}

/* Without a link and without ranks: call again, or that was it. */
static void call_again(ls__member *m) {
    ls__launch_job *job = m->job;
    const ls__launch_options *options = job->options;
    if (job->over)
        return;
    if (job->signal)
        ls__member_over(job, LS__EXIT_SIGNAL + job->signal);
    else if (!(is_elastic(options) || options->max_restarts > 0) || call(m) != LS_OK)
        ls__member_over(job, LS__EXIT_RANKS);
}

/* --- what the meeting says -------------------------------------------------------------------------- */

static void on_gone(void *context, const char *why) {
    ls__member *m = context;
    ls__launch_job *job = m->job;
    m->link = NULL;
    fprintf(stderr, "%s: the launcher at %s is gone: %s\n", job->command,
            ls__rendezvous_where(m->rendezvous), why);
    if (job->in_round) {
        job->ending = true;
        ls__job_end_ranks(job);
    } else {
        call_again(m);
    }
    ls__job_settle(job);
}

static void take_over(ls__member *m, const json_t *message) {
    ls__launch_job *job = m->job;
    char why[600];
    int code = (int)ls__wire_number(message, "code", -1, 255);
    if (code < 0) /* nobody said that the job went well */
        code = LS__EXIT_FAILURE;
    ls__wire_text(message, "why", why, sizeof why);
    if (!*why && code == LS__EXIT_OK && !job->plan.round)
        snprintf(why, sizeof why, "the job ended before a round with the ranks of this machine");
    if (*why)
        fprintf(stderr, "%s: %s (told by the launcher at %s)\n", job->command, why,
                ls__rendezvous_where(m->rendezvous));
    if (job->in_round) {
        job->ending = true;
        ls__job_end_ranks(job);
    }
    ls__member_over(job, code);
}

/* The meeting waits for ranks that will not be there: leaving tells it so. */
static void give_up(ls__member *m) {
    ls__launch_job *job = m->job;
    fprintf(stderr,
            "%s: the launcher at %s sent a round that cannot be started here; leaving the job\n",
            job->command, ls__rendezvous_where(m->rendezvous));
    if (job->in_round) {
        job->ending = true;
        ls__job_end_ranks(job);
    }
    ls__member_over(job, LS__EXIT_FAILURE);
}

static void take_start(ls__member *m, const json_t *message) {
    ls__plan plan;
    bool good = !m->job->in_round && ls__wire_to_plan(message, &plan) &&
                ls__rendezvous_token(m->rendezvous, plan.nonce, plan.token);
    if (!good) {
        give_up(m);
        return;
    }
    plan.ranks = m->job->options->ranks;
    memcpy(plan.address, m->address, sizeof plan.address);
    ls__member_start(m->job, &plan);
}

static void on_message(void *context, const json_t *message) {
    ls__member *m = context;
    ls__launch_job *job = m->job;
    if (ls__wire_is(message, "over"))
        take_over(m, message);
    else if (ls__wire_is(message, "start"))
        take_start(m, message);
    else if (ls__wire_is(message, "stop") && job->in_round)
        ls__job_stop_ranks(job, ls__wire_signal(message));
    else if (ls__wire_is(message, "end") && job->in_round)
        ls__job_end_ranks(job);
    else if (ls__wire_is(message, "kill") && job->in_round)
        ls__job_kill_ranks(job);
    else if (ls__wire_is(message, "stuck") && job->in_round)
        ls__stopped_is_stuck(job, ls__wire_number(message, "value", 0, 1) == 1);
    ls__job_settle(job);
}

/* --- rounds ---------------------------------------------------------------------------------------- */

void ls__member_start(ls__launch_job *job, const ls__plan *plan) {
    job->plan = *plan;
    job->in_round = true;
    job->ending = false;
    job->stuck_ns = 0;
    job->first_failure = -1;
    job->running = 0;
    job->terminate_ns = job->kill_ns = 0;
    ls__orphans_begin(&job->orphans);
    ls_status status = plan->ranks ? ls__job_start_ranks(job) : LS_ERR_SYSTEM;
    if (job->plan.listener >= 0)
        close(job->plan.listener); /* rank 0 has it */
    job->plan.listener = -1;
    if (status == LS_OK)
        return;
    job->status = status;
    job->ending = true;
    snprintf(job->error, sizeof job->error, "%s", ls_error_text());
    ls__member_failed(job);
}

void ls__member_failed(ls__launch_job *job) {
    const ls__rank *rank = job->first_failure >= 0 ? &job->ranks[job->first_failure] : NULL;
    if (job->meeting) {
        ls__meeting_failed(job);
        return;
    }
    json_t *message = ls__wire_make("failed");
    if (rank) {
        ls__wire_put_number(message, "rank", rank->number);
        ls__wire_put_number(message, "code", rank->signal ? 0 : rank->exit_code);
    } else {
        ls__wire_put_text(message, "cannot", job->error);
    }
    ls__link_send(job->member->link, message);
}

static bool all_left_well(const ls__launch_job *job) {
    for (int i = 0; i < job->started; i++) {
        if (job->ranks[i].signal || job->ranks[i].exit_code)
            return false;
    }
    return true;
}

void ls__member_round_over(ls__launch_job *job) {
    ls__member *m = job->member;
    ls__job_flight_write(job);
    if (job->meeting) {
        ls__meeting_ended(job);
        return;
    }
    bool leaves = ls__signal_asks(job->signal) && is_elastic(job->options);
    bool well = all_left_well(job);
    ls__link_send(m->link, ls__wire_from_ends(job));
    ls__job_free_ranks(job);
    if (leaves && m->link)
        ls__member_over(job, !well             ? LS__EXIT_SIGNAL + job->signal
                             : job->lost_lines ? LS__EXIT_INPUT
                                               : LS__EXIT_OK);
    else if (!m->link)
        call_again(m);
}

void ls__member_over(ls__launch_job *job, int code) {
    ls__member *m = job->member;
    if (job->over)
        return;
    job->over = true;
    job->code = code;
    if (!m)
        return;
    atomic_store(&m->cancel, true);
    ls__link_close(m->link, true);
    m->link = NULL;
}

/* The launcher was told to stop. */
void ls__member_signal(ls__launch_job *job, int signal_number) {
    ls__member *m = job->member;
    if (job->signal && signal_number != SIGINT)
        return;                        /* a closing terminal may say so twice */
    if (job->signal && job->meeting) { /* the user asks again: at once */
        ls__meeting_kill(job);
        return;
    }
    if (job->signal) {
        ls__job_kill_ranks(job);
        ls__link_send(m->link, ls__wire_make("kill"));
        return;
    }
    job->signal = signal_number;
    if (job->meeting) {
        ls__meeting_signal(job, signal_number);
        return;
    }
    json_t *message = ls__wire_make("leave");
    ls__wire_put_number(message, "signal", signal_number);
    ls__link_send(m->link, message);
    if (!job->in_round)
        ls__member_over(job, LS__EXIT_SIGNAL + signal_number);
}

static void tell_rest(ls__member *m) {
    const ls__rest rest = m->job->in_round ? ls__stopped_rest(m->job) : LS__REST_NONE;
    if (rest == m->told_rest)
        return;
    m->told_rest = rest;
    json_t *message = ls__wire_make("rest");
    ls__wire_put_number(message, "value", rest);
    ls__link_send(m->link, message);
}

int ls__member_look(ls__launch_job *job) {
    enum { LOOK_MS = 100 };
    if (job->meeting)
        return ls__meeting_look(job);
    if (!job->member->link)
        return 0;
    ls__link_look(job->member->link);
    tell_rest(job->member);
    return LOOK_MS;
}

ls_status ls__member_open(ls__launch_job *job) {
    const ls__launch_options *options = job->options;
    ls__rendezvous *rendezvous = NULL;
    bool listens = true;
    if (ls__launch_meets(options))
        LS_TRY(ls__rendezvous_open(&rendezvous, options, job->command, &listens));
    if (listens) {
        ls_status status = ls__meeting_open(job, rendezvous);
        if (status != LS_OK)
            ls__rendezvous_close(rendezvous);
        return status;
    }
    job->member = calloc(1, sizeof *job->member);
    if (!job->member) {
        ls__rendezvous_close(rendezvous);
        return ls__fail(LS_ERR_MEMORY, "no memory for the launcher");
    }
    job->member->job = job;
    job->member->rendezvous = rendezvous;
    ls__rendezvous_nonce(job->member->id);
    return call(job->member);
}

void ls__member_close(ls__launch_job *job) {
    ls__meeting_close(job);
    if (!job->member)
        return;
    ls__link_close(job->member->link, false);
    ls__rendezvous_close(job->member->rendezvous);
    free(job->member);
    job->member = NULL;
}
