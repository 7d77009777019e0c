/* A linear layer whose products have bf16 factors: x, dy and the weights are rounded once each, sums and
 * results are f32. Formulas as in linear.c.
 *
 * Forward's rounded x is kept for dW, and the rounded dy serves dx and dW. The bias and its gradient are
 * f32: db is the sum of dy before rounding, made in the pass that rounds. */
#include "autograd/linear.h"
#include "autograd/prepared.h"

struct linear_bf16 {
    ls__node node;
    size_t rows, in, out;
    bool in_first;
    const void *x; /* (rows, in) bf16 */
};

static ls_status product(ls_step *step, ls_tensor *weight, bool transposed, size_t rows,
                         const void *a, const float *bias, float *c) {
    const ls__preparation how = {.dtype = LS_BF16, .transposed = transposed};
    const ls__packing packing = ls__prepared_packing(weight, &how, 0);
    const void *packed = ls__prepared_get(step, weight, &how);
    if (!packed)
        return step->status;
    return step->device->table->product(step->device, &packing, rows, a, packed, bias, c, false);
}

/* dx (+)= dy W or dy W^T, of a weight that is packed for this product alone: kept, it would be as large as
 * forward's once more. */
static ls_status product_back(ls_step *step, const struct linear_bf16 *l, const void *dy, float *dx,
                              bool accumulate) {
    const ls_tensor *weight = l->node.inputs[1];
    const ls__preparation how = {.dtype = LS_BF16, .transposed = l->in_first};
    const ls__packing packing = ls__prepared_packing(weight, &how, 0);
    const ls__device_table *table = step->device->table;
    size_t bytes = table->packed_bytes(step->device, &packing);
    void *packed = ls__step_alloc(step, bytes);
    if (!packed)
        return step->status;
    LS_TRY(table->pack(step->device, &packing, weight->data, packed));
    LS_TRY(table->product(step->device, &packing, l->rows, dy, packed, NULL, dx, accumulate));
    ls__step_release(step, packed, bytes);
    return LS_OK;
}

static ls_status contribute(ls_step *step, const struct linear_bf16 *l, void *dy) {
    const ls__device_table *table = step->device->table;
    ls_tensor *const *inputs = l->node.inputs;
    const ls_tensor *gradient = l->node.output->grad;
    void *to;
    bool add;
    LS_TRY(ls__tape_gradient(step, inputs[2], &to, &add));
    LS_TRY(table->narrow(step->device, LS_BF16, l->rows, l->out, gradient->data, dy, to, add));
    LS_TRY(ls__tape_gradient(step, inputs[1], &to, &add));
    if (to && l->in_first)
        LS_TRY(
            table->outer_product(step->device, LS_BF16, l->rows, l->in, l->out, l->x, dy, to, add));
    else if (to)
        LS_TRY(
            table->outer_product(step->device, LS_BF16, l->rows, l->out, l->in, dy, l->x, to, add));
    LS_TRY(ls__tape_gradient(step, inputs[0], &to, &add));
    return to ? product_back(step, l, dy, to, add) : LS_OK;
}

static ls_status linear_backward(ls_step *step, ls__node *node) {
    const struct linear_bf16 *l = (const struct linear_bf16 *)node;
    size_t bytes = l->rows * l->out * sizeof(uint16_t);
    void *dy = ls__step_alloc(step, bytes); /* (rows, out) bf16 */
    if (!dy)
        return step->status;
    LS_TRY(contribute(step, l, dy));
    ls__step_release(step, dy, bytes);
    return LS_OK;
}

ls_tensor *ls__linear_bf16(ls_step *step, const char *name, ls_tensor *const inputs[3],
                           bool in_first, ls_tensor *y) {
    ls_tensor *x = inputs[0], *weight = inputs[1], *bias = inputs[2];
    size_t in = weight->shape[in_first ? 0 : 1], out = weight->shape[in_first ? 1 : 0];
    size_t rows = x->count / in;
    const void *half = ls__tensor_half(step, x);
    if (!half)
        return NULL;
    ls_status status =
        product(step, weight, !in_first, rows, half, bias ? bias->data : NULL, y->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, inputs, 3))
        return y;
    struct linear_bf16 *l =
        ls__tape_record(step, name, linear_backward, y, inputs, 3, sizeof(struct linear_bf16));
    if (!l)
        return NULL;
    l->rows = rows;
    l->in = in;
    l->out = out;
    l->in_first = in_first;
    l->x = half;
    return y;
}
