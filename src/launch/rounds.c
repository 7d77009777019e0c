#include "launch/rounds.h"

#include <signal.h>

void ls__rounds_open(ls__rounds *rounds, int min, int max, int max_restarts, uint64_t join_ns,
                     uint64_t settle_ns, uint64_t now) {
    *rounds = (ls__rounds){
        .min = min,
        .max = max,
        .max_restarts = max_restarts,
        .join_ns = join_ns,
        .settle_ns = settle_ns,
        .gather_until = now + join_ns,
        .settle_until = UINT64_MAX,
    };
}

bool ls__rounds_is_elastic(const ls__rounds *rounds) {
    return rounds->min < rounds->max;
}

static bool can_run(const ls__rounds_node *node) {
    return node->present && !node->leaving;
}

int ls__rounds_count(const ls__rounds *rounds) {
    int count = 0;
    for (int i = 0; i < LS__ROUNDS_NODES; i++)
        count += can_run(&rounds->node[i]);
    return count;
}

bool ls__rounds_has_room(const ls__rounds *rounds) {
    return ls__rounds_count(rounds) < rounds->max;
}

/* --- what happened --------------------------------------------------------------------------------- */

/* A reason to end the round under way. The heaviest one counts: it decides what comes after. */
static void stop_for(ls__rounds *rounds, ls__why why) {
    if ((rounds->phase == LS__RUNNING || rounds->phase == LS__STOPPING) && why > rounds->why)
        rounds->why = why;
}

void ls__rounds_join(ls__rounds *rounds, int node, int wanted, uint64_t now) {
    rounds->node[node] =
        (ls__rounds_node){.present = true, .wanted = wanted, .came = ++rounds->arrivals};
    if (rounds->phase == LS__RUNNING && rounds->members < rounds->max)
        stop_for(rounds, LS__WHY_GROW);
    if (rounds->settle_until == UINT64_MAX && ls__rounds_count(rounds) >= rounds->min)
        rounds->settle_until = now + (rounds->round ? 0 : rounds->settle_ns);
}

void ls__rounds_gone(ls__rounds *rounds, int node) {
    ls__rounds_node *n = &rounds->node[node];
    if (n->member && !n->ended) {
        rounds->broken = true;
        stop_for(rounds, LS__WHY_LOST);
    }
    *n = (ls__rounds_node){0};
    if (ls__rounds_count(rounds) < rounds->min)
        rounds->settle_until = UINT64_MAX;
}

void ls__rounds_failed(ls__rounds *rounds, int node) {
    if (!rounds->node[node].member)
        return;
    rounds->broken = true;
    stop_for(rounds, LS__WHY_FAILED);
}

void ls__rounds_ended(ls__rounds *rounds, int node, bool done) {
    if (!rounds->node[node].member)
        return;
    rounds->node[node].ended = true;
    rounds->cut |= !done;
}

void ls__rounds_leave(ls__rounds *rounds, int node) {
    if (!ls__rounds_is_elastic(rounds)) {
        ls__rounds_signal(rounds, SIGTERM);
        return;
    }
    rounds->node[node].leaving = true;
    if (rounds->node[node].member)
        stop_for(rounds, LS__WHY_LEAVE);
    if (ls__rounds_count(rounds) < rounds->min)
        rounds->settle_until = UINT64_MAX;
}

void ls__rounds_signal(ls__rounds *rounds, int signal_number) {
    if (rounds->phase == LS__OVER || rounds->signal)
        return;
    rounds->signal = signal_number;
    stop_for(rounds, LS__WHY_SIGNAL);
}

/* --- what is to be done ---------------------------------------------------------------------------- */

static ls__order end_job(ls__rounds *rounds, ls__why why) {
    rounds->phase = LS__OVER;
    rounds->why = why;
    return LS__ORDER_OVER;
}

/* Node 0 first, then those whose number the user gave, by it, then in the order in which they came. */
static int compare(const ls__rounds *rounds, int a, int b) {
    const ls__rounds_node *x = &rounds->node[a], *y = &rounds->node[b];
    if (a == 0 || b == 0)
        return a == 0 ? -1 : 1;
    if (x->wanted != y->wanted && x->wanted >= 0 && y->wanted >= 0)
        return x->wanted < y->wanted ? -1 : 1;
    if ((x->wanted >= 0) != (y->wanted >= 0))
        return x->wanted >= 0 ? -1 : 1;
    return x->came < y->came ? -1 : 1;
}

