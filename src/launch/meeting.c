#include "launch/meeting.h"

#include "base/clock.h"
#include "base/error.h"
#include "launch/meeting_state.h"
#include "launch/wire.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A rank with code 4 tells of somebody else's end: a machine that is gone is known by then. */
#define HOLD_S (LS__LINK_SILENCE_S + 1)

/* LATE_S beyond its grace a node that has not ended its ranks counts as gone: killed ranks are gone at once, and what
 * they wrote has long been read. */
static const double SETTLE_S = 3, LATE_S = 30, TELL_S = 10;

/* --- rounds ---------------------------------------------------------------------------------------- */

static void say_round(const ls__meeting *m) {
    const ls__rounds *r = &m->rounds;
    if (r->round == 1 || m->job->options->rank0_speaks)
        return;
    fprintf(stderr, "%s: round %d: %d ranks on %d of %d machines, restart %d of %d\n",
            m->job->command, r->round, m->world, r->members, r->max, r->restarts, r->max_restarts);
}

static ls_status make_plan(ls__meeting *m, ls__plan *plan) {
    const ls__launch_options *options = m->job->options;
    if (!m->rendezvous)
        return ls__plan_make_local(plan, options->ranks, options->transport == LS__LAUNCH_TCP);
    *plan = (ls__plan){.ranks = options->ranks, .listener = -1};
    ls__rendezvous_nonce(plan->nonce);
    ls__rendezvous_token(m->rendezvous, plan->nonce, plan->token);
    return ls__rendezvous_hold(m->rendezvous, plan);
}

static void number_nodes(ls__meeting *m) {
    m->world = 0;
    for (int i = 0; i < m->rounds.members; i++) {
        ls__node *n = &m->node[m->rounds.member[i]];
        n->number = i;
        n->first_rank = m->world;
        n->first = -1;
        n->failed_ns = 0;
        n->held = false;
        n->rest = LS__REST_NONE;
        json_decref(n->ends);
        n->ends = NULL;
        m->world += n->ranks;
    }
}

static void start_round(ls__meeting *m) {
    ls__plan plan;
    number_nodes(m);
    m->in_round = true;
    m->stuck = false;
    m->missing[0] = '\0';
    say_round(m);
    ls_status status = make_plan(m, &plan);
    plan.round = m->rounds.round;
    plan.restarts = m->rounds.restarts;
    plan.nodes = m->rounds.members;
    plan.world = m->world;
    for (int i = 1; i < m->rounds.members && status == LS_OK; i++) {
        const ls__node *n = &m->node[m->rounds.member[i]];
        ls__plan theirs = plan;
        theirs.node = i;
        theirs.first_rank = n->first_rank;
        ls__link_send(n->link, ls__wire_from_plan(&theirs));
    }
    for (int i = 1; i < m->rounds.members && status != LS_OK; i++) /* they were told of nothing */
        ls__rounds_ended(&m->rounds, m->rounds.member[i], false);
    plan.node = plan.first_rank = 0;
    if (status != LS_OK)
        plan.ranks = 0; /* which the member takes for the error it is */
    ls__member_start(m->job, &plan);
}

/* --- what is to be done ---------------------------------------------------------------------------- */

static void give(ls__meeting *m, ls__order order) {
    ls__launch_job *job = m->job;
    int signal_number = m->rounds.signal ? m->rounds.signal : SIGTERM;
    if (order == LS__ORDER_START) {
        start_round(m);
    } else if (order == LS__ORDER_AGREE) {
        json_t *message = ls__wire_make("stop");
        ls__wire_put_number(message, "signal", ls__job_signal_for_ranks(signal_number));
        ls__nodes_tell(m, message);
        ls__job_stop_ranks(job, signal_number);
    } else if (order == LS__ORDER_END) {
        ls__nodes_tell(m, ls__wire_make("end"));
        ls__job_end_ranks(job);
    } else {
        ls__meeting_finish_round(m, order == LS__ORDER_OVER);
    }
}

