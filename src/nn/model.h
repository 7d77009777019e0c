/* The inside of a model. */
#ifndef LS_NN_MODEL_H
#define LS_NN_MODEL_H

#include "nn/models.h"
#include <xxhash.h>

struct ls_model {
    ls_device *device;
    ls__spec spec;
    ls__module *root;
    ls_parameter **parameters; /* in the order of the module tree */
    ls_parameter **by_name;    /* the same, sorted by strcmp */
    size_t parameter_count;
    size_t element_count; /* of the weights */
    size_t context;       /* token models: most tokens of a sample; else 0 */
    size_t classes;
    XXH64_state_t *hash_state;      /* scratch of ls_model_hash, which thus cannot fail */
    ls__sync *sync;                 /* of its layers; owned; NULL: none can have one */
    struct ls_optimizer *optimizer; /* the last that was made for it; NULL: none, or it is gone */
    size_t input_elements;          /* image models: of one sample; else 0 */
};

/* Weights of this name, or below it, are trained, or frozen; `part` as in ls_model_set_trainable. How many
 * there are. */
size_t ls__model_set_roles(ls_model *model, const char *part, bool trainable);
/* LS_ERR_ARGUMENT that says so. */
ls_status ls__model_no_part(const ls_model *model, const char *part);

/* Makes a model of a tree of modules: lists the parameters. For ls_model_create, and for trees that
 * no spec names. Takes `root` over, also on failure. The spec, the context and so on are the
 * caller's to fill; ls_model_forward wants them. */
ls_status ls__model_adopt(ls_model **model, ls_device *device, ls__module *root);

#endif
