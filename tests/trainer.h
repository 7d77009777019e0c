/* A small model with all that trains it, and batches that any rank can make any part of: for tests of
 * data parallelism. Samples and shards are numbered over the global batch. */
#ifndef TESTS_TRAINER_H
#define TESTS_TRAINER_H

#include "nn/model.h"
#include "ranks.h"

#include <lockstep/lockstep.h>

enum { INPUTS = 12, CLASSES = 5, BATCH = 24, WATCH = 3 };
#define SPEC "mlp:12,9,7,5"

/* One process's model with all that trains it. */
typedef struct trainer {
    ls_device *device;
    ls_model *model;
    ls_step *step;
    ls_ddp *ddp;
    ls_optimizer *optimizer;
} trainer;

static inline void open_trainer(trainer *t, ls_job *job, const char *spec, uint64_t seed,
                                size_t shards) {
    CHECK_OK(ls_device_cpu(&t->device, 1));
    const ls_model_options options = {.device = t->device, .seed = seed};
    CHECK_OK(ls_model_create(&t->model, spec, &options));
    const ls_step_options step = {.device = t->device, .seed = 3};
    CHECK_OK(ls_step_create(&t->step, &step));
    const ls_ddp_options ddp = {.shards = shards,
                                .watch_every = WATCH,
                                .reducer.first_bucket_bytes = 256,
                                .reducer.bucket_bytes = 512};
    CHECK_OK(ls_ddp_create(&t->ddp, t->model, ls_job_world(job), &ddp));
    const ls_optimizer_options sgd = {.kind = LS_SGD, .momentum = 0.9};
    CHECK_OK(ls_optimizer_create(&t->optimizer, t->model, &sgd));
}

static inline void close_trainer(trainer *t) {
    ls_optimizer_destroy(t->optimizer);
    ls_ddp_destroy(t->ddp);
    ls_step_destroy(t->step);
    ls_model_destroy(t->model);
    ls_device_destroy(t->device);
}

/* Sample i of step s: a pure function, so any rank can make any of it. */
static inline void make_samples(uint64_t s, size_t first, size_t count, float *x, int32_t *y) {
    for (size_t i = 0; i < count; i++) {
        float four[4];
        for (size_t k = 0; k < INPUTS; k += 4) {
            ls_random_normal4(s, first + i, k, four);
            memcpy(x + i * INPUTS + k, four, sizeof four);
        }
        y[i] = (int32_t)((first + i + s) % CLASSES);
    }
}

/* Forward of one shard in training; returns its loss. */
static inline ls_tensor *forward(trainer *t, uint64_t s, size_t first, size_t count, float *x,
                                 int32_t *y) {
    make_samples(s, first, count, x, y);
    const ls_step_mode mode = {.training = true};
    CHECK_OK(ls_step_begin(t->step, &mode));
    const size_t shape[] = {count, INPUTS};
    ls_tensor *input = ls_tensor_wrap(t->step, x, LS_F32, shape, 2);
    ls_tensor *target = ls_tensor_wrap(t->step, y, LS_I32, shape, 1);
    ls_tensor *loss = ls_cross_entropy(t->step, ls_model_forward(t->step, t->model, input), target);
    CHECK_OK(ls_step_status(t->step));
    return loss;
}

/* Shard k of n of a batch of `batch` samples. */
static inline void shard_range(size_t k, size_t n, size_t batch, size_t *first, size_t *count) {
    *first = k * batch / n;
    *count = (k + 1) * batch / n - *first;
}

static inline void run_step(trainer *t, uint64_t s, size_t shards, size_t batch) {
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    size_t first_shard, local;
    ls_ddp_shards(t->ddp, &first_shard, &local);
    size_t begin = first_shard * batch / shards, end = (first_shard + local) * batch / shards;
    CHECK_OK(ls_ddp_begin(t->ddp, (double)(end - begin)));
    for (size_t k = first_shard; k < first_shard + local; k++) {
        size_t first, count;
        shard_range(k, shards, batch, &first, &count);
        if (count == 0)
            CHECK_OK(ls_ddp_skip(t->ddp));
        else
            CHECK_OK(ls_ddp_backward(t->ddp, t->step, forward(t, s, first, count, x, y)));
    }
    ls_reducer_report report;
    CHECK_OK(ls_ddp_wait(t->ddp, &report));
    CHECK(report.weight == (double)batch);
    CHECK_OK(ls_optimizer_step(t->optimizer, 0.1, NULL));
}

#endif
