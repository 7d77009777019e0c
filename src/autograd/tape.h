/* The tape: operations in the order they ran, each with what its backward needs. */
#ifndef LS_AUTOGRAD_TAPE_H
#define LS_AUTOGRAD_TAPE_H

#include "tensor/tensor.h"
#include <lockstep/model.h>

struct ls_parameter {
    char *name;
    ls_device *device; /* whose memory value and gradient are */
    size_t samples;    /* statistics: `gradient` is this batch's value times so many. The ddp divides
                          by the job's weight; where there is none, the optimizer by these */
    ls_role role;
    size_t index;       /* in its model's list */
    bool decay;         /* takes part in weight decay: two or more dimensions */
    ls_tensor value;    /* value.data is device memory the parameter owns */
    float *gradient;    /* where backward (statistics: forward) writes; moved by whoever reduces */
    bool owns_gradient; /* freed with the parameter */
    bool managed;       /* a ddp reduces it: the optimizer insists on `reduced` */
    bool reduced;       /* the gradient is the job's average for the current step */
    bool present;       /* the gradient was written since the optimizer's last step */

    /* During one forward and backward: */
    size_t uses;  /* recorded uses whose contribution is still to come */
    bool written; /* a contribution is in: the next one adds */
};

/* One recorded operation. An operation's file keeps a struct in the arena that begins with this. */
typedef struct ls__node ls__node;
struct ls__node {
    const char *name;
    /* Reads output->grad, contributes to the inputs through ls__tape_gradient. */
    ls_status (*backward)(ls_step *step, ls__node *node);
    ls_tensor *output;
    ls_tensor *inputs[3]; /* tensors it sends gradients to; NULL where none */
    ls__node *previous;   /* filled by the tape */
};

/* Records `node` when the step is training and one of its inputs needs a gradient: then output
 * needs one too, and uses of parameters are counted. Otherwise does nothing. */
void ls__tape_record(ls_step *step, ls__node *node);

/* Where a backward puts its contribution to `tensor`; *accumulate says whether to overwrite or to
 * add. *destination is NULL when nobody wants it: skip the work. */
ls_status ls__tape_gradient(ls_step *step, ls_tensor *tensor, void **destination, bool *accumulate);

/* The weights in the order in which ls_backward will report them ready, read off the tape recorded
 * so far. `order` has room for `capacity`; returns how many there are. */
size_t ls__tape_ready_order(ls_step *step, ls_parameter **order, size_t capacity);

#endif
