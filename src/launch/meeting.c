#include "launch/meeting.h"

#include "base/clock.h"
#include "base/error.h"
#include "launch/exit_code.h"
#include "launch/link.h"
#include "launch/wire.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Node 0 is this machine, without a link. */
typedef struct node {
    ls__meeting *meeting;
    int index;
    ls__link *link;
    bool greeted; /* it has said what it brings */
    char host[LS__CALLER_HOST_BYTES];
    int64_t pid;
    int ranks;
    int wanted;  /* --node-rank, -1: none */
    int grace_s; /* that its ranks may take to end, at most */

    /* the round under way */
    int number, first_rank;
    bool gone;
    json_t *ends; /* its message */
    int first;    /* rank of its first failure, -1: none */
    int likelihood;
    uint64_t failed_ns;
    bool held; /* a failure that may be a consequence: what of, is waited for */
} node;

struct ls__meeting {
    ls__launch_job *job;
    ls__rendezvous *rendezvous; /* NULL: one machine */
    ls__rounds rounds;
    node node[LS__ROUNDS_NODES];
    bool in_round;
    int world;
    char cannot[600]; /* why a node could not start its ranks */
    char missing[400];
    uint64_t tell_ns; /* when that nobody can be let in may be said again */
};

/* A rank with code 4 tells of somebody else's end: a machine that is gone is known by then. */
#define HOLD_S (LS__LINK_SILENCE_S + 1)

/* LATE_S beyond its grace a node that has not ended its ranks counts as gone: killed ranks are gone at once, and what
 * they wrote has long been read. */
static const double JOIN_S = 300, SETTLE_S = 3, LATE_S = 30, TELL_S = 10;

/* --- nodes ----------------------------------------------------------------------------------------- */

static void put_to_all(ls__meeting *m, json_t *message) {
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        if (m->node[i].link && m->rounds.node[i].member)
            ls__link_send(m->node[i].link, json_incref(message));
    }
    json_decref(message);
}

static void forget(node *n) {
    json_decref(n->ends);
    *n = (node){.meeting = n->meeting, .index = n->index, .first = -1};
}

/* "node 1 (host b, pid 12)" */
static void name_node(const node *n, char *text, size_t bytes) {
    snprintf(text, bytes, "node %d (host %.63s, pid %lld)", n->number, n->host, (long long)n->pid);
}

static void node_gone(node *n, const char *why) {
    ls__meeting *m = n->meeting;
    char name[120];
    bool member = m->rounds.node[n->index].member && m->in_round;
    bool counts = member && !m->rounds.node[n->index].ended;
    name_node(n, name, sizeof name);
    n->link = NULL;
    if (counts) {
        if (!*m->missing)
            snprintf(m->missing, sizeof m->missing, "%s is gone: %s", name, why);
        if (ls__rounds_is_elastic(&m->rounds) || m->rounds.restarts < m->rounds.max_restarts)
            fprintf(stderr, "%s: %s is gone: %s\n", m->job->command, name, why);
    }
    ls__rounds_gone(&m->rounds, n->index);
    if (member)
        n->gone = true; /* its seat stays until the round is over: the report tells of its ranks */
    else
        forget(n);
}

static void on_gone(void *context, const char *why) {
    node *n = context;
    ls__launch_job *job = n->meeting->job;
    node_gone(n, why);
    ls__job_settle(job);
}

static void refuse(node *n, const char *why) {
    json_t *message = ls__wire_make("over");
    ls__wire_put_number(message, "code", LS__EXIT_USAGE);
    ls__wire_put_text(message, "why", why);
    ls__link_send(n->link, message);
    ls__link_close(n->link, true);
    forget(n);
}

/* Two launchers of one number: the earlier one may be dead without that we know. */
static node *same_number(ls__meeting *m, const node *n) {
    for (int i = 0; i < LS__ROUNDS_NODES; i++) {
        node *other = &m->node[i];
        bool zero = i == 0 && n->wanted == 0;
        if (other != n && other->greeted && !other->gone && n->wanted >= 0 &&
            (other->wanted == n->wanted || zero))
            return other;
    }
    return NULL;
}

