/* y = (x - mean) / sqrt(variance + epsilon) * weight + bias for each channel of x (B, C, H, W) or
 * (B, C). Training: mean and biased variance of this shard, n = B*H*W values a channel. The
 * statistics handed out are times B; their variance is unbiased, times n/(n-1). One value has no
 * unbiased variance: with n = 1 it is handed out as 0, so that a last shard of one sample does not
 * end a training run. */
#include "autograd/tape.h"

struct batch_norm {
    ls__node node;
    ls__batch_norm shape;
    float *mean, *rstd; /* (C) */
};

static ls_status contribute(ls_step *step, ls__node *node, bool to_x, bool to_weight,
                            bool to_bias) {
    const struct batch_norm *b = (const struct batch_norm *)node;
    ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    void *dx, *dweight, *dbias;
    bool add_x, add_weight, add_bias;
    LS_TRY(ls__tape_gradient(step, to_x ? x : NULL, &dx, &add_x));
    LS_TRY(ls__tape_gradient(step, to_weight ? weight : NULL, &dweight, &add_weight));
    LS_TRY(ls__tape_gradient(step, to_bias ? bias : NULL, &dbias, &add_bias));
    return step->device->table->batch_norm_backward(
        step->device, x->dtype, &b->shape, true, x->data, weight->data, b->mean, b->rstd,
        node->output->grad->data, dx, add_x, dweight, add_weight, dbias, add_bias);
}

/* Where one tensor stands for two, the second adds to what the first wrote: one after the other. */
static ls_status batch_norm_backward(ls_step *step, ls__node *node) {
    const ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    if (x != weight && weight != bias && bias != x)
        return contribute(step, node, true, true, true);
    LS_TRY(contribute(step, node, true, false, false));
    LS_TRY(contribute(step, node, false, true, false));
    return contribute(step, node, false, false, true);
}

static ls_status check_inputs(const ls_step *step, const ls_tensor *x, const ls_tensor *weight,
                              const ls_tensor *bias, const ls_batch_norm_state *state) {
    char tx[LS__SHAPE_TEXT], tw[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT];
    if (x->dims != 2 && x->dims != 4)
        return ls__fail(LS_ERR_ARGUMENT, "batch_norm: x is %s, want (B, C, H, W) or (B, C)",
                        ls__tensor_text(x, tx));
    size_t channels = x->shape[1];
    if (weight->dims != 1 || weight->shape[0] != channels || bias->dims != 1 ||
        bias->shape[0] != channels)
        return ls__fail(LS_ERR_ARGUMENT,
                        "batch_norm: x %s does not fit weight %s and bias %s: want (%zu)",
                        ls__tensor_text(x, tx), ls__tensor_text(weight, tw),
                        ls__tensor_text(bias, tb), channels);
    if (!step->training && (!state->running_mean || !state->running_var))
        return ls__fail(LS_ERR_ARGUMENT,
                        "batch_norm: not training, and no running statistics given");
    return LS_OK;
}

/* mean * B and variance * B * n/(n-1), to where the caller wants them */
static ls_status hand_out(ls_step *step, const ls__batch_norm *shape, size_t batch,
                          const ls_batch_norm_state *state, const float *mean,
                          const float *variance) {
    const ls__device_table *table = step->device->table;
    size_t n = shape->outer * shape->inner;
    double unbias = n > 1 ? (double)n / (double)(n - 1) : 0.0;
    if (state->batch_mean)
        LS_TRY(table->affine(step->device, LS_F32, shape->channels, (float)batch, 0.0F, mean,
                             state->batch_mean, false));
    if (state->batch_var)
        LS_TRY(table->affine(step->device, LS_F32, shape->channels, (float)((double)batch * unbias),
                             0.0F, variance, state->batch_var, false));
    return LS_OK;
}

static ls_status batch_norm_forward(ls_step *step, const ls__batch_norm *shape,
                                    ls_tensor *inputs[3], ls_tensor *y,
                                    const ls_batch_norm_state *state, float *mean, float *variance,
                                    float *rstd) {
    const ls__device_table *table = step->device->table;
    if (!step->training) {
        LS_TRY(
            table->copy(step->device, mean, state->running_mean, shape->channels * sizeof *mean));
        LS_TRY(table->copy(step->device, variance, state->running_var,
                           shape->channels * sizeof *variance));
    }
    LS_TRY(table->batch_norm_forward(step->device, y->dtype, shape, step->training, inputs[0]->data,
                                     inputs[1]->data, inputs[2]->data, y->data, mean, variance,
                                     rstd));
    return step->training ? hand_out(step, shape, y->shape[0], state, mean, variance) : LS_OK;
}

ls_tensor *ls_batch_norm(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                         ls_batch_norm_state state, float epsilon) {
    if (!ls__tensor_check(step, x, LS_F32, "batch_norm") ||
        !ls__tensor_check(step, weight, LS_F32, "batch_norm") ||
        !ls__tensor_check(step, bias, LS_F32, "batch_norm"))
        return NULL;
    ls_status status = check_inputs(step, x, weight, bias, &state);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    ls__batch_norm shape = {.outer = x->shape[0],
                            .channels = x->shape[1],
                            .inner = ls__tensor_span(x, 2, x->dims),
                            .epsilon = epsilon};
    ls_tensor *y = ls__tensor_like(step, x);
    float *mean = y ? ls__step_alloc(step, 3 * shape.channels * sizeof *mean) : NULL;
    if (!mean)
        return NULL;
    float *variance = mean + shape.channels, *rstd = variance + shape.channels;
    ls_tensor *inputs[] = {x, weight, bias};
    status = batch_norm_forward(step, &shape, inputs, y, &state, mean, variance, rstd);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, inputs, 3))
        return y;
    struct batch_norm *node = ls__tape_record(step, "batch_norm", batch_norm_backward, y, inputs, 3,
                                              sizeof(struct batch_norm));
    if (!node)
        return NULL;
    node->shape = shape;
    node->mean = mean;
    node->rstd = rstd;
    return y;
}
