/* loss = sum over rows of -log softmax(x W^T)[target]; x (..., C), W (V, C); targets of -1 and -100 are padding.
 *   d = dloss (softmax(x W^T) - onehot(target)), 0 for padding;  dx = d W;  dW = d^T x
 *
 * The logits (rows, V) would be the largest tensor of a language model, and are never there as a whole. Rows
 * go by in blocks, and within these classes do, so that the logits of one block are met in the cache by
 * what follows. A block of rows knows its softmax once its last class has gone by; its logits then become
 * d where they lie, and their products are dx and the block's share of dW: forward leaves gradients, for
 * dloss = 1, and nothing else. For that it writes to where dW belongs before backward has begun. Where it
 * may not (ls__tape_claim_gradient), where somebody wrote there since, or where dloss is another number,
 * backward computes the logits again, block by block: a third more products, equal bits. */
#include "autograd/linear.h"
#include "autograd/profile.h"
#include "tensor/arena.h"

#include <string.h>

/* BLOCK_LOGITS bounds what a block of rows takes, 64 MiB; with fewer rows than that dW, which every block
 * adds to, would be read and written too often. */
enum { CLASS_BLOCK = 1024, FEWEST_ROWS = 256, BLOCK_LOGITS = 16 << 20 };

struct linear_cross_entropy {
    ls__node node;
    const ls_tensor *targets;
    size_t rows, in, classes;
    ls__class_row *state; /* (rows) */
    bool early;           /* forward computed the gradients */
    ls__claim claim;      /* dW, where it is wanted */
    float *dx;            /* (rows, in), where it is wanted */
};

/* A block of rows, and where its gradients go: of dx and dW, what is not wanted is NULL. */
struct row_block {
    size_t first, rows;
    float *dx, *dw;
    bool add_x, add_w;
};

static size_t block_columns(size_t classes, size_t first) {
    return classes - first < CLASS_BLOCK ? classes - first : CLASS_BLOCK;
}

/* FEWEST_ROWS or a multiple, but for the last block. */
static size_t block_rows(const struct linear_cross_entropy *l, size_t first) {
    size_t rows = BLOCK_LOGITS / l->classes / FEWEST_ROWS * FEWEST_ROWS;
    rows = rows ? rows : FEWEST_ROWS;
    return l->rows - first < rows ? l->rows - first : rows;
}

static ls_status block_logits(ls_step *step, const struct linear_cross_entropy *l,
                              const struct row_block *b, const ls_tensor *x,
                              const ls_tensor *weight, size_t first, float *logits) {
    const float *w = (const float *)weight->data + first * l->in;
    return step->device->table->linear(
        step->device, x->dtype, b->rows, l->in, block_columns(l->classes, first),
        (const float *)x->data + b->first * l->in, w, true, NULL, logits, false);
}

/* One block of logits (rows, columns) becomes d, and that its share of dx and dW. */
static ls_status block_gradients(ls_step *step, const struct linear_cross_entropy *l,
                                 const struct row_block *b, const ls_tensor *x,
                                 const ls_tensor *weight, size_t first, float dloss, float *d) {
    const ls__device_table *table = step->device->table;
    size_t columns = block_columns(l->classes, first);
    LS_TRY(table->class_block_backward(step->device, x->dtype, b->rows, columns, first,
                                       (const int32_t *)l->targets->data + b->first,
                                       l->state + b->first, dloss, d));
    if (b->dx)
        LS_TRY(table->linear(step->device, x->dtype, b->rows, columns, l->in, d,
                             (const float *)weight->data + first * l->in, false, NULL,
                             b->dx + b->first * l->in, b->add_x || first > 0));
    if (b->dw)
        LS_TRY(table->gemm(step->device, x->dtype, true, false, columns, l->in, b->rows, 1.0F, d,
                           columns, (const float *)x->data + b->first * l->in, l->in,
                           b->add_w || b->first > 0 ? 1.0F : 0.0F, b->dw + first * l->in, l->in));
    return LS_OK;
}

/* Multiply-adds of one product of the block, twice. */
static double block_flops(const struct linear_cross_entropy *l, const struct row_block *b) {
    return 2 * (double)b->rows * (double)l->in * (double)l->classes;
}

static void profile_gradients(ls_step *step, const struct linear_cross_entropy *l,
                              const struct row_block *b) {
    ls__profile_add(step->profile, "linear_cross_entropy", LS__PASS_BACKWARD,
                    ((b->dx != NULL) + (b->dw != NULL)) * block_flops(l, b), 0);
}

/* --- forward --- */

/* The rows' state; with l->early their gradients, too. logits (rows, classes); (rows, CLASS_BLOCK) will do
 * without l->early. */
