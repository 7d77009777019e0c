/* What a checkpoint of `lockstep train` keeps beside weights and optimizer: what the hook of --compress
 * remembers, and the loss scale. */
#include "base/error.h"
#include "cli/train.h"
#include <stdlib.h>

static void add_scaler(ls__train_items *items, ls_loss_scaler *scaler) {
    items->item[items->count++] =
        (ls_checkpoint_item){.name = "loss_scale.scale", .dtype = LS_F64, .data = &scaler->scale};
    items->item[items->count++] =
        (ls_checkpoint_item){.name = "loss_scale.good", .dtype = LS_I64, .data = &scaler->good};
}

ls_status ls__train_items_collect(ls__train_items *items, ls__train *train) {
    size_t states = ls_ddp_hook_states(train->ddp);
    items->item = calloc(states + 2, sizeof *items->item);
    items->state = calloc(states + 1, sizeof *items->state);
    if (!items->item || !items->state)
        return ls__fail(LS_ERR_MEMORY, "--checkpoint-dir: out of memory");
    for (size_t i = 0; i < states; i++) {
        ls_hook_state *state = &items->state[i];
        LS_TRY(ls_ddp_hook_state(train->ddp, i, state));
        items->item[items->count++] = (ls_checkpoint_item){.name = state->name,
                                                           .dtype = state->dtype,
                                                           .shape = state->shape,
                                                           .dims = state->dims,
                                                           .data = state->data,
                                                           .per_rank = state->per_rank};
    }
    if (train->scales_loss)
        add_scaler(items, &train->scaler);
    return LS_OK;
}

void ls__train_items_free(ls__train_items *items) {
    free(items->item);
    free(items->state);
    *items = (ls__train_items){0};
}