static void list_nodes(const ls__meeting *m, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < LS__ROUNDS_NODES && used + 100 < bytes; i++) {
        const node *n = &m->node[i];
        if (n->greeted && !n->gone)
            used += (size_t)snprintf(text + used, bytes - used, "%shost %.40s (pid %lld, %d ranks)",
                                     used ? ", " : "", n->host, (long long)n->pid, n->ranks);
    }
}

static void take_hello(node *n, const json_t *message) {
    ls__meeting *m = n->meeting;
    const ls__launch_options *options = m->job->options;
    char why[500];
    int min = (int)ls__wire_number(message, "min_nodes", 0, LS__ROUNDS_NODES);
    int max = (int)ls__wire_number(message, "max_nodes", 0, LS__ROUNDS_NODES);
    n->ranks = (int)ls__wire_number(message, "ranks", 0, LS__LAUNCH_MOST_RANKS);
    n->wanted = (int)ls__wire_number(message, "node_rank", -1, LS__ROUNDS_NODES - 1);
    n->grace_s = (int)ls__wire_number(message, "grace_s", 0, 1000000);
    node *other = same_number(m, n);
    if (min != m->rounds.min || max != m->rounds.max || n->ranks < 1) {
        snprintf(why, sizeof why,
                 "the launchers disagree: host %s has --nnodes %d:%d, host %s has --nnodes %d:%d",
                 m->node[0].host, m->rounds.min, m->rounds.max, n->host, min, max);
        refuse(n, why);
        return;
    }
    if (other && (other->index == 0 || strcmp(other->host, n->host) != 0)) {
        snprintf(
            why, sizeof why,
            "--node-rank %d is there twice: host %s (pid %lld) and host %s (pid %lld); give every "
            "launcher its own, from 0 to %d",
            n->wanted, other->host, (long long)other->pid, n->host, (long long)n->pid, max - 1);
        refuse(n, why);
        return;
    }
    if (other) { /* started again on its machine, or its connection broke: the new one counts */
        ls__link_close(other->link, false);
        node_gone(other, "another launcher has come in its place");
    }
    n->greeted = true;
    ls__rounds_join(&m->rounds, n->index, n->wanted, ls__now_ns());
    if (options->max_nodes > 1 && !options->rank0_speaks)
        fprintf(stderr, "%s: host %s has come with %d ranks: %d of %d machines\n", m->job->command,
                n->host, n->ranks, ls__rounds_count(&m->rounds), m->rounds.max);
}

/* The first failure among its ranks, as it sees it. */
static void take_first(node *n, const json_t *message) {
    int64_t rank = ls__wire_number(message, "rank", -1, n->meeting->world - 1);
    if (rank < n->first_rank || rank >= n->first_rank + n->ranks)
        return;
    n->first = (int)rank;
    n->likelihood = ls__wire_number(message, "code", 0, 1024) == LS__EXIT_RANKS ? 0 : 1;
}

/* A failure that was held as a consequence has come out as a cause. */
static void release_cause(node *n) {
    if (!n->held || n->likelihood == 0)
        return;
    n->held = false;
    ls__rounds_failed(&n->meeting->rounds, n->index);
}

static void take_failed(node *n, const json_t *message) {
    ls__meeting *m = n->meeting;
    if (!m->in_round || !m->rounds.node[n->index].member || n->failed_ns)
        return;
    n->failed_ns = ls__now_ns();
    take_first(n, message);
    if (n->first < 0) {
        char why[400];
        ls__wire_text(message, "cannot", why, sizeof why);
        snprintf(m->cannot, sizeof m->cannot, "host %s: %s", n->host, why);
        m->rounds.max_restarts = m->rounds.restarts; /* it would be so again */
    }
    n->held = n->first >= 0 && n->likelihood == 0 && m->rendezvous;
    if (!n->held)
        ls__rounds_failed(&m->rounds, n->index);
}

