/* Averages the gradients of a data-parallel job while they are still being computed. Part of
 * liblockstep-comm: it knows memory and groups, not tensors, so any trainer in C can use it:
 *
 *     ls_reducer_create(&r, world, params, count, NULL);      names, dtypes, shapes
 *     for each parameter: grad[i] = ls_reducer_gradient(r, i);      write your gradients here
 *     each step:
 *         ls_reducer_begin(r, samples_in_my_share);           0 is legal
 *         ... backward; as the gradient of i is finished: ls_reducer_ready(r, i);
 *         ls_reducer_wait(r, &report);     grad[i] is now sum over ranks / sum of weights, on all ranks
 *
 * Write sums over your samples, not means: the reducer divides once, by the global weight.
 *
 * Gradients live in one flat allocation of ls_group_alloc, in the order in which they become ready.
 * Buckets are consecutive ranges of it: 1 MiB the first, 4 MiB the others; a tensor larger than what
 * is left of a bucket continues in the next. Bucket k is reduced once all gradients in it are ready and
 * bucket k-1 was started, so operations start in the same order on all ranks. A parameter that was not
 * reported ready by ls_reducer_wait counts as zero here; a used mark rides behind each gradient, so
 * ls_reducer_used tells on all ranks whether anyone used it. */
#ifndef LOCKSTEP_REDUCER_H
#define LOCKSTEP_REDUCER_H

#include <lockstep/dtype.h>
#include <lockstep/group.h>
#include <lockstep/hook.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_reducer ls_reducer; /* opaque */

enum { LS_REDUCER_MAX_DIMS = 32 };

/* A parameter, as every rank must describe it equally. Copied. */
typedef struct ls_reducer_param {
    const char *name;    /* not empty, and no other parameter's */
    ls_dtype dtype;      /* F32, F64, F16 or BF16 */
    const size_t *shape; /* `dims` extents, at most LS_REDUCER_MAX_DIMS; 0 is a scalar */
    size_t dims;
    bool frozen; /* not trained: has no gradient, but is part of the fingerprint */
    bool
        exact; /* no gradient but numbers that must arrive as they are: no hook may compress them */
} ls_reducer_param;

typedef enum ls_progress {
    LS_PROGRESS_THREAD, /* the group's thread reduces while you compute */
    LS_PROGRESS_INLINE, /* ls_reducer_ready reduces a full bucket before it returns */
} ls_progress;

/* Zero-initialise; zero means the default. */
typedef struct ls_reducer_options {
    size_t first_bucket_bytes; /* default 1 MiB; at least 64, equal on all ranks */
    size_t bucket_bytes;       /* default 4 MiB; likewise */
    ls_progress progress;      /* default LS_PROGRESS_THREAD */
    /* In a world of one there is nothing to reduce, and dividing by the weight would be a pass over all
     * gradients for its own sake. true: there they stay the sums that they are, and the report's
     * `scale` is what whoever reads them next has to multiply by. Changes nothing in larger worlds. */
    bool leave_sums;
    /* Another way to average (hook.h), equal on all ranks; NULL: adding up in full. Copied; from a successful
     * ls_reducer_create on the reducer destroys it. */
    const ls_reducer_hook *hook;
} ls_reducer_options;

/* Collective. Compares the fingerprint of the ordered list (name, shape, dtype, frozen) on all ranks;
 * LS_ERR_MISMATCH names the first difference, on every rank. A rank that fails for a reason of its own
 * gets that error, and all others LS_ERR_PEER with its text. The first ready order is the reverse of
 * the list. `group` must outlive
 * the reducer; only ls_reducer_destroy may come after ls_job_finish. */
LS_API ls_status ls_reducer_create(ls_reducer **reducer, ls_group *group,
                                   const ls_reducer_param *params, size_t count,
                                   const ls_reducer_options *options);
/* Collective between steps. Inside a step, where a rank gives up, it is not: it waits for what this rank
 * started, and the gradients' memory stays until the job ends. NULL is allowed (on all ranks). */
