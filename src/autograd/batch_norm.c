/* y = (x - mean) / sqrt(variance + epsilon) * weight + bias for each channel of x (B, C, H, W) or
 * (B, C). Training: mean and biased variance of this shard, n = B*H*W values a channel. The
 * statistics handed out are times B; their variance is unbiased, times n/(n-1). One value has no
 * unbiased variance: with n = 1 it is handed out as 0, so that a last shard of one sample does not
 * end a training run. With state.sync, "this shard" is the batch that all ranks compute together: n counts
 * all rows, and the gradient of x is through sums over all of them. */
#include "autograd/tape.h"

enum { INPUTS = 4 }; /* x, weight, bias, residual */

struct batch_norm {
    ls__node node;
    ls__batch_norm shape;
    float *mean, *rstd; /* (C) */
};

/* Rows that the statistics are of. */
static double rows_of(const ls__batch_norm *shape) {
    return shape->sum ? *shape->all_rows : (double)shape->rows;
}

static ls_status contribute(ls_step *step, ls__node *node, bool to_x, bool to_residual,
                            bool to_weight, bool to_bias) {
    const struct batch_norm *b = (const struct batch_norm *)node;
    ls_tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    ls__gradient dx, dresidual;
    void *dweight, *dbias;
    bool add_weight, add_bias;
    LS_TRY(ls__tape_gradient_in(step, to_x ? x : NULL, LS__CHANNELS_LAST, &dx));
    LS_TRY(ls__tape_gradient_in(step, to_residual ? node->inputs[3] : NULL, LS__CHANNELS_LAST,
                                &dresidual));
    LS_TRY(ls__tape_gradient(step, to_weight ? weight : NULL, &dweight, &add_weight));
    LS_TRY(ls__tape_gradient(step, to_bias ? bias : NULL, &dbias, &add_bias));
    const void *from = ls__tensor_data_in(step, x, LS__CHANNELS_LAST);
    const void *y = ls__tensor_data_in(step, node->output, LS__CHANNELS_LAST);
    const void *dy = ls__tensor_data_in(step, node->output->grad, LS__CHANNELS_LAST);
    if (!from || !y || !dy)
        return step->status;
    LS_TRY(step->device->table->batch_norm_backward(
        step->device, x->dtype, &b->shape, true, from, weight->data, b->mean, b->rstd, y, dy,
        dx.data, dx.accumulate, dresidual.data, dresidual.accumulate, dweight, add_weight, dbias,
        add_bias));
    LS_TRY(ls__tape_gradient_done(step, &dx));
    return ls__tape_gradient_done(step, &dresidual);
}

/* Where one tensor stands for two, the second adds to what the first wrote: one after the other. */
static ls_status batch_norm_backward(ls_step *step, ls__node *node) {
    bool twice = false;
    for (size_t i = 0; i < INPUTS; i++)
        for (size_t j = 0; j < i; j++)
            twice |= node->inputs[i] && node->inputs[i] == node->inputs[j];
    if (!twice)
        return contribute(step, node, true, true, true, true);
    LS_TRY(contribute(step, node, true, false, false, false));
    LS_TRY(contribute(step, node, false, true, false, false));
    LS_TRY(contribute(step, node, false, false, true, false));
    return contribute(step, node, false, false, false, true);
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
    double n = rows_of(shape), unbias = n > 1 ? n / (n - 1) : 0.0;
    if (state->batch_mean)
        LS_TRY(table->affine(step->device, LS_F32, shape->channels, (float)batch, 0.0F, mean,
                             state->batch_mean, state->add));
    if (state->batch_var)
        LS_TRY(table->affine(step->device, LS_F32, shape->channels, (float)((double)batch * unbias),
                             0.0F, variance, state->batch_var, state->add));
    return LS_OK;
}

