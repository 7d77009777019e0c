/* The tape: operations in the order they ran, each with what its backward needs. */
#ifndef LS_AUTOGRAD_TAPE_H
#define LS_AUTOGRAD_TAPE_H

#include "tensor/tensor.h"
#include <lockstep/model.h>

typedef struct ls__prepared ls__prepared;

struct ls_parameter {
    char *name;
    ls_device *device; /* whose memory value and gradient are */
    /* statistics: `gradient` is this batch's value times so many. The ddp divides by the job's weight;
     * where there is none, the optimizer by these */
    size_t samples;
    const ls__tape *writer; /* statistics: whose forward wrote them last */
    ls_role role;
    size_t index;    /* in its model's list */
    bool decay;      /* takes part in weight decay: two or more dimensions */
    ls_tensor value; /* value.data is device memory the parameter owns */
    float *gradient; /* where backward (statistics: forward) writes; moved by whoever reduces.
                           NULL: backward takes device memory for it when it has one to write */
    float
        gradient_factor; /* what the gradient is still to be multiplied by: 1, or 1 / weight of a sum
                              that a world of one left as it is */
    bool owns_gradient;  /* freed with the parameter */
    bool managed;        /* a ddp reduces it: the optimizer insists on `reduced` */
    bool reduced;        /* the gradient is the job's average for the current step */
    bool present; /* the gradient was written since the optimizer's last step; managed: on any
                           rank. Without it the optimizer leaves the weight alone */

    bool
        squares_known; /* managed: `squares` is the gradient's, times its factor, added up over the ranks' parts;
                           whoever gives the gradient out or moves it forgets it */
    double squares;

    uint64_t version;       /* counts changes of the value, from 1 on: ls__parameter_changed */
    bool exposed;           /* its address was given away: it may change without that */
    ls__prepared *prepared; /* the value as products want it (prepared.h), of some version each */

    size_t slot; /* where the tape that used it last keeps its counts. A hint: any number will do */
    ls_tensor gradient_view; /* what ls_tensor_grad(value) returns */
    uint64_t
        gradient_writes;   /* who wrote to the gradient or moved it has counted here: ls__claim */
    bool gradient_exposed; /* its address was given away: others may write without that */
};

/* Multiplies the gradient by its factor: before others than the optimizer read it. */
ls_status ls__parameter_settle_gradient(ls_parameter *parameter);

/* After every write to the parameter's value. */
void ls__parameter_changed(ls_parameter *parameter);

/* One recorded operation. An operation's file keeps a struct that begins with this. */
typedef struct ls__node ls__node;
typedef ls_status (*ls__backward_fn)(ls_step *step, ls__node *node);
struct ls__node {
    const char *name;
    ls__backward_fn backward; /* reads output->grad, contributes through ls__tape_gradient */
    ls_tensor *output;
    ls_tensor **inputs; /* (input_count) what it may send gradients to; NULL where none */
    size_t input_count;
    ls__node *previous;
};

/* For step.c. reset forgets what was recorded, and what became of it. */
ls_status ls__tape_create(ls__tape **tape);
void ls__tape_destroy(ls__tape *tape);
void ls__tape_reset(ls__tape *tape);

/* True when the step is training and one of the inputs wants a gradient: what the operation's
 * backward will need must then be kept, and ls__tape_record be called. */
bool ls__tape_wants(const ls_step *step, ls_tensor *const *inputs, size_t count);

/* Appends a node of node_bytes (at least sizeof(ls__node), the rest zeroed for the caller to fill).
 * `output` wants a gradient from now on; uses of weights are counted. NULL after ls__step_fail. */
void *ls__tape_record(ls_step *step, const char *name, ls__backward_fn backward, ls_tensor *output,
                      ls_tensor *const *inputs, size_t input_count, size_t node_bytes);

/* ls__tape_record where ls__tape_wants, for an operation that keeps nothing else. Returns output, or
 * NULL after ls__step_fail. */
ls_tensor *ls__tape_finish(ls_step *step, const char *name, ls__backward_fn backward,
                           ls_tensor *output, ls_tensor *const *inputs, size_t input_count);

