/* Over the last dimension: y = exp(x) / sum exp(x), or its logarithm. Backward needs y only:
 *   softmax:      dx = y (dy - sum(dy y))
 *   logarithm:    dx = dy - exp(y) sum(dy) */
#include "autograd/tape.h"

static ls_status backward(ls_step *step, ls__node *node, bool logarithm) {
    const ls_tensor *y = node->output;
    size_t columns = y->shape[y->dims - 1];
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, node->inputs[0], &dx, &add));
    if (!dx)
        return LS_OK;
    return step->device->table->softmax_backward(step->device, y->dtype, logarithm,
                                                 y->count / columns, columns, y->data,
                                                 y->grad->data, dx, add);
}

static ls_status softmax_backward(ls_step *step, ls__node *node) {
    return backward(step, node, false);
}

static ls_status log_softmax_backward(ls_step *step, ls__node *node) {
    return backward(step, node, true);
}

static ls_tensor *forward(ls_step *step, const char *name, ls_tensor *x, bool logarithm) {
    if (!ls__tensor_check(step, x, LS_F32, name))
        return NULL;
    if (x->dims == 0)
        return ls__step_fail(step,
                             ls__fail(LS_ERR_ARGUMENT, "%s: x is a scalar, want (..., C)", name));
    ls_tensor *y = ls__tensor_like(step, x);
    if (!y)
        return NULL;
    size_t columns = x->shape[x->dims - 1];
    ls_status status = step->device->table->softmax_forward(
        step->device, x->dtype, logarithm, x->count / columns, columns, x->data, y->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    return ls__tape_finish(step, name, logarithm ? log_softmax_backward : softmax_backward, y, &x,
                           1);
}

ls_tensor *ls_softmax(ls_step *step, ls_tensor *x) {
    return forward(step, "softmax", x, false);
}

ls_tensor *ls_log_softmax(ls_step *step, ls_tensor *x) {
    return forward(step, "log_softmax", x, true);
}