LS_API void ls_reducer_destroy(ls_reducer *reducer);

/* Collective, between steps. Lays the buckets out in this ready order: `order` is a permutation of
 * 0..count-1 (frozen parameters may stand anywhere). Rank 0's order is taken by all; if it is no
 * permutation, all get LS_ERR_ARGUMENT and keep the layout they have. Gradient pointers change and
 * contents are lost (all zero). */
LS_API ls_status ls_reducer_set_order(ls_reducer *reducer, const size_t *order);

/* Storage of parameter i's gradient: contiguous, aligned to 64 bytes, a view of the buckets. NULL for a
 * frozen one. Valid until ls_reducer_set_order or ls_reducer_destroy. */
LS_API void *ls_reducer_gradient(ls_reducer *reducer, size_t i);

/* Begins a step. weight: this rank's samples or tokens, 0 or between 1e-30 and 1e30. Until
 * ls_reducer_wait returned, nothing else may be started on the group: when a bucket starts depends on
 * the order in which gradients become ready here, so ranks would disagree on what comes first. */
LS_API ls_status ls_reducer_begin(ls_reducer *reducer, double weight);
/* Gradient i is complete in its storage; it must not be touched until ls_reducer_wait returned. Twice in
 * one step or outside of begin .. wait is LS_ERR_STATE. One thread at a time. */
LS_API ls_status ls_reducer_ready(ls_reducer *reducer, size_t i);

typedef struct ls_reducer_bucket {
    size_t bytes;
    uint64_t filled_ns;  /* last gradient of it was ready here (CLOCK_MONOTONIC) */
    ls_work_times times; /* of its all-reduce; LS_PROGRESS_INLINE knows only begin and end */
} ls_reducer_bucket;

/* Where the time of a step's reduction went, on this rank. */
typedef struct ls_reducer_overlap {
    uint64_t transfer_ns; /* of all buckets, from when all ranks had arrived to done */
    uint64_t hidden_ns;   /* what of it passed before this rank waited for the reduction */
    uint64_t
        exposed_ns;   /* what reducing added to this rank's step: waiting for ranks and transfers */
    uint64_t late_ns; /* how long buckets of this rank waited for other ranks, hidden or not */
    uint64_t wait_begin_ns; /* when ls_reducer_wait was called */
    int last_rank; /* for which they waited longest; -1: for none, or it is not known (inline) */
} ls_reducer_overlap;

/* About one step; arrays belong to the reducer and are valid until the next ls_reducer_begin. */
typedef struct ls_reducer_report {
    double weight; /* the global weight */
    double
        scale; /* 1; with leave_sums in a world of one 1 / weight: f32 gradients times (float)scale
                      are what they would have been, to the bit */
    const ls_reducer_bucket *buckets;
    size_t bucket_count;
    size_t unused;    /* parameters that no rank used in this step */
    uint64_t wait_ns; /* how long ls_reducer_wait took: communication that was not hidden */
    ls_reducer_overlap overlap;
} ls_reducer_report;

/* Ends the step: reduces what was not started, waits for all. `report` may be NULL. On error the step's
 * gradients are undefined and ls_reducer_reduced stays false. */
LS_API ls_status ls_reducer_wait(ls_reducer *reducer, ls_reducer_report *report);

/* True from a successful ls_reducer_wait to the next ls_reducer_begin. */
LS_API bool ls_reducer_reduced(const ls_reducer *reducer);
/* Whether any rank reported gradient i ready in the last completed step. In a step of global weight 0
 * nothing counts as used. */
LS_API bool ls_reducer_used(const ls_reducer *reducer, size_t i);

/* What the hook remembers, for checkpoints: state i of ls_reducer_hook_states. Between steps. */
LS_API size_t ls_reducer_hook_states(const ls_reducer *reducer);
LS_API ls_status ls_reducer_hook_state(ls_reducer *reducer, size_t i, ls_hook_state *state);

#ifdef __cplusplus
}
#endif
#endif
