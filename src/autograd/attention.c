/* y (B, T, C): for each head, softmax(q k^T / sqrt(C/heads), causal) v. Vaswani et al. 2017. */
#include "autograd/tape.h"

struct attention {
    ls__node node;
    ls__attention shape;
    void *saved; /* what the device's forward left for backward */
};

static ls_status attention_backward(ls_step *step, ls__node *node) {
    const struct attention *a = (const struct attention *)node;
    ls_tensor *qkv = node->inputs[0], *y = node->output;
    void *dqkv;
    bool add;
    LS_TRY(ls__tape_gradient(step, qkv, &dqkv, &add));
    if (!dqkv)
        return LS_OK;
    return step->device->table->attention_backward(step->device, step->compute, &a->shape,
                                                   qkv->data, y->data, a->saved, y->grad->data,
                                                   dqkv, add);
}

ls_tensor *ls_causal_attention(ls_step *step, ls_tensor *qkv, size_t heads) {
    if (!ls__tensor_check(step, qkv, LS_F32, "causal_attention"))
        return NULL;
    char text[LS__SHAPE_TEXT];
    if (qkv->dims != 3 || qkv->shape[2] % 3 != 0)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                            "causal_attention: qkv is %s, want (B, T, 3C)",
                                            ls__tensor_text(qkv, text)));
    size_t channels = qkv->shape[2] / 3;
    if (heads == 0 || channels % heads != 0)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                            "causal_attention: %zu channels of qkv %s cannot be "
                                            "shared by %zu heads",
                                            channels, ls__tensor_text(qkv, text), heads));
    const ls__device_table *table = step->device->table;
    ls__attention shape = {.batch = qkv->shape[0],
                           .time = qkv->shape[1],
                           .heads = heads,
                           .head_size = channels / heads};
    ls_tensor *y =
        ls_tensor_new(step, qkv->dtype, (size_t[]){shape.batch, shape.time, channels}, 3);
    if (!y)
        return NULL;
    bool recorded = ls__tape_wants(step, &qkv, 1);
    void *saved = NULL;
    if (recorded) {
        saved =
            ls__step_alloc(step, table->attention_saved_bytes(step->device, step->compute, &shape));
        if (!saved)
            return NULL;
    }
    ls_status status =
        table->attention_forward(step->device, step->compute, &shape, qkv->data, y->data, saved);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!recorded)
        return y;
    struct attention *node = ls__tape_record(step, "causal_attention", attention_backward, y, &qkv,
                                             1, sizeof(struct attention));
    if (!node)
        return NULL;
    node->shape = shape;
    node->saved = saved;
    return y;
}
