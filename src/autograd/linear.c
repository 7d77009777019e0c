/* y (rows, out) = x (rows, in) W^T + b, or x W + b, where rows are all dimensions of x but the last.
 *
 *   dx = dy W       dW = dy^T x      db = sum of dy over rows      (W as (out, in))
 *   dx = dy W^T     dW = x^T dy                                    (W as (in, out)) */
#include "autograd/linear.h"

#include <string.h>

struct linear {
    ls__node node;
    size_t rows, in, out;
    bool in_first; /* weight is (in, out) */
};

static ls_status linear_backward(ls_step *step, ls__node *node) {
    const struct linear *l = (const struct linear *)node;
    const ls__device_table *table = step->device->table;
    ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const void *dy = node->output->grad->data; /* (rows, out) */
    void *to;
    bool add;

    LS_TRY(ls__tape_gradient(step, weight, &to, &add));
    if (to && l->in_first)
        LS_TRY(table->gemm(step->device, x->dtype, true, false, l->in, l->out, l->rows, 1.0F,
                           x->data, l->in, dy, l->out, add ? 1.0F : 0.0F, to, l->out));
    else if (to)
        LS_TRY(table->gemm(step->device, x->dtype, true, false, l->out, l->in, l->rows, 1.0F, dy,
                           l->out, x->data, l->in, add ? 1.0F : 0.0F, to, l->in));

    LS_TRY(ls__tape_gradient(step, bias, &to, &add));
    if (to)
        LS_TRY(table->sum(step->device, x->dtype, 1, l->rows, l->out, 1.0F, dy, to, add));

    LS_TRY(ls__tape_gradient(step, x, &to, &add));
    if (to)
        LS_TRY(table->linear(step->device, x->dtype, l->rows, l->out, l->in, dy, weight->data,
                             l->in_first, NULL, to, add));
    return LS_OK;
}

static bool shapes_fit(ls_step *step, const char *name, const ls_tensor *x, const ls_tensor *weight,
                       const ls_tensor *bias, bool in_first) {
    char tx[LS__SHAPE_TEXT], tw[LS__SHAPE_TEXT];
    if (weight->dims != 2) {
        ls__step_fail(step,
                      ls__fail(LS_ERR_ARGUMENT, "%s: weight is %s, want %s", name,
                               ls__tensor_text(weight, tw), in_first ? "(in, out)" : "(out, in)"));
        return false;
    }
    size_t in = weight->shape[in_first ? 0 : 1], out = weight->shape[in_first ? 1 : 0];
    if (x->dims == 0 || x->shape[x->dims - 1] != in) {
        ls__step_fail(step,
                      ls__fail(LS_ERR_ARGUMENT, "%s: x %s does not fit weight %s: want %zu columns",
                               name, ls__tensor_text(x, tx), ls__tensor_text(weight, tw), in));
        return false;
    }
    if (bias && (bias->dims != 1 || bias->shape[0] != out)) {
        ls__step_fail(step,
                      ls__fail(LS_ERR_ARGUMENT, "%s: bias %s does not fit weight %s: want (%zu)",
                               name, ls__tensor_text(bias, tx), ls__tensor_text(weight, tw), out));
        return false;
    }
    return true;
}

static ls_tensor *linear(ls_step *step, const char *name, ls_tensor *x, ls_tensor *weight,
                         ls_tensor *bias, bool in_first) {
    if (!ls__tensor_check(step, x, LS_F32, name) || !ls__tensor_check(step, weight, LS_F32, name) ||
        (bias && !ls__tensor_check(step, bias, LS_F32, name)) ||
        !shapes_fit(step, name, x, weight, bias, in_first))
        return NULL;
    const ls__device_table *table = step->device->table;
    size_t in = weight->shape[in_first ? 0 : 1], out = weight->shape[in_first ? 1 : 0];
    size_t rows = x->count / in;

    size_t shape[LS_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->dims - 1] = out;
    ls_tensor *y = ls_tensor_new(step, x->dtype, shape, x->dims);
    if (!y)
        return NULL;
    ls_tensor *inputs[] = {x, weight, bias};
    if (step->compute == LS_BF16)
        return ls__linear_bf16(step, name, inputs, in_first, y);
    ls_status status = table->linear(step->device, x->dtype, rows, in, out, x->data, weight->data,
                                     !in_first, bias ? bias->data : NULL, y->data, false);
    if (status != LS_OK)
        return ls__step_fail(step, status);

    if (!ls__tape_wants(step, inputs, 3))
        return y;
    struct linear *l =
        ls__tape_record(step, name, linear_backward, y, inputs, 3, sizeof(struct linear));
    if (!l)
        return NULL;
    l->rows = rows;
    l->in = in;
    l->out = out;
    l->in_first = in_first;
    return y;
}

ls_tensor *ls_linear(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias) {
    return linear(step, "linear", x, weight, bias, false);
}

ls_tensor *ls_linear_io(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias) {
    return linear(step, "linear_io", x, weight, bias, true);
}
