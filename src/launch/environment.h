/* What the ranks find in their environment. */
#ifndef LS_LAUNCH_ENVIRONMENT_H
#define LS_LAUNCH_ENVIRONMENT_H

#include "launch/launch.h"
#include "launch/plan.h"
#include <stddef.h>

/* The launcher's environment and what is equal on all ranks; the last entries are the rank's own. */
typedef struct ls__environment {
    char **entries;   /* NULL ends */
    size_t shared;    /* entries[0..shared) are equal on all ranks */
    size_t inherited; /* entries[0..inherited) belong to environ */
} ls__environment;

/* The second one is the segment, or on rank 0 the socket on which it listens. */
enum { LS__BOARD_FD_IN_RANK = 3, LS__SECOND_FD_IN_RANK };

ls_status ls__environment_create(ls__environment *environment, const ls__launch_options *options,
                                 const ls__plan *plan);
/* Makes `entries` that of the rank that is number `local` here. */
ls_status ls__environment_set_rank(ls__environment *environment, const ls__plan *plan, int local);
void ls__environment_destroy(ls__environment *environment);

#endif
