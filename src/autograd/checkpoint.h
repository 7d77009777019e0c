/* Computing again in backward instead of keeping. */
#ifndef LS_AUTOGRAD_CHECKPOINT_H
#define LS_AUTOGRAD_CHECKPOINT_H

#include "autograd/tape.h"

/* Called once in forward and once in backward, within the same step. */
typedef ls_tensor *(*ls__checkpoint_fn)(ls_step *step, void *context, ls_tensor *x);

/* function(step, context, x), whose result has the shape of x; what it takes in the arena is given back.
 * `weights`: the values of all weights it uses, in the order in which backward shall report them. */
ls_tensor *ls__checkpoint(ls_step *step, ls__checkpoint_fn function, void *context, ls_tensor *x,
                          ls_tensor *const *weights, size_t weight_count);

#endif
