/* The state of an optimizer as checkpoints keep it. */
#ifndef LS_OPTIM_STATE_H
#define LS_OPTIM_STATE_H

#include <lockstep/optimizer.h>

/* Of one weight. The pointers belong to the optimizer. */
typedef struct ls__optimizer_state {
    ls_parameter *parameter;
    /* As many elements as the weight, under PyTorch's names; NULL: this kind keeps none. */
    const char *first_name, *second_name; /* "exp_avg", "exp_avg_sq"; sgd: "momentum_buffer" */
    float *first, *second;
    uint64_t *steps; /* updates of this weight so far */
} ls__optimizer_state;

size_t ls__optimizer_state_count(const ls_optimizer *optimizer);
/* Of weight i, in the order of the model's parameters; i < count. */
ls__optimizer_state ls__optimizer_state_get(ls_optimizer *optimizer, size_t i);
/* Makes, as zeros, what weights that were frozen until now have not got before their first update: a replica
 * that made none then is shaped as one that did. */
ls_status ls__optimizer_ensure_states(ls_optimizer *optimizer);
/* Updates made, for messages. */
uint64_t *ls__optimizer_steps(ls_optimizer *optimizer);

#endif
