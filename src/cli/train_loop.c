/* The training loop of one rank. */
#include "base/clock.h"
#include "base/error.h"
#include "cli/train.h"
#include "tensor/tensor.h"
#include <string.h>

void ls__train_wrap(ls__train *train, void *input, int32_t *target, size_t count, ls_tensor **x,
                    ls_tensor **y) {
    size_t shape[4] = {count};
    memcpy(shape + 1, train->sample_shape, sizeof train->sample_shape);
    *x = ls_tensor_wrap(train->step, input, train->tokens ? LS_I32 : LS_F32, shape,
                        1 + train->sample_dims);
    *y = ls_tensor_wrap(train->step, target, LS_I32, shape, train->tokens ? 2 : 1);
}

/* `nth`: of the steps that this process makes, from 1; for the trace. */
static ls_status run_shard(ls__train *train, const ls_shard *shard, uint64_t nth) {
    if (shard->count == 0)
        return ls_ddp_skip(train->ddp);
    uint64_t begin = ls__now_ns();
    const ls_step_mode mode = {.training = true,
                               .recompute = train->settings->recompute,
                               .compute = train->dtype,
                               .samples = shard->samples,
                               .sample_count = shard->count};
    LS_TRY(ls_step_begin(train->step, &mode));
    ls_tensor *x, *y;
    ls__train_wrap(train, shard->input, shard->target, shard->count, &x, &y);
    ls_tensor *loss = ls_model_loss(train->step, train->model, x, y, NULL);
    uint64_t middle = ls__now_ns();
    LS_TRY(ls_ddp_backward(train->ddp, train->step, loss));
    ls__trace_span(train->trace, nth, "forward", begin, middle);
    ls__trace_span(train->trace, nth, "backward", middle, ls__now_ns());
    return LS_OK;
}

/* Where every update is left out, going on is of no use. */
enum { SKIPS_IN_A_ROW = 100 };

/* The update, or the common decision to leave it out. */
static ls_status update(ls__train *train, ls__step_record *record) {
    uint64_t skipped = ls_optimizer_skipped(train->optimizer);
    ls_status status = ls_optimizer_step(train->optimizer, record->rate, &record->norm);
    if (status != LS_OK)
        return ls__fail_context(status, "step %llu", (unsigned long long)record->step);
    record->skipped = ls_optimizer_skipped(train->optimizer) > skipped;
    record->loss_scale = train->scales_loss ? train->scaler.scale : 0;
    ls_loss_scaler_update(&train->scaler, record->skipped);
    if (!record->skipped) {
        train->skips_in_a_row = 0;
        return LS_OK;
    }
    train->result.skipped_steps++;
    if (train->skips_in_a_row++ == 0 && train->rank == 0)
        fprintf(stderr, "lockstep train: step %llu is left out: %s\n",
                (unsigned long long)record->step, ls_error_text());
    if (train->skips_in_a_row == SKIPS_IN_A_ROW)
        return ls__fail_context(LS_ERR_RANGE, "step %llu: %d updates in a row were left out",
                                (unsigned long long)record->step, SKIPS_IN_A_ROW);
    return LS_OK;
}

static ls_status run_shards(ls__train *train, const ls_batch *batch, uint64_t nth) {
    size_t first, count;
    if (train->dp)
        return ls__train_dp_shards(train, batch);
    ls_ddp_shards(train->ddp, &first, &count);
    for (size_t s = 0; s < count; s++)
        LS_TRY(run_shard(train, &batch->shards[s], nth));
    return LS_OK;
}

/* One update; fills `record`. */
static ls_status run_step(ls__train *train, const ls_batch *batch, ls__step_record *record) {
    uint64_t nth = record->step - train->first_step;
    record->rate = ls_schedule_rate(&train->schedule, batch->step);
    if (train->scales_loss)
        LS_TRY(ls_ddp_set_loss_scale(train->ddp, train->scaler.scale));
    LS_TRY(ls_ddp_begin(train->ddp, batch->weight));
    ls_status status = run_shards(train, batch, nth);
    if (status != LS_OK)
        return ls__cli_lose_step(train->ddp, status);
    if (ls__stop_asked())
        LS_TRY(ls_ddp_request_stop(train->ddp));
    ls_reducer_report report;
    LS_TRY(ls_ddp_wait(train->ddp, &report));
    ls__profile_add(train->step->profile, "wait for ranks", LS__PASS_UPDATE, 0, 0);
    uint64_t reduced = ls__now_ns();
    LS_TRY(update(train, record));
    uint64_t end = ls__now_ns();
    ls__profile_add(train->step->profile, "optimizer", LS__PASS_UPDATE, 0, train->optimizer_bytes);
    ls__trace_span(train->trace, nth, "optimizer", reduced, end);
    ls__trace_report(train->trace, nth, &report);
    record->loss = ls_ddp_loss(train->ddp);
    record->samples = report.weight;
    record->wait_milliseconds = (double)report.wait_ns / 1e6;
    return ls__train_local_step(train, batch->weight, record);
}

static bool evaluates_after(const ls__train *train, const ls_batch *batch, uint64_t step) {
    if (step == train->total_steps)
        return true;
    if (train->settings->eval_every)
        return step % (uint64_t)train->settings->eval_every == 0;
    return batch->last_of_epoch;
}

static ls_status evaluate(ls__train *train, double *loss, double *accuracy) {
    LS_TRY(ls_ddp_verify(train->ddp));
    LS_TRY(ls_job_set_phase(train->job, "evaluation", LS__TRAIN_PATIENCE_S));
    LS_TRY(ls__train_evaluate(train, loss, accuracy));
    return ls_job_set_phase(train->job, NULL, 0);
}

ls_status ls__train_loop(ls__train *train) {
    ls__train_result *result = &train->result;
    double samples = 0;
    /* A run that was killed between its last checkpoint and its end has nothing left to train. */
    if (train->first_step == train->total_steps)
        LS_TRY(evaluate(train, &result->val_loss, &result->val_accuracy));
    for (uint64_t step = train->first_step + 1; step <= train->total_steps && !result->stopped;
         step++) {
        uint64_t begin = ls__now_ns();
        const ls_batch *batch;
        ls__profile_mark(train->step->profile);
        LS_TRY(ls_loader_next(train->loader, &batch));
        ls__profile_add(train->step->profile, "wait for data", LS__PASS_UPDATE, 0, 0);
        ls__step_record record = {.step = step, .epoch = batch->epoch + 1};
        LS_TRY(run_step(train, batch, &record));
        record.milliseconds = (double)(ls__now_ns() - begin) / 1e6;
        if (train->profile)
            ls__profile_report_step(train->profile, ls__now_ns() - begin,
                                    step == train->first_step + 1 && step < train->total_steps);
        result->train_seconds += record.milliseconds / 1e3;
        if (evaluates_after(train, batch, step)) {
            LS_TRY(ls__train_local_settle(train, &record));
            LS_TRY(evaluate(train, &record.val_loss, &record.val_accuracy));
            record.evaluated = true;
            result->val_loss = record.val_loss;
            result->val_accuracy = record.val_accuracy;
        }
        samples += record.samples;
        result->steps = step;
        result->epochs = record.epoch;
        result->train_loss = record.loss;
        if (train->output)
            LS_TRY(ls__output_step(train->output, train, &record));
        if (train->progress)
            ls__progress_step(train->progress, train, &record);
        if (train->checkpoints)
            LS_TRY(ls__checkpoints_step(train, &record, batch, &result->stopped));
    }
    if (result->train_seconds > 0)
        result->samples_per_s = samples / result->train_seconds;
    return LS_OK;
}
