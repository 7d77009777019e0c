/* linear_cross_entropy with products of bf16 factors. Logits are f32, a block of classes at a time, and so
 * are softmax and loss. For backward a block leaves exp(logit - largest so far) in bf16, half of what f32
 * logits take, which one multiplication turns into d where it lies; with step->recompute it leaves
 * nothing but that largest of each row, and is computed again to the same bits. */
#include "autograd/linear.h"
#include "autograd/prepared.h"
#include "autograd/profile.h"

enum { CLASS_BLOCK = 2048 };

/* The weight (V, C), CLASS_BLOCK rows at a time: forward b = W^T, kept; for dx b = W, not kept */
static const ls__preparation FORWARD = {.dtype = LS_BF16, .transposed = true, .block = CLASS_BLOCK},
                             BACKWARD = {.dtype = LS_BF16, .block = CLASS_BLOCK};

struct classes {
    ls__node node;
    const ls_tensor *targets;
    size_t rows, in, classes;
    const void *x;        /* (rows, in) bf16 */
    ls__class_row *state; /* (rows) */
    float *most;          /* (blocks, rows) */
    uint16_t *powers;     /* blocks (rows, columns) one after the other; NULL: not kept */
};

static size_t block_columns(const struct classes *l, size_t first) {
    return l->classes - first < CLASS_BLOCK ? l->classes - first : CLASS_BLOCK;
}

/* Multiply-adds of one product of all classes, twice. */
static double product_flops(const struct classes *l) {
    return 2 * (double)l->rows * (double)l->in * (double)l->classes;
}

static ls_status block_logits(ls_step *step, const struct classes *l, const ls_tensor *weight,
                              size_t first, const void *prepared, float *logits) {
    const ls__packing packing = ls__prepared_packing(weight, &FORWARD, first);
    return step->device->table->product(step->device, &packing, l->rows, l->x,
                                        ls__prepared_block(step, prepared, weight, &FORWARD, first),
                                        NULL, logits, false);
}

/* One block's share of dx and dW. `packed`: room for a block of the weight, packed for this product alone. */
static ls_status backward_block(ls_step *step, const struct classes *l, size_t first, void *packed,
                                uint16_t *d, float *dx, bool add_x, float *dw, bool add_w) {
    const ls__device_table *table = step->device->table;
    const ls_tensor *weight = l->node.inputs[1];
    size_t columns = block_columns(l, first);
    if (dx) {
        const ls__packing packing = ls__prepared_packing(weight, &BACKWARD, first);
        LS_TRY(table->pack(step->device, &packing, (const float *)weight->data + first * l->in,
                           packed));
        LS_TRY(table->product(step->device, &packing, l->rows, d, packed, NULL, dx,
                              add_x || first > 0));
    }
    if (dw)
        LS_TRY(table->outer_product(step->device, LS_BF16, l->rows, columns, l->in, d, l->x,
                                    dw + first * l->in, add_w));
    return LS_OK;
}

/* A block's powers once more, by way of its logits. */
static ls_status powers_again(ls_step *step, const struct classes *l, size_t first, float *logits,
                              uint16_t *powers) {
    ls_tensor *weight = l->node.inputs[1];
    const void *prepared = ls__prepared_get(step, weight, &FORWARD);
    if (!prepared)
        return step->status;
    LS_TRY(block_logits(step, l, weight, first, prepared, logits));
    return step->device->table->class_powers(step->device, l->rows, block_columns(l, first), first,
                                             logits, l->targets->data, NULL,
                                             l->most + first / CLASS_BLOCK * l->rows, powers);
}