static void take_ended(node *n, const json_t *message) {
    ls__meeting *m = n->meeting;
    if (!m->in_round || !m->rounds.node[n->index].member ||
        ls__wire_number(message, "round", 0, INT32_MAX) != m->rounds.round)
        return;
    json_decref(n->ends);
    n->ends = json_incref((json_t *)message);
    if (n->first >= 0) /* a likelier one may have ended a moment after it was told of */
        take_first(n, message);
    release_cause(n);
    ls__rounds_ended(&m->rounds, n->index, ls__wire_ends_are_done(message, n->ranks));
}

static void take_leave(node *n, const json_t *message) {
    ls__meeting *m = n->meeting;
    int signal_number = ls__wire_signal(message);
    if (signal_number == SIGTERM && ls__rounds_is_elastic(&m->rounds))
        ls__rounds_leave(&m->rounds, n->index);
    else
        ls__rounds_signal(&m->rounds, signal_number == SIGPIPE ? SIGTERM : signal_number);
}

static void on_message(void *context, const json_t *message) {
    node *n = context;
    ls__launch_job *job = n->meeting->job;
    if (!n->greeted && ls__wire_is(message, "hello"))
        take_hello(n, message);
    else if (n->greeted && ls__wire_is(message, "failed"))
        take_failed(n, message);
    else if (n->greeted && ls__wire_is(message, "ended"))
        take_ended(n, message);
    else if (n->greeted && ls__wire_is(message, "leave"))
        take_leave(n, message);
    else if (n->greeted && ls__wire_is(message, "kill"))
        ls__meeting_kill(job);
    ls__job_settle(job);
}

static void seat(ls__meeting *m, const ls__caller *caller) {
    static const ls__link_calls calls = {.message = on_message, .gone = on_gone};
    int i = 1;
    while (i < LS__ROUNDS_NODES && (m->node[i].link || m->node[i].gone))
        i++;
    node *n = i < LS__ROUNDS_NODES ? &m->node[i] : NULL;
    ls__link *link = n ? ls__link_open(&m->job->loop, caller->fd, &calls, n) : NULL;
    if (!link) {
        fprintf(stderr, "%s: no place for the launcher of host %s\n", m->job->command,
                caller->host);
        if (!n)
            close(caller->fd);
        return;
    }
    forget(n);
    n->link = link;
    n->pid = caller->pid;
    snprintf(n->host, sizeof n->host, "%s", caller->host);
}

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
        node *n = &m->node[m->rounds.member[i]];
        n->number = i;
        n->first_rank = m->world;
        n->first = -1;
        n->failed_ns = 0;
        n->held = false;
        json_decref(n->ends);
        n->ends = NULL;
        m->world += n->ranks;
    }
}

