/* y (..., C) = (x - mean) / sqrt(variance + epsilon) * weight + bias, with the mean and the biased
 * variance of each row of C.
 *
 * In a transformer x is the sum of a residual branch: ls_residual_layer_norm makes the sum and its norm in
 * one pass, records them as two operations, and sums the gradient of the branch's bias while the norm's
 * backward has the rows at hand. */
#include "autograd/tape.h"

struct residual {
    ls__node node;
    bool bias_done; /* the norm's backward has made the gradient of the bias */
};

struct layer_norm {
    ls__node node;
    float *mean, *rstd; /* (rows) */
    struct residual
        *residual; /* what made x, when nothing else can add to its gradient; NULL: unknown */
};

/* --- x + (branch + bias) --- */

static ls_status residual_backward(ls_step *step, ls__node *node) {
    const struct residual *r = (const struct residual *)node;
    ls_tensor *x = node->inputs[0], *branch = node->inputs[1], *bias = node->inputs[2];
    const ls_tensor *dy = node->output->grad;
    void *to;
    bool add;
    if (!r->bias_done) {
        LS_TRY(ls__tape_gradient(step, bias, &to, &add));
        if (to)
            LS_TRY(step->device->table->sum(step->device, dy->dtype, 1, dy->count / bias->count,
                                            bias->count, 1.0F, dy->data, to, add));
    }
    LS_TRY(ls__tape_pass_gradient(step, node, x));
    return ls__tape_pass_gradient(step, node, branch);
}

static bool residual_fits(ls_step *step, const char *name, ls_tensor *x, ls_tensor *branch,
                          ls_tensor *bias) {
    if (!ls__tensor_check(step, x, LS_F32, name) || !ls__tensor_check(step, branch, LS_F32, name) ||
        (bias && !ls__tensor_check(step, bias, LS_F32, name)))
        return false;
    bool fits = x->dims > 0 && ls__tensor_same_shape(x, branch);
    if (fits && (!bias || (bias->dims == 1 && bias->shape[0] == x->shape[x->dims - 1])))
        return true;
    char tx[LS__SHAPE_TEXT], tr[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT] = "none";
    ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                 "%s: x %s does not fit branch %s and its bias %s: want (..., C) "
                                 "twice and (C)",
                                 name, ls__tensor_text(x, tx), ls__tensor_text(branch, tr),
                                 bias ? ls__tensor_text(bias, tb) : tb));
    return false;
}

/* Appends the operation that made `sum`; *node stays NULL where nobody wants a gradient. */
static bool record_residual(ls_step *step, const char *name, ls_tensor *sum, ls_tensor *x,
                            ls_tensor *branch, ls_tensor *bias, struct residual **node) {
    ls_tensor *inputs[] = {x, branch, bias};
    *node = NULL;
    if (!ls__tape_wants(step, inputs, 3))
        return true;
    *node = ls__tape_record(step, name, residual_backward, sum, inputs, 3, sizeof **node);
    return *node != NULL;
}

