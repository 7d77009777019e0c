/* Weights as the device's products want them: packed, and kept beside the parameter for as long as its
 * value stays, so that a weight is packed once a step and not once a call. */
#ifndef LS_AUTOGRAD_PREPARED_H
#define LS_AUTOGRAD_PREPARED_H

#include "autograd/tape.h"

/* What is wanted of a weight that is stored as (rows, columns): the packed second factor b of products
 * with the whole of it, or of products with `block` rows at a time (the last may have fewer). */
typedef struct ls__preparation {
    ls_dtype dtype;
    bool transposed; /* b is (columns, rows); else (rows, columns) */
    size_t block;    /* 0: all rows */
} ls__preparation;

/* How the block that begins at stored row `first` is packed. */
ls__packing ls__prepared_packing(const ls_tensor *weight, const ls__preparation *p, size_t first);

/* The packed weight: until the parameter changes, or to the step's end where it is no parameter's value.
 * NULL after ls__step_fail. */
const void *ls__prepared_get(ls_step *step, ls_tensor *weight, const ls__preparation *p);

/* Where in it the block that begins at stored row `first` lies. */
const void *ls__prepared_block(ls_step *step, const void *prepared, const ls_tensor *weight,
                               const ls__preparation *p, size_t first);

/* For ls__parameter_destroy. */
void ls__prepared_free(ls_parameter *parameter);

#endif
