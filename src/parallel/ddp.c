/* Data parallelism: shards, tree-ordered accumulation, reduction during the last backward.
 *
 * Each local shard's gradients are computed on their own and then added in the order of the balanced
 * tree, so that the sum does not depend on how shards are spread over ranks. That needs a small stack
 * of gradient buffers ("slots"), used like the digits of a binary counter: before shard i, slot s
 * holds the sum of the s-th complete subtree, popcount(i) of them. Shard i is computed into slot
 * popcount(i); each trailing one bit of i then completes a subtree: slot s-1 += slot s. Slot 0 is the
 * reducer's memory, so with one shard per rank nothing is added or copied here. In the last shard the
 * additions happen parameter by parameter, as soon as its gradient is ready, and the reducer is told.
 *
 * Memory: floor(log2(local shards)) gradient buffers beside the buckets. */
#include <lockstep/ddp.h>

#include "autograd/tape.h"
#include "base/error.h"
#include "nn/model.h"
#include "nn/parameter.h"
#include "parallel/replicas.h"
#include <stdlib.h>

enum { MAX_SLOTS = 64 };

/* One tensor that is reduced: a weight, a statistic, or the loss. */
typedef struct entry {
    ls_parameter *parameter; /* NULL: the loss */
    size_t count;            /* elements */
    size_t scratch_offset;   /* elements into every scratch slot */
    float *slots[MAX_SLOTS]; /* where slot s of this entry lies; slot 0 is the reducer's */
    uint64_t holds;          /* bit s: slot s holds a sum */
    bool ready;              /* reported to the reducer in this step */
    bool reduces;            /* false: frozen, stands in the list for the fingerprint only */
} entry;

struct ls_ddp {
    ls_model *model;
    ls_device *device;
    ls_group *group;
    ls_reducer *reducer;
    size_t shards, first, count; /* of the global batch; this rank's */
    entry *entries;              /* the model's parameters in order, then the loss */
    size_t entry_count;
    size_t slot_count;
    float *scratch[MAX_SLOTS]; /* slots 1 .. slot_count-1 */
    bool owns_model;           /* its parameters are marked as managed by this ddp */
    bool ordered;              /* the buckets follow the tape's ready order */
    bool in_step, reducing;    /* between begin and wait; the reducer's step is open */
    double weight;             /* of this rank in this step */
    size_t next;               /* local shard to come */
    float loss;                /* average of the last complete step */
    ls_status failed;          /* a step was lost: everything after returns this */
};

static ls_status check_alive(const ls_ddp *ddp) {
    if (!ddp)
        return ls__fail(LS_ERR_ARGUMENT, "ddp is NULL");
    if (ddp->failed != LS_OK)
        return ls__fail(ddp->failed, "ddp: an earlier step failed; end the job");
    return LS_OK;
}

static size_t slot_of(size_t shard) {
    return (size_t)__builtin_popcountll(shard);
}

static size_t slots_needed(size_t shards) {
    size_t most = 0;
    for (size_t i = 0; i < shards; i++)
        if (slot_of(i) > most)
            most = slot_of(i);
    return most + 1;
}

/* --- creation --- */

static ls_status create_reducer(ls_ddp *ddp, const ls_reducer_options *given) {
    static const size_t one = 1;
    ls_reducer_options options = *given;
    options.leave_sums = true; /* the optimizer multiplies as it reads */
    ls_reducer_param *params = calloc(ddp->entry_count, sizeof *params);
    if (!params)
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for a list of %zu parameters",
                        ddp->entry_count);
    for (size_t i = 0; i < ddp->entry_count; i++) {
        const ls_parameter *p = ddp->entries[i].parameter;
        if (p)
            params[i] = (ls_reducer_param){.name = p->name,
                                           .dtype = p->value.dtype,
                                           .shape = p->value.shape,
                                           .dims = p->value.dims,
                                           .frozen = p->role == LS_FROZEN};
        else
            params[i] =
                (ls_reducer_param){.name = "(loss)", .dtype = LS_F32, .shape = &one, .dims = 1};
    }
    ls_status status =
        ls_reducer_create(&ddp->reducer, ddp->group, params, ddp->entry_count, &options);
    free(params);
    return status;
}