ls_tensor *ls_residual_add(ls_step *step, ls_tensor *x, ls_tensor *branch, ls_tensor *bias) {
    struct residual *node;
    if (!residual_fits(step, "residual_add", x, branch, bias))
        return NULL;
    ls_tensor *sum = ls__tensor_like(step, x);
    if (!sum)
        return NULL;
    size_t columns = x->shape[x->dims - 1];
    ls_status status = step->device->table->residual_sum(step->device, x->dtype, x->count / columns,
                                                         columns, x->data, branch->data,
                                                         bias ? bias->data : NULL, sum->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    return record_residual(step, "residual_add", sum, x, branch, bias, &node) ? sum : NULL;
}

/* --- the norm --- */

static ls_status contribute(ls_step *step, ls__node *node, bool to_x, bool to_weight,
                            bool to_bias) {
    const struct layer_norm *l = (const struct layer_norm *)node;
    ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    size_t columns = weight->count;
    void *dx, *dweight, *dbias, *dx_sums = NULL;
    bool add_x, add_weight, add_bias, add_sums = false;
    LS_TRY(ls__tape_gradient(step, to_x ? x : NULL, &dx, &add_x));
    LS_TRY(ls__tape_gradient(step, to_weight ? weight : NULL, &dweight, &add_weight));
    LS_TRY(ls__tape_gradient(step, to_bias ? bias : NULL, &dbias, &add_bias));
    if (dx && l->residual) {
        ls_tensor *branch_bias = l->residual->node.inputs[2];
        LS_TRY(ls__tape_gradient(step, branch_bias, &dx_sums, &add_sums));
        l->residual->bias_done = true;
    }
    return step->device->table->layer_norm_backward(
        step->device, x->dtype, x->count / columns, columns, x->data, weight->data, l->mean,
        l->rstd, node->output->grad->data, dx, add_x, dweight, add_weight, dbias, add_bias, dx_sums,
        add_sums);
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

static bool norm_fits(ls_step *step, const ls_tensor *x, ls_tensor *weight, ls_tensor *bias) {
    if (!ls__tensor_check(step, weight, LS_F32, "layer_norm") ||
        !ls__tensor_check(step, bias, LS_F32, "layer_norm"))
        return false;
    size_t columns = x->dims ? x->shape[x->dims - 1] : 0;
    if (columns > 0 && weight->dims == 1 && weight->shape[0] == columns && bias->dims == 1 &&
        bias->shape[0] == columns)
        return true;
    char tx[LS__SHAPE_TEXT], tw[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT];
    ls__step_fail(step,
                  ls__fail(LS_ERR_ARGUMENT,
                           "layer_norm: x %s does not fit weight %s and bias %s: want (..., C), "
                           "(C) and (C)",
                           ls__tensor_text(x, tx), ls__tensor_text(weight, tw),
                           ls__tensor_text(bias, tb)));
    return false;
}

/* y and its statistics, not computed yet */
static ls_tensor *new_result(ls_step *step, const ls_tensor *x, size_t rows, struct layer_norm *l) {
    ls_tensor *y = ls__tensor_like(step, x);
    l->mean = y ? ls__step_alloc(step, rows * sizeof *l->mean) : NULL;
    l->rstd = l->mean ? ls__step_alloc(step, rows * sizeof *l->rstd) : NULL;
    return l->rstd ? y : NULL;
}

static ls_tensor *record_norm(ls_step *step, ls_tensor *y, ls_tensor *x, ls_tensor *weight,
                              ls_tensor *bias, const struct layer_norm *l) {
    ls_tensor *inputs[] = {x, weight, bias};
    if (!ls__tape_wants(step, inputs, 3))
        return y;
    struct layer_norm *node =
        ls__tape_record(step, "layer_norm", layer_norm_backward, y, inputs, 3, sizeof *node);
    if (!node)
        return NULL;
    node->mean = l->mean;
    node->rstd = l->rstd;
    node->residual = l->residual;
    return y;
}

ls_tensor *ls_layer_norm(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                         float epsilon) {
    struct layer_norm l = {0};
    if (!ls__tensor_check(step, x, LS_F32, "layer_norm") || !norm_fits(step, x, weight, bias))
        return NULL;
    size_t columns = weight->count, rows = x->count / columns;
    ls_tensor *y = new_result(step, x, rows, &l);
    if (!y)
        return NULL;
    ls_status status = step->device->table->layer_norm_forward(
        step->device, x->dtype, rows, columns, x->data, weight->data, bias->data, epsilon, y->data,
        l.mean, l.rstd);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    return record_norm(step, y, x, weight, bias, &l);
}

ls_tensor *ls_residual_layer_norm(ls_step *step, ls_tensor *x, ls_tensor *branch,
                                  ls_tensor *branch_bias, ls_tensor *weight, ls_tensor *bias,
                                  float epsilon, ls_tensor **sum) {
    struct layer_norm l = {0};
    if (!sum)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                            "residual_layer_norm: sum is NULL; want a place for "
                                            "x + branch"));
    *sum = NULL;
    if (!residual_fits(step, "residual_layer_norm", x, branch, branch_bias) ||
        !norm_fits(step, x, weight, bias))
        return NULL;
    size_t columns = weight->count, rows = x->count / columns;
    ls_tensor *s = ls__tensor_like(step, x), *y = s ? new_result(step, x, rows, &l) : NULL;
    if (!y)
        return NULL;
    ls_status status = step->device->table->residual_norm_forward(
        step->device, x->dtype, rows, columns, x->data, branch->data,
        branch_bias ? branch_bias->data : NULL, weight->data, bias->data, epsilon, s->data, y->data,
        l.mean, l.rstd);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!record_residual(step, "residual_norm", s, x, branch, branch_bias, &l.residual))
        return NULL;
    *sum = s;
    return record_norm(step, y, s, weight, bias, &l);
}
