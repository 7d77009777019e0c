/* How much memory a rank of a data-parallel job will need, before it takes any. */
#ifndef LS_PARALLEL_PLAN_H
#define LS_PARALLEL_PLAN_H

#include <lockstep/model.h>
#include <lockstep/optimizer.h>

/* The job, as far as memory depends on it. */
typedef struct ls__plan_request {
    const char *spec;
    size_t default_vocab; /* as in ls_model_options */
    ls_device
        *device; /* that will train: some sizes are its kernels' own. Nothing is computed on it */
    ls_dtype compute;
    bool recompute;
    ls_optimizer_options optimizer;
    const char *compress;        /* ls_hook_create */
    size_t ranks, shards, batch; /* samples of the global batch */
    size_t evaluation;           /* samples of one forward in evaluation; 0: there is none */
    size_t sample_shape[3], sample_dims;
    bool tokens; /* a sample has as many targets as inputs, else one */
} ls__plan_request;

/* Bytes of the rank with the most shards. */
typedef struct ls__memory_plan {
    size_t parameters; /* statistics included */
    size_t
        gradients; /* the buckets, and the sums of complete subtrees where a rank has several shards */
    size_t optimizer;     /* its state */
    size_t activations;   /* what a step or an evaluation holds at once, packed factors included */
    size_t communication; /* beyond the gradients, which are where they are reduced */
    size_t compression;   /* what its hook holds */
    size_t compression_saved; /* of these, in a checkpoint */
} ls__memory_plan;

/* Runs one training step and one evaluation of the job on a device that computes nothing (device/dry.h), and
 * counts what they allocate. Some milliseconds, whatever the model's size. */
ls_status ls__plan_memory(ls__memory_plan *plan, const ls__plan_request *request);

#endif
