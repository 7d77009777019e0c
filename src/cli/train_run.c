/* Setting up one rank, running it, taking it down. */
#include "base/error.h"
#include "base/file.h"
#include "base/usage.h"
#include "cli/train.h"
#include "nn/models.h"
#include "reducer/agree.h"
#include "tensor/tensor.h"
#include <stdlib.h>

/* Elements of one sample, and outputs, of the model a spec describes. */
static void model_ends(const ls__spec *spec, size_t *inputs, size_t *outputs) {
    switch (spec->kind) {
    case LS__MLP:
        *inputs = spec->widths[0];
        *outputs = spec->widths[spec->width_count - 1];
        return;
    case LS__CNN:
        *inputs = LS__CNN_SIDE * LS__CNN_SIDE;
        *outputs = LS__CNN_CLASSES;
        return;
    case LS__RESNET:
        *inputs = spec->channels * spec->side * spec->side;
        *outputs = spec->classes;
        return;
    case LS__GPT:
        *inputs = spec->context;
        *outputs = spec->vocab;
        return;
    }
}

/* Data and model have to fit. The vocabulary of a text decides a gpt's unless its spec does. */
static ls_status check_fit(const ls_dataset *dataset, const char *data, const ls__spec *spec) {
    bool tokens = ls_dataset_get_kind(dataset) == LS_TOKENS;
    if (tokens != (spec->kind == LS__GPT))
        return ls__fail(LS_ERR_ARGUMENT, "--model %s does not fit --data %s: %s", spec->text, data,
                        tokens ? "a text wants a gpt" : "images want mlp, cnn or resnet18");
    size_t wanted = 0, outputs = 0, classes = ls_dataset_classes(dataset);
    model_ends(spec, &wanted, &outputs);
    if (outputs < classes)
        return ls__fail(LS_ERR_ARGUMENT, "--model %s has %zu outputs, --data %s has %zu classes",
                        spec->text, outputs, data, classes);
    size_t shape[3], elements = 1;
    size_t dims = ls_dataset_sample_shape(dataset, shape);
    for (size_t d = 0; d < dims; d++)
        elements *= shape[d];
    if (!tokens && wanted != elements)
        return ls__fail(LS_ERR_ARGUMENT, "--model %s wants %zu values a sample, --data %s has %zu",
                        spec->text, wanted, data, elements);
    return LS_OK;
}

/* The model spec tells how long a text sample is, the text how large the vocabulary: read the spec,
 * open the data, read the spec again. */
static ls_status open_data(const ls__train_settings *s, ls_dataset **dataset) {
    ls__spec spec;
    LS_TRY(ls__spec_parse(&spec, s->model, 1));
    if (s->recompute && spec.kind != LS__GPT)
        return ls__fail(LS_ERR_ARGUMENT,
                        "--recompute: %s has no blocks to compute again, only gpt has", spec.text);
    size_t context = spec.kind == LS__GPT ? spec.context : 1;
    LS_TRY(ls_dataset_open(dataset, s->data, context));
    ls_status status = ls__spec_parse(&spec, s->model, ls_dataset_classes(*dataset));
    if (status == LS_OK)
        status = check_fit(*dataset, s->data, &spec);
    if (status == LS_OK && (uint64_t)s->batch_size > ls_dataset_count(*dataset, LS_TRAIN))
        status = ls__fail(LS_ERR_ARGUMENT, "--batch-size %lld is more than the %zu samples of %s",
                          (long long)s->batch_size, ls_dataset_count(*dataset, LS_TRAIN), s->data);
    if (status != LS_OK) {
        ls_dataset_close(*dataset);
        *dataset = NULL;
    }
    return status;
}

/* Before ranks are started on this machine: whether they fit. */
static ls_status check_memory(const ls__train_settings *s, const ls_dataset *dataset) {
    size_t ranks = (size_t)s->ranks, shards = s->shards ? (size_t)s->shards : ranks;
    ls__train_plan plan;
    ls_device *device;
    LS_TRY(ls_device_cpu(&device, (int)s->threads));
    ls_dtype dtype = ls__cli_dtype_choose(ls__train_name, device, s->dtype, false);
    ls_status status = ls__train_plan_make(&plan, s, dataset, device, dtype, ranks, shards);
    if (status == LS_OK)
        status = ls__train_plan_check(&plan, s, ranks);
    ls_device_destroy(device);
    return status;
}

