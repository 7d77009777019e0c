/* y (..., C) = (x - mean) / sqrt(variance + epsilon) * weight + bias, with the mean and the biased
 * variance of each row of C. */
#include "autograd/tape.h"

struct layer_norm {
    ls__node node;
    float *mean, *rstd; /* (rows) */
};

static ls_status contribute(ls_step *step, ls__node *node, bool to_x, bool to_weight,
                            bool to_bias) {
    const struct layer_norm *l = (const struct layer_norm *)node;
    ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    size_t columns = weight->count;
    void *dx, *dweight, *dbias;
    bool add_x, add_weight, add_bias;
    LS_TRY(ls__tape_gradient(step, to_x ? x : NULL, &dx, &add_x));
    LS_TRY(ls__tape_gradient(step, to_weight ? weight : NULL, &dweight, &add_weight));
    LS_TRY(ls__tape_gradient(step, to_bias ? bias : NULL, &dbias, &add_bias));
    return step->device->table->layer_norm_backward(
        step->device, x->dtype, x->count / columns, columns, x->data, weight->data, l->mean,
        l->rstd, node->output->grad->data, dx, add_x, dweight, add_weight, dbias, add_bias);
}

/* Where one tensor stands for two, the second adds to what the first wrote: one after the other. */
static ls_status layer_norm_backward(ls_step *step, ls__node *node) {
    const ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    if (x != weight && weight != bias && bias != x)
        return contribute(step, node, true, true, true);
    LS_TRY(contribute(step, node, true, false, false));
    LS_TRY(contribute(step, node, false, true, false));
    return contribute(step, node, false, false, true);
}

ls_tensor *ls_layer_norm(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                         float epsilon) {
    if (!ls__tensor_check(step, x, LS_F32, "layer_norm") ||
        !ls__tensor_check(step, weight, LS_F32, "layer_norm") ||
        !ls__tensor_check(step, bias, LS_F32, "layer_norm"))
        return NULL;
    size_t columns = x->dims ? x->shape[x->dims - 1] : 0;
    if (columns == 0 || weight->dims != 1 || weight->shape[0] != columns || bias->dims != 1 ||
        bias->shape[0] != columns) {
        char tx[LS__SHAPE_TEXT], tw[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT];
        return ls__step_fail(
            step, ls__fail(LS_ERR_ARGUMENT,
                           "layer_norm: x %s does not fit weight %s and bias %s: want (..., C), "
                           "(C) and (C)",
                           ls__tensor_text(x, tx), ls__tensor_text(weight, tw),
                           ls__tensor_text(bias, tb)));
    }
    size_t rows = x->count / columns;
    ls_tensor *y = ls__tensor_like(step, x);
    float *mean = y ? ls__step_alloc(step, rows * sizeof *mean) : NULL;
    float *rstd = mean ? ls__step_alloc(step, rows * sizeof *rstd) : NULL;
    if (!rstd)
        return NULL;
    ls_status status = step->device->table->layer_norm_forward(
        step->device, x->dtype, rows, columns, x->data, weight->data, bias->data, epsilon, y->data,
        mean, rstd);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    ls_tensor *inputs[] = {x, weight, bias};
    if (!ls__tape_wants(step, inputs, 3))
        return y;
    struct layer_norm *l = ls__tape_record(step, "layer_norm", layer_norm_backward, y, inputs, 3,
                                           sizeof(struct layer_norm));
    if (!l)
        return NULL;
    l->mean = mean;
    l->rstd = rstd;
    return y;
}
