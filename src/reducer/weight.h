/* Which weights a rank may have in a step. */
#ifndef LS_REDUCER_WEIGHT_H
#define LS_REDUCER_WEIGHT_H

#include <stdbool.h>

/* Nonzero weights lie between these, so that 1 / (their sum) is an ordinary f32 for any number of
 * ranks below 1e8. */
static const double ls__weight_min = 1e-30, ls__weight_max = 1e30;

static inline bool ls__weight_is_legal(double weight) {
    return weight == 0 || (weight >= ls__weight_min && weight <= ls__weight_max);
}

#endif
