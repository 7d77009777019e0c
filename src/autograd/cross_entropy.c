/* loss = sum over rows of -log softmax(logits)[target]; rows with target -1 or -100 are padding.
 *   dlogits = dloss (softmax(logits) - onehot(target)), and 0 for padding */
#include "autograd/tape.h"

#include <string.h>

struct cross_entropy {
    ls__node node;
    const ls_tensor *targets;
    void *probs; /* (rows, V): softmax of the logits */
};

static ls_status cross_entropy_backward(ls_step *step, ls__node *node) {
    const struct cross_entropy *c = (const struct cross_entropy *)node;
    ls_tensor *logits = node->inputs[0];
    size_t columns = logits->shape[logits->dims - 1];
    void *dlogits;
    bool add;
    float dloss;
    LS_TRY(ls__tape_scalar_gradient(step, node, &dloss));
    LS_TRY(ls__tape_gradient(step, logits, &dlogits, &add));
    if (!dlogits)
        return LS_OK;
    return step->device->table->cross_entropy_backward(step->device, logits->dtype,
                                                       logits->count / columns, columns, c->probs,
                                                       c->targets->data, dloss, dlogits, add);
}

static bool shapes_fit(ls_step *step, const char *name, ls_tensor *logits, ls_tensor *targets) {
    if (!ls__tensor_check(step, logits, LS_F32, name) ||
        !ls__tensor_check(step, targets, LS_I32, name))
        return false;
    if (logits->dims == targets->dims + 1 &&
        memcmp(logits->shape, targets->shape, targets->dims * sizeof *targets->shape) == 0)
        return true;
    char tl[LS__SHAPE_TEXT], tt[LS__SHAPE_TEXT];
    ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                 "%s: targets %s do not fit logits %s: want (...) and (..., V)",
                                 name, ls__tensor_text(targets, tt), ls__tensor_text(logits, tl)));
    return false;
}

ls_tensor *ls_cross_entropy(ls_step *step, ls_tensor *logits, ls_tensor *targets) {
    if (!shapes_fit(step, "cross_entropy", logits, targets))
        return NULL;
    size_t columns = logits->shape[logits->dims - 1];
    bool recorded = ls__tape_wants(step, &logits, 1);
    ls_tensor *loss = ls_tensor_new(step, LS_F32, NULL, 0);
    if (!loss)
        return NULL;
    void *probs = NULL;
    if (recorded && !(probs = ls__step_alloc(step, logits->count * ls_dtype_size(logits->dtype))))
        return NULL;
    ls_status status = step->device->table->cross_entropy_forward(
        step->device, logits->dtype, logits->count / columns, columns, logits->data, targets->data,
        loss->data, probs);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!recorded)
        return loss;
    struct cross_entropy *node = ls__tape_record(step, "cross_entropy", cross_entropy_backward,
                                                 loss, &logits, 1, sizeof(struct cross_entropy));
    if (!node)
        return NULL;
    node->targets = targets;
    node->probs = probs;
    return loss;
}

ls_status ls_count_correct(ls_step *step, ls_tensor *logits, ls_tensor *targets, size_t *correct) {
    if (!step || !correct)
        return ls__fail(LS_ERR_ARGUMENT, "count_correct: %s is NULL", step ? "correct" : "step");
    *correct = 0;
    if (!shapes_fit(step, "count_correct", logits, targets))
        return ls_step_status(step);
    size_t columns = logits->shape[logits->dims - 1];
    ls_status status =
        step->device->table->count_correct(step->device, logits->dtype, logits->count / columns,
                                           columns, logits->data, targets->data, correct);
    if (status != LS_OK)
        ls__step_fail(step, status);
    return status;
}

size_t ls_count_targets(const int32_t *targets, size_t count) {
    size_t counted = 0;
    for (size_t i = 0; targets && i < count; i++)
        counted += targets[i] >= 0;
    return counted;
}
