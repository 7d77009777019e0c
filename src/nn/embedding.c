#include "nn/layers.h"

/* indices (...) -> (..., width) */
static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *indices) {
    return ls_embedding(step, &module->parameters[0]->value, indices);
}

ls_status ls__embedding_create(ls__module **module, ls__module *parent, const char *name,
                               const ls__builder *builder, size_t rows, size_t width,
                               ls__init init) {
    LS_TRY(ls__module_create(module, parent, name, sizeof(ls__module), forward));
    return ls__module_add(*module, builder, "weight", LS_WEIGHT, (size_t[]){rows, width}, 2, init);
}
