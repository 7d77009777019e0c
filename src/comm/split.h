/* Groups made of groups: who belongs to which part. */
#ifndef LS_COMM_SPLIT_H
#define LS_COMM_SPLIT_H

#include "comm/transport.h"

/* What a rank says about itself. */
typedef struct ls__split_seat {
    int32_t color, key;
    uint64_t list; /* hash of the ranks of ls_group_create_subset, which all must give; else 0 */
} ls__split_seat;

/* The arguments and results of one LS__SPLIT operation on this rank. */
typedef struct ls__split {
    ls__split_seat mine, *seat; /* (size) */
    ls__transport *part;        /* NULL: this rank is in none */
} ls__split;

/* Everyone shows its seat to all, then parts are made. Runs in its turn in the parent's queue. */
ls_status ls__split_run(ls__transport *transport, ls__operation *operation);

#endif
