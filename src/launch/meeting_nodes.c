/* The machines that the meeting knows, and what their launchers say. A message changes what is known of its node and is told
 * to the state machine; meeting.c then asks that what is to be done. */
#include "launch/meeting_state.h"

#include "base/clock.h"
#include "launch/exit_code.h"
#include "launch/wire.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void ls__nodes_tell(ls__meeting *m, json_t *message) {
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        if (m->node[i].link && m->rounds.node[i].member)
            ls__link_send(m->node[i].link, json_incref(message));
    }
    json_decref(message);
}

void ls__node_forget(ls__node *n) {
    json_decref(n->ends);
    *n = (ls__node){.meeting = n->meeting, .index = n->index, .first = -1};
}

/* "node 1 (host b, pid 12)" */
static void name_node(const ls__node *n, char *text, size_t bytes) {
    snprintf(text, bytes, "node %d (host %.63s, pid %lld)", n->number, n->host, (long long)n->pid);
}

void ls__node_gone(ls__node *n, const char *why) {
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
        n->gone = true; /* its slot stays until the round is over: the report tells of its ranks */
    else
        ls__node_forget(n);
}

static void on_gone(void *context, const char *why) {
    ls__node *n = context;
    ls__launch_job *job = n->meeting->job;
    ls__node_gone(n, why);
    ls__job_settle(job);
}

void ls__node_refuse(ls__node *n, const char *why) {
    json_t *message = ls__wire_make("over");
    fprintf(stderr, "%s: refused a launcher: %s\n", n->meeting->job->command, why);
    ls__wire_put_number(message, "code", LS__EXIT_USAGE);
    ls__wire_put_text(message, "why", why);
    ls__link_send(n->link, message);
    ls__link_close(n->link, true);
    ls__node_forget(n);
}

void ls__nodes_list(const ls__meeting *m, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < LS__ROUNDS_NODES && used + 100 < bytes; i++) {
        const ls__node *n = &m->node[i];
        if (n->greeted && !n->gone)
            used += (size_t)snprintf(text + used, bytes - used, "%shost %.40s (pid %lld, %d ranks)",
                                     used ? ", " : "", n->host, (long long)n->pid, n->ranks);
    }
}

/* --- who asks for a place --- */

static bool has_place(const ls__node *n) {
    return n->greeted && !n->gone;
}

/* The launcher itself has called again: its connection broke without that we know. */
static void replace_earlier_self(ls__node *n) {
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        ls__node *other = &n->meeting->node[i];
        if (other == n || !has_place(other) || !*n->id || strcmp(other->id, n->id) != 0)
            continue;
        ls__link_close(other->link, false);
        ls__node_gone(other, "its launcher has called again");
    }
}

static const ls__node *holder_of_number(const ls__node *n) {
    for (int i = 0; i < LS__ROUNDS_NODES; i++) {
        const ls__node *other = &n->meeting->node[i];
        bool zero = i == 0 && n->wanted == 0;
        if (has_place(other) && n->wanted >= 0 && (other->wanted == n->wanted || zero))
            return other;
    }
    return NULL;
}

/* Whether it stays where it is: it has been heard of since `n` asked, and later than what was on its way then. */
static bool stays(const ls__node *other, const ls__node *n) {
    const double on_its_way_s = 0.25;
    return !other->meeting->rounds.node[other->index].leaving &&
           (other->index == 0 ||
            ls__link_is_heard_since(other->link, ls__deadline_after(n->asks_ns, on_its_way_s)));
}

static bool all_stay(const ls__node *n) {
    for (int i = 0; i < LS__ROUNDS_NODES; i++) {
        const ls__node *other = &n->meeting->node[i];
        if (has_place(other) && !stays(other, n))
            return false;
    }
    return true;
}

static void refuse_number(ls__node *n, const ls__node *holder) {
    char why[400];
    snprintf(
        why, sizeof why,
        "node rank %d is taken by host %s (pid %lld), which is alive; host %s (pid %lld) has to "
        "have another --node-rank, of 0 to %d",
        n->wanted, holder->host, (long long)holder->pid, n->host, (long long)n->pid,
        n->meeting->rounds.max - 1);
    ls__node_refuse(n, why);
}

static void refuse_one_too_many(ls__node *n) {
    char why[600], there[300];
    ls__nodes_list(n->meeting, there, sizeof there);
    snprintf(
        why, sizeof why,
        "the job has its %d machines, as --nnodes says: %s; host %s (pid %lld) is one too many",
        n->meeting->rounds.max, there, n->host, (long long)n->pid);
    ls__node_refuse(n, why);
}

static void let_in(ls__node *n) {
    ls__meeting *m = n->meeting;
    const ls__launch_options *options = m->job->options;
    n->greeted = true;
    ls__rounds_join(&m->rounds, n->index, n->wanted, ls__now_ns());
    if (options->max_nodes > 1 && !options->rank0_speaks)
        fprintf(stderr, "%s: host %s has come with %d ranks: %d of %d machines\n", m->job->command,
                n->host, n->ranks, ls__rounds_count(&m->rounds), m->rounds.max);
}

