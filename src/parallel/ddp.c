/* Data parallelism: a step is begin, a backward for each shard of this rank, wait. Gradients are reduced
 * while the last backward runs. */
#include "parallel/ddp.h"

#include "base/clock.h"
#include "parallel/replicas.h"
#include "reducer/agree.h"
#include "reducer/weight.h"
#include <lockstep/ops.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

ls_status ls__ddp_check_alive(const ls_ddp *ddp) {
    if (!ddp)
        return ls__fail(LS_ERR_ARGUMENT, "ddp is NULL");
    if (ddp->failed != LS_OK)
        return ls__fail(ddp->failed, "ddp: an earlier step failed; end the job");
    return LS_OK;
}

/* --- creation --- */

static ls_status broadcast_values(ls_ddp *ddp) {
    for (size_t i = 0; i < ddp->parameter_count; i++) {
        ls_tensor *value = &ddp->entries[i].parameter->value;
        ls__parameter_changed(ddp->entries[i].parameter);
        LS_TRY(ls_broadcast(ddp->group, value->data, value->count, value->dtype, 0));
    }
    return LS_OK;
}

/* Weights give up gradients of their own before the reducer takes its memory, which holds them from the first
 * backward on: the two together would be the job's peak. Statistics are written before. */
static void own_model(ls_ddp *ddp) {
    for (size_t i = 0; i < ddp->parameter_count; i++) {
        ls_parameter *p = ddp->entries[i].parameter;
        if (p->role == LS_WEIGHT)
            ls__parameter_set_gradient(p, NULL);
        p->managed = ddp->entries[i].reduces;
    }
    ddp->owns_model = true;
}

static ls_status check_shards(const ls_ddp *ddp) {
    size_t ranks = (size_t)ls_group_size(ddp->group);
    if (ddp->shards < ranks)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ddp: %zu shards for %zu ranks: every rank needs at least one", ddp->shards,
                        ranks);
    if (ddp->shards > LS_DDP_MAX_SHARDS)
        return ls__fail(LS_ERR_ARGUMENT, "ddp: %zu shards, want at most %d", ddp->shards,
                        LS_DDP_MAX_SHARDS);
    return LS_OK;
}

/* All that can fail on one rank alone, its memory above all. */
static ls_status prepare(ls_ddp *ddp, const ls_ddp_options *options) {
    LS_TRY(check_shards(ddp));
    LS_TRY(ls__ddp_create_entries(ddp));
    ddp->ballot = calloc(ddp->entries[ls__ddp_votes_entry(ddp)].count, sizeof *ddp->ballot);
    ddp->times = calloc((size_t)ls_group_size(ddp->group), sizeof *ddp->times);
    if (!ddp->ballot || !ddp->times)
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for the votes");
    LS_TRY(ls__watch_create(ddp, options));
    LS_TRY(ls__ddp_create_scratch(ddp));
    LS_TRY(ls__sync_prepare(ddp));
    LS_TRY(ls__squares_prepare(ddp));
    return ls__bits_prepare(ddp);
}

static ls_status compare_options(const ls_ddp *ddp, const ls_ddp_options *options) {
    const ls__setting settings[] = {
        {"shards", ddp->shards},
        {"watch_every", ls__watch_interval(options)},
        {"skip_broadcast", options->skip_broadcast},
    };
    return ls__agree_on(ddp->group, "ls_ddp_create", settings, sizeof settings / sizeof *settings);
}

static ls_status create(ls_ddp *ddp, const ls_ddp_options *options) {
    LS_TRY(compare_options(ddp, options));
    LS_TRY(ls__agree(ddp->group, prepare(ddp, options)));
    own_model(ddp);
    LS_TRY(ls__ddp_create_reducer(ddp));
    LS_TRY(ls__sync_create(ddp));
    LS_TRY(ls__bits_check(ddp));
    return options->skip_broadcast ? LS_OK : broadcast_values(ddp);
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
    ls_ddp *ddp = calloc(1, sizeof *ddp);
    if (!ddp)
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory");
    ddp->model = model;
    ddp->device = model->device;
    ddp->group = group;
    ddp->loss_scale = 1;
    ddp->reducer_options = options->reducer;
    ddp->shards = shards;
    ddp->first = rank * shards / ranks;
    ddp->count = (rank + 1) * shards / ranks - ddp->first;
    ddp->slot_count = ls__ddp_slots_needed(ddp->count);
    ls_status status = create(ddp, options);
    if (status != LS_OK) {
        ls_ddp_destroy(ddp);
        return status;
    }
    *out = ddp;
    return LS_OK;
}