static ls_status batch_norm_forward(ls_step *step, const ls__batch_norm *shape,
                                    ls_tensor *inputs[INPUTS], ls_tensor *y,
                                    const ls_batch_norm_state *state, float *mean, float *variance,
                                    float *rstd) {
    const ls__device_table *table = step->device->table;
    const void *x = ls__tensor_data_in(step, inputs[0], LS__CHANNELS_LAST), *residual = NULL;
    if (x && inputs[3])
        residual = ls__tensor_data_in(step, inputs[3], LS__CHANNELS_LAST);
    if (!x || (inputs[3] && !residual))
        return step->status;
    if (!step->training) {
        LS_TRY(
            table->copy(step->device, mean, state->running_mean, shape->channels * sizeof *mean));
        LS_TRY(table->copy(step->device, variance, state->running_var,
                           shape->channels * sizeof *variance));
    }
    LS_TRY(table->batch_norm_forward(step->device, y->dtype, shape, step->training, x,
                                     inputs[1]->data, inputs[2]->data, residual, y->data, mean,
                                     variance, rstd));
    return step->training ? hand_out(step, shape, y->shape[0], state, mean, variance) : LS_OK;
}

static bool inputs_fit(ls_step *step, const char *name, ls_tensor *inputs[INPUTS],
                       const ls_batch_norm_state *state) {
    for (size_t i = 0; i < INPUTS; i++)
        if ((i < 3 || inputs[i]) && !ls__tensor_check_any(step, inputs[i], LS_F32, name))
            return false;
    ls_status status = check_inputs(step, inputs[0], inputs[1], inputs[2], state);
    char tx[LS__SHAPE_TEXT], tr[LS__SHAPE_TEXT];
    if (status == LS_OK && inputs[3] && !ls__tensor_same_shape(inputs[0], inputs[3]))
        status = ls__fail(LS_ERR_ARGUMENT, "%s: residual is %s, want x's shape %s", name,
                          ls__tensor_text(inputs[3], tr), ls__tensor_text(inputs[0], tx));
    if (status != LS_OK)
        ls__step_fail(step, status);
    return status == LS_OK;
}

static ls_tensor *batch_norm(ls_step *step, const char *name, ls_tensor *inputs[INPUTS],
                             const ls_batch_norm_state *state, float epsilon, bool relu) {
    if (!inputs_fit(step, name, inputs, state))
        return NULL;
    ls_tensor *x = inputs[0], *y = ls__tensor_like(step, x);
    size_t channels = x->shape[1];
    ls__batch_norm shape = {
        .rows = x->count / channels, .channels = channels, .epsilon = epsilon, .relu = relu};
    if (step->training && state->sync) {
        shape.sum = state->sync->sum;
        shape.sum_context = state->sync->context;
        shape.all_rows = ls__step_alloc_record(step, sizeof *shape.all_rows);
        if (!shape.all_rows)
            return NULL;
    }
    float *mean = y ? ls__step_alloc(step, 3 * channels * sizeof *mean) : NULL;
    if (!mean)
        return NULL;
    y->layout = x->dims == 4 ? LS__CHANNELS_LAST : LS__PLAIN;
    float *variance = mean + channels, *rstd = variance + channels;
    ls_status status = batch_norm_forward(step, &shape, inputs, y, state, mean, variance, rstd);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, inputs, INPUTS))
        return y;
    struct batch_norm *node = ls__tape_record(step, name, batch_norm_backward, y, inputs, INPUTS,
                                              sizeof(struct batch_norm));
    if (!node)
        return NULL;
    node->shape = shape;
    node->mean = mean;
    node->rstd = rstd;
    return y;
}

ls_tensor *ls_batch_norm(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *bias,
                         ls_batch_norm_state state, float epsilon) {
    return batch_norm(step, "batch_norm", (ls_tensor *[]){x, weight, bias, NULL}, &state, epsilon,
                      false);
}

ls_tensor *ls_batch_norm_relu(ls_step *step, ls_tensor *x, ls_tensor *residual, ls_tensor *weight,
                              ls_tensor *bias, ls_batch_norm_state state, float epsilon) {
    return batch_norm(step, "batch_norm_relu", (ls_tensor *[]){x, weight, bias, residual}, &state,
                      epsilon, true);
}
