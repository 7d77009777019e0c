/* Saving and loading: a model as one safetensors file, and all that training goes on from as a
 * checkpoint, which any number of ranks can load. Part of liblockstep. */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/group.h>
#include <lockstep/model.h>
#include <lockstep/optimizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes all parameters, by name, with the model's spec in the metadata ("lockstep.model"). The file
 * appears under `path` only when it is complete, on disk and read back: temporary name, fsync, rename,
 * fsync of the folder. On failure `path` is as it was. LS_ERR_IO where it is a device, pipe, socket
 * or folder: only a regular file is replaced, and a link (not what it points to). */
LS_API ls_status ls_model_save(ls_model *model, const char *path);

/* Reads parameters by name into the model. Names, shapes and dtypes must match both ways; the first
 * difference is named and nothing is changed. */
LS_API ls_status ls_model_load(ls_model *model, const char *path);

/* --- checkpoints of a training run (docs/checkpoints.md) ----------------------------------------------
 *
 * A checkpoint is a folder FOLDER/step-00001000 of safetensors files and a manifest. It appears under that name
 * only when it is complete, on disk and read back; it names tensors, not ranks, so that any number of
 * ranks can load it. Every rank writes its part, so FOLDER must be one that all ranks see.
 *
 * A checkpointer is used by one thread at a time, the one that makes the updates; ls_checkpointer_poll may be called
 * by any. Collective calls are made by all ranks of the group in the same order. Their errors, beside those that are
 * named: LS_ERR_ARGUMENT for what is NULL, LS_ERR_MEMORY, and those of ls_broadcast and ls_all_gather (a rank died
 * or did not come in time). */
typedef struct ls_checkpointer ls_checkpointer; /* opaque: one rank's part in saving */

/* One more tensor that training goes on from, beside weights and optimizer: a hook's memory, a loss
 * scale (a scalar has dims 0). */
typedef struct ls_checkpoint_item {
    const char *name; /* unique, UTF-8 */
    ls_dtype dtype;
    const size_t *shape;
    size_t dims; /* at most LS_MAX_DIMS */
    void *data;  /* read in ls_checkpointer_save, written in ls_checkpointer_load */
    /* false: equal on all ranks. true: each rank has its own. Then LS_F32 only; another number of ranks
     * takes them over so that their sum over all ranks stays what it was */
    bool per_rank;
} ls_checkpoint_item;

/* What the run was told: written down, and compared when it is loaded. */
typedef struct ls_checkpoint_fact {
    const char *name, *value; /* "--batch-size", "64"; UTF-8 */
    bool binding;             /* another value is refused; else only told to the log */
} ls_checkpoint_fact;

/* All pointers, and what they point to, must outlive the checkpointer. Equal on all ranks, but for the
 * data of per_rank items. */
typedef struct ls_checkpoint_contents {
    ls_model *model;
    ls_optimizer *optimizer; /* NULL: none */
    const ls_checkpoint_item *items;
    size_t item_count;
    const ls_checkpoint_fact *facts;
    size_t fact_count;
} ls_checkpoint_contents;

/* Where the run stands. Data order and dropout are functions of these numbers, so they are all that is
 * needed to go on exactly there. */
typedef struct ls_checkpoint_progress {
    uint64_t step;     /* updates made */
    uint64_t epoch;    /* of the data, from 0 */
    uint64_t position; /* samples of that epoch already used */
    uint64_t seed;
    size_t shards;     /* that a batch is cut into */
    double train_loss; /* of the last update */
    double val_loss;   /* measured after this very update; NaN: not measured */
    double best_loss;  /* the lowest val_loss so far; NaN: none */
} ls_checkpoint_progress;

/* That this run has the folder, and no other (flock); for runs that go on from what lies in it. Opaque. */
typedef struct ls_checkpoint_claim ls_checkpoint_claim;

/* Collective, before ls_checkpoint_find: what is found then stays. Makes the folder where it is missing. Where another
 * run has it, waits for 2 s, as that may just be ending; for 30 s where it is seen to end or cannot be seen from here
 * (another machine's), and says so to `log` (may be NULL); then LS_ERR_ARGUMENT on all ranks, with its process. LS_ERR_IO: the folder cannot be made or opened. */
LS_API ls_status ls_checkpoint_claim_create(ls_checkpoint_claim **claim, ls_group *group,
                                            const char *folder, ls_log_fn log, void *log_context);
/* After the checkpointer. Any thread. */
LS_API void ls_checkpoint_claim_destroy(ls_checkpoint_claim *claim);

/* Zero-initialise; zero means the default. */
typedef struct ls_checkpointer_options {
    const char *folder; /* required; made if missing. Locked while in use */
    const ls_checkpoint_claim
        *claim;      /* of that folder, which outlives the checkpointer; default: makes its own */
    size_t keep;     /* how many of the last to keep; default: all */
    bool keep_best;  /* and the one with the lowest val_loss */
    bool start_over; /* remove the checkpoints that are there */
    /* Default: ls_checkpointer_save copies this rank's part of the state, and a thread writes the copy while
     * training goes on. true: it returns when the checkpoint is saved, and needs no memory for a copy. */
    bool synchronous;
    /* Told of differing facts, and with keep or start_over of what is called step-N and is no folder; default: nowhere */
    ls_log_fn log;
    void *log_context;
} ls_checkpointer_options;

