/* The hooks that come with Lockstep, one file each. A hook is one block of memory that begins with its
 * ls_reducer_hook, which is also its context. */
#ifndef LS_REDUCER_HOOKS_H
#define LS_REDUCER_HOOKS_H

#include <lockstep/reducer.h>

/* wire: LS_BF16 or LS_F16 */
ls_status ls__hook_half_create(ls_reducer_hook **hook, ls_dtype wire);
/* 0 < ratio <= 1 */
ls_status ls__hook_topk_create(ls_reducer_hook **hook, double ratio);
/* rank: columns of the thin matrices, 1 .. LS__POWERSGD_RANK; start: steps that are reduced in full first */
enum { LS__POWERSGD_RANK = 256 };
ls_status ls__hook_powersgd_create(ls_reducer_hook **hook, size_t rank, uint64_t start);

/* Elements of a parameter that the hook gets; 0: it gets none of it. */
size_t ls__hook_elements(const ls_reducer_param *param);

#endif
