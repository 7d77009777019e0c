/* What a ddp reduces, and in which order.
 *
 * Beside the parameters two small tensors are entries: the loss, which is thus the average of the whole
 * job for no operation of its own, with the samples each statistic was made of behind it (a model may see
 * a sample twice, and weights may count tokens); and the votes (votes.c). The order of the buckets is read off rank 0's
 * first tape: the loss and the statistics, which forward has finished; then the weights as backward will
 * finish them; then what this tape does not use; the votes, which close a step, last. */
#include "parallel/ddp.h"

#include <stdlib.h>

ls_status ls__ddp_create_entries(ls_ddp *ddp) {
    size_t n = ls_model_parameter_count(ddp->model);
    ddp->parameter_count = n;
    ddp->entry_count = n + 2;
    ddp->entries = calloc(ddp->entry_count, sizeof *ddp->entries);
    ddp->params = calloc(ddp->entry_count, sizeof *ddp->params);
    if (!ddp->entries || !ddp->params)
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for %zu parameters", n);
    for (size_t i = 0; i < n; i++) {
        ls_parameter *p = ls_model_parameter(ddp->model, i);
        if (p->managed)
            return ls__fail(LS_ERR_STATE, "ddp: the model is already trained by another ddp");
        p->index = i;
        ddp->statistic_count += p->role == LS_STATISTIC;
        ddp->entries[i] = (ls__ddp_entry){.parameter = p,
                                          .count = p->value.count,
                                          .reduces = p->role != LS_FROZEN,
                                          .by_shard = p->role != LS_FROZEN};
    }
    ddp->entries[ls__ddp_loss_entry(ddp)] =
        (ls__ddp_entry){.count = 1 + ddp->statistic_count, .reduces = true, .by_shard = true};
    ddp->sums = calloc(1 + ddp->statistic_count, sizeof *ddp->sums);
    if (!ddp->sums)
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for %zu statistics", ddp->statistic_count);
    ddp->entries[ls__ddp_votes_entry(ddp)] =
        (ls__ddp_entry){.count = (size_t)ls_group_size(ddp->group) * LS__BALLOT, .reduces = true};
    return LS_OK;
}

ls_reducer_param ls__ddp_describe(const ls_parameter *p) {
    return (ls_reducer_param){.name = p->name,
                              .dtype = p->value.dtype,
                              .shape = p->value.shape,
                              .dims = p->value.dims,
                              .frozen = p->role == LS_FROZEN,
                              .exact = p->role == LS_STATISTIC};
}

static ls_reducer_param describe(const ls_ddp *ddp, size_t i, const size_t *count) {
    if (ddp->entries[i].parameter)
        return ls__ddp_describe(ddp->entries[i].parameter);
    return (ls_reducer_param){.name = i == ls__ddp_loss_entry(ddp) ? "(loss)" : "(votes)",
                              .dtype = LS_F32,
                              .shape = count,
                              .dims = 1,
                              .exact = true};
}

ls_status ls__ddp_create_reducer(ls_ddp *ddp) {
    ls_reducer_options options = ddp->reducer_options;
    options.leave_sums = true; /* the optimizer multiplies as it reads */
    for (size_t i = 0; i < ddp->entry_count; i++)
        ddp->params[i] = describe(ddp, i, &ddp->entries[i].count);
    return ls_reducer_create(&ddp->reducer, ddp->group, ddp->params, ddp->entry_count, &options);
}

/* --- the ready order --- */

typedef struct ready_order {
    size_t *entry, n; /* positions that are decided */
    bool *taken;      /* (entries) */
} ready_order;

static void take(ready_order *order, size_t i) {
    if (order->taken[i])
        return;
    order->taken[i] = true;
    order->entry[order->n++] = i;
}

static void fill_order(ls_ddp *ddp, ls_step *step, ready_order *order, ls_parameter **ready) {
    size_t count = ddp->entry_count, votes = ls__ddp_votes_entry(ddp);
    for (size_t i = count; i-- > 0;) {
        const ls_parameter *p = ddp->entries[i].parameter;
        if (i != votes && (!p || p->role == LS_STATISTIC))
            take(order, i);
    }
    size_t used = step ? ls__tape_ready_order(step, ready, count) : 0;
    for (size_t k = 0; k < used; k++)
        if (ready[k]->index < count && ddp->entries[ready[k]->index].parameter == ready[k])
            take(order, ready[k]->index);
    for (size_t i = votes; i-- > 0;)
        take(order, i);
    take(order, votes);
}

/* False where there is no memory. */
static bool read_order(ls_ddp *ddp, ls_step *step, size_t *entry) {
    ready_order order = {.entry = entry, .taken = calloc(ddp->entry_count, sizeof(bool))};
    ls_parameter **ready = calloc(ddp->entry_count, sizeof(ls_parameter *));
    bool made = order.taken && ready;
    if (made)
        fill_order(ddp, step, &order, ready);
    free(order.taken);
    free(ready);
    return made;
}

/* Until now the parameters had gradient storage of their own; what forward has already written there, the
 * statistics, moves into the buckets. */
static ls_status move_gradients(ls_ddp *ddp) {
    for (size_t i = 0; i < ddp->parameter_count; i++) {
        const ls__ddp_entry *e = &ddp->entries[i];
        if (!e->reduces)
            continue;
        if (e->parameter->role == LS_STATISTIC)
            LS_TRY(ddp->device->table->copy(ddp->device, e->slots[0], e->parameter->gradient,
                                            e->count * sizeof(float)));
        ls__parameter_set_gradient(e->parameter, e->slots[0]);
    }
    return LS_OK;
}

ls_status ls__ddp_adopt_order(ls_ddp *ddp, ls_step *step) {
    size_t *order = calloc(ddp->entry_count, sizeof *order);
    if (!order || !read_order(ddp, step, order)) {
        free(order);
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for the ready order");
    }
    ls_status status = ls_reducer_set_order(ddp->reducer, order);
    free(order);
    LS_TRY(status);
    ls__ddp_place_slots(ddp);
    ddp->ordered = true;
    return move_gradients(ddp);
}