static void start_round(ls__meeting *m) {
    ls__plan plan;
    number_nodes(m);
    m->in_round = true;
    m->missing[0] = '\0';
    say_round(m);
    ls_status status = make_plan(m, &plan);
    plan.round = m->rounds.round;
    plan.restarts = m->rounds.restarts;
    plan.nodes = m->rounds.members;
    plan.world = m->world;
    for (int i = 1; i < m->rounds.members && status == LS_OK; i++) {
        const node *n = &m->node[m->rounds.member[i]];
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

/* Where the failures of several machines come together: who fails by itself counts before those that tell of others,
 * then who was heard of first. */
static int first_failure(const ls__meeting *m) {
    const node *best = NULL;
    for (int i = 0; i < m->rounds.members; i++) {
        const node *n = &m->node[m->rounds.member[i]];
        bool consequence = n->likelihood == 0 && *m->missing;
        if (n->first < 0 || consequence)
            continue;
        if (!best || n->likelihood > best->likelihood ||
            (n->likelihood == best->likelihood && n->failed_ns < best->failed_ns))
            best = n;
    }
    return best ? best->first : -1;
}

static ls_status collect(ls__meeting *m, ls__outcome *o) {
    ls__launch_job *job = m->job;
    *o = (ls__outcome){.command = job->command,
                       .options = job->options,
                       .why = m->rounds.why,
                       .restarts = m->rounds.restarts,
                       .nodes = m->rounds.members,
                       .ranks = m->world,
                       .first_failure = -1,
                       .stop_signal = m->rounds.signal,
                       .write_error = job->write_error,
                       .line_open = job->error_sink->last && job->error_sink->last != '\n',
                       .started_ns = job->started_ns};
    snprintf(o->missing, sizeof o->missing, "%.399s", *m->missing ? m->missing : m->cannot);
    if (!m->in_round)
        return LS_OK;
    o->end = calloc((size_t)m->world, sizeof *o->end);
    o->record = calloc((size_t)m->world, sizeof *o->record);
    if (!o->end || !o->record) {
        o->ranks = 0;
        return ls__fail(LS_ERR_MEMORY, "no memory for the report on %d ranks", m->world);
    }
    for (int i = 0; i < m->rounds.members; i++) {
        const node *n = &m->node[m->rounds.member[i]];
        for (int r = n->first_rank; r < n->first_rank + n->ranks; r++) {
            o->end[r].number = r;
            if (m->rendezvous)
                snprintf(o->end[r].host, sizeof o->end[r].host, "%s", n->host);
        }
        if (n->index == 0)
            ls__outcome_take_local(o, job);
        else if (n->ends)
            ls__wire_to_ends(n->ends, o, n->first_rank, n->ranks);
    }
    o->first_failure = first_failure(m);
    return LS_OK;
}

/* A program that does not use Lockstep left no record. */
static void drop_empty_records(ls__outcome *o) {
    bool any = false;
    for (int r = 0; o->record && r < o->ranks; r++)
        any |= o->record[r].pid != 0;
    if (any)
        return;
    free(o->record);
    o->record = NULL;
}

static void free_seats(ls__meeting *m) {
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        if (m->node[i].gone)
            forget(&m->node[i]);
    }
}

static void tell_over(ls__meeting *m, const ls__outcome *o, int code) {
    char why[500] = "";
    if (code)
        ls__outcome_summary(o, why, sizeof why);
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        if (!m->node[i].link)
            continue;
        json_t *message = ls__wire_make("over");
        ls__wire_put_number(message, "code", code);
        ls__wire_put_text(message, "why", why);
        ls__link_send(m->node[i].link, message);
        ls__link_close(m->node[i].link, true);
        m->node[i].link = NULL;
    }
}

static void say_too_few(ls__meeting *m, ls__outcome *o) {
    char there[300];
    double join_s = (double)m->rounds.join_ns * 1e-9;
    list_nodes(m, there, sizeof there);
    snprintf(o->missing, sizeof o->missing,
             "only %d of at least %d machines were there after %g s at %s: %s",
             ls__rounds_count(&m->rounds), m->rounds.min, join_s,
             m->rendezvous ? ls__rendezvous_where(m->rendezvous) : "?", there);
}

/* The round is over: what is there to tell, before the next one or at the end. */
static void finish_round(ls__meeting *m, bool over) {
    ls__outcome o = {.first_failure = -1};
    ls__launch_job *job = m->job;
    bool broken = m->rounds.why != LS__WHY_GROW && m->rounds.why != LS__WHY_LEAVE;
    if (!m->in_round)
        m->world = 0; /* there are no ranks to tell of */
    if (collect(m, &o) != LS_OK)
        fprintf(stderr, "%s: %s\n", job->command, ls_error_text());
    drop_empty_records(&o);
    if (over && m->rounds.why == LS__WHY_FEW)
        say_too_few(m, &o);
    int code = ls__outcome_exit_code(&o);
    if (*m->cannot && code == LS__EXIT_OK)
        code = LS__EXIT_FAILURE;
    if (job->status == LS_OK && (over || (broken && o.first_failure >= 0)))
        ls__outcome_report(&o);
    if (over && job->options->json && job->status == LS_OK)
        job->status = ls__outcome_write_json(&o);
    if (over)
        tell_over(m, &o, code);
    ls__outcome_free(&o);
    m->in_round = false;
    free_seats(m);
    ls__job_free_ranks(job);
    if (over)
        ls__member_over(job, code);
}