static void answer(ls__node *n) {
    const ls__node *holder = holder_of_number(n);
    if (holder) {
        if (stays(holder, n))
            refuse_number(n, holder);
    } else if (ls__rounds_has_room(&n->meeting->rounds)) {
        let_in(n);
    } else if (all_stay(n)) {
        refuse_one_too_many(n);
    }
}

void ls__nodes_answer(ls__meeting *m) {
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        if (m->node[i].asks_ns && !m->node[i].greeted)
            answer(&m->node[i]);
    }
}

static void take_hello(ls__node *n, const json_t *message) {
    ls__meeting *m = n->meeting;
    char why[500];
    int min = (int)ls__wire_number(message, "min_nodes", 0, LS__ROUNDS_NODES);
    int max = (int)ls__wire_number(message, "max_nodes", 0, LS__ROUNDS_NODES);
    n->ranks = (int)ls__wire_number(message, "ranks", 0, LS__LAUNCH_MOST_RANKS);
    n->wanted = (int)ls__wire_number(message, "node_rank", -1, LS__ROUNDS_NODES - 1);
    n->grace_s = (int)ls__wire_number(message, "grace_s", 0, 1000000);
    ls__wire_text(message, "id", n->id, sizeof n->id);
    if (min != m->rounds.min || max != m->rounds.max || n->ranks < 1) {
        snprintf(why, sizeof why,
                 "the launchers disagree: host %s has --nnodes %d:%d, host %s has --nnodes %d:%d",
                 m->node[0].host, m->rounds.min, m->rounds.max, n->host, min, max);
        ls__node_refuse(n, why);
        return;
    }
    n->asks_ns = ls__now_ns();
    replace_earlier_self(n);
    answer(n);
}

/* --- what those of the job say --- */

/* The first failure among its ranks, as it sees it. */
static void take_first(ls__node *n, const json_t *message) {
    int64_t rank = ls__wire_number(message, "rank", -1, n->meeting->world - 1);
    if (rank < n->first_rank || rank >= n->first_rank + n->ranks)
        return;
    n->first = (int)rank;
    n->consequence = ls__end_is_consequence(0, (int)ls__wire_number(message, "code", 0, 1024));
}

void ls__node_release_cause(ls__node *n) {
    if (!n->held || n->consequence)
        return;
    n->held = false;
    ls__rounds_failed(&n->meeting->rounds, n->index);
}

static void take_failed(ls__node *n, const json_t *message) {
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
    n->held = n->first >= 0 && n->consequence && m->rendezvous;
    if (!n->held)
        ls__rounds_failed(&m->rounds, n->index);
}

static void take_ended(ls__node *n, const json_t *message) {
    ls__meeting *m = n->meeting;
    if (!m->in_round || !m->rounds.node[n->index].member ||
        ls__wire_number(message, "round", 0, INT32_MAX) != m->rounds.round)
        return;
    json_decref(n->ends);
    n->ends = json_incref((json_t *)message);
    n->ended_ns = ls__now_ns();
    n->lost_lines = ls__wire_number(message, "lost_lines", 0, 1);
    if (n->first >= 0) /* a likelier one may have ended a moment after it was told of */
        take_first(n, message);
    ls__node_release_cause(n);
    ls__rounds_ended(&m->rounds, n->index, ls__wire_ends_are_done(message, n->ranks));
}

static void take_leave(ls__node *n, const json_t *message) {
    ls__meeting *m = n->meeting;
    int signal_number = ls__wire_signal(message);
    if (ls__signal_asks(signal_number) && ls__rounds_is_elastic(&m->rounds))
        ls__rounds_leave(&m->rounds, n->index);
    else
        ls__rounds_signal(&m->rounds, signal_number == SIGPIPE ? SIGTERM : signal_number);
}

static void on_message(void *context, const json_t *message) {
    ls__node *n = context;
    ls__launch_job *job = n->meeting->job;
    if (!n->asks_ns && ls__wire_is(message, "hello"))
        take_hello(n, message);
    else if (n->greeted && ls__wire_is(message, "failed"))
        take_failed(n, message);
    else if (n->greeted && ls__wire_is(message, "ended"))
        take_ended(n, message);
    else if (n->greeted && ls__wire_is(message, "rest"))
        n->rest = (ls__rest)ls__wire_number(message, "value", LS__REST_NONE, LS__REST_SOME_ENDED);
    else if (n->greeted && ls__wire_is(message, "leave"))
        take_leave(n, message);
    else if (n->greeted && ls__wire_is(message, "kill"))
        ls__meeting_kill(job);
    ls__job_settle(job);
}

void ls__nodes_admit(ls__meeting *m, const ls__caller *caller) {
    static const ls__link_calls calls = {.message = on_message, .gone = on_gone};
    int i = 1;
    while (i < LS__ROUNDS_NODES && (m->node[i].link || m->node[i].gone))
        i++;
    ls__node *n = i < LS__ROUNDS_NODES ? &m->node[i] : NULL;
    ls__link *link = n ? ls__link_open(&m->job->loop, caller->fd, &calls, n) : NULL;
    if (!link) {
        fprintf(stderr, "%s: no place for the launcher of host %s\n", m->job->command,
                caller->host);
        if (!n)
            close(caller->fd);
        return;
    }
    ls__node_forget(n);
    n->link = link;
    n->pid = caller->pid;
    snprintf(n->host, sizeof n->host, "%s", caller->host);
}
