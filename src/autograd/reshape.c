/* The same elements in another shape, order or selection. reshape shares the data of x. */
#include "autograd/tape.h"

#include <string.h>

/* --- reshape --- */

static ls_status reshape_backward(ls_step *step, ls__node *node) {
    return ls__tape_pass_gradient(step, node, node->inputs[0]);
}

ls_tensor *ls_reshape(ls_step *step, ls_tensor *x, const size_t *shape, size_t dims) {
    /* any dtype */
    if (!ls__tensor_check(step, x, x ? x->dtype : LS_F32, "reshape") || !x)
        return NULL;
    ls_tensor *y = ls_tensor_wrap(step, x->data, x->dtype, shape, dims);
    if (!y)
        return NULL;
    y->exposed = x->exposed;
    if (y->count != x->count) {
        char tx[LS__SHAPE_TEXT], ty[LS__SHAPE_TEXT];
        return ls__step_fail(
            step, ls__fail(LS_ERR_ARGUMENT, "reshape: x %s has %zu elements, but %s has %zu",
                           ls__tensor_text(x, tx), x->count, ls__tensor_text(y, ty), y->count));
    }
    return ls__tape_finish(step, "reshape", reshape_backward, y, &x, 1);
}

/* --- permute, transpose --- */

struct permute {
    ls__node node;
    size_t inverse[LS_MAX_DIMS];
};

static ls_status permute_backward(ls_step *step, ls__node *node) {
    const ls_tensor *y = node->output;
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, node->inputs[0], &dx, &add));
    if (!dx)
        return LS_OK;
    return step->device->table->permute(step->device, y->dtype, y->dims, y->shape,
                                        ((struct permute *)node)->inverse, y->grad->data, dx, add);
}

static ls_tensor *permute(ls_step *step, const char *name, ls_tensor *x,
                          const size_t *permutation) {
    size_t shape[LS_MAX_DIMS], inverse[LS_MAX_DIMS] = {0};
    bool seen[LS_MAX_DIMS] = {false};
    for (size_t d = 0; d < x->dims; d++) {
        size_t from = permutation[d];
        if (from >= x->dims || seen[from]) {
            char tp[LS__SHAPE_TEXT];
            return ls__step_fail(
                step, ls__fail(LS_ERR_ARGUMENT, "%s: %s is no permutation of %zu dimensions", name,
                               ls__shape_text(permutation, x->dims, tp, sizeof tp), x->dims));
        }
        seen[from] = true;
        shape[d] = x->shape[from];
        inverse[from] = d;
    }
    ls_tensor *y = ls_tensor_new(step, x->dtype, shape, x->dims);
    if (!y)
        return NULL;
    ls_status status = step->device->table->permute(step->device, x->dtype, x->dims, x->shape,
                                                    permutation, x->data, y->data, false);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, &x, 1))
        return y;
    struct permute *node =
        ls__tape_record(step, name, permute_backward, y, &x, 1, sizeof(struct permute));
    if (!node)
        return NULL;
    memcpy(node->inverse, inverse, sizeof inverse);
    return y;
}

ls_tensor *ls_permute(ls_step *step, ls_tensor *x, const size_t *permutation) {
    if (!ls__tensor_check(step, x, LS_F32, "permute"))
        return NULL;
    if (!permutation)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "permute: permutation is NULL"));
    return permute(step, "permute", x, permutation);
}

ls_tensor *ls_transpose(ls_step *step, ls_tensor *x, size_t dim_a, size_t dim_b) {
    if (!ls__tensor_check(step, x, LS_F32, "transpose"))
        return NULL;
    if (dim_a >= x->dims || dim_b >= x->dims) {
        char text[LS__SHAPE_TEXT];
        return ls__step_fail(step,
                             ls__fail(LS_ERR_ARGUMENT, "transpose: x %s has no dimension %zu",
                                      ls__tensor_text(x, text), dim_a >= x->dims ? dim_a : dim_b));
    }
    size_t permutation[LS_MAX_DIMS];
    for (size_t d = 0; d < x->dims; d++)
        permutation[d] = d == dim_a ? dim_b : d == dim_b ? dim_a : d;
    return permute(step, "transpose", x, permutation);
}

/* --- slice: x as (outer, n, inner), rows of n * inner, of which (end - begin) * inner are taken --- */

struct slice {
    ls__node node;
    size_t outer, columns, offset, x_stride;
};

static ls_status slice_backward(ls_step *step, ls__node *node) {
    const struct slice *s = (const struct slice *)node;
    const ls__device_table *table = step->device->table;
    ls_tensor *x = node->inputs[0];
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, x, &dx, &add));
    if (!dx)
        return LS_OK;
    if (!add && node->output->count < x->count)
        LS_TRY(table->zero(step->device, dx, x->count * ls_dtype_size(x->dtype)));
    return table->copy_rows(step->device, x->dtype, s->outer, s->columns, node->output->grad->data,
                            s->columns, (float *)dx + s->offset, s->x_stride, add);
}