/* The buckets go away: back to storage of its own, or to none. */
static void release_parameter(const ls_ddp *ddp, const ls__ddp_entry *e) {
    ls_parameter *p = e->parameter;
    p->managed = false;
    if (ddp->ordered && e->reduces && ls__parameter_own_gradient(p) != LS_OK) {
        ls__parameter_set_gradient(p, NULL);
        p->managed = false;
    }
}

void ls_ddp_destroy(ls_ddp *ddp) {
    if (!ddp)
        return;
    for (size_t i = 0; ddp->owns_model && i < ddp->parameter_count; i++)
        release_parameter(ddp, &ddp->entries[i]);
    ls__sync_free(ddp);
    ls_reducer_destroy(ddp->reducer);
    ls__ddp_free_scratch(ddp);
    ls__watch_free(ddp);
    ls__squares_free(ddp);
    free(ddp->entries);
    free(ddp->params);
    free(ddp->cards);
    free(ddp->sums);
    free(ddp->ballot);
    free(ddp->times);
    free(ddp);
}

void ls_ddp_shards(const ls_ddp *ddp, size_t *first, size_t *count) {
    if (first)
        *first = ddp ? ddp->first : 0;
    if (count)
        *count = ddp ? ddp->count : 0;
}

/* --- a step --- */

ls_status ls_ddp_set_loss_scale(ls_ddp *ddp, double scale) {
    LS_TRY(ls__ddp_check_alive(ddp));
    if (ddp->in_step)
        return ls__fail(LS_ERR_STATE, "ls_ddp_set_loss_scale: inside of a step; call ls_ddp_wait "
                                      "first");
    if (!(scale >= 0x1p-60 && scale <= 0x1p60))
        return ls__fail(LS_ERR_ARGUMENT, "ls_ddp_set_loss_scale: %g, want 2^-60 to 2^60", scale);
    ddp->loss_scale = scale;
    return LS_OK;
}

ls_status ls_ddp_begin(ls_ddp *ddp, double weight) {
    LS_TRY(ls__ddp_check_alive(ddp));
    if (ddp->in_step)
        return ls__fail(LS_ERR_STATE, "ddp: begin while a step is open; call ls_ddp_wait first");
    /* Found in the reduction, it would be the whole job's error. */
    if (!ls__weight_is_legal(weight))
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_ddp_begin: weight is %g, want the samples or tokens of this rank: 0 or "
                        "%g to %g",
                        weight, ls__weight_min, ls__weight_max);
    for (size_t i = 0; i < ddp->entry_count; i++) {
        ls__ddp_entry *e = &ddp->entries[i];
        e->holds = 0;
        e->ready = false;
        if (e->parameter) {
            e->parameter->reduced = e->parameter->present = e->parameter->squares_known = false;
            e->parameter->gradient_factor = 1;
        }
    }
    ls__votes_begin(ddp);
    ddp->begin_ns = ls__now_ns();
    ddp->next = 0;
    ddp->weight = weight;
    ddp->in_step = true;
    ddp->reducing = ddp->lost = false;
    if (ddp->ordered)
        ls__ddp_aim_gradients(ddp, 0);
    return LS_OK;
}

/* The reducer's step opens with the first shard and not in ls_ddp_begin, because in the first step the
 * order of the buckets is read off that shard's tape. */
static ls_status open_reduction(ls_ddp *ddp, ls_step *step) {
    if (ddp->reducing)
        return LS_OK;
    if (!ddp->ordered) {
        /* A rank without samples comes here while others still are in forward. */
        LS_TRY(ls__sync_finish(ddp));
        LS_TRY(ls__ddp_adopt_order(ddp, step));
    }
    LS_TRY(ls_reducer_begin(ddp->reducer, ddp->weight));
    ddp->reducing = true;
    return LS_OK;
}

