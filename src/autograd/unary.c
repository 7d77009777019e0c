/* y = f(x), element by element; dx = dy f'(x), from x and y. The linear ones are an affine kernel. */
#include "autograd/tape.h"

struct unary {
    ls__node node;
    ls__unary op;
    ls__layout layout; /* that forward worked in */
};

static ls_status unary_backward(ls_step *step, ls__node *node) {
    const struct unary *u = (const struct unary *)node;
    ls_tensor *x = node->inputs[0], *y = node->output;
    ls__gradient dx;
    LS_TRY(ls__tape_gradient_in(step, x, u->layout, &dx));
    if (!dx.data)
        return LS_OK;
    const void *from = ls__tensor_data_in(step, x, u->layout);
    const void *result = ls__tensor_data_in(step, y, u->layout);
    const void *dy = ls__tensor_data_in(step, y->grad, u->layout);
    if (!from || !result || !dy)
        return step->status;
    LS_TRY(step->device->table->unary_backward(step->device, x->dtype, u->op, x->count, from,
                                               result, dy, dx.data, dx.accumulate));
    return ls__tape_gradient_done(step, &dx);
}

static ls_tensor *unary(ls_step *step, const char *name, ls__unary op, ls_tensor *x) {
    if (!ls__tensor_check_any(step, x, LS_F32, name))
        return NULL;
    ls_tensor *y = ls__tensor_like(step, x);
    if (!y)
        return NULL;
    ls_status status =
        step->device->table->unary_forward(step->device, x->dtype, op, x->count, x->data, y->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, &x, 1))
        return y;
    struct unary *node =
        ls__tape_record(step, name, unary_backward, y, &x, 1, sizeof(struct unary));
    if (!node)
        return NULL;
    node->op = op;
    node->layout = y->layout;
    return y;
}

ls_tensor *ls_relu(ls_step *step, ls_tensor *x) {
    return unary(step, "relu", LS__RELU, x);
}

ls_tensor *ls_gelu(ls_step *step, ls_tensor *x) {
    return unary(step, "gelu", LS__GELU, x);
}

ls_tensor *ls_gelu_tanh(ls_step *step, ls_tensor *x) {
    return unary(step, "gelu_tanh", LS__GELU_TANH, x);
}

ls_tensor *ls_tanh(ls_step *step, ls_tensor *x) {
    return unary(step, "tanh", LS__TANH, x);
}

ls_tensor *ls_sigmoid(ls_step *step, ls_tensor *x) {
    return unary(step, "sigmoid", LS__SIGMOID, x);
}

ls_tensor *ls_exp(ls_step *step, ls_tensor *x) {
    return unary(step, "exp", LS__EXP, x);
}

ls_tensor *ls_log(ls_step *step, ls_tensor *x) {
    return unary(step, "log", LS__LOG, x);
}

ls_tensor *ls_sqrt(ls_step *step, ls_tensor *x) {
    return unary(step, "sqrt", LS__SQRT, x);
}

/* --- y = factor * x + term --- */

struct affine {
    ls__node node;
    float factor;
};

static ls_status affine_backward(ls_step *step, ls__node *node) {
    ls_tensor *x = node->inputs[0];
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, x, &dx, &add));
    if (!dx)
        return LS_OK;
    return step->device->table->affine(step->device, x->dtype, x->count,
                                       ((struct affine *)node)->factor, 0.0F,
                                       node->output->grad->data, dx, add);
}

static ls_tensor *affine(ls_step *step, const char *name, ls_tensor *x, float factor, float term) {
    if (!ls__tensor_check(step, x, LS_F32, name))
        return NULL;
    ls_tensor *y = ls__tensor_like(step, x);
    if (!y)
        return NULL;
    ls_status status = step->device->table->affine(step->device, x->dtype, x->count, factor, term,
                                                   x->data, y->data, false);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, &x, 1))
        return y;
    struct affine *node =
        ls__tape_record(step, name, affine_backward, y, &x, 1, sizeof(struct affine));
    if (!node)
        return NULL;
    node->factor = factor;
    return y;
}

ls_tensor *ls_neg(ls_step *step, ls_tensor *x) {
    return affine(step, "neg", x, -1.0F, 0.0F);
}

ls_tensor *ls_scale(ls_step *step, ls_tensor *x, float factor) {
    return affine(step, "scale", x, factor, 0.0F);
}

ls_tensor *ls_add_scalar(ls_step *step, ls_tensor *x, float term) {
    return affine(step, "add_scalar", x, 1.0F, term);
}
