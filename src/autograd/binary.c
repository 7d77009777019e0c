/* y = a op b, element by element; b is repeated over the first dimensions of a where it has fewer.
 * The gradient of a repeated b is the sum over the repetitions. */
#include "autograd/tape.h"

#include <string.h>

struct binary {
    ls__node node;
    ls__binary op;
};

static ls_status binary_backward(ls_step *step, ls__node *node) {
    const ls__device_table *table = step->device->table;
    ls__binary op = ((struct binary *)node)->op;
    ls_tensor *a = node->inputs[0], *b = node->inputs[1];
    size_t columns = b->count, rows = a->count / columns;
    const void *dy = node->output->grad->data;
    /* Two passes, as a and b may be one tensor: then the second adds to what the first wrote. */
    void *to;
    bool add;
    LS_TRY(ls__tape_gradient(step, a, &to, &add));
    if (to)
        LS_TRY(table->binary_backward(step->device, a->dtype, op, rows, columns, a->data, b->data,
                                      rows > 1, dy, to, add, NULL, false));
    LS_TRY(ls__tape_gradient(step, b, &to, &add));
    if (to)
        LS_TRY(table->binary_backward(step->device, a->dtype, op, rows, columns, a->data, b->data,
                                      rows > 1, dy, NULL, false, to, add));
    return LS_OK;
}

static ls_tensor *binary(ls_step *step, const char *name, ls__binary op, ls_tensor *a,
                         ls_tensor *b) {
    if (!ls__tensor_check(step, a, LS_F32, name) || !ls__tensor_check(step, b, LS_F32, name))
        return NULL;
    if (b->dims > a->dims ||
        memcmp(a->shape + (a->dims - b->dims), b->shape, b->dims * sizeof *b->shape) != 0) {
        char ta[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT];
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                            "%s: b %s does not fit a %s: want a's shape, or its "
                                            "last dimensions",
                                            name, ls__tensor_text(b, tb), ls__tensor_text(a, ta)));
    }
    ls_tensor *y = ls__tensor_like(step, a);
    if (!y)
        return NULL;
    size_t columns = b->count, rows = a->count / columns;
    ls_status status = step->device->table->binary_forward(
        step->device, a->dtype, op, rows, columns, a->data, b->data, rows > 1, y->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    ls_tensor *inputs[] = {a, b};
    if (!ls__tape_wants(step, inputs, 2))
        return y;
    struct binary *node =
        ls__tape_record(step, name, binary_backward, y, inputs, 2, sizeof(struct binary));
    if (!node)
        return NULL;
    node->op = op;
    return y;
}

ls_tensor *ls_add(ls_step *step, ls_tensor *a, ls_tensor *b) {
    return binary(step, "add", LS__ADD, a, b);
}

ls_tensor *ls_sub(ls_step *step, ls_tensor *a, ls_tensor *b) {
    return binary(step, "sub", LS__SUB, a, b);
}

ls_tensor *ls_mul(ls_step *step, ls_tensor *a, ls_tensor *b) {
    return binary(step, "mul", LS__MUL, a, b);
}

ls_tensor *ls_div(ls_step *step, ls_tensor *a, ls_tensor *b) {
    return binary(step, "div", LS__DIV, a, b);
}
