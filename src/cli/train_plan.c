/* The memory plan of `lockstep train`: made before anything large is taken, held against what the machine has,
 * shown, and compared with what the rank holds in the end. */
#include "base/error.h"
#include "base/usage.h"
#include "cli/train.h"
#include "comm/memory.h"
#include <string.h>

/* Batches that the loader's ring holds: two ahead and the one in use (data/loader.c). */
enum { LOADER_BATCHES = 3 };

/* What a process comes to hold beside that: the kernels that oneDNN compiles, stacks of threads, what the allocator
 * keeps. Measured: 5 to 9 MiB, whatever the model. */
enum { LATER_BYTES = 6 << 20 };

static double mib(size_t bytes) {
    return (double)bytes / (1 << 20);
}

/* What the plan consists of, as text and JSON name it. */
typedef struct plan_part {
    const char *name;
    size_t bytes;
} plan_part;
enum { PARTS = 8 };

static void list_parts(const ls__train_plan *plan, plan_part parts[PARTS]) {
    const ls__memory_plan *m = &plan->memory;
    const plan_part list[PARTS] = {
        {"parameters", m->parameters},    {"gradients", m->gradients},
        {"optimizer", m->optimizer},      {"activations", m->activations},
        {"compression", m->compression},  {"communication", m->communication},
        {"checkpoint", plan->checkpoint}, {"process", plan->process}};
    memcpy(parts, list, sizeof list);
}

static size_t sum(const ls__train_plan *plan) {
    plan_part parts[PARTS];
    size_t bytes = 0;
    list_parts(plan, parts);
    for (size_t i = 0; i < PARTS; i++)
        bytes += parts[i].bytes;
    return bytes;
}

/* "parameters 76.4, gradients 76.4, ...", in MiB */
static const char *describe(const ls__train_plan *plan, char *text, size_t size) {
    plan_part parts[PARTS];
    size_t used = 0;
    list_parts(plan, parts);
    for (size_t i = 0; i < PARTS && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s %.1f", i ? ", " : "",
                                 parts[i].name, mib(parts[i].bytes));
    return text;
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
                                .compress = s->compress,
                                .ranks = ranks,
                                .shards = shards,
                                .batch = (size_t)s->batch_size,
                                .tokens = tokens};
    request.sample_dims = ls_dataset_sample_shape(dataset, request.sample_shape);
    request.evaluation = ls__train_evaluation_unit(dataset);
    LS_TRY(ls__plan_memory(&plan->memory, &request));
    /* the copy that is written beside training: this rank's share of the state */
    plan->checkpoint = ls__checkpoints_wanted(s) && !s->sync_checkpoints
                           ? (plan->memory.parameters + plan->memory.optimizer) / ranks +
                                 plan->memory.compression_saved
                           : 0;
    size_t sample = 1;
    for (size_t d = 0; d < request.sample_dims; d++)
        sample *= request.sample_shape[d];
    if (s->strategy == 1) /* each other replica: parameters, gradients, activations */
        plan->memory.communication +=
            (shards - 1) * (2 * plan->memory.parameters + plan->memory.activations);
    plan->process =
        (size_t)ls__usage_held() + LATER_BYTES +
        LOADER_BATCHES * (request.batch / ranks + 1) * sample * sizeof(float) * (tokens ? 2 : 1);
    return LS_OK;
}

ls_status ls__train_plan_check(const ls__train_plan *plan, const ls__train_settings *s,
                               size_t local_ranks) {
    uint64_t available = ls__memory_available();
    size_t need = sum(plan);
    if (s->oversubscribe || need <= available / local_ranks)
        return LS_OK;
    char parts[400];
    return ls__fail(
        LS_ERR_MEMORY,
        "not enough memory: %zu rank%s of %.0f MiB each (%s), %.0f MiB are available on this "
        "machine; take %s, or start it nevertheless with --oversubscribe-memory",
        local_ranks, local_ranks == 1 ? "" : "s", mib(need), describe(plan, parts, sizeof parts),
        mib((size_t)available),
        plan->memory.activations > need / 2 ? "more --shards or a smaller --batch-size"
                                            : "fewer --ranks here or a smaller model");
}

json_t *ls__train_plan_json(const ls__train_plan *plan) {
    plan_part parts[PARTS];
    json_t *object = json_object();
    list_parts(plan, parts);
    for (size_t i = 0; i < PARTS; i++)
        json_object_set_new(object, parts[i].name, json_real(mib(parts[i].bytes)));
    json_object_set_new(object, "total", json_real(mib(sum(plan))));
    return object;
}

void ls__train_plan_print(const ls__train_plan *plan) {
    char parts[400];
    printf("memory plan: %.1f MiB a rank: %s\n", mib(sum(plan)),
           describe(plan, parts, sizeof parts));
}

void ls__train_plan_compare(const ls__train_plan *plan) {
    double planned = mib(sum(plan)), peak = mib(plan->peak), more = peak - planned;
    printf("memory peak: measured %.1f MiB a rank, planned %.1f MiB, difference %+.1f MiB "
           "(%+.1f %%)\n",
           peak, planned, more, 100 * more / planned);
}
