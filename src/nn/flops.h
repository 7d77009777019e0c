/* How much arithmetic a training step needs. */
#ifndef LS_NN_FLOPS_H
#define LS_NN_FLOPS_H

#include <lockstep/model.h>

/* Floating-point operations (a multiply-add is two) of the matrix products and convolutions that
 * forward and backward of `batch` samples need: no recomputation, nothing elementwise.
 *   gpt: 6 x parameters x tokens + 12 x layers x width x context x tokens, samples of full context
 *   others: 6 x batch x multiply-adds of each layer's forward; the first layer 4, as no gradient of
 *   the input is needed */
double ls__model_step_flops(const ls_model *model, size_t batch);

#endif