static bool all_members_ended(const ls__meeting *m) {
    for (int i = 0; i < m->rounds.members; i++) {
        const ls__rounds_node *n = &m->rounds.node[m->rounds.member[i]];
        if (n->member && !n->ended)
            return false;
    }
    return true;
}

/* Failures that may be consequences count when nothing else has come up. */
static void release_held(ls__meeting *m) {
    bool all = all_members_ended(m);
    for (int i = 0; i < m->rounds.members; i++) {
        ls__node *n = &m->node[m->rounds.member[i]];
        if (!n->held || (!all && ls__now_ns() < ls__deadline_after(n->failed_ns, HOLD_S)))
            continue;
        n->held = false;
        if (!m->rounds.broken)
            ls__rounds_failed(&m->rounds, n->index);
    }
}

static bool is_stuck(ls__meeting *m) {
    bool ended = false, waits = false;
    m->node[0].rest = ls__stopped_rest(m->job);
    for (int i = 0; i < m->rounds.members; i++) {
        const int index = m->rounds.member[i];
        const ls__rest rest = m->node[index].rest;
        const bool over = !m->rounds.node[index].member || m->rounds.node[index].ended;
        if (!over && rest == LS__REST_NONE)
            return false;
        ended |= over || rest == LS__REST_SOME_ENDED;
        waits |= !over;
    }
    return ended && waits;
}

static void tell_stuck(ls__meeting *m) {
    const bool stuck = is_stuck(m);
    if (stuck == m->stuck)
        return;
    m->stuck = stuck;
    json_t *message = ls__wire_make("stuck");
    ls__wire_put_number(message, "value", stuck);
    ls__nodes_tell(m, message);
    ls__stopped_is_stuck(m->job, stuck);
}

static void look_at_links(ls__meeting *m) {
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        if (m->node[i].link)
            ls__link_look(m->node[i].link);
    }
}

/* Silent though the connection lives: its ranks cannot be ended, or it was never told. */
static void give_up_late_nodes(ls__meeting *m) {
    uint64_t now = ls__now_ns();
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        ls__node *n = &m->node[i];
        double allowed_s = n->grace_s + LATE_S;
        char why[100];
        if (!n->link || !ls__rounds_is_late(&m->rounds, i, (uint64_t)(allowed_s * 1e9), now))
            continue;
        snprintf(why, sizeof why, "its ranks have not ended within %g s", allowed_s);
        ls__link_close(n->link, true);
        ls__node_gone(n, why);
    }
}

static void let_in(ls__meeting *m) {
    ls__caller caller;
    for (;;) {
        if (ls__rendezvous_accept(m->rendezvous, &caller) != LS_OK) {
            if (ls__now_ns() >= m->tell_ns) {
                fprintf(stderr, "%s: %s\n", m->job->command, ls_error_text());
                m->tell_ns = ls__deadline_ns(TELL_S);
            }
            return;
        }
        if (caller.fd < 0)
            return;
        ls__nodes_admit(m, &caller);
    }
}

int ls__meeting_look(ls__launch_job *job) {
    enum { SOON_MS = 20, LATER_MS = 100 };
    ls__meeting *m = job->meeting;
    if (job->over)
        return 0;
    if (m->rendezvous) {
        let_in(m);
        look_at_links(m);
        give_up_late_nodes(m);
        ls__nodes_answer(m);
    }
    if (m->in_round) {
        release_held(m);
        tell_stuck(m);
    }
    for (;;) {
        ls__order order = ls__rounds_next(&m->rounds, ls__now_ns());
        if (order == LS__ORDER_NONE)
            break;
        give(m, order);
    }
    if (job->over || !m->rendezvous)
        return 0;
    return ls__rendezvous_is_busy(m->rendezvous) || m->rounds.phase == LS__GATHERING ? SOON_MS
                                                                                     : LATER_MS;
}

