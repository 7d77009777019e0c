/* matmul with factors rounded to bf16, sums in f32. Neither factor is a weight that stays, so the second one
 * of each product is packed for it alone. Formulas as in matmul.c. */
#include "autograd/matmul.h"

struct scratch {
    uint16_t *half;  /* a first factor, as it lies */
    void *packed;    /* a second one */
    uint16_t *other; /* dc of backward */
};

static ls_status multiply(ls_step *step, const ls__packing *packing, size_t rows, const void *half,
                          const float *b, void *packed, float *c, bool add) {
    const ls__device_table *table = step->device->table;
    LS_TRY(table->pack(step->device, packing, b, packed));
    return table->product(step->device, packing, rows, half, packed, NULL, c, add);
}

static ls_status narrow(ls_step *step, size_t count, const float *x, uint16_t *half) {
    return step->device->table->narrow(step->device, LS_BF16, 1, count, x, half, NULL, false);
}

/* Room for `half` and for a packed factor; false after ls__step_fail. */
static bool make_scratch(ls_step *step, const ls__packing *packing, size_t half, size_t other,
                         struct scratch *s) {
    *s = (struct scratch){.half = ls__step_alloc(step, half * sizeof *s->half)};
    s->packed = s->half
                    ? ls__step_alloc(step, step->device->table->packed_bytes(step->device, packing))
                    : NULL;
    s->other = s->packed ? ls__step_alloc(step, (other ? other : 1) * sizeof *s->other) : NULL;
    return s->other;
}

ls_status ls__matmul_bf16(ls_step *step, const ls__matmul *p, const float *a, const float *b,
                          float *c) {
    const ls__packing packing = {.dtype = LS_BF16, .k = p->k, .n = p->n};
    struct scratch s;
    if (!make_scratch(step, &packing, p->m * p->k, 0, &s))
        return step->status;
    for (size_t i = 0; i < p->batch; i++) {
        LS_TRY(narrow(step, p->m * p->k, a + i * p->m * p->k, s.half));
        LS_TRY(multiply(step, &packing, p->m, s.half, b + i * p->k * p->n, s.packed,
                        c + i * p->m * p->n, false));
    }
    return LS_OK;
}

ls_status ls__matmul_bf16_backward(ls_step *step, const ls__matmul *p, ls__node *node) {
    const ls__device_table *table = step->device->table;
    const float *a = node->inputs[0]->data, *b = node->inputs[1]->data;
    const float *dc = node->output->grad->data;
    const ls__packing packing = {.dtype = LS_BF16, .k = p->n, .n = p->k, .transposed = true};
    struct scratch s;
    void *da, *db;
    bool add_a, add_b;
    if (!make_scratch(step, &packing, p->m * p->k, p->m * p->n, &s))
        return step->status;
    LS_TRY(ls__tape_gradient(step, node->inputs[0], &da, &add_a));
    for (size_t i = 0; da && i < p->batch; i++) {
        LS_TRY(narrow(step, p->m * p->n, dc + i * p->m * p->n, s.other));
        LS_TRY(multiply(step, &packing, p->m, s.other, b + i * p->k * p->n, s.packed,
                        (float *)da + i * p->m * p->k, add_a));
    }
    LS_TRY(ls__tape_gradient(step, node->inputs[1], &db, &add_b));
    for (size_t i = 0; db && i < p->batch; i++) {
        LS_TRY(narrow(step, p->m * p->n, dc + i * p->m * p->n, s.other));
        LS_TRY(narrow(step, p->m * p->k, a + i * p->m * p->k, s.half));
        LS_TRY(table->outer_product(step->device, LS_BF16, p->m, p->k, p->n, s.half, s.other,
                                    (float *)db + i * p->k * p->n, add_b));
    }
    return LS_OK;
}
