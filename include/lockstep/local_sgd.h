/* Local SGD: each rank trains by itself for some steps, then replicas are averaged (Stich: "Local SGD converges
 * fast and communicates little", ICLR 2019); post-local SGD reduces gradients as usual first (Lin, Stich,
 * Patel, Jaggi: "Don't use large mini-batches, use local SGD", ICLR 2020). Part of liblockstep.
 *
 *     ls_local_sgd_create(&local, model, world, &(ls_local_sgd_options){.every = 8, .start = 500});
 *     each step:
 *         ls_ddp *ddp = ls_local_sgd_ddp(local);      another one from step `start` on
 *         ls_ddp_begin, ls_ddp_backward, ls_ddp_wait, ls_optimizer_step as ever
 *         ls_local_sgd_step(local, weight, ls_ddp_loss(ddp), &sync);
 *
 * While local, ranks do not talk to each other between two averages: votes, losses and the global weight of
 * a step are this rank's own, and ls_ddp_tally.stop is too: who wants to end with the others looks at
 * ls_local_sgd_sync.stop. */
#ifndef LOCKSTEP_LOCAL_SGD_H
#define LOCKSTEP_LOCAL_SGD_H

#include <lockstep/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_local_sgd ls_local_sgd; /* opaque */

/* Zero-initialise; zero means the default. Equal on all ranks. */
typedef struct ls_local_sgd_options {
    uint64_t every; /* steps from one average to the next; at least 1 */
    uint64_t start; /* steps in which gradients are reduced first, `done` included; default 0 */
    /* Steps an earlier run has made; default 0. They count for `start`. The first average is `every` local steps
     * after creation, so an earlier run is gone on with from one of its averages. */
    uint64_t done;
    /* Its hook is for the first `start` steps; where start <= done there are none, and it stays the caller's
     * (ls_hook_destroy). */
    ls_ddp_options ddp;
} ls_local_sgd_options;

/* Collective. As ls_ddp_create, errors too; the model is trained by ls_local_sgd_ddp. LS_ERR_ARGUMENT where
 * `every` is 0, or shards are fewer than ranks or more than LS_DDP_MAX_SHARDS. */
LS_API ls_status ls_local_sgd_create(ls_local_sgd **local, ls_model *model, ls_group *group,
                                     const ls_local_sgd_options *options);
/* Collective. NULL is allowed. */
LS_API void ls_local_sgd_destroy(ls_local_sgd *local);

/* The ddp of the next step. It belongs to the local_sgd; valid until the next ls_local_sgd_step. */
LS_API ls_ddp *ls_local_sgd_ddp(const ls_local_sgd *local);
/* Whether the next step is one without reduction. */
LS_API bool ls_local_sgd_is_local(const ls_local_sgd *local);
/* The shards of this rank in the global batch, as ls_ddp_shards without local SGD. Either may be NULL. */
LS_API void ls_local_sgd_shards(const ls_local_sgd *local, size_t *first, size_t *count);

typedef struct ls_local_sgd_sync {
    bool averaged;
    bool stop;     /* a rank was asked to end (ls_ddp_request_stop); equal on all ranks */
    double weight; /* that all ranks together trained on since the average before */
    double loss;   /* the average over it */
} ls_local_sgd_sync;

/* After each optimizer step, with this rank's weight (as in ls_ddp_begin) and loss of it. Every `every` local steps collective:
 * weights, running statistics and the optimizer's state become their averages over ranks, weighted by what
 * each trained on (equal weights: by the plain average), so replicas are equal to the bit again. Updates are
 * counted as on the rank that made most. *sync (may be NULL) says what happened. Errors are those of
 * ls_all_reduce; LS_ERR_MISMATCH where replicas differ after an average; LS_ERR_MEMORY, and LS_ERR_PEER on the
 * other ranks; in step `start`, which makes another ddp, those of ls_ddp_create. After an error: end the job. */
LS_API ls_status ls_local_sgd_step(ls_local_sgd *local, double weight, double loss,
                                   ls_local_sgd_sync *sync);
/* Collective: averages now, before an evaluation or a checkpoint; the next regular average comes `every`
 * steps later. Does nothing where nothing was trained locally since the last. Errors as ls_local_sgd_step. */
LS_API ls_status ls_local_sgd_average(ls_local_sgd *local, ls_local_sgd_sync *sync);

#ifdef __cplusplus
}
#endif
#endif