ls_tensor *ls_slice(ls_step *step, ls_tensor *x, size_t dim, size_t begin, size_t end) {
    if (!ls__tensor_check(step, x, LS_F32, "slice"))
        return NULL;
    if (dim >= x->dims || begin >= end || end > x->shape[dim]) {
        char text[LS__SHAPE_TEXT];
        return ls__step_fail(step,
                             ls__fail(LS_ERR_ARGUMENT,
                                      "slice: elements [%zu, %zu) of dimension %zu are no part "
                                      "of x %s",
                                      begin, end, dim, ls__tensor_text(x, text)));
    }
    size_t shape[LS_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = end - begin;
    ls_tensor *y = ls_tensor_new(step, x->dtype, shape, x->dims);
    if (!y)
        return NULL;
    size_t inner = ls__tensor_span(x, dim + 1, x->dims), outer = ls__tensor_span(x, 0, dim);
    size_t columns = (end - begin) * inner, x_stride = x->shape[dim] * inner;
    ls_status status = step->device->table->copy_rows(step->device, x->dtype, outer, columns,
                                                      (const float *)x->data + begin * inner,
                                                      x_stride, y->data, columns, false);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, &x, 1))
        return y;
    struct slice *node =
        ls__tape_record(step, "slice", slice_backward, y, &x, 1, sizeof(struct slice));
    if (!node)
        return NULL;
    node->outer = outer;
    node->columns = columns;
    node->offset = begin * inner;
    node->x_stride = x_stride;
    return y;
}

/* --- concat: part i as (outer, n_i, inner) is columns of y (outer, (n_0 + n_1 + ...) * inner) --- */

struct concat {
    ls__node node;
    size_t outer, y_stride;
};

static ls_status concat_backward(ls_step *step, ls__node *node) {
    const struct concat *c = (const struct concat *)node;
    const float *dy = node->output->grad->data;
    for (size_t i = 0; i < node->input_count; i++) {
        size_t columns = node->inputs[i]->count / c->outer;
        void *to;
        bool add;
        LS_TRY(ls__tape_gradient(step, node->inputs[i], &to, &add));
        if (to)
            LS_TRY(step->device->table->copy_rows(step->device, node->output->dtype, c->outer,
                                                  columns, dy, c->y_stride, to, columns, add));
        dy += columns;
    }
    return LS_OK;
}

/* The shape of the result; fails the step where the parts do not fit each other. */
static bool concat_shape(ls_step *step, ls_tensor *const *parts, size_t count, size_t dim,
                         size_t shape[LS_MAX_DIMS]) {
    if (!parts || count == 0) {
        ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "concat: no parts given"));
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!ls__tensor_check(step, parts[i], LS_F32, "concat"))
            return false;
        const ls_tensor *first = parts[0], *part = parts[i];
        char tf[LS__SHAPE_TEXT], tp[LS__SHAPE_TEXT];
        if (dim >= part->dims) {
            ls__step_fail(step,
                          ls__fail(LS_ERR_ARGUMENT, "concat: part %zu %s has no dimension %zu", i,
                                   ls__tensor_text(part, tp), dim));
            return false;
        }
        bool fits = part->dims == first->dims;
        for (size_t d = 0; fits && d < part->dims; d++)
            fits = d == dim || part->shape[d] == first->shape[d];
        if (!fits) {
            ls__step_fail(step,
                          ls__fail(LS_ERR_ARGUMENT,
                                   "concat: part %zu %s does not fit part 0 %s along dimension "
                                   "%zu",
                                   i, ls__tensor_text(part, tp), ls__tensor_text(first, tf), dim));
            return false;
        }
        if (i == 0)
            memcpy(shape, first->shape, sizeof first->shape);
        else
            shape[dim] += part->shape[dim];
    }
    return true;
}

ls_tensor *ls_concat(ls_step *step, ls_tensor *const *parts, size_t count, size_t dim) {
    size_t shape[LS_MAX_DIMS];
    if (!step || !concat_shape(step, parts, count, dim, shape))
        return NULL;
    ls_tensor *y = ls_tensor_new(step, parts[0]->dtype, shape, parts[0]->dims);
    if (!y)
        return NULL;
    size_t outer = ls__tensor_span(y, 0, dim), y_stride = y->count / outer;
    float *to = y->data;
    for (size_t i = 0; i < count; i++) {
        size_t columns = parts[i]->count / outer;
        ls_status status = step->device->table->copy_rows(
            step->device, y->dtype, outer, columns, parts[i]->data, columns, to, y_stride, false);
        if (status != LS_OK)
            return ls__step_fail(step, status);
        to += columns;
    }
    if (!ls__tape_wants(step, parts, count))
        return y;
    struct concat *node =
        ls__tape_record(step, "concat", concat_backward, y, parts, count, sizeof(struct concat));
    if (!node)
        return NULL;
    node->outer = outer;
    node->y_stride = y_stride;
    return y;
}
