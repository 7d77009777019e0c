/* y (..., C) = gelu_tanh(x + bias): what follows a layer's product. x is kept without the bias, so neither
 * x + bias nor a pass for it exists; dx is written over dy where nobody else needs that. */
#include "autograd/tape.h"

static ls_status bias_gelu_backward(ls_step *step, ls__node *node) {
    ls_tensor *x = node->inputs[0], *bias = node->inputs[1];
    const void *dy = node->output->grad->data;
    void *dx, *dbias;
    bool add_x, add_bias;
    LS_TRY(ls__tape_gradient_over(step, node, x, &dx, &add_x));
    LS_TRY(ls__tape_gradient(step, bias, &dbias, &add_bias));
    return step->device->table->bias_gelu_backward(step->device, x->dtype, x->count / bias->count,
                                                   bias->count, x->data, bias->data, dy, dx, add_x,
                                                   dbias, add_bias);
}

ls_tensor *ls_bias_gelu_tanh(ls_step *step, ls_tensor *x, ls_tensor *bias) {
    if (!ls__tensor_check(step, x, LS_F32, "bias_gelu_tanh") ||
        !ls__tensor_check(step, bias, LS_F32, "bias_gelu_tanh"))
        return NULL;
    size_t columns = x->dims ? x->shape[x->dims - 1] : 0;
    if (columns == 0 || bias->dims != 1 || bias->shape[0] != columns || x == bias) {
        char tx[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT];
        return ls__step_fail(
            step, ls__fail(LS_ERR_ARGUMENT,
                           "bias_gelu_tanh: x %s does not fit bias %s: want (..., C) and (C)",
                           ls__tensor_text(x, tx), ls__tensor_text(bias, tb)));
    }
    ls_tensor *y = ls__tensor_like(step, x);
    if (!y)
        return NULL;
    ls_status status = step->device->table->bias_gelu_forward(
        step->device, x->dtype, x->count / columns, columns, x->data, bias->data, y->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    return ls__tape_finish(step, "bias_gelu_tanh", bias_gelu_backward, y, (ls_tensor *[]){x, bias},
                           2);
}
