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

/* A shard is a forward and a backward: more of them than this is a mistake. */
enum { LS_DDP_MAX_SHARDS = 1 << 20 };

/* Zero-initialise; zero means the default. */
typedef struct ls_ddp_options {
    size_t shards; /* of the global batch, at least the group's size and at most LS_DDP_MAX_SHARDS;
                      default: one per rank */
    ls_reducer_options reducer;
    size_t
        watch_every; /* steps between two looks at whether replicas still are equal; default 100 */
    bool no_watch;   /* never looks by itself */
    bool skip_broadcast; /* default: rank 0's parameters are sent to all at creation */
} ls_ddp_options;

/* Collective. Compares the options and the parameter lists (LS_ERR_MISMATCH names the first difference on every rank),
 * then copies rank 0's values to all. What fails on one rank alone (memory, say) is LS_ERR_PEER on the
 * others. Gradients move into the reducer's memory. Model and group must outlive the ddp (but see
 * ls_job_finish); a model has at
 * most one. A failure costs the gradients that the model had, as success does. */
LS_API ls_status ls_ddp_create(ls_ddp **ddp, ls_model *model, ls_group *group,
                               const ls_ddp_options *options);
/* Collective, as ls_reducer_destroy. The model keeps its weights and takes gradients of its own again. */
LS_API void ls_ddp_destroy(ls_ddp *ddp);

/* The shards of this rank: [*first, *first + *count). count is at least 1. Either may be NULL. */
LS_API void ls_ddp_shards(const ls_ddp *ddp, size_t *first, size_t *count);

/* Between steps: ls_ddp_backward multiplies the loss by `scale` before backward, and what reads gradients
 * divides again. ls_ddp_loss and batch statistics are not scaled. 2^-60 to 2^60; 1 at first. Where ranks
 * differ, the step's ls_ddp_wait is LS_ERR_MISMATCH on all. A scale is for hooks without memory of earlier gradients
 * (f16). */
LS_API ls_status ls_ddp_set_loss_scale(ls_ddp *ddp, double scale);
/* NULL where this job's bits are those of one process with as many shards (docs/determinism.md). Else a
 * sentence that says why they are not: the shards of a rank are no subtree of the sum, or ranks compute
 * with other kernels or numbers of threads. Nothing is wrong with the result. Equal on all ranks. */
LS_API const char *ls_ddp_bits_note(const ls_ddp *ddp);

/* Begins a step; `weight`: samples or tokens of this rank in the global batch, over all its shards.
 * 0 is legal; then no backward is needed. Else 1e-30 to 1e30; LS_ERR_ARGUMENT opens no step. */
LS_API ls_status ls_ddp_begin(ls_ddp *ddp, double weight);
/* Backward of the next shard of this rank, in order; `loss` is the sum over the shard. Reduction
 * starts during the last one. */
LS_API ls_status ls_ddp_backward(ls_ddp *ddp, ls_step *step, ls_tensor *loss);
/* Skips the next shard: no samples in it. */
LS_API ls_status ls_ddp_skip(ls_ddp *ddp);
/* Waits until all gradients are averaged. `report` may be NULL. Shards that were neither computed nor
 * skipped count as without data. LS_ERR_PEER where a rank voted LS_VOTE_FAILED, on all of them. */
LS_API ls_status ls_ddp_wait(ls_ddp *ddp, ls_reducer_report *report);
/* The loss of the last completed step: the sum over all shards of all ranks, divided by the global
 * weight. It rides in the first bucket, so it costs no operation of its own and is equal on all ranks.
 * NaN after a step that was skipped. */
LS_API double ls_ddp_loss(const ls_ddp *ddp);

/* Collective, between steps: ls_model_set_trainable on all ranks together. The lists are compared as at
 * creation: where ranks do not ask for the same, LS_ERR_MISMATCH on all names the first weight that is
 * frozen on one and not on the other, and everything stays as it was. Gradients are lost; the next step
 * finds the order of buckets again. LS_ERR_STATE where gradients go through a hook: it remembers what it got. */
LS_API ls_status ls_ddp_set_trainable(ls_ddp *ddp, const char *part, bool trainable);

