/* Making and unmaking parameters (struct ls_parameter is in autograd/tape.h). */
#ifndef LS_NN_PARAMETER_H
#define LS_NN_PARAMETER_H

#include "autograd/tape.h"

/* How a parameter starts. Element i is a pure function of (seed, parameter name, i): equal on all
 * ranks, and a layer more or less changes nothing in the others. */
typedef struct ls__init {
    enum { LS__CONSTANT, LS__UNIFORM, LS__NORMAL } kind;
    double scale; /* the constant; uniform in [-scale, scale); standard deviation */
} ls__init;

/* Value initialised; gradient, unless frozen, owned and zero. `name` is copied. */
ls_status ls__parameter_create(ls_parameter **parameter, ls_device *device, const char *name,
                               ls_role role, const size_t *shape, size_t dims, uint64_t seed,
                               ls__init init);
void ls__parameter_destroy(ls_parameter *parameter);

/* The gradient lives in `storage` from now on, which belongs to the caller: the parameter is
 * managed. What the old storage held is lost; the parameter counts as not reduced, not present. */
void ls__parameter_set_gradient(ls_parameter *parameter, float *storage);
/* Back to storage of its own, zeroed: not managed any more. On failure nothing has changed. */
ls_status ls__parameter_own_gradient(ls_parameter *parameter);

#endif