static void choose_members(ls__rounds *rounds) {
    rounds->members = 0;
    for (int i = 0; i < LS__ROUNDS_NODES; i++) {
        rounds->node[i].member = rounds->node[i].ended = false;
        if (!can_run(&rounds->node[i]))
            continue;
        int at = rounds->members++;
        for (; at > 0 && compare(rounds, i, rounds->member[at - 1]) < 0; at--)
            rounds->member[at] = rounds->member[at - 1];
        rounds->member[at] = i;
    }
    for (int i = 0; i < rounds->members; i++)
        rounds->node[rounds->member[i]].member = true;
}

static ls__order gather(ls__rounds *rounds, uint64_t now) {
    int count = ls__rounds_count(rounds);
    if (rounds->signal)
        return end_job(rounds, LS__WHY_SIGNAL);
    if (!can_run(&rounds->node[0]) || (count < rounds->min && now >= rounds->gather_until))
        return end_job(rounds, LS__WHY_FEW);
    if (count < rounds->min || (count < rounds->max && now < rounds->settle_until))
        return LS__ORDER_NONE;
    choose_members(rounds);
    rounds->round++;
    rounds->phase = LS__RUNNING;
    rounds->why = LS__WHY_NONE;
    rounds->broken = rounds->cut = false;
    rounds->given = LS__ORDER_START;
    return LS__ORDER_START;
}

static bool all_ended(const ls__rounds *rounds) {
    for (int i = 0; i < rounds->members; i++) {
        const ls__rounds_node *node = &rounds->node[rounds->member[i]];
        if (node->member && !node->ended) /* one that is gone is no member any more */
            return false;
    }
    return true;
}

static ls__order run(ls__rounds *rounds, uint64_t now) {
    if (rounds->why != LS__WHY_NONE) {
        rounds->phase = LS__STOPPING;
        rounds->stopping_ns = now;
        return LS__ORDER_NONE;
    }
    return all_ended(rounds) ? end_job(rounds, LS__WHY_DONE) : LS__ORDER_NONE;
}

/* Fixed numbers of nodes: to lose one is a failure like others. */
static bool goes_on(ls__rounds *rounds) {
    bool failure = rounds->why == LS__WHY_FAILED ||
                   (rounds->why == LS__WHY_LOST && !ls__rounds_is_elastic(rounds));
    if (rounds->why == LS__WHY_SIGNAL)
        return false;
    if (!failure)
        return true;
    if (rounds->restarts >= rounds->max_restarts)
        return false;
    rounds->restarts++;
    return true;
}

static ls__order stop(ls__rounds *rounds, uint64_t now) {
    /* Whoever waits for a rank that is gone cannot finish its step. */
    ls__order order = rounds->broken ? LS__ORDER_END : LS__ORDER_AGREE;
    if (rounds->given != LS__ORDER_END && rounds->given != order) {
        rounds->given = order;
        return order;
    }
    if (!all_ended(rounds))
        return LS__ORDER_NONE;
    /* Who came or left while the last ranks ended by themselves is too late: the program is finished. */
    if (!rounds->cut && (rounds->why == LS__WHY_GROW || rounds->why == LS__WHY_LEAVE))
        return end_job(rounds, LS__WHY_DONE);
    if (!goes_on(rounds))
        return end_job(rounds, rounds->why);
    rounds->phase = LS__GATHERING;
    rounds->gather_until = now + rounds->join_ns;
    rounds->settle_until = ls__rounds_count(rounds) >= rounds->min ? now : UINT64_MAX;
    return LS__ORDER_AGAIN;
}

ls__order ls__rounds_next(ls__rounds *rounds, uint64_t now) {
    for (;;) {
        ls__phase before = rounds->phase;
        ls__order order = LS__ORDER_NONE;
        if (before == LS__GATHERING)
            order = gather(rounds, now);
        else if (before == LS__RUNNING)
            order = run(rounds, now);
        else if (before == LS__STOPPING)
            order = stop(rounds, now);
        if (order != LS__ORDER_NONE || rounds->phase == before)
            return order;
    }
}

bool ls__rounds_is_late(const ls__rounds *rounds, int node, uint64_t allowed_ns, uint64_t now) {
    const ls__rounds_node *n = &rounds->node[node];
    return rounds->phase == LS__STOPPING && n->member && !n->ended &&
           now - rounds->stopping_ns > allowed_ns;
}