static ls_status create_entries(ls_ddp *ddp) {
    size_t n = ls_model_parameter_count(ddp->model);
    ddp->entry_count = n + 1;
    ddp->entries = calloc(ddp->entry_count, sizeof *ddp->entries);
    if (!ddp->entries)
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for %zu parameters", n);
    for (size_t i = 0; i < n; i++) {
        ls_parameter *p = ls_model_parameter(ddp->model, i);
        if (p->managed)
            return ls__fail(LS_ERR_STATE, "ddp: the model is already trained by another ddp");
        ddp->entries[i].parameter = p;
        p->index = i;
        ddp->entries[i].count = p->value.count;
        ddp->entries[i].reduces = p->role != LS_FROZEN;
    }
    ddp->entries[n].count = 1;
    ddp->entries[n].reduces = true;
    return LS_OK;
}

/* Scratch slots: one buffer each, entries at multiples of 64 bytes. */
static ls_status create_scratch(ls_ddp *ddp) {
    size_t total = 0;
    for (size_t i = 0; i < ddp->entry_count; i++) {
        ddp->entries[i].scratch_offset = total;
        if (ddp->entries[i].reduces)
            total += (ddp->entries[i].count + 15) & ~(size_t)15;
    }
    for (size_t s = 1; s < ddp->slot_count; s++)
        LS_TRY(ddp->device->table->alloc(ddp->device, total * sizeof(float),
                                         (void **)&ddp->scratch[s]));
    return LS_OK;
}

/* Slot 0 of every entry is where the reducer has put it; the others never move. */
static void place_slots(ls_ddp *ddp) {
    for (size_t i = 0; i < ddp->entry_count; i++) {
        entry *e = &ddp->entries[i];
        if (!e->reduces)
            continue;
        e->slots[0] = ls_reducer_gradient(ddp->reducer, i);
        for (size_t s = 1; s < ddp->slot_count; s++)
            e->slots[s] = ddp->scratch[s] + e->scratch_offset;
    }
}

/* Points every parameter's gradient at the slot of local shard `shard`; nothing is written there yet. */
static void aim_gradients(ls_ddp *ddp, size_t shard) {
    size_t slot = slot_of(shard);
    for (size_t i = 0; i < ddp->entry_count; i++) {
        entry *e = &ddp->entries[i];
        if (e->parameter && e->reduces)
            ls__parameter_set_gradient(e->parameter, e->slots[slot]);
    }
}

static ls_status broadcast_values(ls_ddp *ddp) {
    for (size_t i = 0; i + 1 < ddp->entry_count; i++) {
        ls_tensor *value = &ddp->entries[i].parameter->value;
        ls__parameter_changed(ddp->entries[i].parameter);
        LS_TRY(ls_broadcast(ddp->group, value->data, value->count, value->dtype, 0));
    }
    return LS_OK;
}

ls_status ls_ddp_create(ls_ddp **out, ls_model *model, ls_group *group,
                        const ls_ddp_options *options) {
    static const ls_ddp_options defaults = {0};
    if (!out || !model || !group)
        return ls__fail(LS_ERR_ARGUMENT, "ddp: %s is NULL",
                        !out    ? "ddp"
                        : model ? "group"
                                : "model");
    *out = NULL;
    if (!options)
        options = &defaults;
    size_t ranks = (size_t)ls_group_size(group), rank = (size_t)ls_group_rank(group);
    size_t shards = options->shards ? options->shards : ranks;
    if (shards < ranks)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ddp: %zu shards for %zu ranks: every rank needs at least one", shards,
                        ranks);
    ls_ddp *ddp = calloc(1, sizeof *ddp);
    if (!ddp)
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory");
    ddp->model = model;
    ddp->device = model->device;
    ddp->group = group;
    ddp->shards = shards;
    ddp->first = rank * shards / ranks;
    ddp->count = (rank + 1) * shards / ranks - ddp->first;
    ddp->slot_count = slots_needed(ddp->count);

    ls_status status;
    LS_TRY_OUT(create_entries(ddp));
    LS_TRY_OUT(create_reducer(ddp, &options->reducer));
    LS_TRY_OUT(create_scratch(ddp));
    if (!options->skip_broadcast)
        LS_TRY_OUT(broadcast_values(ddp));
    /* Weights give up gradients of their own at once: the reducer's memory holds them from the first
     * backward on, and the two together would be the job's peak. Statistics are written before. */
    for (size_t i = 0; i + 1 < ddp->entry_count; i++) {
        ls_parameter *p = ddp->entries[i].parameter;
        if (p->role == LS_WEIGHT)
            ls__parameter_set_gradient(p, NULL);
        p->managed = ddp->entries[i].reduces;
    }
    ddp->owns_model = true;
    *out = ddp;
    return LS_OK;