/* Where a backward puts its contribution to `tensor`; *accumulate says whether to overwrite or to
 * add. *destination is NULL when nobody wants it: skip the work. Asking is a promise to write. */
ls_status ls__tape_gradient(ls_step *step, ls_tensor *tensor, void **destination, bool *accumulate);

/* For an operation whose forward can compute its contribution to a weight, but for dloss. claim says where to
 * and is true to that: keep tells in backward whether what was written is still there. It then counts as
 * the first contribution; else the operation asks ls__tape_gradient and computes it there. */
typedef struct ls__claim {
    float *gradient; /* to be overwritten; NULL: none */
    uint64_t writes;
} ls__claim;
/* False where forward must not write: the gradient has no storage yet, or holds something that is still
 * wanted, or somebody outside has its address. */
bool ls__tape_claim_gradient(ls_step *step, const ls_tensor *weight, ls__claim *claim);
/* True also for a claim that was never made. */
bool ls__tape_keep_claimed(ls_step *step, const ls_tensor *weight, const ls__claim *claim);

/* The same as ls__tape_gradient for an operation that reads output->grad element by element, each before it writes the one at
 * its place: where nobody else has it, the destination is that memory itself, in tensor's layout. */
ls_status ls__tape_gradient_over(ls_step *step, const ls__node *node, ls_tensor *tensor,
                                 void **destination, bool *accumulate);

/* The same for operations that work in either layout: `data` is where to write, in the layout asked
 * for; done brings it to where the gradient lies. data NULL: nobody wants it, and done does nothing. */
typedef struct ls__gradient {
    void *data;
    bool accumulate;
    ls_tensor *tensor;
    ls__layout layout; /* of data */
    void *target;      /* the gradient itself, in the other layout; NULL: data is it */
    bool accumulate_target;
} ls__gradient;
ls_status ls__tape_gradient_in(ls_step *step, ls_tensor *tensor, ls__layout layout,
                               ls__gradient *gradient);
ls_status ls__tape_gradient_done(ls_step *step, const ls__gradient *gradient);

/* The contribution to `input` is output->grad as it is (in the input's shape): without a copy where it
 * is the first, on memory that both then share until one of them is written. */
ls_status ls__tape_pass_gradient(ls_step *step, const ls__node *node, ls_tensor *input);

/* The value of output->grad of an operation whose output is a scalar. */
ls_status ls__tape_scalar_gradient(ls_step *step, const ls__node *node, float *value);

/* For layers with running statistics, in training: *destination is the parameter's gradient storage, to
 * take this batch's value times its `samples`; ls_backward then reports the parameter, before any weight.
 * *add: an earlier forward of the step has written there. NULL where a forward is computed again. */
ls_status ls__tape_statistic(ls_step *step, ls_parameter *parameter, size_t samples,
                             float **destination, bool *add);
/* The samples that the statistic of this step is of; 0: no forward wrote it. */
size_t ls__tape_statistic_samples(const ls_step *step, const ls_parameter *parameter);

/* For checkpoint.c: a tape inside of a backward. What is recorded between begin and end goes to it; uses
 * of weights are not counted there. walk carries outer->grad to y and through the inner tape. */
typedef struct ls__tape_inner {
    ls__node *outer_last;
} ls__tape_inner;
void ls__tape_begin_inner(ls_step *step, ls__tape_inner *inner);
ls_status ls__tape_walk_inner(ls_step *step, ls_tensor *y, const ls_tensor *outer);
void ls__tape_end_inner(ls_step *step, const ls__tape_inner *inner);

/* tensor->grad becomes NULL; its memory is used again when no other tensor's stands on it. */
void ls__tape_drop_gradient(ls_step *step, ls_tensor *tensor);

/* The parameters in the order in which ls_backward will report them ready, read off the tape
 * recorded so far. Also names weights that no gradient will reach; ls_backward leaves those out.
 * `order` has room for `capacity`; returns how many there are. */
size_t ls__tape_ready_order(ls_step *step, ls_parameter **order, size_t capacity);

#endif
