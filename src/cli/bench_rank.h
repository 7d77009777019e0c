/* One rank that trains on made-up data, for `lockstep bench train`, `scaling` and `checkpoint`. The path is
 * the one that training takes: ddp, reducer, optimizer; only the data is made up, so that no loader takes part. */
#ifndef LS_CLI_BENCH_RANK_H
#define LS_CLI_BENCH_RANK_H

#include "cli/bench.h"
#include "cli/profile.h"

/* Batches taken in turn. */
enum { LS__BENCH_BATCHES = 2 };

/* Zero-initialise, set the first two fields, then join and create. */
typedef struct ls__bench_rank {
    const ls__bench_settings *settings;
    const char *command; /* "lockstep bench train": whose name messages carry */
    ls_job *job;
    ls_group *world;
    int rank, ranks;
    ls_device *device;
    ls_dtype dtype; /* that is computed in */

    ls_model *model;
    ls_ddp *ddp;
    ls_optimizer *optimizer;
    ls_step *step;
    size_t batch;                       /* samples of this rank */
    size_t inputs, targets;             /* elements of one sample */
    void *input[LS__BENCH_BATCHES];     /* f32 (batch, inputs), or I32 tokens */
    int32_t *target[LS__BENCH_BATCHES]; /* (batch, targets) */
    uint64_t *samples;                  /* global numbers of this rank's samples */
    ls__profile_report *profile;        /* with --profile */
    double optimizer_bytes;             /* ls__profile_optimizer_bytes */
    double wait_ms;                     /* of ls_ddp_wait in the last step */
} ls__bench_rank;

/* Enters the job that the environment describes; device and dtype. */
ls_status ls__bench_rank_join(ls__bench_rank *rank);
/* Collective. Model, ddp over `group`, optimizer, `batch` made-up samples of this rank. */
ls_status ls__bench_rank_create(ls__bench_rank *rank, const char *spec, ls_group *group,
                                size_t batch);
/* Collective over the old group and the new one: the same model goes on under a ddp over `group`. */
ls_status ls__bench_rank_regroup(ls__bench_rank *rank, ls_group *group);
/* Forward, backward, reduction, update; `number` chooses the batch. */
ls_status ls__bench_rank_step(ls__bench_rank *rank, size_t number);
/* What create has made; another model can follow. */
void ls__bench_rank_drop(ls__bench_rank *rank);
/* Drops and leaves the job. */
void ls__bench_rank_close(ls__bench_rank *rank);

#endif