/* The loss is finished before backward; so are statistics, but those ls_backward reports. */
ls_status ls__ddp_take_loss(ls_ddp *ddp, const ls_model *model, const ls_step *step, float loss) {
    size_t i = ls__ddp_loss_entry(ddp), n = 1;
    ddp->sums[0] = loss;
    ddp->nonfinite |= !isfinite(ddp->sums[0]);
    for (size_t k = 0; k < ddp->parameter_count; k++)
        if (ddp->entries[k].parameter->role == LS_STATISTIC)
            ddp->sums[n++] = (float)ls__tape_statistic_samples(step, model->parameters[k]);
    LS_TRY(ddp->device->table->copy(ddp->device, ls__ddp_entry_slot(ddp, i), ddp->sums,
                                    n * sizeof(float)));
    return ls__ddp_entry_done(ddp, i);
}

static ls_status on_gradient(void *context, ls_parameter *parameter) {
    ls_ddp *ddp = context;
    size_t i = parameter->index;
    if (i >= ddp->parameter_count || ddp->entries[i].parameter != parameter)
        return LS_OK; /* of another model */
    return ls__ddp_entry_done(ddp, i);
}

static ls_status check_shard(const ls_ddp *ddp, const char *call) {
    LS_TRY(ls__ddp_check_alive(ddp));
    if (!ddp->in_step)
        return ls__fail(LS_ERR_STATE, "%s: outside of a step; call ls_ddp_begin first", call);
    if (ddp->lost)
        return ls__fail(LS_ERR_STATE,
                        "%s: a backward of this step failed on this rank; ls_ddp_wait tells the "
                        "others",
                        call);
    if (ddp->next == ddp->count)
        return ls__fail(LS_ERR_STATE, "%s: this rank has %zu shards and all are done", call,
                        ddp->count);
    return LS_OK;
}

static ls_status compute_shard(ls_ddp *ddp, ls_step *step, ls_tensor *loss) {
    if (step) {
        LS_TRY(ls__ddp_take_loss(ddp, ddp->model, step, (float)ls_tensor_item(loss)));
        if (ddp->loss_scale != 1)
            loss = ls_scale(step, loss, (float)ddp->loss_scale);
        LS_TRY(ls_backward(step, loss, on_gradient, ddp));
    }
    LS_TRY(ls__sync_finish(ddp));
    return ls__ddp_close_shard(ddp);
}

ls_status ls__ddp_lose_shards(ls_ddp *ddp, ls_status status) {
    if (status == LS_OK || ddp->failed != LS_OK)
        return status;
    ddp->lost = true;
    ddp->vote = LS_VOTE_FAILED;
    snprintf(ddp->reason, sizeof ddp->reason, "%s", ls_error_text());
    return status;
}

static ls_status run_shard(ls_ddp *ddp, ls_step *step, ls_tensor *loss) {
    ddp->failed = open_reduction(ddp, step);
    LS_TRY(ddp->failed);
    return ls__ddp_lose_shards(ddp, compute_shard(ddp, step, loss));
}

static ls_status check_forward(const ls_step *step, const ls_tensor *loss) {
    if (!step)
        return ls__fail(LS_ERR_ARGUMENT, "ls_ddp_backward: step is NULL");
    LS_TRY(ls_step_status(step));
    if (!loss || ls_tensor_count(loss) != 1 || ls_tensor_dtype(loss) != LS_F32)
        return ls__fail(LS_ERR_ARGUMENT, "ls_ddp_backward: the loss must be one f32 number");
    return LS_OK;
}

ls_status ls_ddp_backward(ls_ddp *ddp, ls_step *step, ls_tensor *loss) {
    ls_status status = step ? ls_step_status(step) : LS_OK;
    if (status != LS_OK && (!ddp || ddp->failed != LS_OK))
        return status; /* a forward that lost the whole job's step says why */
    LS_TRY(check_shard(ddp, "ls_ddp_backward"));
    status = check_forward(step, loss);
    return status == LS_OK ? run_shard(ddp, step, loss) : ls__ddp_lose_shards(ddp, status);
}

