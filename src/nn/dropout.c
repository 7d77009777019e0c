#include "nn/layers.h"

#include <lockstep/random.h>
#include <stdio.h>

typedef struct dropout {
    ls__module base;
    float probability;
    uint64_t purpose;
} dropout;

static ls_tensor *forward(ls_step *step, ls__module *module, ls_tensor *x) {
    dropout *d = (dropout *)module;
    return d->probability > 0 ? ls_dropout(step, x, d->probability, d->purpose) : x;
}

ls_status ls__dropout_create(ls__module **module, ls__module *parent, const char *name,
                             double probability) {
    char purpose[512];
    LS_TRY(ls__module_create(module, parent, name, sizeof(dropout), forward));
    dropout *d = (dropout *)*module;
    snprintf(purpose, sizeof purpose, "dropout/%s", d->base.name);
    d->probability = (float)probability;
    d->purpose = ls_random_stream(purpose);
    return LS_OK;
}
