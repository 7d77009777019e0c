/* Linear layers in bf16, for linear.c and linear_cross_entropy.c, which check shapes. */
#ifndef LS_AUTOGRAD_LINEAR_H
#define LS_AUTOGRAD_LINEAR_H

#include "autograd/tape.h"

/* inputs: x, weight, bias or NULL; y: the result's tensor. Returns y, or NULL after ls__step_fail. */
ls_tensor *ls__linear_bf16(ls_step *step, const char *name, ls_tensor *const inputs[3],
                           bool in_first, ls_tensor *y);

/* inputs: x, weight; loss: the scalar's tensor. Fills *correct. Returns loss, or NULL after
 * ls__step_fail. */
ls_tensor *ls__linear_cross_entropy_bf16(ls_step *step, ls_tensor *const inputs[2],
                                         const ls_tensor *targets, ls_tensor *loss,
                                         size_t *correct);

#endif
