/* The three products of PowerSGD, for matrices (n, m), P (n, r) and Q transposed (r, m); the same bits at
 * every instruction set. */
#ifndef LS_REDUCER_POWERSGD_PRODUCTS_H
#define LS_REDUCER_POWERSGD_PRODUCTS_H

#include "base/level.h"

typedef struct ls__powersgd_shape {
    size_t n, m, r;
    ls__cpu_level level;
} ls__powersgd_shape;

/* p = matrix q^T */
void ls__powersgd_make_p(const ls__powersgd_shape *shape, const float *matrix, const float *q,
                         float *p);
/* q = p^T matrix */
void ls__powersgd_make_q(const ls__powersgd_shape *shape, const float *matrix, const float *p,
                         float *q);
/* error = matrix - p local, matrix = p mean */
void ls__powersgd_finish(const ls__powersgd_shape *shape, const float *p, const float *local,
                         const float *mean, float *matrix, float *error);

#endif