out:
    ls_ddp_destroy(ddp);
    return status;
}

void ls_ddp_destroy(ls_ddp *ddp) {
    if (!ddp)
        return;
    for (size_t i = 0; ddp->entries && i < ddp->entry_count; i++) {
        ls_parameter *p = ddp->entries[i].parameter;
        if (!ddp->owns_model || !p)
            continue;
        p->managed = false;
        /* The buckets go away: back to storage of its own, or to none. */
        if (ddp->ordered && ddp->entries[i].reduces && ls__parameter_own_gradient(p) != LS_OK) {
            ls__parameter_set_gradient(p, NULL);
            p->managed = false;
        }
    }
    ls_reducer_destroy(ddp->reducer);
    for (size_t s = 1; s < ddp->slot_count; s++)
        if (ddp->scratch[s])
            ddp->device->table->free(ddp->device, ddp->scratch[s]);
    free(ddp->entries);
    free(ddp);
}

void ls_ddp_shards(const ls_ddp *ddp, size_t *first, size_t *count) {
    *first = ddp ? ddp->first : 0;
    *count = ddp ? ddp->count : 0;
}

/* --- the ready order, once --- */

static void take(size_t i, size_t *order, size_t *n, bool *taken) {
    if (taken[i])
        return;
    taken[i] = true;
    order[(*n)++] = i;
}

/* Rank 0's tape gives the order: the loss and the statistics, which forward has finished, then the
 * weights as backward will finish them, then what this tape does not use. */
static size_t read_order(ls_ddp *ddp, ls_step *step, size_t *order) {
    size_t n = 0, count = ddp->entry_count;
    bool *taken = calloc(count, sizeof *taken);
    ls_parameter **ready = calloc(count, sizeof(ls_parameter *));
    if (taken && ready) {
        for (size_t i = count; i-- > 0;) {
            const ls_parameter *p = ddp->entries[i].parameter;
            if (!p || p->role == LS_STATISTIC)
                take(i, order, &n, taken);
        }
        size_t used = step ? ls__tape_ready_order(step, ready, count) : 0;
        for (size_t k = 0; k < used; k++)
            if (ready[k]->index < count && ddp->entries[ready[k]->index].parameter == ready[k])
                take(ready[k]->index, order, &n, taken);
        for (size_t i = count; i-- > 0;)
            take(i, order, &n, taken);
    }
    free(taken);
    free(ready);
    return n;
}

/* Collective: every rank comes here once, in its first step, with or without a tape. Until now the
 * parameters had gradient storage of their own; what forward has already written there, the statistics,
 * moves into the buckets. */
static ls_status adopt_order(ls_ddp *ddp, ls_step *step) {
    size_t *order = calloc(ddp->entry_count, sizeof *order);
    if (!order || read_order(ddp, step, order) != ddp->entry_count) {
        free(order);
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for the ready order");
    }
    ls_status status = ls_reducer_set_order(ddp->reducer, order);
    free(order);
    LS_TRY(status);
    place_slots(ddp);
    ddp->ordered = true;
    for (size_t i = 0; i < ddp->entry_count; i++) {
        const entry *e = &ddp->entries[i];
        if (!e->parameter || !e->reduces)
            continue;
        if (e->parameter->role == LS_STATISTIC)
            LS_TRY(ddp->device->table->copy(ddp->device, e->slots[0], e->parameter->gradient,
                                            e->count * sizeof(float)));
        ls__parameter_set_gradient(e->parameter, e->slots[0]);
    }
    return LS_OK;
}

