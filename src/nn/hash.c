/* The hash of a model's parameters, to tell whether two replicas, or two runs, are equal to the bit.
 *
 * XXH64 with seed 0 over the concatenation, for all parameters (weights, frozen ones and
 * statistics) in the order of strcmp on their names, of
 *     the bytes of the name and a zero byte,
 *     the number of dimensions, then each extent, as 64-bit little-endian numbers,
 *     the elements as they lie in memory: little-endian, row-major, no padding.
 * The spec is not part of it, nor is the optimizer's state. */
#include "nn/model.h"

#include <endian.h>
#include <string.h>

static void add_number(XXH64_state_t *state, uint64_t number) {
    uint64_t bytes = htole64(number);
    XXH64_update(state, &bytes, sizeof bytes);
}

uint64_t ls_model_hash(const ls_model *model) {
    if (!model)
        return 0;
    XXH64_state_t *state = model->hash_state;
    XXH64_reset(state, 0);
    for (size_t i = 0; i < model->parameter_count; i++) {
        const ls_parameter *parameter = model->by_name[i];
        const ls_tensor *value = &parameter->value;
        XXH64_update(state, parameter->name, strlen(parameter->name) + 1);
        add_number(state, value->dims);
        for (size_t d = 0; d < value->dims; d++)
            add_number(state, value->shape[d]);
        XXH64_update(state, value->data, value->count * ls_dtype_size(value->dtype));
    }
    return XXH64_digest(state);
}
