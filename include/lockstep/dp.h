/* Data parallelism in one process: a thread for each replica, everything gathered on replica 0. Part of
 * liblockstep. It is the older form, here so that one can measure why ddp.h replaced it (docs/data-parallel.md):
 * in every step the parameters go from replica 0 to all others and the gradients back, none of it while anything
 * is computed, and replica 0 updates alone while the others wait.
 *
 *     ls_ddp_create(&ddp, model, group_of_one, &(ls_ddp_options){.shards = replicas});
 *     ls_dp_create(&dp, ddp, model, replicas);
 *     each step: ls_ddp_begin(ddp, weight); ls_dp_backward(dp, step, &mode, shards, NULL); ls_ddp_wait(ddp, NULL);
 *
 * The model given is replica 0, and the only one that is ever updated. Its gradients are added up by the ddp in
 * the order of its tree, so the bits are those of a ddp with as many shards, at any number of ranks. */
#ifndef LOCKSTEP_DP_H
#define LOCKSTEP_DP_H

#include <lockstep/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_dp ls_dp; /* opaque */

/* Makes replicas 1 .. replicas-1, each with a device (of as many threads as the model's), memory and a thread
 * of its own. LS_ERR_ARGUMENT where the ddp spans several ranks, has another number of shards or its model's
 * norms want other ranks' values. Model and ddp must outlive it. */
LS_API ls_status ls_dp_create(ls_dp **dp, ls_ddp *ddp, ls_model *model, size_t replicas);
LS_API void ls_dp_destroy(ls_dp *dp);

/* What replica r computes: host memory as ls_tensor_wrap takes it. Unchanged until ls_dp_backward returns. */
typedef struct ls_dp_shard {
    void *input;
    int32_t *target;
    const size_t *input_shape; /* input_dims extents, samples first */
    size_t input_dims;
    const size_t *target_shape;
    size_t target_dims;
    bool tokens;             /* input is I32, else F32 */
    const uint64_t *samples; /* as in ls_step_mode */
    size_t count;            /* samples; 0: this replica has nothing to do */
} ls_dp_shard;

/* Of one step */
typedef struct ls_dp_report {
    uint64_t replicate_ns, compute_ns, gather_ns; /* one after the other */
    uint64_t sent_bytes, received_bytes; /* by replica 0: parameters and inputs; gradients */
} ls_dp_report;

/* Copies parameters and inputs to all replicas, runs forward and backward on all at once, and brings gradients and
 * losses to replica 0; replaces the ls_ddp_backward of all shards. `step` is replica 0's, `mode` says how all run
 * (its samples are the shards'). The first error of a replica, by number, is returned, and is this rank's
 * LS_VOTE_FAILED as after an ls_ddp_backward that failed. `report` may be NULL. One thread at a time. */
LS_API ls_status ls_dp_backward(ls_dp *dp, ls_step *step, const ls_step_mode *mode,
                                const ls_dp_shard *shards, ls_dp_report *report);

#ifdef __cplusplus
}
#endif
#endif
