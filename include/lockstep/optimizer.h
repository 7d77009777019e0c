/* Optimizers, schedules and clipping. Part of liblockstep. */
#ifndef LOCKSTEP_OPTIMIZER_H
#define LOCKSTEP_OPTIMIZER_H

#include <float.h>
#include <lockstep/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_optimizer ls_optimizer; /* opaque */

typedef enum ls_optimizer_kind { LS_SGD, LS_ADAM, LS_ADAMW } ls_optimizer_kind;

/* A beta of 0, where 0 means the default: a number above it that is 0 in f32. */
#define LS_OPTIMIZER_ZERO DBL_MIN

/* Zero-initialise; zero means the default. Formulas and defaults as torch.optim. */
typedef struct ls_optimizer_options {
    ls_optimizer_kind kind;
    double momentum; /* SGD; dampening is 0 */
    bool nesterov;   /* SGD; wants momentum > 0 */
    double beta1;    /* Adam, AdamW; default 0.9; LS_OPTIMIZER_ZERO: 0 */
    double beta2;    /* default 0.999; LS_OPTIMIZER_ZERO: 0 */
    double epsilon;  /* default 1e-8 */
    double weight_decay;
    bool decay_all; /* default: only weights of two or more dimensions decay */
    double clip;    /* largest global norm of the gradients; 0: no clipping */
    bool
        skip_nonfinite; /* a NaN or an infinity: the update is left out and counted (ls_optimizer_skipped).
                            default: it is LS_ERR_RANGE */
} ls_optimizer_options;

/* For all weights of the model; state is zero. The model must outlive the optimizer. LS_ERR_ARGUMENT
 * names an option that is out of range. */
LS_API ls_status ls_optimizer_create(ls_optimizer **optimizer, ls_model *model,
                                     const ls_optimizer_options *options);
LS_API void ls_optimizer_destroy(ls_optimizer *optimizer);

/* One update with this learning rate, in place, of the weights that have a gradient; one that nobody
 * used since the last step stays as it is, without decay (PyTorch: grad is None). Also folds the
 * statistics of the batch into the running ones (running = 0.9 * running + 0.1 * batch). *norm (may be
 * NULL): the global norm before clipping. In the cases below nothing is changed:
 *   LS_ERR_NOT_REDUCED  the model is trained by a ddp, and its gradients were not reduced since the
 *                       last step
 *   LS_ERR_STATE        no weight has a gradient
 *   LS_ERR_RANGE        a gradient or statistic holds a NaN or an infinity; the first is named. Reduced
 *                       gradients are equal on all ranks, so all ranks get this together. With
 *                       skip_nonfinite it is LS_OK, with the text in ls_error_text, and *norm is NaN
 *   LS_OK               the ranks voted to skip the step (ls_ddp_vote), or none of them had data:
 *                       *norm is 0
 *   LS_ERR_ARGUMENT     the learning rate is negative or not finite */
LS_API ls_status ls_optimizer_step(ls_optimizer *optimizer, double learning_rate, double *norm);
/* Updates left out for a NaN or an infinity so far. It grew in the last ls_optimizer_step: that one was. */
LS_API uint64_t ls_optimizer_skipped(const ls_optimizer *optimizer);

/* Scales the loss so that small gradients do not vanish in 16 bits (ls_ddp_set_loss_scale). Where a gradient
 * became infinite, all ranks see the same, leave the update out (skip_nonfinite) and scale less. Fill it
 * by ls_loss_scaler_init; `scale` and `good` are what a checkpoint has to keep. */
typedef struct ls_loss_scaler {
    double scale;           /* of the next step: 65536 at first */
    int64_t good;           /* updates made since it last changed */
    double growth, backoff; /* factors: 2 after `interval` good updates, 0.5 after one left out */
    int64_t interval;       /* 2000 */
    bool fixed;             /* the scale stays */
} ls_loss_scaler;

/* fixed: the scale that stays, 2^-60 to 2^60; 0: dynamic. A power of two changes no bit of what neither
 * vanishes nor overflows. */
LS_API ls_status ls_loss_scaler_init(ls_loss_scaler *scaler, double fixed);
/* After each update; `skipped`: it was left out for a NaN or an infinity (ls_optimizer_skipped grew). */
LS_API void ls_loss_scaler_update(ls_loss_scaler *scaler, bool skipped);

typedef enum ls_schedule_kind { LS_CONSTANT, LS_COSINE, LS_LINEAR } ls_schedule_kind;

typedef struct ls_schedule {
    ls_schedule_kind kind;
    double peak;     /* the learning rate after warm-up */
    double floor;    /* where cosine and linear end */
    uint64_t warmup; /* steps: step s < warmup has peak * (s + 1) / (warmup + 1) */
    uint64_t steps;  /* total; from there on: floor (constant: peak) */
} ls_schedule;

/* The learning rate of step 0, 1, 2, ...; cosine and linear fall from peak at `warmup` to floor at
 * `steps`, as nanoGPT. */
LS_API double ls_schedule_rate(const ls_schedule *schedule, uint64_t step);

#ifdef __cplusplus
}
#endif
#endif
