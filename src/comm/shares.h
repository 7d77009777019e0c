/* What an operation of a group costs, for those who may also do without it. */
#ifndef LS_COMM_SHARES_H
#define LS_COMM_SHARES_H

#include "base/error.h"
#include <lockstep/group.h>
#include <stdbool.h>

/* Whether all ranks meet in shared memory, where a small operation takes microseconds. Equal on all ranks. */
LS_SHARED bool ls__group_shares_memory(const ls_group *group);

#endif