static ls_status run_backward(ls_step *step, const struct classes *l, float dloss, float *logits,
                              uint16_t *block) {
    ls_tensor *x = l->node.inputs[0], *weight = l->node.inputs[1];
    void *dx, *dw;
    bool add_x, add_w;
    LS_TRY(ls__tape_gradient(step, x, &dx, &add_x));
    LS_TRY(ls__tape_gradient(step, weight, &dw, &add_w));
    const ls__packing packing = ls__prepared_packing(weight, &BACKWARD, 0);
    size_t bytes = step->device->table->packed_bytes(step->device, &packing);
    void *packed = ls__step_alloc(step, bytes);
    if (!packed)
        return step->status;
    for (size_t first = 0; first < l->classes; first += CLASS_BLOCK) {
        uint16_t *d = l->powers ? l->powers + first * l->rows : block;
        if (!l->powers)
            LS_TRY(powers_again(step, l, first, logits, block));
        LS_TRY(step->device->table->class_powers_backward(
            step->device, l->rows, block_columns(l, first), first, l->targets->data, l->state,
            l->most + first / CLASS_BLOCK * l->rows, dloss, d));
        LS_TRY(backward_block(step, l, first, packed, d, dx, add_x, dw, add_w));
    }
    ls__step_release(step, packed, bytes);
    ls__profile_add(step->profile, "linear_cross_entropy", LS__PASS_BACKWARD,
                    ((dx != NULL) + (dw != NULL)) * product_flops(l), 0);
    return LS_OK;
}

static ls_status classes_backward(ls_step *step, ls__node *node) {
    const struct classes *l = (const struct classes *)node;
    float dloss;
    LS_TRY(ls__tape_scalar_gradient(step, node, &dloss));
    if (l->powers) {
        LS_TRY(run_backward(step, l, dloss, NULL, NULL));
        ls__step_release(step, l->powers, l->rows * l->classes * sizeof *l->powers);
        return LS_OK;
    }
    size_t elements = l->rows * block_columns(l, 0);
    float *logits = ls__step_alloc(step, elements * sizeof *logits);
    uint16_t *block = logits ? ls__step_alloc(step, elements * sizeof *block) : NULL;
    if (!block)
        return step->status;
    LS_TRY(run_backward(step, l, dloss, logits, block));
    ls__step_release(step, logits, elements * sizeof *logits);
    ls__step_release(step, block, elements * sizeof *block);
    return LS_OK;
}

static ls_status forward(ls_step *step, struct classes *l, ls_tensor *weight, bool keep,
                         ls_tensor *loss, size_t *correct) {
    const ls__device_table *table = step->device->table;
    size_t blocks = (l->classes + CLASS_BLOCK - 1) / CLASS_BLOCK;
    size_t bytes = l->rows * block_columns(l, 0) * sizeof(float);
    const void *prepared = ls__prepared_get(step, weight, &FORWARD);
    l->state = prepared ? ls__step_alloc(step, l->rows * sizeof *l->state) : NULL;
    l->most = l->state ? ls__step_alloc(step, blocks * l->rows * sizeof *l->most) : NULL;
    if (keep && l->most)
        l->powers = ls__step_alloc(step, l->rows * l->classes * sizeof *l->powers);
    float *logits = l->most && (l->powers || !keep) ? ls__step_alloc(step, bytes) : NULL;
    if (!logits)
        return step->status;
    for (size_t first = 0; first < l->classes; first += CLASS_BLOCK) {
        LS_TRY(block_logits(step, l, weight, first, prepared, logits));
        LS_TRY(table->class_powers(step->device, l->rows, block_columns(l, first), first, logits,
                                   l->targets->data, l->state,
                                   l->most + first / CLASS_BLOCK * l->rows,
                                   keep ? l->powers + first * l->rows : NULL));
    }
    ls__step_release(step, logits, bytes);
    ls__profile_add(step->profile, "linear_cross_entropy", LS__PASS_FORWARD, product_flops(l), 0);
    return table->class_blocks_end(step->device, l->rows, l->classes, l->targets->data, l->state,
                                   loss->data, correct);
}

ls_tensor *ls__linear_cross_entropy_bf16(ls_step *step, ls_tensor *const inputs[2],
                                         const ls_tensor *targets, ls_tensor *loss,
                                         size_t *correct) {
    ls_tensor *weight = inputs[1];
    bool recorded = ls__tape_wants(step, inputs, 2);
    struct classes l = {.targets = targets,
                        .rows = targets->count,
                        .in = weight->shape[1],
                        .classes = weight->shape[0],
                        .x = ls__tensor_half(step, inputs[0])};
    if (!l.x)
        return NULL;
    ls_status status = forward(step, &l, weight, recorded && !step->recompute, loss, correct);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!recorded)
        return loss;
    struct classes *node =
        ls__tape_record(step, "linear_cross_entropy", classes_backward, loss, inputs, 2, sizeof l);
    if (!node)
        return NULL;
    l.node = node->node;
    *node = l;
    return loss;
}