/* --- a step --- */

ls_status ls_ddp_begin(ls_ddp *ddp, double weight) {
    LS_TRY(check_alive(ddp));
    if (ddp->in_step)
        return ls__fail(LS_ERR_STATE, "ddp: begin while a step is open; call ls_ddp_wait first");
    for (size_t i = 0; i < ddp->entry_count; i++) {
        entry *e = &ddp->entries[i];
        e->holds = 0;
        e->ready = false;
        if (e->parameter) {
            e->parameter->reduced = e->parameter->present = false;
            e->parameter->gradient_factor = 1;
        }
    }
    ddp->next = 0;
    ddp->weight = weight;
    ddp->in_step = true;
    ddp->reducing = false;
    if (ddp->ordered)
        aim_gradients(ddp, 0);
    return LS_OK;
}

/* The reducer's step opens with the first shard and not in ls_ddp_begin, because in the first step the
 * order of the buckets is read off that shard's tape. */
static ls_status open_reduction(ls_ddp *ddp, ls_step *step) {
    if (ddp->reducing)
        return LS_OK;
    if (!ddp->ordered)
        LS_TRY(adopt_order(ddp, step));
    LS_TRY(ls_reducer_begin(ddp->reducer, ddp->weight));
    ddp->reducing = true;
    return LS_OK;
}

/* slot s-1 += slot s. A shard that did not use a parameter counts as zero, as in the reducer. */
static ls_status fold_slot(ls_ddp *ddp, entry *e, size_t s) {
    const ls__device_table *table = ddp->device->table;
    uint64_t upper = e->holds & (uint64_t)1 << s, lower = e->holds & (uint64_t)1 << (s - 1);
    if (upper || lower) {
        size_t bytes = e->count * sizeof(float);
        if (!upper)
            LS_TRY(table->zero(ddp->device, e->slots[s], bytes));
        if (!lower)
            LS_TRY(table->zero(ddp->device, e->slots[s - 1], bytes));
        LS_TRY(table->binary_forward(ddp->device, LS_F32, LS__ADD, 1, e->count, e->slots[s - 1],
                                     e->slots[s], false, e->slots[s - 1]));
        e->holds |= (uint64_t)1 << (s - 1);
    }
    e->holds &= ~((uint64_t)1 << s);
    return LS_OK;
}

/* The last shard's contribution to `e` is in (or there is none): add up and tell the reducer. */
static ls_status finish_entry(ls_ddp *ddp, size_t i) {
    entry *e = &ddp->entries[i];
    for (size_t s = slot_of(ddp->count - 1); s > 0; s--)
        LS_TRY(fold_slot(ddp, e, s));
    if (!e->holds)
        return LS_OK; /* no shard of this rank used it */
    e->ready = true;
    return ls_reducer_ready(ddp->reducer, i);
}

/* The loss is finished before backward; so are statistics, but those ls_backward reports. */
static ls_status take_loss(ls_ddp *ddp, ls_tensor *loss) {
    size_t slot = slot_of(ddp->next), i = ddp->entry_count - 1;
    entry *e = &ddp->entries[i];
    LS_TRY(
        ddp->device->table->copy(ddp->device, e->slots[slot], ls_tensor_data(loss), sizeof(float)));
    e->holds |= (uint64_t)1 << slot;
    return ddp->next + 1 == ddp->count ? finish_entry(ddp, i) : LS_OK;
}

static ls_status on_gradient(void *context, ls_parameter *parameter) {
    ls_ddp *ddp = context;
    size_t i = parameter->index;
    if (i >= ddp->entry_count || ddp->entries[i].parameter != parameter)
        return LS_OK; /* of another model */
    ddp->entries[i].holds |= (uint64_t)1 << slot_of(ddp->next);
    return ddp->next + 1 == ddp->count ? finish_entry(ddp, i) : LS_OK;
}