ls_status ls_ddp_skip(ls_ddp *ddp) {
    LS_TRY(check_shard(ddp, "ls_ddp_skip"));
    return run_shard(ddp, NULL, NULL);
}

/* Statistics are averages over the samples they were made of, which need not be the job's weight. */
static float statistic_factor(const ls_reducer_report *report, float reduced_samples) {
    double samples = round((double)reduced_samples * report->scale * report->weight);
    double share = samples > 0 && samples != report->weight ? report->weight / samples : 1;
    return (float)(report->scale * share);
}

/* Hands out what was reduced; nothing of it where the step is not to be: the optimizer then finds no
 * gradient, and leaves everything as it is. */
static ls_status take_result(ls_ddp *ddp, const ls_reducer_report *report) {
    float factor = (float)report->scale;
    const ls__ddp_entry *loss = &ddp->entries[ls__ddp_loss_entry(ddp)];
    LS_TRY(ddp->device->table->copy(ddp->device, ddp->sums, loss->slots[0],
                                    loss->count * sizeof(float)));
    ddp->loss = ddp->tally.skip ? NAN : ddp->sums[0] * factor;
    const float *samples = ddp->sums + 1;
    for (size_t i = 0; i < ddp->parameter_count; i++) {
        ls__ddp_entry *e = &ddp->entries[i];
        if (!e->reduces)
            continue;
        ls__parameter_set_gradient(e->parameter, e->slots[0]);
        e->parameter->gradient_factor = e->parameter->role == LS_STATISTIC
                                            ? statistic_factor(report, *samples++)
                                            : (float)(report->scale / ddp->loss_scale);
        e->parameter->present = ddp->tally.update && ls_reducer_used(ddp->reducer, i);
        e->parameter->reduced = true;
    }
    return LS_OK;
}

static ls_status finish_step(ls_ddp *ddp, ls_reducer_report *report) {
    while (ddp->next < ddp->count && !ddp->lost && ddp->failed == LS_OK)
        run_shard(ddp, NULL, NULL); /* shards without data; where it fails, the votes tell */
    LS_TRY(ddp->failed);
    LS_TRY(open_reduction(ddp, NULL)); /* a rank whose forward failed has not yet */
    if (ddp->lost)
        LS_TRY(ls__sync_finish(ddp));
    LS_TRY(ls__votes_cast(ddp));
    LS_TRY(ls_reducer_wait(ddp->reducer, report));
    LS_TRY(ls__votes_count(ddp, report));
    LS_TRY(ls__watch_compare(ddp));
    ddp->steps++;
    ls__times_note(ddp, report);
    LS_TRY(take_result(ddp, report));
    return ls__squares_share(ddp);
}

ls_status ls_ddp_wait(ls_ddp *ddp, ls_reducer_report *report) {
    LS_TRY(ls__ddp_check_alive(ddp));
    if (!ddp->in_step)
        return ls__fail(LS_ERR_STATE, "ls_ddp_wait: outside of a step; call ls_ddp_begin first");
    ls_reducer_report own;
    ddp->failed = finish_step(ddp, report ? report : &own);
    ddp->in_step = false;
    return ddp->failed;
}

double ls_ddp_loss(const ls_ddp *ddp) {
    return ddp ? (double)ddp->loss : 0;
}

ls_status ls_ddp_verify(ls_ddp *ddp) {
    LS_TRY(ls__ddp_check_alive(ddp));
    if (ddp->in_step)
        return ls__fail(LS_ERR_STATE, "ls_ddp_verify: inside of a step; call ls_ddp_wait first");
    return ls__replicas_verify(ddp->model, ddp->group);
}

size_t ls_ddp_hook_states(const ls_ddp *ddp) {
    return ddp ? ls_reducer_hook_states(ddp->reducer) : 0;
}

ls_status ls_ddp_hook_state(ls_ddp *ddp, size_t i, ls_hook_state *state) {
    LS_TRY(ls__ddp_check_alive(ddp));
    return ls_reducer_hook_state(ddp->reducer, i, state);
}
