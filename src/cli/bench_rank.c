/* One rank that trains on made-up data: setting it up, one step, taking it down. */
#include "cli/bench_rank.h"

#include "base/error.h"
#include "cli/bench_common.h"
#include "tensor/tensor.h"
#include <stdlib.h>

ls_status ls__bench_rank_join(ls__bench_rank *b) {
    const ls__bench_settings *s = b->settings;
    LS_TRY(ls__bench_join(&b->job, b->command, s->ranks_given, s->ranks));
    b->world = ls_job_world(b->job);
    b->rank = ls_group_rank(b->world);
    b->ranks = ls_group_size(b->world);
    LS_TRY(ls_device_cpu(&b->device, (int)s->threads));
    b->dtype = ls__cli_dtype_choose(b->command, b->device, s->dtype, b->rank == 0);
    return LS_OK;
}

ls_status ls__bench_rank_regroup(ls__bench_rank *b, ls_group *group) {
    /* Replicas that trained apart bring moments of their own: the watch would rightly call that drift. */
    const ls_ddp_options options = {.reducer = {.progress = (ls_progress)b->settings->progress},
                                    .no_watch = true};
    ls_ddp_destroy(b->ddp);
    b->ddp = NULL;
    return ls_ddp_create(&b->ddp, b->model, group, &options);
}

static uint32_t random_below(size_t limit, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    ls_random_u32x4(2, stream, index, words);
    return (uint32_t)(((uint64_t)words[0] * limit) >> 32);
}

/* Images of uniform noise, labels and tokens uniform too; equal on every run. */
static ls_status create_data(ls__bench_rank *b) {
    size_t context = ls_model_context(b->model), classes = ls_model_classes(b->model);
    b->inputs = context ? context : ls_model_input_elements(b->model);
    b->targets = context ? context : 1;
    uint64_t rank = (uint64_t)b->rank;
    size_t inputs = b->batch * b->inputs, targets = b->batch * b->targets;
    b->samples = calloc(b->batch, sizeof *b->samples);
    for (size_t n = 0; n < LS__BENCH_BATCHES; n++) {
        b->input[n] = calloc(inputs, sizeof(float));
        b->target[n] = calloc(targets, sizeof(int32_t));
        if (!b->samples || !b->input[n] || !b->target[n])
            return ls__fail(LS_ERR_MEMORY, "no memory for a batch of %zu samples", b->batch);
        uint64_t stream = rank * LS__BENCH_BATCHES + n;
        for (size_t i = 0; i < targets; i++)
            b->target[n][i] = (int32_t)random_below(classes, stream, i);
        for (size_t i = 0; i < inputs; i++) {
            if (context)
                ((int32_t *)b->input[n])[i] = (int32_t)random_below(classes, stream, targets + i);
            else
                ((float *)b->input[n])[i] =
                    (float)random_below(1 << 16, stream, targets + i) / 32768 - 1;
        }
    }
    for (size_t i = 0; i < b->batch; i++)
        b->samples[i] = rank * b->batch + i;
    return LS_OK;
}

ls_status ls__bench_rank_create(ls__bench_rank *b, const char *spec, ls_group *group,
                                size_t batch) {
    const ls__bench_settings *s = b->settings;
    const ls_model_options model = {.device = b->device, .seed = 1};
    b->batch = batch;
    LS_TRY(ls_model_create(&b->model, spec, &model));
    LS_TRY(ls__bench_rank_regroup(b, group));
    bool tokens = ls_model_context(b->model) > 0;
    const ls_optimizer_options optimizer = {
        .kind = tokens ? LS_ADAMW : LS_SGD,
        .momentum = tokens ? 0 : 0.9,
        .weight_decay = tokens ? 0.1 : 0,
    };
    LS_TRY(ls_optimizer_create(&b->optimizer, b->model, &optimizer));
    b->optimizer_bytes = ls__profile_optimizer_bytes(&optimizer, ls_model_element_count(b->model));
    const ls_step_options step = {.device = b->device, .seed = 1};
    LS_TRY(ls_step_create(&b->step, &step));
    if (s->profile && !(b->profile = calloc(1, sizeof *b->profile)))
        return ls__fail(LS_ERR_MEMORY, "--profile: out of memory");
    b->step->profile = b->profile ? &b->profile->profile : NULL;
    return create_data(b);
}

/* Forward and backward of this rank's batch. */
static ls_status compute(ls__bench_rank *b, size_t number) {
    bool tokens = ls_model_context(b->model) > 0;
    const ls_step_mode mode = {.training = true,
                               .recompute = b->settings->recompute,
                               .compute = b->dtype,
                               .samples = b->samples,
                               .sample_count = b->batch};
    const size_t shape[2] = {b->batch, b->inputs}, rows[2] = {b->batch, b->targets};
    LS_TRY(ls_step_begin(b->step, &mode));
    ls_tensor *x = ls_tensor_wrap(b->step, b->input[number % LS__BENCH_BATCHES],
                                  tokens ? LS_I32 : LS_F32, shape, 2);
    ls_tensor *y = ls_tensor_wrap(b->step, b->target[number % LS__BENCH_BATCHES], LS_I32, rows,
                                  tokens ? 2 : 1);
    return ls_ddp_backward(b->ddp, b->step, ls_model_loss(b->step, b->model, x, y, NULL));
}

ls_status ls__bench_rank_step(ls__bench_rank *b, size_t number) {
    ls_reducer_report report;
    LS_TRY(ls_ddp_begin(b->ddp, (double)(b->batch * b->targets)));
    ls_status status = compute(b, number);
    if (status != LS_OK)
        return ls__cli_lose_step(b->ddp, status);
    LS_TRY(ls_ddp_wait(b->ddp, &report));
    b->wait_ms = (double)report.wait_ns / 1e6;
    ls__profile_add(b->step->profile, "wait for ranks", LS__PASS_UPDATE, 0, 0);
    LS_TRY(ls_optimizer_step(b->optimizer, ls_model_context(b->model) > 0 ? 1e-4 : 1e-3, NULL));
    ls__profile_add(b->step->profile, "optimizer", LS__PASS_UPDATE, 0, b->optimizer_bytes);
    return LS_OK;
}

void ls__bench_rank_drop(ls__bench_rank *b) {
    for (size_t n = 0; n < LS__BENCH_BATCHES; n++) {
        free(b->input[n]);
        free(b->target[n]);
        b->input[n] = NULL;
        b->target[n] = NULL;
    }
    free(b->samples);
    free(b->profile);
    ls_step_destroy(b->step);
    ls_optimizer_destroy(b->optimizer);
    ls_ddp_destroy(b->ddp);
    ls_model_destroy(b->model);
    b->samples = NULL;
    b->profile = NULL;
    b->step = NULL;
    b->optimizer = NULL;
    b->ddp = NULL;
    b->model = NULL;
}

void ls__bench_rank_close(ls__bench_rank *b) {
    ls__bench_rank_drop(b);
    ls_device_destroy(b->device);
    ls_job_finish(b->job);
}
