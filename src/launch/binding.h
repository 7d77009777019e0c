/* Which processor cores the ranks of one machine get. */
#ifndef LS_LAUNCH_BINDING_H
#define LS_LAUNCH_BINDING_H

#include <lockstep/status.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

/* Cores (not hardware threads) that this process may use, at least 1. */
int ls__launch_cores(void);

/* Compute threads for each of `ranks` ranks: the cores divided, at least 1. */
int ls__launch_threads(int ranks);

/* Divides those cores among `ranks` ranks, neighbours to neighbours: lists[r] becomes the processors of rank
 * r as "0-3,8" (free each) or NULL for all when there are more ranks than cores. `by_place`: each rank gets
 * all processors beside one memory (NUMA node), which neighbours may share. */
ls_status ls__launch_divide(char **lists, int ranks, bool by_place);

/* Such a list as the kernel takes it; CPU_FREE it. NULL: no memory. */
cpu_set_t *ls__launch_parse_cores(const char *list, size_t *bytes);

#endif