ls_status ls__train_check(const ls__train_settings *s) {
    ls_dataset *dataset;
    LS_TRY(open_data(s, &dataset));
    ls_status status = check_memory(s, dataset);
    ls_dataset_close(dataset);
    LS_TRY(status);
    if (s->out)
        LS_TRY(ls__output_check(s));
    return ls__checkpoints_check(s);
}

/* Without --shards a run that goes on keeps the shards it had, where every rank still gets one. */
static void choose_shards(ls__train *t) {
    size_t saved = ls__checkpoints_shards(t);
    t->shards = saved >= (size_t)t->ranks ? saved : (size_t)t->ranks;
    if (t->settings->shards)
        t->shards = (size_t)t->settings->shards;
}

/* Of rank 0, before anything is read or waited for; the others wait while another run that has --out ends. */
static ls_status check_output(ls__train *t) {
    if (t->rank != 0 || !t->settings->out)
        return LS_OK;
    LS_TRY(ls_job_set_phase(t->job, "waiting for --out", LS__TRAIN_PATIENCE_S));
    LS_TRY(ls__output_check(t->settings));
    return ls_job_set_phase(t->job, NULL, 0);
}

static ls_status open_output(ls__train *t) {
    if (t->rank != 0 || !t->settings->out)
        return LS_OK;
    LS_TRY(ls_job_set_phase(t->job, "waiting for --out", LS__TRAIN_PATIENCE_S));
    LS_TRY(ls__output_open(&t->output, t->settings, t->first_step));
    return ls_job_set_phase(t->job, NULL, 0);
}

static ls_status join_job(ls__train *t) {
    const ls__train_settings *s = t->settings;
    const ls_job_options options = {.log = ls__cli_log, .log_context = (void *)ls__train_name};
    LS_TRY(ls_job_init(&t->job, &options));
    t->world = ls_job_world(t->job);
    t->rank = ls_group_rank(t->world);
    t->ranks = ls_group_size(t->world);
    LS_TRY(ls_device_cpu(&t->device, (int)s->threads));
    t->dtype = ls__cli_dtype_choose(ls__train_name, t->device, s->dtype, t->rank == 0);
    LS_TRY(ls__train_agree(t));
    if (s->ranks && s->ranks != t->ranks)
        return ls__fail(LS_ERR_ARGUMENT,
                        "--ranks %lld inside of a job of WORLD_SIZE %d; leave it out",
                        (long long)s->ranks, t->ranks);
    LS_TRY(check_output(t));
    LS_TRY(ls__checkpoints_find(t));
    choose_shards(t);
    if (t->shards < (size_t)t->ranks)
        return ls__fail(LS_ERR_ARGUMENT, "--shards %zu is smaller than the job's %d ranks",
                        t->shards, t->ranks);
    if (s->batch_size < t->ranks)
        return ls__fail(LS_ERR_ARGUMENT, "--batch-size %lld is smaller than the job's %d ranks",
                        (long long)s->batch_size, t->ranks);
    return LS_OK;
}

/* Of the library's options 0 is the default; who writes 0 means it. */
static double beta_of(double given) {
    return given == 0 ? LS_OPTIMIZER_ZERO : given;
}

ls_optimizer_options ls__train_optimizer(const ls__train_settings *s) {
    return (ls_optimizer_options){.kind = (ls_optimizer_kind)s->optimizer,
                                  .momentum = s->momentum,
                                  .nesterov = s->nesterov,
                                  .beta1 = beta_of(s->beta1),
                                  .beta2 = beta_of(s->beta2),
                                  .epsilon = s->epsilon,
                                  .weight_decay = s->weight_decay,
                                  .decay_all = s->decay_all,
                                  .clip = s->clip,
                                  .skip_nonfinite = s->nonfinite == 1};
}

