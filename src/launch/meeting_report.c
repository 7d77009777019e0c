/* The end of a round, as the machine of the meeting tells it: what all nodes know of their ranks comes together in an
 * outcome (outcome.h), which is reported here and, when the job is over, said to the others. */
#include "launch/meeting_state.h"

#include "base/error.h"
#include "launch/exit_code.h"
#include "launch/wire.h"
#include <stdio.h>
#include <stdlib.h>

/* Where the failures of several machines come together: who fails by itself counts before those that tell of others,
 * then who was heard of first. */
static int first_failure(const ls__meeting *m) {
    const ls__node *best = NULL;
    for (int i = 0; i < m->rounds.members; i++) {
        const ls__node *n = &m->node[m->rounds.member[i]];
        if (n->first < 0 || (n->consequence && *m->missing))
            continue;
        if (!best || n->consequence < best->consequence ||
            (n->consequence == best->consequence && n->failed_ns < best->failed_ns))
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
        const ls__node *n = &m->node[m->rounds.member[i]];
        if (n->lost_lines)
            snprintf(o->lost_lines, sizeof o->lost_lines, "%s", n->host);
        for (int r = n->first_rank; r < n->first_rank + n->ranks; r++) {
            o->end[r].number = r;
            if (m->rendezvous)
                snprintf(o->end[r].host, sizeof o->end[r].host, "%s", n->host);
        }
        if (n->index == 0)
            ls__outcome_take_local(o, job);
        else if (n->ends)
            ls__wire_to_ends(n->ends, n->ended_ns, o, n->first_rank, n->ranks);
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

static void free_slots(ls__meeting *m) {
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        if (m->node[i].gone)
            ls__node_forget(&m->node[i]);
    }
}

static void tell_over(ls__meeting *m, const ls__outcome *o, int code) {
    char why[500] = "", late[200];
    if (code)
        ls__outcome_summary(o, why, sizeof why);
    for (int i = 1; i < LS__ROUNDS_NODES; i++) {
        if (!m->node[i].link)
            continue;
        if (!m->node[i].greeted) {
            snprintf(late, sizeof late,
                     "the job was over before host %s (pid %lld) had a place in it",
                     m->node[i].host, (long long)m->node[i].pid);
            ls__node_refuse(&m->node[i], late);
            continue;
        }
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
    ls__nodes_list(m, there, sizeof there);
    snprintf(o->missing, sizeof o->missing,
             "only %d of at least %d machines were there after %g s at %s: %s",
             ls__rounds_count(&m->rounds), m->rounds.min, join_s,
             m->rendezvous ? ls__rendezvous_where(m->rendezvous) : "?", there);
}

/* The round is over: what is there to tell, before the next one or at the end. */
void ls__meeting_finish_round(ls__meeting *m, bool over) {
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
    free_slots(m);
    ls__job_free_ranks(job);
    if (over)
        ls__member_over(job, code);
}
