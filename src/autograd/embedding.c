/* y (..., C): row indices[...] of table (V, C). Backward adds dy to the rows that were taken. */
#include "autograd/tape.h"

#include <string.h>

struct embedding {
    ls__node node;
    const ls_tensor *indices;
};

static ls_status embedding_backward(ls_step *step, ls__node *node) {
    const ls_tensor *indices = ((struct embedding *)node)->indices;
    ls_tensor *table = node->inputs[0];
    void *dtable;
    bool add;
    LS_TRY(ls__tape_gradient(step, table, &dtable, &add));
    if (!dtable)
        return LS_OK;
    return step->device->table->embedding_backward(step->device, table->dtype, table->shape[0],
                                                   table->shape[1], indices->data, indices->count,
                                                   node->output->grad->data, dtable, add);
}

ls_tensor *ls_embedding(ls_step *step, ls_tensor *table, ls_tensor *indices) {
    if (!ls__tensor_check(step, table, LS_F32, "embedding") ||
        !ls__tensor_check(step, indices, LS_I32, "embedding"))
        return NULL;
    char text[LS__SHAPE_TEXT];
    if (table->dims != 2)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT, "embedding: table is %s, want (V, C)",
                                            ls__tensor_text(table, text)));
    if (indices->dims >= LS_MAX_DIMS)
        return ls__step_fail(step, ls__fail(LS_ERR_ARGUMENT,
                                            "embedding: indices %s have too many dimensions, want "
                                            "at most %d",
                                            ls__tensor_text(indices, text), LS_MAX_DIMS - 1));
    size_t shape[LS_MAX_DIMS];
    memcpy(shape, indices->shape, sizeof shape);
    shape[indices->dims] = table->shape[1];
    ls_tensor *y = ls_tensor_new(step, table->dtype, shape, indices->dims + 1);
    if (!y)
        return NULL;
    ls_status status = step->device->table->embedding_forward(
        step->device, table->dtype, table->shape[0], table->shape[1], table->data, indices->data,
        indices->count, y->data);
    if (status != LS_OK)
        return ls__step_fail(step, status);
    if (!ls__tape_wants(step, &table, 1))
        return y;
    struct embedding *node = ls__tape_record(step, "embedding", embedding_backward, y, &table, 1,
                                             sizeof(struct embedding));
    if (!node)
        return NULL;
    node->indices = indices;
    return y;
}
