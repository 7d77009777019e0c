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
    XXH64_state_t *hash_state; /* scratch of ls_model_hash, which thus cannot fail */
    size_t input_elements;     /* image models: of one sample; else 0 */
};

#endif