static ls_status create_ddp(ls__train *t) {
    const ls__train_settings *s = t->settings;
    ls_reducer_hook *hook;
    LS_TRY(ls_hook_create(&hook, s->compress));
    const ls_ddp_options ddp = {.shards = t->shards,
                                .watch_every = (size_t)s->watch,
                                .no_watch = s->watch == 0,
                                .reducer = {.progress = (ls_progress)s->progress, .hook = hook}};
    if (s->local_sgd) /* without hook */
        return ls__train_local_open(t, &ddp);
    ls_status status = ls_ddp_create(&t->ddp, t->model, t->world, &ddp);
    if (status != LS_OK)
        ls_hook_destroy(hook);
    return status;
}

/* NULL without --out; the caller frees it. */
static ls_status profile_path(const ls__train_settings *s, char **path) {
    *path = NULL;
    if (s->out && asprintf(path, "%s/profile.json", s->out) < 0)
        return ls__fail(LS_ERR_MEMORY, "--profile: out of memory");
    return LS_OK;
}

static ls_status start_profile(ls__train *t, const ls_optimizer_options *optimizer) {
    char *path;
    LS_TRY(profile_path(t->settings, &path));
    ls_status status = path && t->rank == 0 ? ls__file_check_in_place(path) : LS_OK;
    free(path);
    LS_TRY(status);
    t->profile = calloc(1, sizeof *t->profile);
    if (!t->profile)
        return ls__fail(LS_ERR_MEMORY, "--profile: out of memory");
    t->optimizer_bytes = ls__profile_optimizer_bytes(optimizer, ls_model_element_count(t->model));
    t->step->profile = &t->profile->profile;
    return LS_OK;
}

static ls_status create_model(ls__train *t) {
    const ls__train_settings *s = t->settings;
    const ls_model_options model = {.device = t->device,
                                    .seed = (uint64_t)s->seed,
                                    .default_vocab = ls_dataset_classes(t->dataset)};
    LS_TRY(ls_model_create(&t->model, s->model, &model));
    LS_TRY(create_ddp(t));
    const char *note = ls_ddp_bits_note(t->ddp);
    if (note && t->rank == 0)
        fprintf(stderr, "lockstep train: %s\n", note);
    if (t->settings->strategy == 1)
        LS_TRY(ls_dp_create(&t->dp, t->ddp, t->model, t->shards));
    ls__train_loss_scale(s->loss_scale, &t->scales_loss, &t->scaler);
    ls_optimizer_options optimizer = ls__train_optimizer(s);
    optimizer.skip_nonfinite |= t->scales_loss && !t->scaler.fixed;
    LS_TRY(ls_optimizer_create(&t->optimizer, t->model, &optimizer));
    const ls_step_options step = {.device = t->device, .seed = (uint64_t)s->seed};
    LS_TRY(ls_step_create(&t->step, &step));
    return s->profile ? start_profile(t, &optimizer) : LS_OK;
}
static ls_status start_loader(ls__train *t) {
    const ls__train_settings *s = t->settings;
    t->tokens = ls_dataset_get_kind(t->dataset) == LS_TOKENS;
    t->unit = t->tokens ? "tokens" : "samples";
    t->speed = t->tokens ? "tokens_per_s" : "samples_per_s";
    t->accuracy = t->tokens ? "val_accuracy" : "test_accuracy";
    t->sample_dims = ls_dataset_sample_shape(t->dataset, t->sample_shape);
    ls_loader_options options = {.seed = (uint64_t)s->seed,
                                 .batch_size = (size_t)s->batch_size,
                                 .shards = t->shards,
                                 .first_step = t->first_step};
    if (t->local)
        ls_local_sgd_shards(t->local, &options.first_shard, &options.shard_count);
    else
        ls_ddp_shards(t->ddp, &options.first_shard, &options.shard_count);
    LS_TRY(ls_loader_create(&t->loader, t->dataset, &options));
    t->batches_per_epoch = ls_loader_batches_per_epoch(t->loader);
    if (s->steps)
        t->total_steps = (uint64_t)s->steps;
    else if (__builtin_mul_overflow((uint64_t)s->epochs, t->batches_per_epoch, &t->total_steps) ||
             t->total_steps > INT64_MAX / 2)
        return ls__fail(LS_ERR_ARGUMENT, "--epochs %lld of %llu batches are too many steps",
                        (long long)s->epochs, (unsigned long long)t->batches_per_epoch);
    t->schedule = (ls_schedule){.kind = (ls_schedule_kind)s->schedule,
                                .peak = s->rate,
                                .floor = s->min_rate,
                                .warmup = (uint64_t)s->warmup,
                                .steps = t->total_steps};
    return LS_OK;
}

