/* Local SGD is data parallelism in a group of one rank, with averages over the real group in between: a ddp
 * whose group is this rank alone reduces nothing and adds its shards up in the same order. */
#include <lockstep/local_sgd.h>

#include "base/error.h"
#include "comm/hold.h"
#include "nn/model.h"
#include "nn/parameter.h"
#include "optim/state.h"
#include "parallel/ddp.h"
#include "parallel/replicas.h"
#include "reducer/agree.h"
#include "reducer/weight.h"
#include <stdlib.h>

struct ls_local_sgd {
    ls_model *model;
    ls_group *group, *self; /* self: this rank alone */
    ls_ddp *ddp;            /* in `group`, then in `self` */
    ls_local_sgd_options options;
    size_t first, count; /* this rank's shards */
    bool local;
    uint64_t steps;        /* made, `done` included */
    uint64_t since;        /* of them since the last average */
    double weight, losses; /* trained on since then; the sum of its losses */
};

/* --- averaging --------------------------------------------------------------------------------------- */

/* How the replicas are weighed: by weight / total, or all alike. */
typedef struct shares {
    ls_group *group;
    double weight, total;
    bool equal;
    bool stop; /* a rank was asked to end */
} shares;

static ls_status agree_on_shares(ls_local_sgd *l, shares *s, double *loss) {
    double sums[2] = {l->weight, l->losses};
    double ends[3] = {l->weight, -l->weight, l->ddp->stop_requested};
    LS_TRY(ls_all_reduce(l->group, sums, sums, 2, LS_F64, LS_SUM));
    LS_TRY(ls_all_reduce(l->group, ends, ends, 3, LS_F64, LS_MAX));
    *s = (shares){.group = l->group,
                  .weight = l->weight,
                  .total = sums[0],
                  .equal = ends[0] == -ends[1],
                  .stop = ends[2] > 0};
    *loss = sums[0] > 0 ? sums[1] / sums[0] : 0;
    return LS_OK;
}

/* Equal weights are no factors: what is equal on all ranks then stays as it is, where their number is a
 * power of two. */
static ls_status average(const shares *s, float *values, size_t count) {
    if (s->equal)
        return ls_all_reduce(s->group, values, values, count, LS_F32, LS_AVG);
    for (size_t i = 0; i < count; i++)
        values[i] *= (float)s->weight;
    return ls_all_reduce_weighted(s->group, values, values, count, LS_F32, s->weight, NULL);
}

static ls_status average_optimizer(const shares *s, ls_optimizer *optimizer) {
    for (size_t i = 0; optimizer && i < ls__optimizer_state_count(optimizer); i++) {
        ls__optimizer_state state = ls__optimizer_state_get(optimizer, i);
        size_t count = state.parameter->value.count;
        int64_t steps = (int64_t)*state.steps;
        if (state.parameter->role == LS_FROZEN)
            continue;
        if (state.first)
            LS_TRY(average(s, state.first, count));
        if (state.second)
            LS_TRY(average(s, state.second, count));
        LS_TRY(ls_all_reduce(s->group, &steps, &steps, 1, LS_I64, LS_MAX));
        *state.steps = (uint64_t)steps;
    }
    return LS_OK;
}

static ls_status average_model(const shares *s, ls_model *model) {
    for (size_t i = 0; i < ls_model_parameter_count(model); i++) {
        ls_parameter *p = ls_model_parameter(model, i);
        if (p->role == LS_FROZEN)
            continue;
        ls__parameter_changed(p);
        LS_TRY(average(s, p->value.data, p->value.count));
    }
    return average_optimizer(s, model->optimizer);
}

ls_status ls_local_sgd_average(ls_local_sgd *l, ls_local_sgd_sync *sync) {
    if (!l)
        return ls__fail(LS_ERR_ARGUMENT, "ls_local_sgd_average: local is NULL");
    if (sync)
        *sync = (ls_local_sgd_sync){0};
    if (l->since == 0)
        return LS_OK;
    shares s;
    double loss;
    ls_optimizer *optimizer = l->model->optimizer;
    LS_TRY(ls__agree(l->group, optimizer ? ls__optimizer_ensure_states(optimizer) : LS_OK));
    LS_TRY(agree_on_shares(l, &s, &loss));
    if (s.total > 0)
        LS_TRY(average_model(&s, l->model));
    if (!l->options.ddp.no_watch)
        LS_TRY(ls__replicas_verify(l->model, l->group));
    if (sync)
        *sync =
            (ls_local_sgd_sync){.averaged = true, .stop = s.stop, .weight = s.total, .loss = loss};
    l->since = 0;
    l->weight = l->losses = 0;
    return LS_OK;
}

/* --- life -------------------------------------------------------------------------------------------- */