static ls_status forward_rows(ls_step *step, const struct linear_cross_entropy *l,
                              const struct row_block *b, const ls_tensor *x,
                              const ls_tensor *weight, float *logits) {
    const ls__device_table *table = step->device->table;
    for (size_t first = 0; first < l->classes; first += CLASS_BLOCK) {
        float *block = l->early ? logits + first * b->rows : logits;
        LS_TRY(block_logits(step, l, b, x, weight, first, block));
        LS_TRY(table->class_block(step->device, x->dtype, b->rows, block_columns(l->classes, first),
                                  first, block, (const int32_t *)l->targets->data + b->first,
                                  l->state + b->first));
    }
    ls__profile_add(step->profile, "linear_cross_entropy", LS__PASS_FORWARD, block_flops(l, b), 0);
    for (size_t first = 0; l->early && first < l->classes; first += CLASS_BLOCK)
        LS_TRY(block_gradients(step, l, b, x, weight, first, 1.0F, logits + first * b->rows));
    if (l->early)
        profile_gradients(step, l, b);
    return LS_OK;
}

/* Whether gradients are to be computed now, and where to. */
static ls_status prepare_early(ls_step *step, struct linear_cross_entropy *l, ls_tensor *x,
                               ls_tensor *weight) {
    bool wants_x = ls__tape_wants(step, &x, 1), wants_w = ls__tape_wants(step, &weight, 1);
    if (wants_w && !ls__tape_claim_gradient(step, weight, &l->claim))
        return LS_OK;
    if (wants_x && !(l->dx = ls__step_alloc(step, l->rows * l->in * sizeof *l->dx)))
        return step->status;
    l->early = wants_x || wants_w;
    return LS_OK;
}

static ls_status forward(ls_step *step, struct linear_cross_entropy *l, ls_tensor *x,
                         ls_tensor *weight, ls_tensor *loss, size_t *correct) {
    l->state = ls__step_alloc(step, l->rows * sizeof *l->state);
    if (!l->state)
        return step->status;
    LS_TRY(prepare_early(step, l, x, weight));
    ls__arena_mark mark;
    ls__arena_get_mark(step->arena, &mark);
    size_t columns = l->early ? l->classes : block_columns(l->classes, 0);
    float *logits = ls__step_alloc(step, block_rows(l, 0) * columns * sizeof *logits);
    if (!logits)
        return step->status;
    struct row_block b = {.dx = l->dx, .dw = l->claim.gradient};
    for (; b.first < l->rows; b.first += b.rows) {
        b.rows = block_rows(l, b.first);
        LS_TRY(forward_rows(step, l, &b, x, weight, logits));
    }
    ls__arena_rewind(step->arena, &mark);
    return step->device->table->class_blocks_end(step->device, l->rows, l->classes,
                                                 l->targets->data, l->state, loss->data, correct);
}

/* --- backward --- */

static ls_status backward_rows(ls_step *step, const struct linear_cross_entropy *l,
                               const struct row_block *b, float dloss, float *block) {
    const ls_tensor *x = l->node.inputs[0], *weight = l->node.inputs[1];
    for (size_t first = 0; first < l->classes; first += CLASS_BLOCK) {
        LS_TRY(block_logits(step, l, b, x, weight, first, block));
        LS_TRY(block_gradients(step, l, b, x, weight, first, dloss, block));
    }
    profile_gradients(step, l, b);
    return LS_OK;
}

static ls_status backward_again(ls_step *step, const struct linear_cross_entropy *l, float dloss) {
    void *dx, *dw;
    struct row_block b = {0};
    LS_TRY(ls__tape_gradient(step, l->node.inputs[0], &dx, &b.add_x));
    LS_TRY(ls__tape_gradient(step, l->node.inputs[1], &dw, &b.add_w));
    b.dx = dx;
    b.dw = dw;
    size_t bytes = block_rows(l, 0) * block_columns(l->classes, 0) * sizeof(float);
    float *block = ls__step_alloc(step, bytes);
    if (!block)
        return step->status;
    for (; b.first < l->rows; b.first += b.rows) {
        b.rows = block_rows(l, b.first);
        LS_TRY(backward_rows(step, l, &b, dloss, block));
    }
    ls__step_release(step, block, bytes);
    return LS_OK;
}

static ls_status linear_cross_entropy_backward(ls_step *step, ls__node *node) {
    const struct linear_cross_entropy *l = (const struct linear_cross_entropy *)node;
    ls_tensor *x = node->inputs[0];
    float dloss;
    LS_TRY(ls__tape_scalar_gradient(step, node, &dloss));
    if (!l->early || dloss != 1 || !ls__tape_keep_claimed(step, node->inputs[1], &l->claim))
        return backward_again(step, l, dloss);
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, x, &dx, &add));
    return dx ? step->device->table->affine(step->device, x->dtype, x->count, 1.0F, 0.0F, l->dx, dx,
                                            add)
              : LS_OK;
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
    ls_status status = forward(step, &l, x, weight, loss, &hits);
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
