/* matmul's shape, and its bf16 form, for matmul.c, which checks and records. */
#ifndef LS_AUTOGRAD_MATMUL_H
#define LS_AUTOGRAD_MATMUL_H

#include "autograd/tape.h"

/* c (batch, m, n) = a (batch, m, k) b (batch, k, n) */
typedef struct ls__matmul {
    ls__node node;
    size_t batch, m, n, k;
} ls__matmul;

ls_status ls__matmul_bf16(ls_step *step, const ls__matmul *p, const float *a, const float *b,
                          float *c);
ls_status ls__matmul_bf16_backward(ls_step *step, const ls__matmul *p, ls__node *node);

#endif
