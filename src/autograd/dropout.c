/* Which elements are kept is a function of (seed, purpose, global sample, element within the sample),
 * so backward computes the mask again, and no rank or row has a part in it. */
#include "autograd/tape.h"

struct dropout {
    ls__node node;
    uint64_t purpose;
    float p;
};

static ls_status apply(ls_step *step, const ls_tensor *x, uint64_t purpose, float p,
                       const void *from, void *to, bool add) {
    return step->device->table->dropout(step->device, x->dtype, x->count / step->sample_count,
                                        step->samples, step->sample_count, step->seed, purpose, p,
                                        from, to, add);
}

static ls_status dropout_backward(ls_step *step, ls__node *node) {
    const struct dropout *d = (const struct dropout *)node;
    void *dx;
    bool add;
    LS_TRY(ls__tape_gradient(step, node->inputs[0], &dx, &add));
    if (!dx)
        return LS_OK;
    return apply(step, node->output, d->purpose, d->p, node->output->grad->data, dx, add);
}

static ls_status check_inputs(const ls_step *step, const ls_tensor *x, float p) {
    if (!(p >= 0.0F && p < 1.0F))
        return ls__fail(LS_ERR_ARGUMENT, "dropout: p is %g, want at least 0 and less than 1",
                        (double)p);
    if (!step->training || p == 0.0F)
        return LS_OK;
    if (step->sample_count == 0)
        return ls__fail(LS_ERR_STATE, "dropout: the step does not know its samples: set samples or "
                                      "sample_count in ls_step_begin's mode");
    char text[LS__SHAPE_TEXT];
    if (x->dims == 0 || x->shape[0] % step->sample_count != 0)
        return ls__fail(LS_ERR_ARGUMENT,
                        "dropout: dimension 0 of x %s is not a multiple of the step's %zu samples",
                        ls__tensor_text(x, text), step->sample_count);
    return LS_OK;
}

ls_tensor *ls_dropout(ls_step *step, ls_tensor *x, float p, uint64_t purpose) {
    if (!ls__tensor_check(step, x, LS_F32, "dropout"))
        return NULL;
    ls_status status = check_inputs(step, x, p);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!step->training || p == 0.0F)
        return x;
    ls_tensor *y = ls__tensor_like(step, x);
    if (!y)
        return NULL;
    status = apply(step, x, purpose, p, x->data, y->data, false);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, &x, 1))
        return y;
    struct dropout *d =
        ls__tape_record(step, "dropout", dropout_backward, y, &x, 1, sizeof(struct dropout));
    if (!d)
        return NULL;
    d->purpose = purpose;
    d->p = p;
    return y;
}