/* --- what is to be done ---------------------------------------------------------------------------- */

static void give(ls__meeting *m, ls__order order) {
    ls__launch_job *job = m->job;
    int signal_number = m->rounds.signal ? m->rounds.signal : SIGTERM;
    if (order == LS__ORDER_START) {
        start_round(m);
    } else if (order == LS__ORDER_AGREE) {
        json_t *message = ls__wire_make("stop");
        ls__wire_put_number(message, "signal", signal_number == SIGPIPE ? SIGTERM : signal_number);
        put_to_all(m, message);
        ls__job_stop_ranks(job, signal_number);
    } else if (order == LS__ORDER_END) {
        put_to_all(m, ls__wire_make("end"));
        ls__job_end_ranks(job);
    } else {
        finish_round(m, order == LS__ORDER_OVER);
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
        node *n = &m->node[m->rounds.member[i]];
        if (!n->held || (!all && ls__now_ns() < ls__deadline_after(n->failed_ns, HOLD_S)))
            continue;
        n->held = false;
        if (!m->rounds.broken)
            ls__rounds_failed(&m->rounds, n->index);
    }
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
        node *n = &m->node[i];
        double allowed_s = n->grace_s + LATE_S;
        char why[100];
        if (!n->link || !ls__rounds_is_late(&m->rounds, i, (uint64_t)(allowed_s * 1e9), now))
            continue;
        snprintf(why, sizeof why, "its ranks have not ended within %g s", allowed_s);
        ls__link_close(n->link, true);
        node_gone(n, why);
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
        seat(m, &caller);
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
    }
    if (m->in_round)
        release_held(m);
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
    put_to_all(job->meeting, ls__wire_make("kill"));
}

void ls__meeting_failed(ls__launch_job *job) {
    node *n = &job->meeting->node[0];
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
    n->likelihood = !rank->signal && rank->exit_code == LS__EXIT_RANKS ? 0 : 1;
    n->held = n->likelihood == 0 && job->meeting->rendezvous;
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
    node *n = &job->meeting->node[0];
    if (job->first_failure >= 0) { /* a likelier one may have ended a moment later */
        const ls__rank *rank = &job->ranks[job->first_failure];
        n->first = rank->number;
        n->likelihood = !rank->signal && rank->exit_code == LS__EXIT_RANKS ? 0 : 1;
    }
    release_cause(n);
    ls__rounds_ended(&job->meeting->rounds, 0, all_done(job));
}

ls_status ls__meeting_open(ls__launch_job *job, ls__rendezvous *rendezvous) {
    const ls__launch_options *options = job->options;
    ls__meeting *m = calloc(1, sizeof *m);
    if (!m)
        return ls__fail(LS_ERR_MEMORY, "no memory for the meeting of the launchers");
    double join_s = options->join_timeout_s > 0 ? options->join_timeout_s : JOIN_S;
    m->job = job;
    m->rendezvous = rendezvous;
    for (int i = 0; i < LS__ROUNDS_NODES; i++)
        m->node[i] = (node){.meeting = m, .index = i, .first = -1, .wanted = -1};
    m->node[0].greeted = true;
    m->node[0].ranks = options->ranks;
    m->node[0].pid = getpid();
    (void)gethostname(m->node[0].host, sizeof m->node[0].host - 1);
    int min = options->min_nodes > 0 ? options->min_nodes : 1;
    ls__rounds_open(&m->rounds, min, options->max_nodes > min ? options->max_nodes : min,
                    options->max_restarts, (uint64_t)(join_s * 1e9), (uint64_t)(SETTLE_S * 1e9),
                    ls__now_ns());
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
