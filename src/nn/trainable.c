/* Which weights are trained. */
#include "nn/model.h"

#include <string.h>

/* "layer1" is meant by layer1 itself and what lies in it, not by layer10; "" is the whole model. */
static bool is_meant(const char *name, const char *part) {
    size_t length = strlen(part);
    return strncmp(name, part, length) == 0 &&
           (length == 0 || name[length] == '\0' || name[length] == '.');
}

size_t ls__model_set_roles(ls_model *model, const char *part, bool trainable) {
    size_t meant = 0;
    for (size_t i = 0; i < model->parameter_count; i++) {
        ls_parameter *p = model->parameters[i];
        if (p->role == LS_STATISTIC || !is_meant(p->name, part))
            continue;
        p->role = trainable ? LS_WEIGHT : LS_FROZEN;
        p->reduced = p->present = false;
        meant++;
    }
    return meant;
}

ls_status ls__model_no_part(const ls_model *model, const char *part) {
    return ls__fail(LS_ERR_ARGUMENT,
                    "model %s has no weight \"%.100s\", nor weights below that name",
                    model->spec.text, part);
}

ls_status ls_model_set_trainable(ls_model *model, const char *part, bool trainable) {
    if (!model || !part)
        return ls__fail(LS_ERR_ARGUMENT, "ls_model_set_trainable: %s is NULL",
                        model ? "part" : "model");
    for (size_t i = 0; i < model->parameter_count; i++)
        if (model->parameters[i]->managed)
            return ls__fail(
                LS_ERR_STATE,
                "ls_model_set_trainable: the model is trained by a ddp, so all ranks have "
                "to agree: use ls_ddp_set_trainable");
    return ls__model_set_roles(model, part, trainable) ? LS_OK : ls__model_no_part(model, part);
}