/* A save that ended. */
typedef struct ls_checkpoint_outcome {
    uint64_t step;
    ls_status status;       /* equal on all ranks, unless one of them died */
    char text[1024];        /* LS_OK: the checkpoint's path; else why it could not be saved */
    uint64_t bytes;         /* of all files */
    double copy_s, write_s; /* how long ls_checkpointer_save took, and the thread */
} ls_checkpoint_outcome;

/* Collective. Removes what killed runs left half written in the folder. Takes memory for the copy of this
 * rank's part now, so that saving cannot fail for want of it. LS_ERR_ARGUMENT: another run uses the folder;
 * LS_ERR_IO: the folder cannot be made or written, on all ranks. */
LS_API ls_status ls_checkpointer_create(ls_checkpointer **checkpointer, ls_group *group,
                                        const ls_checkpoint_contents *contents,
                                        const ls_checkpointer_options *options);
/* Collective. Waits for a save under way. */
LS_API void ls_checkpointer_destroy(ls_checkpointer *checkpointer);
/* Collective, between updates. At most one save is under way: waits for the one before. LS_OK means that it
 * began (synchronous: ended); how it ended is told by ls_checkpointer_poll. A save that fails leaves
 * earlier checkpoints as they are, and may be tried again. */
LS_API ls_status ls_checkpointer_save(ls_checkpointer *checkpointer,
                                      const ls_checkpoint_progress *progress);
/* True, once for each save that ended. Does not wait. */
LS_API bool ls_checkpointer_poll(ls_checkpointer *checkpointer, ls_checkpoint_outcome *outcome);
/* Waits for the save under way; returns how the last one ended. */
LS_API ls_status ls_checkpointer_wait(ls_checkpointer *checkpointer);
/* Collective. Removes all checkpoints in the folder. */
LS_API ls_status ls_checkpointer_clear(ls_checkpointer *checkpointer);
/* Collective, of a run that goes on from the checkpoint of `step` though there are later ones: renames those, in the
 * folder, to old-step-N, so that they are neither found nor counted by options.keep. An old-step-N that is there
 * is replaced. *moved: how many, on all ranks. LS_ERR_IO on all ranks: some may have been renamed. */
LS_API ls_status ls_checkpointer_rewind(ls_checkpointer *checkpointer, uint64_t step,
                                        size_t *moved);
/* Collective. Fills model, optimizer and items from the checkpoint `path`, which ls_checkpoint_find gave, and
 * *progress. LS_ERR_ARGUMENT where a binding fact differs, LS_ERR_FORMAT where tensors do: the message names
 * the first. After a failure what was to be filled may be half filled. */
LS_API ls_status ls_checkpointer_load(ls_checkpointer *checkpointer, const char *path,
                                      ls_checkpoint_progress *progress);

/* Collective. The newest checkpoint in `folder` that is whole (all checksums are compared), as *path, which the
 * caller frees, with its *progress; *path is NULL when there is none. Broken ones are told to `log`
 * (may be NULL) and passed over; LS_ERR_FORMAT where all are broken, LS_ERR_IO where one cannot be read and so may be
 * whole. `folder` may be a checkpoint itself: then it must be whole. Rank 0 reads all of the
 * files, and the others wait in `group`: for large checkpoints give them time before (ls_job_set_phase on rank 0, or
 * ls_group_set_timeout on all). Threads as for any collective of `group`. */
LS_API ls_status ls_checkpoint_find(ls_group *group, const char *folder, ls_log_fn log,
                                    void *log_context, char **path,
                                    ls_checkpoint_progress *progress);

/* How many checkpoints lie in `folder`, whole or not; 0 where there is no such folder. Any thread. */
LS_API ls_status ls_checkpoint_count(const char *folder, size_t *count);

/* Reads all of the checkpoint `path` and compares it with its manifest. LS_ERR_FORMAT, LS_ERR_IO. Any thread. */
LS_API ls_status ls_checkpoint_verify(const char *path, ls_checkpoint_progress *progress);

/* --- the file format itself --- */
typedef struct ls_safetensors ls_safetensors; /* opaque: an open, checked file, mapped read-only */

typedef struct ls_safetensors_entry {
    const char *name;  /* may hold any bytes but NUL */
    const char *dtype; /* as in the file, e.g. "F32" */
    size_t dims;
    const size_t *shape;
    const void *data; /* no alignment promised */
    size_t bytes;
} ls_safetensors_entry;

/* Strict: offsets must tile the data without hole or overlap, sizes must agree with shapes, nothing may
 * follow. Refused beyond that: names used twice or with U+0000, integers of 2^63 and more. The file
 * must not be shortened while it is open. LS_ERR_IO, LS_ERR_FORMAT, LS_ERR_MEMORY. */
LS_API ls_status ls_safetensors_open(ls_safetensors **file, const char *path);
LS_API void ls_safetensors_close(ls_safetensors *file);
/* The getters: any thread. Entries are tensors; metadata is none. */
LS_API size_t ls_safetensors_count(const ls_safetensors *file);
/* Entry i in the order of the data. Valid until close. */
LS_API const ls_safetensors_entry *ls_safetensors_get(const ls_safetensors *file, size_t i);
/* NULL when there is none. */
LS_API const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file,
                                                       const char *name);
/* The text of a metadata key, or NULL. */
LS_API const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key);

#ifdef __cplusplus
}
#endif
#endif