/* --- votes: what each rank says about a step -----------------------------------------------------------
 *
 * They travel with the gradients, so all ranks know all votes of a step when its ls_ddp_wait returns, and
 * do the same. Nothing a rank meets makes it stay away from a step: */
typedef enum ls_vote {
    LS_VOTE_OK,       /* the default */
    LS_VOTE_FINISHED, /* this rank has no data beyond this step's. It goes on taking part, with weight 0,
                           until all ranks say so; that is all that uneven data needs */
    LS_VOTE_SKIP, /* a bad sample: no rank is to make this update. ls_optimizer_step then changes nothing */
    LS_VOTE_FAILED, /* this rank cannot go on: ls_ddp_wait is LS_ERR_PEER on all, with rank and reason */
} ls_vote;
enum { LS_VOTE_REASON = 240 }; /* bytes of a reason, its end included */

/* From ls_ddp_begin to ls_ddp_wait; the last call before ls_ddp_wait counts. `reason` (copied, cut to its
 * room) is told to all ranks with a skip or a failure; may be NULL. Where an ls_ddp_backward failed for a
 * reason of this rank (no memory, a forward that failed, a loss that is none), the vote is LS_VOTE_FAILED with the error's text until the caller
 * says LS_VOTE_SKIP; either way ls_ddp_wait is the next call. */
LS_API ls_status ls_ddp_vote(ls_ddp *ddp, ls_vote vote, const char *reason);

/* This rank was asked to end (by SIGTERM, say) and must not go alone: says so in every step from the next
 * ls_ddp_wait on. The step itself is made as ever; all ranks see ls_ddp_tally.stop after the same one. */
LS_API ls_status ls_ddp_request_stop(ls_ddp *ddp);

/* Equal on all ranks. */
typedef struct ls_ddp_tally {
    int ranks;                   /* of the group, by whose numbers ranks are called here */
    int finished, skip, failed;  /* how many said so in the last step */
    int first;                   /* the lowest rank with the worst of skip and failed; -1: none */
    char reason[LS_VOTE_REASON]; /* which it gave */
    int nonfinite;               /* ranks with a loss that is a NaN or an infinity */
    int first_nonfinite;         /* the lowest of them; -1: none */
    int stop;                    /* ranks that were asked to end */
    bool update;                 /* nobody said skip, and somebody had data */
    uint64_t skipped_steps;      /* by votes, since the ddp was created */
} ls_ddp_tally;
/* Of the last completed step; all zero before the first. */
LS_API const ls_ddp_tally *ls_ddp_votes(const ls_ddp *ddp);

/* --- times --------------------------------------------------------------------------------------------
 *
 * Where the time of each rank's step went. Each rank's times travel with the votes of the step after it. */
typedef struct ls_ddp_times {
    double compute_ms;  /* from ls_ddp_begin to ls_ddp_wait, without what is exposed */
    double transfer_ms; /* the rest as in ls_reducer_overlap */
    double hidden_ms;
    double exposed_ms;
    double late_ms;
    int last_rank;
} ls_ddp_times;
/* Of all ranks (by their number in the group), in the step before the last completed one. NULL until
 * there is one. Equal on all ranks; belongs to the ddp and changes with each step. */
LS_API const ls_ddp_times *ls_ddp_step_times(const ls_ddp *ddp);

/* What the hook of options.reducer remembers, for checkpoints, as ls_reducer_hook_state; 0 without one. State i
 * below that number, else LS_ERR_ARGUMENT; its data belong to the hook. The error of a failed step after one. */
LS_API size_t ls_ddp_hook_states(const ls_ddp *ddp);
LS_API ls_status ls_ddp_hook_state(ls_ddp *ddp, size_t i, ls_hook_state *state);

/* --- drift --------------------------------------------------------------------------------------------
 *
 * Replicas that part ways give no error by themselves. So in every watch_every'th step a hash of this
 * rank's replica, as it was before the step's update, rides with the votes; where hashes differ,
 * ls_ddp_wait is LS_ERR_MISMATCH on all ranks and names the first tensor that differs and the ranks on
 * which it is not what most have. The state of the model's optimizer is part of its replica. */

/* Collective, between steps: looks now, at every tensor. One pass over them. */
LS_API ls_status ls_ddp_verify(ls_ddp *ddp);

#ifdef __cplusplus
}
#endif
#endif
