/* One round of a job, as the machine that is to start its part of the ranks has to know it. */
#ifndef LS_LAUNCH_PLAN_H
#define LS_LAUNCH_PLAN_H

#include <lockstep/status.h>
#include <stdbool.h>

enum { LS__PLAN_TOKEN_BYTES = 65, LS__PLAN_ADDRESS_BYTES = 64 };

typedef struct ls__plan {
    int round;                            /* 1, 2, ... */
    int restarts;                         /* rounds before it that a failure ended */
    int nodes, node;                      /* machines, and which this one is */
    int ranks;                            /* here */
    int first_rank;                       /* the number of the first one */
    int world;                            /* ranks on all machines */
    char address[LS__PLAN_ADDRESS_BYTES]; /* MASTER_ADDR: rank 0's machine as the others reach it */
    int port;      /* MASTER_PORT: nobody's a moment ago, for programs that listen there */
    int held_port; /* a socket that rank 0 inherits listens there; 0: none does */
    int listener;  /* that socket, where rank 0 is; -1 */
    char
        nonce[LS__PLAN_TOKEN_BYTES]; /* several machines: what makes the token below of the job's */
    char token[LS__PLAN_TOKEN_BYTES]; /* the ranks' own secret */
} ls__plan;

/* All ranks here: no rendezvous, and a token that nobody else knows. */
ls_status ls__plan_make_local(ls__plan *plan, int ranks, bool hold);

#endif
