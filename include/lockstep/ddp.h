/* Distributed data parallel: every rank holds the whole model, each computes some of the batch's
 * shards, gradients are averaged during backward. Part of liblockstep.
 *
 * A global batch is cut into `shards`; rank r of p computes shards [r*shards/p, (r+1)*shards/p), one
 * forward and backward each. Gradients add up in the order of one balanced binary tree over shards
 * (group.h), so that the bits do not depend on p as long as shards/p is a power of two. */
#ifndef LOCKSTEP_DDP_H
#define LOCKSTEP_DDP_H

#include <lockstep/model.h>
#include <lockstep/reducer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_ddp ls_ddp; /* opaque */

/* Zero-initialise; zero means the default. */
typedef struct ls_ddp_options {
    size_t shards; /* of the global batch, at least the group's size; default: one per rank */
    ls_reducer_options reducer;
    bool skip_broadcast; /* default: rank 0's parameters are sent to all at creation */
} ls_ddp_options;

/* Collective. Compares the parameter lists (LS_ERR_MISMATCH names the first difference on every rank),
 * then copies rank 0's values to all. Gradients move into the reducer's memory. Model and group must
 * outlive the ddp; a model has at most one. */
LS_API ls_status ls_ddp_create(ls_ddp **ddp, ls_model *model, ls_group *group,
                               const ls_ddp_options *options);
/* Collective, as ls_reducer_destroy. The model keeps its weights and takes gradients of its own again. */
LS_API void ls_ddp_destroy(ls_ddp *ddp);

/* The shards of this rank: [*first, *first + *count). count is at least 1. */
LS_API void ls_ddp_shards(const ls_ddp *ddp, size_t *first, size_t *count);

/* Begins a step; `weight`: samples or tokens of this rank in the global batch, over all its shards.
 * 0 is legal; then no backward is needed. */
LS_API ls_status ls_ddp_begin(ls_ddp *ddp, double weight);
/* Backward of the next shard of this rank, in order; `loss` is the sum over the shard. Reduction
 * starts during the last one. */
LS_API ls_status ls_ddp_backward(ls_ddp *ddp, ls_step *step, ls_tensor *loss);
/* Skips the next shard: no samples in it. */
LS_API ls_status ls_ddp_skip(ls_ddp *ddp);
/* Waits until all gradients are averaged. `report` may be NULL. */
LS_API ls_status ls_ddp_wait(ls_ddp *ddp, ls_reducer_report *report);
/* The loss of the last completed step: the sum over all shards of all ranks, divided by the global
 * weight. It rides in the first bucket, so it costs no operation of its own and is equal on all ranks. */
LS_API double ls_ddp_loss(const ls_ddp *ddp);

/* Collective, between steps: compares a hash of every parameter on all ranks. LS_ERR_MISMATCH names
 * the first tensor that differs and the ranks whose copy is not rank 0's. One pass over the weights. */
LS_API ls_status ls_ddp_verify(ls_ddp *ddp);

#ifdef __cplusplus
}
#endif
#endif
