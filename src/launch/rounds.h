/* When a job begins, is stopped, begins again and ends: one state machine for all machines, at the one where
 * the launchers meet. It knows no sockets, processes or clocks: what happened goes in, what is to be done comes
 * out, so that every death on every side in every phase is a test of a few lines (tests/test_launch_rounds.c).
 *
 *     gathering --enough nodes--> running --all ended well--> over
 *         ^                          |  a rank failed, a node is lost, leaves or comes back, a signal
 *         |                          v
 *         +---- again: yes --- stopping --- again: no --> over
 *
 * A node is a launcher with its ranks. A round is the time from one start of all ranks to their end; what ranks
 * keep from one to the next is their checkpoint. A round that a failure ends uses up a restart; one that ends
 * because the number of nodes changes does not. Times are ns of one clock, handed in. */
#ifndef LS_LAUNCH_ROUNDS_H
#define LS_LAUNCH_ROUNDS_H

#include "launch/launch.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Nodes that are known at a time: those of the job, and as many that ask for a place. */
enum { LS__ROUNDS_NODES = 2 * LS__LAUNCH_MOST_NODES };

typedef enum ls__phase { LS__GATHERING, LS__RUNNING, LS__STOPPING, LS__OVER } ls__phase;

/* Why the ranks are stopped, or the job is over; a later one outweighs an earlier one. */
typedef enum ls__why {
    LS__WHY_NONE,
    LS__WHY_DONE,   /* all ranks ended well */
    LS__WHY_GROW,   /* a node wants in */
    LS__WHY_LEAVE,  /* a node was told to stop and leaves in peace */
    LS__WHY_LOST,   /* a node is gone */
    LS__WHY_FAILED, /* a rank failed */
    LS__WHY_SIGNAL, /* the whole job is told to stop */
    LS__WHY_FEW,    /* too few nodes came in time */
} ls__why;

typedef enum ls__order {
    LS__ORDER_NONE,
    LS__ORDER_AGAIN, /* the round is over, and what `member` names can be told of; another one will follow */
    LS__ORDER_START, /* a round: the nodes that `member` names, in its order */
    LS__ORDER_AGREE, /* the ranks are to finish their step and save: SIGTERM, and time */
    LS__ORDER_END,   /* the ranks are to end now: somebody they would wait for is gone */
    LS__ORDER_OVER,
} ls__order;

typedef struct ls__rounds_node {
    bool present;
    bool leaving;
    bool member;   /* of the round under way */
    bool ended;    /* all its ranks have */
    int wanted;    /* its number as the user has it; -1: none */
    uint64_t came; /* its place in the order of arrival, from 1 */
} ls__rounds_node;

typedef struct ls__rounds {
    int min, max; /* nodes */
    int max_restarts;
    uint64_t join_ns; /* how long nodes are waited for */
    uint64_t
        settle_ns; /* with enough of them there, how long for more; only before the first round */

    ls__phase phase;
    ls__why why;
    bool broken; /* ranks of this round are gone that others may wait for */
    bool cut;    /* ranks of this round ended that had more to do: told to, or by a failure */
    uint64_t stopping_ns; /* since when its ranks are to end */
    int round;            /* begun so far */
    int restarts;         /* used so far */
    int signal;           /* of LS__WHY_SIGNAL */
    ls__rounds_node node[LS__ROUNDS_NODES];
    int member[LS__ROUNDS_NODES]; /* nodes of the round, by their number in it */
    int members;

    uint64_t arrivals, gather_until, settle_until;
    ls__order given; /* to the members of this round, last */
} ls__rounds;

void ls__rounds_open(ls__rounds *rounds, int min, int max, int max_restarts, uint64_t join_ns,
                     uint64_t settle_ns, uint64_t now);

/* What happened to `node` (0 .. LS__ROUNDS_NODES - 1; 0 is the machine of the meeting itself and always number 0). */
/* Where ls__rounds_has_room. */
void ls__rounds_join(ls__rounds *rounds, int node, int wanted, uint64_t now);
void ls__rounds_gone(ls__rounds *rounds, int node);
void ls__rounds_failed(ls__rounds *rounds, int node); /* one of its ranks */
/* All of its ranks. `done`: each by itself and with code 0, so that there is nothing to go on with. */
void ls__rounds_ended(ls__rounds *rounds, int node, bool done);
void ls__rounds_leave(ls__rounds *rounds, int node);
void ls__rounds_signal(ls__rounds *rounds, int signal_number);

/* What is to be done now; call until LS__ORDER_NONE, after every event and, for the times above, now and then. */
ls__order ls__rounds_next(ls__rounds *rounds, uint64_t now);
/* The ranks of `node` were to end `allowed_ns` ago and have not: it is to be taken for gone. */
bool ls__rounds_is_late(const ls__rounds *rounds, int node, uint64_t allowed_ns, uint64_t now);

/* Nodes that could be in a round; never more than its maximum. */
int ls__rounds_count(const ls__rounds *rounds);
bool ls__rounds_has_room(const ls__rounds *rounds);
bool ls__rounds_is_elastic(const ls__rounds *rounds);

#endif
