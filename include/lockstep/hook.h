/* Hooks: other ways to average a bucket of gradients than adding up all of it in full. Part of
 * liblockstep-comm.
 *
 *     ls_reducer_hook *hook;
 *     ls_hook_create(&hook, "powersgd:rank=4");                or fill in a struct of your own
 *     ls_reducer_create(&r, world, params, count, &(ls_reducer_options){.hook = hook});
 *
 * The reducer calls `reduce` once for each bucket of a step, in the same order on all ranks, while backward
 * goes on: from a thread of its own, or with LS_PROGRESS_INLINE from ls_reducer_ready. A hook compresses,
 * communicates with the group's blocking collectives (any number of them, the same on all ranks), and leaves
 * the average in place. Whatever it leaves must be equal to the bit on all ranks.
 *
 * Parameters marked `exact` (a loss, statistics, votes) never come to a hook: they have buckets of their
 * own and are averaged in full. With a hook the used marks travel in one more small operation a step, and
 * `leave_sums` has no effect. */
#ifndef LOCKSTEP_HOOK_H
#define LOCKSTEP_HOOK_H

#include <lockstep/dtype.h>
#include <lockstep/group.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ls_reducer_param;

/* A tensor, or the part of one, that lies in a bucket. */
typedef struct ls_hook_piece {
    size_t param;  /* its number in the reducer's list */
    size_t first;  /* the first element of it that is here */
    size_t count;  /* how many are; with whole_tensors always all */
    float *data;   /* (count) this rank's gradient, and then the average */
    bool reported; /* false: this rank did not use it; data are zeros */
} ls_hook_piece;

typedef struct ls_hook_bucket {
    size_t number; /* 0, 1, ... within the step; equal on all ranks */
    uint64_t step; /* of this reducer, from 0 on; a step that failed counts */
    /* Pieces follow each other in `data`, with gaps of at most 64 bytes between them. What stands in a gap is
     * zeros and has to stay zeros, so a hook that treats all elements alike can work on the whole. */
    float *data; /* (count) */
    size_t count;
    const ls_hook_piece *piece; /* (pieces) */
    size_t pieces;
    double weight; /* this rank's; data hold a sum over so many samples */
    double total;  /* over all ranks, above 0: the average is the sum of all ranks' data / total */
} ls_hook_bucket;

/* What a hook remembers from step to step, for checkpoints: a named tensor. */
typedef struct ls_hook_state {
    char name[256]; /* "powersgd.error.fc1.weight" */
    ls_dtype dtype;
    size_t shape[2], dims;
    void *data; /* the hook's own: read it, or write what was saved, between steps */
    bool
        per_rank; /* every rank has another one, so it fits only as many ranks as saved it; false: it is
                      the same on all ranks */
} ls_hook_state;

/* Functions get `context`. Those that are NULL are left out; `reduce` must be there. Where one returns an error,
 * messages carry the text of the library's call that failed in it, if one did, else what the status means. */
typedef struct ls_reducer_hook {
    const char *name; /* with its settings: "topk:ratio=0.01"; compared between ranks at creation */
    bool whole_tensors; /* no tensor is cut: a bucket may exceed its size by a tensor */
    void *context;
    /* Inside of ls_reducer_create, and again if that failed and the hook is used for another: takes what memory
     * it needs, and gives back what an earlier call took. Copy what you keep of `params` (count).
     * No collective may be called here; a failure reaches all ranks. What can fail on one rank alone is to
     * fail here: in a step the others would wait. */
    ls_status (*attach)(void *context, const ls_group *group, const struct ls_reducer_param *params,
                        size_t count);
    /* Only f32 comes here: parameters of other dtypes are averaged in full. An error loses the step. */
    ls_status (*reduce)(void *context, ls_group *group, const ls_hook_bucket *bucket);
    /* Bytes that attach takes on a rank of `ranks` (and reduce, if that keeps memory), before anything takes them: for
     * memory plans. *saved: those of them that `state` hands out. Any thread; cannot fail. Only asked of the hooks of
     * ls_hook_create: one of your own may leave it out. */
    size_t (*memory)(const void *context, size_t ranks, const struct ls_reducer_param *params,
                     size_t count, size_t *saved);
    size_t (*states)(const void *context);
    void (*state)(void *context, size_t i, ls_hook_state *state);
    /* By ls_reducer_destroy, or ls_hook_destroy. */
    void (*destroy)(void *context);
} ls_reducer_hook;

/* The hooks that come with Lockstep, by a text:
 *   "bf16", "f16"            rounded to 16 bits for the way; summed in f32 (hook_half.c)
 *   "powersgd:rank=4[,start=N]"  matrices as products of two thin ones, with error feedback
 *                            (hook_powersgd.c); the first N steps in full; default 0
 *   "topk:ratio=0.01"        the largest elements of each tensor, with error feedback (hook_topk.c)
 * "none" gives NULL. LS_ERR_ARGUMENT says what is wrong with the text. The hook belongs to the caller until a
 * reducer was created with it. */
LS_API ls_status ls_hook_create(ls_reducer_hook **hook, const char *text);
/* Of a hook of ls_hook_create that no reducer took; NULL is allowed. */
LS_API void ls_hook_destroy(ls_reducer_hook *hook);

#ifdef __cplusplus
}
#endif
#endif
