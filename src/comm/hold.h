/* What goes on after its group: a reducer, a checkpointer, a work that nobody waited for. Programs free their job first
 * by mistake, and then these; each holds its groups, so that all of that is still there to be freed. */
#ifndef LS_COMM_HOLD_H
#define LS_COMM_HOLD_H

#include "base/error.h"
#include <lockstep/group.h>
#include <stdbool.h>

/* Until ls__group_release the group outlives its end (ls_group_destroy, ls_job_finish): its memory and connections are
 * gone then, and every operation is LS_ERR_STATE. NULL is allowed. */
LS_SHARED void ls__group_hold(ls_group *group);
LS_SHARED void ls__group_release(ls_group *group);
/* LS_ERR_STATE once it has ended, for what is about to touch its memory. */
LS_SHARED ls_status ls__group_check_alive(const ls_group *group);

#endif
