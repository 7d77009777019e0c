/* y = a op b, element by element; b is repeated over the first dimensions of a where it has fewer.
 * The gradient of a repeated b is the sum over the repetitions. */
#include "autograd/tape.h"

#include <string.h>

struct binary {
    ls__node node;
    ls__binary op;
    ls__layout layout; /* that forward worked in */
};

static ls_status binary_backward(ls_step *step, ls__node *node) {
    const ls__device_table *table = step->device->table;
    const struct binary *r = (const struct binary *)node;
    ls_tensor *a = node->inputs[0], *b = node->inputs[1];
    size_t columns = b->count, rows = a->count / columns;
    if (r->op == LS__ADD && rows == 1) {
        LS_TRY(ls__tape_pass_gradient(step, node, a));
        return ls__tape_pass_gradient(step, node, b);
    }
    const void *from_a = ls__tensor_data_in(step, a, r->layout);
    const void *from_b = ls__tensor_data_in(step, b, r->layout);
    const void *dy = ls__tensor_data_in(step, node->output->grad, r->layout);
    if (!from_a || !from_b || !dy)
        return step->status;
    /* Two passes, as a and b may be one tensor: then the second adds to what the first wrote. */
    ls__gradient to;
    LS_TRY(ls__tape_gradient_in(step, a, r->layout, &to));
    if (to.data)
        LS_TRY(table->binary_backward(step->device, a->dtype, r->op, rows, columns, from_a, from_b,
                                      rows > 1, dy, to.data, to.accumulate, NULL, false));
    LS_TRY(ls__tape_gradient_done(step, &to));
    LS_TRY(ls__tape_gradient_in(step, b, r->layout, &to));
    if (to.data)
        LS_TRY(table->binary_backward(step->device, a->dtype, r->op, rows, columns, from_a, from_b,
                                      rows > 1, dy, NULL, false, to.data, to.accumulate));
    return ls__tape_gradient_done(step, &to);
}

static ls_tensor *binary(ls_step *step, const char *name, ls__binary op, ls_tensor *a,
                         ls_tensor *b) {
    if (!ls__tensor_check_any(step, a, LS_F32, name) ||
        !ls__tensor_check_any(step, b, LS_F32, name))
        return NULL;
    if (b->dims > a->dims ||
        memcmp(a->shape + (a->dims - b->dims), b->shape, b->dims * sizeof *b->shape) != 0) {
        char ta[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT];
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                            "%s: b %s does not fit a %s: want a's shape, or its "
                                            "last dimensions",
                                            name, ls__tensor_text(b, tb), ls__tensor_text(a, ta)));
    }
    /* Two of one shape keep the layout of the first; one that is repeated wants plain data. */
    bool same = ls__tensor_same_shape(a, b);
    if (!same && (!ls__tensor_make_plain(step, a) || !ls__tensor_make_plain(step, b)))
        return NULL;
    ls_tensor *y = ls__tensor_like(step, a);
    const void *from_b = y ? ls__tensor_data_in(step, b, y->layout) : NULL;
    if (!from_b)
        return NULL;
    size_t columns = b->count, rows = a->count / columns;
    ls_status status = step->device->table->binary_forward(
        step->device, a->dtype, op, rows, columns, a->data, from_b, rows > 1, y->data);
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
    node->layout = y->layout;
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
