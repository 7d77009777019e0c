/* Activation recomputation (Chen et al. 2016): y = f(x), of which only x is kept. Backward runs f again,
 * now on a tape of its own, walks that, and forgets it. Operations give the same bits every time, dropout
 * included, and so do gradients with and without.
 *
 * The weights f uses are inputs of the one node on the outer tape: they are counted, and reported ready,
 * there. */
#include "autograd/checkpoint.h"

#include "tensor/arena.h"

struct checkpoint {
    ls__node node; /* inputs: x, then the weights */
    ls__checkpoint_fn function;
    void *context;
};

/* f(x) recorded on an inner tape and walked with dy; the contribution to x is left in *dx. */
static ls_status run_again(ls_step *step, const struct checkpoint *c, ls_tensor *x) {
    ls_tensor *y = c->function(step, c->context, x);
    LS_TRY(ls_step_status(step));
    if (!y || y->grad || y->count != c->node.output->count)
        return ls__fail(LS_ERR_STATE, "checkpoint: the function gave another result than before");
    return ls__tape_walk_inner(step, y, c->node.output);
}

static ls_status checkpoint_backward(ls_step *step, ls__node *node) {
    const struct checkpoint *c = (const struct checkpoint *)node;
    ls_tensor *x = node->inputs[0];
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, x, &dx, &add));
    ls_tensor *again = ls__step_alloc_record(step, sizeof *again);
    if (!again)
        return step->status;
    *again = *x;
    again->grad = NULL;
    again->keep_grad = false;
    again->need_grad = dx != NULL;
    ls__arena_mark mark;
    ls__arena_get_mark(step->arena, &mark);
    ls__tape_inner inner;
    ls__tape_begin_inner(step, &inner);
    ls_status status = run_again(step, c, again);
    ls__tape_end_inner(step, &inner);
    if (status == LS_OK && dx && again->grad)
        status = step->device->table->affine(step->device, x->dtype, x->count, 1.0F, 0.0F,
                                             again->grad->data, dx, add);
    else if (status == LS_OK && dx && !add)
        status = step->device->table->zero(step->device, dx, x->count * ls_dtype_size(x->dtype));
    if (again->grad)
        ls__tape_drop_gradient(step, again); /* it may stand on memory from outside */
    ls__arena_rewind(step->arena, &mark);
    return status;
}

ls_tensor *ls__checkpoint(ls_step *step, ls__checkpoint_fn function, void *context, ls_tensor *x,
                          ls_tensor *const *weights, size_t weight_count) {
    if (!ls__tensor_check(step, x, LS_F32, "checkpoint"))
        return NULL;
    ls_tensor **inputs = ls__step_alloc_record(step, (weight_count + 1) * sizeof(void *));
    if (!inputs)
        return NULL;
    inputs[0] = x;
    for (size_t i = 0; i < weight_count; i++)
        inputs[i + 1] = weights[i];
    if (!ls__tape_wants(step, inputs, weight_count + 1))
        return function(step, context, x);
    ls_tensor *y = ls__tensor_like(step, x);
    if (!y)
        return NULL;
    ls__arena_mark mark;
    ls__arena_get_mark(step->arena, &mark);
    void *twin = x->twin, *half = x->half;
    step->unrecorded = true;
    ls_tensor *inside = function(step, context, x);
    step->unrecorded = false;
    ls_status status = ls_step_status(step);
    if (status == LS_OK && (!inside || !ls__tensor_same_shape(inside, y)))
        status = ls__fail(LS_ERR_ARGUMENT, "checkpoint: the result must have the shape of x");
    if (status == LS_OK)
        status = step->device->table->copy(step->device, y->data, inside->data,
                                           y->count * ls_dtype_size(y->dtype));
    ls__arena_rewind(step->arena, &mark);
    x->twin = twin; /* made inside, it is gone */
    x->half = half;
    if (status != LS_OK)
        return ls__step_fail(step, status);
    struct checkpoint *node = ls__tape_record(step, "checkpoint", checkpoint_backward, y, inputs,
                                              weight_count + 1, sizeof *node);
    if (!node)
        return NULL;
    node->function = function;
    node->context = context;
    return y;
}
