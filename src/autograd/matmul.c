/* c (..., m, n) = a (..., m, k) b (..., k, n): one product for each of the equal leading indices.
 *
 *   da = dc b^T     db = a^T dc */
#include "autograd/matmul.h"

#include <string.h>

static ls_status matmul_backward(ls_step *step, ls__node *node) {
    const ls__matmul *p = (const ls__matmul *)node;
    if (step->compute == LS_BF16)
        return ls__matmul_bf16_backward(step, p, node);
    const ls__device_table *table = step->device->table;
    const float *a = node->inputs[0]->data, *b = node->inputs[1]->data;
    const float *dc = node->output->grad->data;
    void *to;
    bool add;
    LS_TRY(ls__tape_gradient(step, node->inputs[0], &to, &add));
    for (size_t i = 0; to && i < p->batch; i++)
        LS_TRY(table->gemm(step->device, LS_F32, false, true, p->m, p->k, p->n, 1.0F,
                           dc + i * p->m * p->n, p->n, b + i * p->k * p->n, p->n, add ? 1.0F : 0.0F,
                           (float *)to + i * p->m * p->k, p->k));
    LS_TRY(ls__tape_gradient(step, node->inputs[1], &to, &add));
    for (size_t i = 0; to && i < p->batch; i++)
        LS_TRY(table->gemm(step->device, LS_F32, true, false, p->k, p->n, p->m, 1.0F,
                           a + i * p->m * p->k, p->k, dc + i * p->m * p->n, p->n, add ? 1.0F : 0.0F,
                           (float *)to + i * p->k * p->n, p->n));
    return LS_OK;
}

static bool shapes_fit(const ls_tensor *a, const ls_tensor *b) {
    size_t dims = a->dims;
    return dims >= 2 && b->dims == dims && a->shape[dims - 1] == b->shape[dims - 2] &&
           memcmp(a->shape, b->shape, (dims - 2) * sizeof *a->shape) == 0;
}

static ls_status multiply(ls_step *step, const ls__matmul *p, const float *a, const float *b,
                          float *c) {
    if (step->compute == LS_BF16)
        return ls__matmul_bf16(step, p, a, b, c);
    for (size_t i = 0; i < p->batch; i++)
        LS_TRY(step->device->table->gemm(step->device, LS_F32, false, false, p->m, p->n, p->k, 1.0F,
                                         a + i * p->m * p->k, p->k, b + i * p->k * p->n, p->n, 0.0F,
                                         c + i * p->m * p->n, p->n));
    return LS_OK;
}

ls_tensor *ls_matmul(ls_step *step, ls_tensor *a, ls_tensor *b) {
    if (!ls__tensor_check(step, a, LS_F32, "matmul") ||
        !ls__tensor_check(step, b, LS_F32, "matmul"))
        return NULL;
    if (!shapes_fit(a, b)) {
        char ta[LS__SHAPE_TEXT], tb[LS__SHAPE_TEXT];
        return ls__step_fail(
            step, ls__fail(LS_ERR_ARGUMENT,
                           "matmul: a %s does not fit b %s: want (..., m, k) and (..., k, n)",
                           ls__tensor_text(a, ta), ls__tensor_text(b, tb)));
    }
    size_t dims = a->dims;
    const ls__matmul shapes = {.batch = ls__tensor_span(a, 0, dims - 2),
                               .m = a->shape[dims - 2],
                               .n = b->shape[dims - 1],
                               .k = a->shape[dims - 1]};
    size_t shape[LS_MAX_DIMS];
    memcpy(shape, a->shape, sizeof shape);
    shape[dims - 1] = shapes.n;
    ls_tensor *c = ls_tensor_new(step, a->dtype, shape, dims);
    if (!c)
        return NULL;
    ls_status status = multiply(step, &shapes, a->data, b->data, c->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    ls_tensor *inputs[] = {a, b};
    if (!ls__tape_wants(step, inputs, 2))
        return c;
    ls__matmul *p = ls__tape_record(step, "matmul", matmul_backward, c, inputs, 2, sizeof *p);
    if (!p)
        return NULL;
    p->batch = shapes.batch;
    p->m = shapes.m;
    p->n = shapes.n;
    p->k = shapes.k;
    return c;
}
