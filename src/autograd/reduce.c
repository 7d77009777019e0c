/* Sums, means and maxima, seen as x (outer, n, inner) reduced over n. */
#include "autograd/tape.h"

#include <string.h>

struct reduce {
    ls__node node;
    size_t outer, n, inner;
    float scale;    /* sum 1, mean 1/n */
    int32_t *where; /* max: (outer, inner), index along n */
};

static ls_status sum_backward(ls_step *step, ls__node *node) {
    const struct reduce *r = (const struct reduce *)node;
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, node->inputs[0], &dx, &add));
    if (!dx)
        return LS_OK;
    return step->device->table->repeat(step->device, node->output->dtype, r->outer, r->n, r->inner,
                                       r->scale, node->output->grad->data, dx, add);
}

static ls_status max_backward(ls_step *step, ls__node *node) {
    const struct reduce *r = (const struct reduce *)node;
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, node->inputs[0], &dx, &add));
    if (!dx)
        return LS_OK;
    return step->device->table->max_backward(step->device, node->output->dtype, r->outer, r->n,
                                             r->inner, r->where, node->output->grad->data, dx, add);
}

/* Sums or, where r.where is set, takes the maximum. y has r.outer * r.inner elements. */
static ls_tensor *reduce(ls_step *step, const char *name, ls_tensor *x, ls_tensor *y,
                         struct reduce r) {
    const ls__device_table *table = step->device->table;
    ls_status status;
    if (r.where)
        status =
            table->max(step->device, x->dtype, r.outer, r.n, r.inner, x->data, y->data, r.where);
    else
        status = table->sum(step->device, x->dtype, r.outer, r.n, r.inner, r.scale, x->data,
                            y->data, false);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, &x, 1))
        return y;
    struct reduce *node = ls__tape_record(step, name, r.where ? max_backward : sum_backward, y, &x,
                                          1, sizeof(struct reduce));
    if (!node)
        return NULL;
    r.node = node->node;
    *node = r;
    return y;
}

static ls_tensor *reduce_all(ls_step *step, const char *name, ls_tensor *x, bool mean) {
    if (!ls__tensor_check(step, x, LS_F32, name))
        return NULL;
    ls_tensor *y = ls_tensor_new(step, x->dtype, NULL, 0);
    if (!y)
        return NULL;
    struct reduce r = {.outer = 1, .n = x->count, .inner = 1, .scale = 1.0F};
    if (mean)
        r.scale = (float)(1.0 / (double)x->count);
    return reduce(step, name, x, y, r);
}

ls_tensor *ls_sum(ls_step *step, ls_tensor *x) {
    return reduce_all(step, "sum", x, false);
}

ls_tensor *ls_mean(ls_step *step, ls_tensor *x) {
    return reduce_all(step, "mean", x, true);
}

/* A tensor without dimension `dim` of x, and how x is seen. NULL after ls__step_fail. */
static ls_tensor *prepare_dim(ls_step *step, const char *name, ls_tensor *x, size_t dim,
                              struct reduce *r) {
    if (!ls__tensor_check(step, x, LS_F32, name))
        return NULL;
    if (dim >= x->dims) {
        char text[LS__SHAPE_TEXT];
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "%s: x %s has no dimension %zu", name,
                                            ls__tensor_text(x, text), dim));
    }
    *r = (struct reduce){.outer = ls__tensor_span(x, 0, dim),
                         .n = x->shape[dim],
                         .inner = ls__tensor_span(x, dim + 1, x->dims),
                         .scale = 1.0F};
    size_t shape[LS_MAX_DIMS];
    memcpy(shape, x->shape, dim * sizeof *shape);
    memcpy(shape + dim, x->shape + dim + 1, (x->dims - dim - 1) * sizeof *shape);
    return ls_tensor_new(step, x->dtype, shape, x->dims - 1);
}

ls_tensor *ls_sum_dim(ls_step *step, ls_tensor *x, size_t dim) {
    struct reduce r = {0};
    ls_tensor *y = prepare_dim(step, "sum_dim", x, dim, &r);
    return y ? reduce(step, "sum_dim", x, y, r) : NULL;
}

ls_tensor *ls_mean_dim(ls_step *step, ls_tensor *x, size_t dim) {
    struct reduce r = {0};
    ls_tensor *y = prepare_dim(step, "mean_dim", x, dim, &r);
    if (!y)
        return NULL;
    r.scale = (float)(1.0 / (double)r.n);
    return reduce(step, "mean_dim", x, y, r);
}

ls_tensor *ls_max_dim(ls_step *step, ls_tensor *x, size_t dim) {
    struct reduce r = {0};
    ls_tensor *y = prepare_dim(step, "max_dim", x, dim, &r);
    if (!y)
        return NULL;
    if (r.n > INT32_MAX)
        return ls__step_fail(step,
                             ls__fail(LS_ERR_RANGE, "max_dim: %zu elements are too many", r.n));
    r.where = ls__step_alloc(step, y->count * sizeof *r.where);
    return r.where ? reduce(step, "max_dim", x, y, r) : NULL;
}
