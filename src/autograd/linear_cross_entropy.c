/* loss = sum over rows of -log softmax(x W^T)[target]; x (..., C), W (V, C); targets of -1 and -100 are padding.
 *   d = dloss (softmax(x W^T) - onehot(target)), 0 for padding;  dx = d W;  dW = d^T x
 *
 * Classes go by in blocks, so that the logits of one are met in the cache by what follows. The logits
 * (rows, V) are the largest tensor of a language model. They are kept for backward once, and turned
 * into d where they lie; with step->recompute they are not kept, and each block is computed again:
 * a third more products, no memory. Bits are the same. */
#include "autograd/linear.h"

#include <string.h>

enum { CLASS_BLOCK = 2048 };

struct linear_cross_entropy {
    ls__node node;
    const ls_tensor *targets;
    size_t rows, in, classes;
    ls__class_row *state; /* (rows) */
    float *logits;        /* blocks (rows, columns) one after the other; NULL: not kept */
};

static size_t block_columns(size_t classes, size_t first) {
    return classes - first < CLASS_BLOCK ? classes - first : CLASS_BLOCK;
}

static ls_status block_logits(ls_step *step, const struct linear_cross_entropy *l,
                              const ls_tensor *x, const ls_tensor *weight, size_t first,
                              float *logits) {
    const float *w = (const float *)weight->data + first * l->in;
    return step->device->table->linear(step->device, x->dtype, l->rows, l->in,
                                       block_columns(l->classes, first), x->data, w, true, NULL,
                                       logits, false);
}

/* One block's share of dx and dW; d (rows, columns). */
static ls_status block_products(ls_step *step, const struct linear_cross_entropy *l, size_t first,
                                const float *d, void *dx, bool add_x, float *dw, bool add_w) {
    const ls__device_table *table = step->device->table;
    const ls_tensor *x = l->node.inputs[0], *weight = l->node.inputs[1];
    size_t columns = block_columns(l->classes, first);
    if (dx)
        LS_TRY(table->linear(step->device, x->dtype, l->rows, columns, l->in, d,
                             (const float *)weight->data + first * l->in, false, NULL, dx,
                             add_x || first > 0));
    if (dw)
        LS_TRY(table->gemm(step->device, x->dtype, true, false, columns, l->in, l->rows, 1.0F, d,
                           columns, x->data, l->in, add_w ? 1.0F : 0.0F, dw + first * l->in,
                           l->in));
    return LS_OK;
}

static ls_status linear_cross_entropy_backward(ls_step *step, ls__node *node) {
    const struct linear_cross_entropy *l = (const struct linear_cross_entropy *)node;
    ls_tensor *x = node->inputs[0], *weight = node->inputs[1];
    void *dx, *dw;
    bool add_x, add_w;
    float dloss;
    LS_TRY(ls__tape_scalar_gradient(step, node, &dloss));
    LS_TRY(ls__tape_gradient(step, x, &dx, &add_x));
    LS_TRY(ls__tape_gradient(step, weight, &dw, &add_w));
    size_t block_bytes = l->rows * block_columns(l->classes, 0) * sizeof(float);
    float *block = l->logits ? NULL : ls__step_alloc(step, block_bytes);
    if (!l->logits && !block)
        return step->status;
    for (size_t first = 0; first < l->classes; first += CLASS_BLOCK) {
        float *d = l->logits ? l->logits + first * l->rows : block;
        if (block)
            LS_TRY(block_logits(step, l, x, weight, first, d));
        LS_TRY(step->device->table->class_block_backward(step->device, x->dtype, l->rows,
                                                         block_columns(l->classes, first), first,
                                                         l->targets->data, l->state, dloss, d));
        LS_TRY(block_products(step, l, first, d, dx, add_x, dw, add_w));
    }
    ls__step_release(step, l->logits ? l->logits : block,
                     l->logits ? l->rows * l->classes * sizeof(float) : block_bytes);
    return LS_OK;
}

static bool shapes_fit(ls_step *step, ls_tensor *x, ls_tensor *weight, ls_tensor *targets) {
    if (!ls__tensor_check(step, x, LS_F32, "linear_cross_entropy") ||
        !ls__tensor_check(step, weight, LS_F32, "linear_cross_entropy") ||
        !ls__tensor_check(step, targets, LS_I32, "linear_cross_entropy"))
        return false;
    if (weight->dims == 2 && x->dims == targets->dims + 1 && x != weight &&
        x->shape[x->dims - 1] == weight->shape[1] &&
        memcmp(x->shape, targets->shape, targets->dims * sizeof *x->shape) == 0)
        return true;
    char tx[LS__SHAPE_TEXT], tw[LS__SHAPE_TEXT], tt[LS__SHAPE_TEXT];
    ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                 "linear_cross_entropy: x %s, weight %s and targets %s do not fit: "
                                 "want (..., C), (V, C) and (...)",
                                 ls__tensor_text(x, tx), ls__tensor_text(weight, tw),
                                 ls__tensor_text(targets, tt)));
    return false;
}

/* Fills l, and the loss; `keep`: the logits of all blocks. */
static ls_status forward(ls_step *step, struct linear_cross_entropy *l, const ls_tensor *x,
                         const ls_tensor *weight, bool keep, ls_tensor *loss, size_t *correct) {
    const ls__device_table *table = step->device->table;
    size_t columns = keep ? l->classes : block_columns(l->classes, 0);
    l->state = ls__step_alloc(step, l->rows * sizeof *l->state);
    float *logits = l->state ? ls__step_alloc(step, l->rows * columns * sizeof(float)) : NULL;
    if (!logits)
        return step->status;
    for (size_t first = 0; first < l->classes; first += CLASS_BLOCK) {
        float *block = keep ? logits + first * l->rows : logits;
        LS_TRY(block_logits(step, l, x, weight, first, block));
        LS_TRY(table->class_block(step->device, x->dtype, l->rows, block_columns(l->classes, first),
                                  first, block, l->targets->data, l->state));
    }
    if (keep)
        l->logits = logits;
    else
        ls__step_release(step, logits, l->rows * columns * sizeof(float));
    return table->class_blocks_end(step->device, l->rows, l->classes, l->targets->data, l->state,
                                   loss->data, correct);
}

ls_tensor *ls_linear_cross_entropy(ls_step *step, ls_tensor *x, ls_tensor *weight,
                                   ls_tensor *targets, size_t *correct) {
    if (!shapes_fit(step, x, weight, targets))
        return NULL;
    ls_tensor *inputs[] = {x, weight};
    bool recorded = ls__tape_wants(step, inputs, 2);
    struct linear_cross_entropy l = {.targets = targets,
                                     .rows = targets->count,
                                     .in = weight->shape[1],
                                     .classes = weight->shape[0]};
    size_t hits = 0;
    ls_tensor *loss = ls_tensor_new(step, LS_F32, NULL, 0);
    if (!loss)
        return NULL;
    if (step->compute == LS_BF16) {
        if (!ls__linear_cross_entropy_bf16(step, inputs, targets, loss, &hits))
            return NULL;
        if (correct)
            *correct = hits;
        return loss;
    }
    ls_status status = forward(step, &l, x, weight, recorded && !step->recompute, loss, &hits);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (correct)
        *correct = hits;
    if (!recorded)
        return loss;
    struct linear_cross_entropy *node = ls__tape_record(
        step, "linear_cross_entropy", linear_cross_entropy_backward, loss, inputs, 2, sizeof l);
    if (!node)
        return NULL;
    l.node = node->node;
    *node = l;
    return loss;
}
