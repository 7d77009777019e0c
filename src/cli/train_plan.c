/* The memory plan of `lockstep train`: made before anything large is taken, held against what the machine has,
 * shown, and compared with what the rank holds in the end. */
#include "base/error.h"
#include "base/usage.h"
#include "cli/train.h"
#include "comm/memory.h"
#include <string.h>

/* Batches that the loader's ring holds: two ahead and the one in use (data/loader.c). */
enum { LOADER_BATCHES = 3 };

static double mib(size_t bytes) {
    return (double)bytes / (1 << 20);
}

static size_t sum(const ls__train_plan *plan) {
    const ls__memory_plan *m = &plan->memory;
    return m->parameters + m->gradients + m->optimizer + m->activations + m->communication +
           plan->checkpoint + plan->process;
}

ls_status ls__train_plan_make(ls__train_plan *plan, const ls__train_settings *s,
                              const ls_dataset *dataset, ls_device *device, ls_dtype dtype,
                              size_t ranks, size_t shards) {
    bool tokens = ls_dataset_get_kind(dataset) == LS_TOKENS;
    ls__plan_request request = {.spec = s->model,
                                .default_vocab = ls_dataset_classes(dataset),
                                .device = device,
                                .compute = dtype,
                                .recompute = s->recompute,
                                .optimizer = ls__train_optimizer(s),
                                .ranks = ranks,
                                .shards = shards,
                                .batch = (size_t)s->batch_size,
                                .tokens = tokens};
    request.sample_dims = ls_dataset_sample_shape(dataset, request.sample_shape);
    request.evaluation = ls__train_evaluation_unit(dataset);
    LS_TRY(ls__plan_memory(&plan->memory, &request));
    /* the copy that is written beside training: this rank's share of the state */
    plan->checkpoint = ls__checkpoints_wanted(s) && !s->sync_checkpoints
                           ? (plan->memory.parameters + plan->memory.optimizer) / ranks
                           : 0;
    size_t sample = 1;
    for (size_t d = 0; d < request.sample_dims; d++)
        sample *= request.sample_shape[d];
    if (s->strategy == 1) /* each other replica: parameters, gradients, activations */
        plan->memory.communication +=
            (shards - 1) * (2 * plan->memory.parameters + plan->memory.activations);
    plan->process = (size_t)ls__usage_held() + LOADER_BATCHES * (request.batch / ranks + 1) *
                                                   sample * sizeof(float) * (tokens ? 2 : 1);
    return LS_OK;
}

ls_status ls__train_plan_check(const ls__train_plan *plan, const ls__train_settings *s,
                               size_t local_ranks) {
    uint64_t available = ls__memory_available();
    size_t need = sum(plan);
    if (s->oversubscribe || need <= available / local_ranks)
        return LS_OK;
    const ls__memory_plan *m = &plan->memory;
    return ls__fail(
        LS_ERR_MEMORY,
        "not enough memory: %zu rank%s of %.0f MiB each (parameters %.0f, gradients %.0f, optimizer "
        "%.0f, activations %.0f, communication %.0f, checkpoint %.0f, process %.0f), %.0f MiB are available on this "
        "machine; take %s, or start it nevertheless with --oversubscribe-memory",
        local_ranks, local_ranks == 1 ? "" : "s", mib(need), mib(m->parameters), mib(m->gradients),
        mib(m->optimizer), mib(m->activations), mib(m->communication), mib(plan->checkpoint),
        mib(plan->process), mib((size_t)available),
        m->activations > need / 2 ? "more --shards or a smaller --batch-size"
                                  : "fewer --ranks here or a smaller model");
}

json_t *ls__train_plan_json(const ls__train_plan *plan) {
    const ls__memory_plan *m = &plan->memory;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "parameters", mib(m->parameters),
                     "gradients", mib(m->gradients), "optimizer", mib(m->optimizer), "activations",
                     mib(m->activations), "communication", mib(m->communication), "checkpoint",
                     mib(plan->checkpoint), "process", mib(plan->process), "total", mib(sum(plan)));
}

void ls__train_plan_print(const ls__train_plan *plan) {
    const ls__memory_plan *m = &plan->memory;
    printf(
        "memory plan: %.1f MiB a rank: parameters %.1f, gradients %.1f, optimizer %.1f, activations "
        "%.1f, communication %.1f, checkpoint %.1f, process %.1f\n",
        mib(sum(plan)), mib(m->parameters), mib(m->gradients), mib(m->optimizer),
        mib(m->activations), mib(m->communication), mib(plan->checkpoint), mib(plan->process));
}

void ls__train_plan_compare(const ls__train_plan *plan) {
    double planned = mib(sum(plan)), peak = mib(plan->peak);
    printf("memory peak: %.1f MiB a rank, %+.1f %% of the plan\n", peak,
           100 * (peak - planned) / planned);
}
