/* What the meeting of the launchers knows; shared by its files only.
 *
 *   meeting.c         asks the state machine (rounds.h) what is to be done, and does it
 *   meeting_nodes.c   the nodes, and what they say
 *   meeting_report.c  what is told at the end of a round */
#ifndef LS_LAUNCH_MEETING_STATE_H
#define LS_LAUNCH_MEETING_STATE_H

#include "base/json.h"
#include "launch/link.h"
#include "launch/meeting.h"
#include "launch/rounds.h"
#include "launch/stopped.h"

/* A machine with its launcher. Node 0 is this machine, without a link. */
typedef struct ls__node {
    ls__meeting *meeting;
    int index;
    ls__link *link;
    bool greeted;             /* it has said what it brings, and has a place */
    uint64_t asks_ns;         /* since when it asks for one, 0: not yet; see ls__nodes_answer */
    char id[LS__NONCE_BYTES]; /* of its launcher, also when that calls again */
    char host[LS__CALLER_HOST_BYTES];
    int64_t pid;
    int ranks;
    int wanted;  /* --node-rank, -1: none */
    int grace_s; /* that its ranks may take to end, at most */

    /* the round under way */
    int number, first_rank;
    bool gone;
    json_t *ends;      /* its message */
    uint64_t ended_ns; /* when that came */
    int first;         /* rank of its first failure, -1: none */
    bool consequence;  /* of another rank's end, as that rank says: ls__end_is_consequence */
    uint64_t failed_ns;
    bool lost_lines; /* of its --log-dir */
    bool held;       /* a consequence: what of, is waited for */
    ls__rest rest;   /* its ranks, as it says; node 0 is asked */
} ls__node;

struct ls__meeting {
    ls__launch_job *job;
    ls__rendezvous *rendezvous; /* NULL: one machine */
    ls__rounds rounds;
    ls__node node[LS__ROUNDS_NODES];
    bool in_round;
    bool stuck; /* as all were told */
    int world;
    char cannot[600]; /* why a node could not start its ranks */
    char missing[400];
    uint64_t tell_ns; /* when that nobody can be let in may be said again */
};

/* --- meeting_nodes.c --- */

/* A launcher that has proved itself gets a slot, or is told that there is none. */
void ls__nodes_admit(ls__meeting *m, const ls__caller *caller);
/* Who asks for a place gets it, is refused, or goes on waiting: for a sign of life of whoever holds the place, or that its link
 * is lost. */
void ls__nodes_answer(ls__meeting *m);
/* It has no part in the job, and ends with the code of wrong usage; said here, too. */
void ls__node_refuse(ls__node *n, const char *why);
/* To the other nodes of the round; takes the reference. */
void ls__nodes_tell(ls__meeting *m, json_t *message);
/* "host a (pid 12, 4 ranks), host b (pid 7, 4 ranks)" */
void ls__nodes_list(const ls__meeting *m, char *text, size_t bytes);
/* Its link is lost or given up: its ranks count as gone. */
void ls__node_gone(ls__node *n, const char *why);
/* Its slot is free again. */
void ls__node_forget(ls__node *n);
/* A failure that was held as a consequence has come out as a cause. */
void ls__node_release_cause(ls__node *n);

/* --- meeting_report.c --- */

/* The round, or the whole job, is over: what there is to tell is told here, and to the others. */
void ls__meeting_finish_round(ls__meeting *m, bool over);

#endif
