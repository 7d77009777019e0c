/* loss = sum of (a - b)^2;  da = 2 dloss (a - b) = -db */
#include "autograd/tape.h"

static ls_status squared_error_backward(ls_step *step, ls__node *node) {
    const ls__device_table *table = step->device->table;
    ls_tensor *a = node->inputs[0], *b = node->inputs[1];
    float dloss;
    LS_TRY(ls__tape_scalar_gradient(step, node, &dloss));
    void *difference = ls__step_alloc(step, a->count * ls_dtype_size(a->dtype));
    if (!difference)
        return step->status;
    LS_TRY(table->binary_forward(step->device, a->dtype, LS__SUB, 1, a->count, a->data, b->data,
                                 false, difference));
    void *to;
    bool add;
    LS_TRY(ls__tape_gradient(step, a, &to, &add));
    if (to)
        LS_TRY(table->affine(step->device, a->dtype, a->count, 2.0F * dloss, 0.0F, difference, to,
                             add));
    LS_TRY(ls__tape_gradient(step, b, &to, &add));
    if (to)
        LS_TRY(table->affine(step->device, a->dtype, a->count, -2.0F * dloss, 0.0F, difference, to,
                             add));
    return LS_OK;
}

ls_tensor *ls_squared_error(ls_step *step, ls_tensor *a, ls_tensor *b) {
    if (!ls__tensor_check(step, a, LS_F32, "squared_error") ||
        !ls__tensor_check(step, b, LS_F32, "squared_error"))
        return NULL;
    if (!ls__tensor_same_shape(a, b)) {
        char ta[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT];
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                            "squared_error: a %s and b %s have different shapes",
                                            ls__tensor_text(a, ta), ls__tensor_text(b, tb)));
    }
    ls_tensor *loss = ls_tensor_new(step, LS_F32, NULL, 0);
    if (!loss)
        return NULL;
    ls_status status = step->device->table->squared_error(step->device, a->dtype, a->count, a->data,
                                                          b->data, loss->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    ls_tensor *inputs[] = {a, b};
    return ls__tape_finish(step, "squared_error", squared_error_backward, loss, inputs, 2);
}