/* From here on, each for itself. The reduced steps' hook went with their ddp. */
static ls_status become_local(ls_local_sgd *l) {
    ls_ddp_options options = l->options.ddp;
    bool stop = l->ddp && l->ddp->stop_requested; /* not heard yet: the last step had begun */
    options.shards = l->count;
    options.skip_broadcast = l->steps > 0;
    options.reducer.hook = NULL;
    if (!l->ddp &&
        !options.skip_broadcast) { /* replicas begin equal: by a ddp of all, for a moment */
        ls_ddp_options all = l->options.ddp;
        all.reducer.hook = NULL;
        LS_TRY(ls_ddp_create(&l->ddp, l->model, l->group, &all));
    }
    ls_ddp_destroy(l->ddp);
    l->ddp = NULL;
    LS_TRY(ls_ddp_create(&l->ddp, l->model, l->self, &options));
    l->ddp->stop_requested = stop;
    l->local = true;
    return LS_OK;
}

static ls_status compare_options(const ls_local_sgd *l) {
    const ls__setting settings[] = {
        {"every", l->options.every},
        {"start", l->options.start},
        {"done", l->options.done},
        {"shards", l->options.ddp.shards},
    };
    return ls__agree_on(l->group, "ls_local_sgd_create", settings,
                        sizeof settings / sizeof *settings);
}

/* After the comparison: what is refused is refused on all ranks. */
static ls_status check_options(const ls_local_sgd_options *options, size_t ranks) {
    size_t shards = options->ddp.shards ? options->ddp.shards : ranks;
    if (options->every > 0 && shards >= ranks && shards <= LS_DDP_MAX_SHARDS)
        return LS_OK;
    return ls__fail(
        LS_ERR_ARGUMENT,
        "ls_local_sgd_create: every %llu and %zu shards for %zu ranks, want at least 1, "
        "one shard a rank, and at most %d shards",
        (unsigned long long)options->every, shards, ranks, LS_DDP_MAX_SHARDS);
}

static ls_status create(ls_local_sgd *l) {
    LS_TRY(compare_options(l));
    LS_TRY(check_options(&l->options, (size_t)ls_group_size(l->group)));
    LS_TRY(ls_group_split(l->group, ls_group_rank(l->group), 0, &l->self));
    ls__group_hold(l->self);
    l->steps = l->options.done;
    if (l->steps >= l->options.start)
        return become_local(l);
    return ls_ddp_create(&l->ddp, l->model, l->group, &l->options.ddp);
}

ls_status ls_local_sgd_create(ls_local_sgd **out, ls_model *model, ls_group *group,
                              const ls_local_sgd_options *options) {
    if (!out || !model || !group || !options)
        return ls__fail(LS_ERR_ARGUMENT, "ls_local_sgd_create: an argument is NULL");
    *out = NULL;
    size_t ranks = (size_t)ls_group_size(group), rank = (size_t)ls_group_rank(group);
    size_t shards = options->ddp.shards ? options->ddp.shards : ranks;
    ls_local_sgd *l = calloc(1, sizeof *l);
    if (!l)
        return ls__fail(LS_ERR_MEMORY, "ls_local_sgd_create: no memory");
    l->model = model;
    l->group = group;
    ls__group_hold(group);
    l->options = *options;
    l->first = rank * shards / ranks;
    l->count = (rank + 1) * shards / ranks - l->first;
    ls_status status = create(l);
    if (status != LS_OK) {
        ls_local_sgd_destroy(l);
        return status;
    }
    *out = l;
    return LS_OK;
}

void ls_local_sgd_destroy(ls_local_sgd *l) {
    if (!l)
        return;
    ls_ddp_destroy(l->ddp);
    ls_group_destroy(l->self);
    ls__group_release(l->self);
    ls__group_release(l->group);
    free(l);
}

ls_ddp *ls_local_sgd_ddp(const ls_local_sgd *l) {
    return l ? l->ddp : NULL;
}

bool ls_local_sgd_is_local(const ls_local_sgd *l) {
    return l && l->local;
}

void ls_local_sgd_shards(const ls_local_sgd *l, size_t *first, size_t *count) {
    if (first)
        *first = l ? l->first : 0;
    if (count)
        *count = l ? l->count : 0;
}

ls_status ls_local_sgd_step(ls_local_sgd *l, double weight, double loss, ls_local_sgd_sync *sync) {
    if (!l)
        return ls__fail(LS_ERR_ARGUMENT, "ls_local_sgd_step: local is NULL");
    if (sync)
        *sync = (ls_local_sgd_sync){0};
    if (!ls__weight_is_legal(weight))
        return ls__fail(
            LS_ERR_ARGUMENT,
            "ls_local_sgd_step: weight is %g, want what this rank's step was made of: 0 "
            "or %g to %g",
            weight, ls__weight_min, ls__weight_max);
    l->steps++;
    if (!l->local)
        return l->steps >= l->options.start ? become_local(l) : LS_OK;
    l->since++;
    l->weight += weight;
    if (weight > 0)
        l->losses += weight * loss;
    return l->since >= l->options.every ? ls_local_sgd_average(l, sync) : LS_OK;
}