/* Of rank 0: the table, and profile.json in --out. */
static ls_status finish_profile(const ls__train *t) {
    char *path;
    LS_TRY(profile_path(t->settings, &path));
    ls_status status = ls__profile_report_finish(t->profile, t->device, t->dtype, path);
    free(path);
    return status;
}

/* One rank of each machine looks whether they all fit, before any of them takes much. */
static ls_status plan_memory(ls__train *t) {
    ls_status status = ls__train_plan_make(&t->plan, t->settings, t->dataset, t->device, t->dtype,
                                           (size_t)t->ranks, t->shards);
    if (status == LS_OK && ls_job_local_rank(t->job) == 0)
        status =
            ls__train_plan_check(&t->plan, t->settings, (size_t)ls_job_local_world_size(t->job));
    return ls__agree(t->world, status);
}

static ls_status run(ls__train *t) {
    const ls__train_settings *s = t->settings;
    if (ls__checkpoints_wanted(s))
        LS_TRY(ls__stop_watch());
    LS_TRY(join_job(t));
    LS_TRY(ls_job_set_phase(t->job, "reading data", LS__TRAIN_PATIENCE_S));
    LS_TRY(open_data(s, &t->dataset));
    LS_TRY(ls_job_set_phase(t->job, NULL, 0));
    LS_TRY(ls__train_agree_data(t));
    LS_TRY(plan_memory(t));
    LS_TRY(create_model(t));
    LS_TRY(start_loader(t));
    LS_TRY(ls__checkpoints_open(t));
    if (s->trace)
        LS_TRY(ls__trace_open(&t->trace, (uint64_t)s->trace_steps, t->rank == 0 ? s->trace : NULL));
    LS_TRY(open_output(t));
    if (t->rank == 0)
        LS_TRY(ls__progress_open(&t->progress, t));
    LS_TRY(ls__train_loop(t));
    t->plan.peak = (size_t)ls__usage_peak();
    LS_TRY(ls_job_set_phase(t->job, "saving", t->rank == 0 ? LS__TRAIN_PATIENCE_S : 0));
    ls__kept_error saved = ls__cli_keep(ls__checkpoints_finish(t)); /* told when all else is done */
    if (t->output && !t->result.stopped)
        LS_TRY(ls__output_finish(t->output, t));
    /* A timeline that cannot be written does not cost the model. */
    if (t->trace)
        LS_TRY(ls__trace_write(t->trace, t->world, s->trace));
    if (t->progress && !t->result.stopped)
        ls__progress_finish(t->progress, t);
    if (t->profile && t->rank == 0)
        LS_TRY(finish_profile(t));
    /* No rank ends well before the result is saved. */
    LS_TRY(ls_barrier(t->world));
    return ls__cli_restore(&saved);
}

ls_status ls__train_run(const ls__train_settings *settings) {
    ls__train train = {.settings = settings};
    ls__kept_error kept = ls__cli_keep(run(&train));
    ls__stop_end();
    ls__trace_close(train.trace);
    ls__progress_close(train.progress);
    ls__output_close(train.output);
    ls_loader_destroy(train.loader);
    ls__checkpoints_close(train.checkpoints);
    ls_step_destroy(train.step);
    free(train.profile);
    ls_optimizer_destroy(train.optimizer);
    ls_dp_destroy(train.dp);
    if (train.local)
        ls_local_sgd_destroy(train.local);
    else
        ls_ddp_destroy(train.ddp);
    ls_model_destroy(train.model);
    ls_device_destroy(train.device);
    ls_dataset_close(train.dataset);
    ls_job_finish(train.job);
    return ls__cli_restore(&kept);
}