/* --- this machine ---------------------------------------------------------------------------------- */

void ls__meeting_signal(ls__launch_job *job, int signal_number) {
    if (job->meeting->rounds.signal && signal_number == SIGINT) /* it began at another machine */
        ls__meeting_kill(job);
    else
        ls__rounds_signal(&job->meeting->rounds, signal_number);
}

void ls__meeting_kill(ls__launch_job *job) {
    if (!job->meeting->in_round)
        return;
    ls__job_kill_ranks(job);
    ls__nodes_tell(job->meeting, ls__wire_make("kill"));
}

void ls__meeting_failed(ls__launch_job *job) {
    ls__node *n = &job->meeting->node[0];
    if (job->status != LS_OK) {
        job->meeting->rounds.max_restarts = job->meeting->rounds.restarts;
        ls__rounds_failed(&job->meeting->rounds, 0);
        snprintf(job->meeting->cannot, sizeof job->meeting->cannot, "host %s: %.400s", n->host,
                 job->error);
        return;
    }
    const ls__rank *rank = &job->ranks[job->first_failure];
    n->first = rank->number;
    n->failed_ns = ls__now_ns();
    n->consequence = ls__end_is_consequence(rank->signal, rank->exit_code);
    n->held = n->consequence && job->meeting->rendezvous;
    if (!n->held)
        ls__rounds_failed(&job->meeting->rounds, 0);
}

/* Each rank ended by itself, with code 0. */
static bool all_done(const ls__launch_job *job) {
    bool done = job->started == job->plan.ranks;
    for (int i = 0; i < job->started; i++) {
        const ls__rank *rank = &job->ranks[i];
        done = done && rank->exited && !rank->exit_code && !rank->signal && !rank->signal_sent;
    }
    return done;
}

void ls__meeting_ended(ls__launch_job *job) {
    ls__node *n = &job->meeting->node[0];
    n->lost_lines = job->lost_lines;
    if (job->first_failure >= 0) { /* a likelier one may have ended a moment later */
        const ls__rank *rank = &job->ranks[job->first_failure];
        n->first = rank->number;
        n->consequence = ls__end_is_consequence(rank->signal, rank->exit_code);
    }
    ls__node_release_cause(n);
    ls__rounds_ended(&job->meeting->rounds, 0, all_done(job));
}

ls_status ls__meeting_open(ls__launch_job *job, ls__rendezvous *rendezvous) {
    const ls__launch_options *options = job->options;
    ls__meeting *m = calloc(1, sizeof *m);
    if (!m)
        return ls__fail(LS_ERR_MEMORY, "no memory for the meeting of the launchers");
    m->job = job;
    m->rendezvous = rendezvous;
    for (int i = 0; i < LS__ROUNDS_NODES; i++)
        m->node[i] = (ls__node){.meeting = m, .index = i, .first = -1, .wanted = -1};
    m->node[0].greeted = true;
    m->node[0].ranks = options->ranks;
    m->node[0].pid = getpid();
    (void)gethostname(m->node[0].host, sizeof m->node[0].host - 1);
    int min = options->min_nodes > 0 ? options->min_nodes : 1;
    ls__rounds_open(&m->rounds, min, options->max_nodes > min ? options->max_nodes : min,
                    options->max_restarts, (uint64_t)(options->join_timeout_s * 1e9),
                    (uint64_t)(SETTLE_S * 1e9), ls__now_ns());
    ls__rounds_join(&m->rounds, 0, 0, ls__now_ns());
    job->meeting = m;
    return LS_OK;
}

void ls__meeting_close(ls__launch_job *job) {
    ls__meeting *m = job->meeting;
    if (!m)
        return;
    for (int i = 0; i < LS__ROUNDS_NODES; i++) {
        ls__link_close(m->node[i].link, false);
        json_decref(m->node[i].ends);
    }
    ls__rendezvous_close(m->rendezvous);
    free(m);
    job->meeting = NULL;
}