/* After a shard: complete the subtrees it closes, and aim at the next one's slot. */
static ls_status close_shard(ls_ddp *ddp) {
    size_t shard = ddp->next++;
    if (ddp->next == ddp->count) {
        for (size_t i = 0; i < ddp->entry_count; i++)
            if (ddp->entries[i].reduces && !ddp->entries[i].ready)
                LS_TRY(finish_entry(ddp, i));
        return LS_OK;
    }
    size_t slot = slot_of(shard);
    for (size_t bits = shard; bits & 1; bits >>= 1, slot--)
        for (size_t i = 0; i < ddp->entry_count; i++)
            LS_TRY(fold_slot(ddp, &ddp->entries[i], slot));
    aim_gradients(ddp, ddp->next);
    return LS_OK;
}

static ls_status check_shard(const ls_ddp *ddp, const char *call) {
    LS_TRY(check_alive(ddp));
    if (!ddp->in_step)
        return ls__fail(LS_ERR_STATE, "%s: outside of a step; call ls_ddp_begin first", call);
    if (ddp->next == ddp->count)
        return ls__fail(LS_ERR_STATE, "%s: this rank has %zu shards and all are done", call,
                        ddp->count);
    return LS_OK;
}

static ls_status run_shard(ls_ddp *ddp, ls_step *step, ls_tensor *loss) {
    LS_TRY(open_reduction(ddp, step));
    if (step) {
        LS_TRY(take_loss(ddp, loss));
        LS_TRY(ls_backward(step, loss, on_gradient, ddp));
    }
    return close_shard(ddp);
}

ls_status ls_ddp_backward(ls_ddp *ddp, ls_step *step, ls_tensor *loss) {
    LS_TRY(check_shard(ddp, "ls_ddp_backward"));
    LS_TRY(ls_step_status(step));
    if (!loss || ls_tensor_count(loss) != 1 || ls_tensor_dtype(loss) != LS_F32)
        return ls__fail(LS_ERR_ARGUMENT, "ls_ddp_backward: the loss must be one f32 number");
    ddp->failed = run_shard(ddp, step, loss);
    return ddp->failed;
}

ls_status ls_ddp_skip(ls_ddp *ddp) {
    LS_TRY(check_shard(ddp, "ls_ddp_skip"));
    ddp->failed = run_shard(ddp, NULL, NULL);
    return ddp->failed;
}

static ls_status finish_step(ls_ddp *ddp, ls_reducer_report *report) {
    while (ddp->next < ddp->count)
        LS_TRY(run_shard(ddp, NULL, NULL)); /* shards without data */
    LS_TRY(ls_reducer_wait(ddp->reducer, report));
    float factor = (float)report->scale;
    for (size_t i = 0; i < ddp->entry_count; i++) {
        entry *e = &ddp->entries[i];
        if (!e->parameter) {
            LS_TRY(ddp->device->table->copy(ddp->device, &ddp->loss, e->slots[0], sizeof(float)));
            ddp->loss *= factor;
        } else if (e->reduces) {
            ls__parameter_set_gradient(e->parameter, e->slots[0]);
            e->parameter->gradient_factor = factor;
            e->parameter->present = ls_reducer_used(ddp->reducer, i);
            e->parameter->reduced = true;
        }
    }
    return LS_OK;
}

ls_status ls_ddp_wait(ls_ddp *ddp, ls_reducer_report *report) {
    LS_TRY(check_alive(ddp));
    if (!ddp->in_step)
        return ls__fail(LS_ERR_STATE, "ls_ddp_wait: outside of a step; call ls_ddp_begin first");
    ddp->in_step = false;
    ls_reducer_report own;
    ddp->failed = finish_step(ddp, report ? report : &own);
    return ddp->failed;
}

double ls_ddp_loss(const ls_ddp *ddp) {
    return ddp ? (double)ddp->loss : 0;
}

ls_status ls_ddp_verify(ls_ddp *ddp) {
    LS_TRY(check_alive(ddp));
    if (ddp->in_step)
        return ls__fail(LS_ERR_STATE, "ls_ddp_verify: inside of a step; call ls_ddp_wait first");
    return ls__replicas_verify(ddp->model, ddp->group);
}
