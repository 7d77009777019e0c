/* The folder that checkpoints lie in: names, what is there, making, publishing and removing. On a full or
 * failing disk, and whoever is killed when, a name step-N is a whole checkpoint or is not there.
 *
 *     step-00001000/              a checkpoint
 *     .step-00001000.TOKEN/       one that is being written, or removed: leftovers of the dead are removed
 *     old-step-00001500/          of a run that was taken back to an earlier step; what had the name of a
 *                                 checkpoint and was no folder
 *     latest -> step-00001000     a link to the newest, best to the one of the lowest val_loss; for people,
 *                                 nothing here reads them */
#ifndef LS_CHECKPOINT_FOLDER_H
#define LS_CHECKPOINT_FOLDER_H

#include <lockstep/checkpoint.h>
#include <stdint.h>

/* lock.c: makes the folder where it is missing, and locks it until the descriptor is closed, or the process is gone.
 * Where another run has it, waits for 2 s, and where that one is seen to end, or with `outwait_unseen` is no process
 * that can be seen here, for 30 s, and says so to `log` (may be NULL); then LS_ERR_ARGUMENT, with its process. `option`
 * ("--out ", or "") stands before the folder in messages. Where a file system knows no locks, two runs in one folder go
 * unnoticed. */
ls_status ls__folder_lock(const char *folder, const char *option, bool outwait_unseen,
                          ls_log_fn log, void *log_context, int *fd);
/* What killed runs left. With the lock. */
void ls__folder_clean(const char *folder);

/* Removes all checkpoints, the newest first. With the lock. What is called step-N and is no folder (a link that
 * somebody made, to what may be gone) stays, and `log` (may be NULL) is told. */
void ls__folder_empty(const char *folder, ls_log_fn log, void *log_context);

/* Tells `log` of each step-N that is no folder. */
void ls__folder_tell_left(const char *folder, ls_log_fn log, void *log_context);

/* Renames all checkpoints of later steps than `step`, the newest first, to old-step-N, which nothing here reads;
 * an older old-step-N is replaced. *moved: how many. With the lock. */
ls_status ls__folder_rewind(const char *folder, uint64_t step, size_t *moved);

/* The steps of all that is called step-N, in rising order; the caller frees *steps. A missing folder has none. */
ls_status ls__folder_steps(const char *folder, uint64_t **steps, size_t *count);
/* Whether the last name in `path` is step-N, and which step that says. */
bool ls__folder_path_step(const char *path, uint64_t *step);
/* FOLDER/step-N; the caller frees it. NULL: no memory, and the error is set. */
char *ls__folder_step_path(const char *folder, uint64_t step);

/* Makes the empty folder that the checkpoint of `step` is written in; *path is the caller's. */
ls_status ls__folder_begin(const char *folder, uint64_t step, char **path);
/* Brings `path`, with all its names, to the disk and gives it its name. An older one of that name is replaced; what
 * is no folder becomes old-step-N. */
ls_status ls__folder_publish(const char *folder, uint64_t step, const char *path);
/* Whether `path` is a folder itself, and no link to one; so is what is not there. */
bool ls__folder_is_own(const char *path);
/* Removes a checkpoint, or a half one. Its name is gone first; where it cannot be renamed it stays as it is. False: it
 * is no folder, and stays. */
bool ls__folder_remove(const char *folder, const char *path);
/* Points the link `name` to the checkpoint of `step`. A file system without links goes without, and
 * so does a folder in which something else has that name (no link and no regular file). */
void ls__folder_link(const char *folder, const char *name, uint64_t step);
/* What a file of a checkpoint that cannot be opened with this errno makes of it: LS_ERR_FORMAT, it is broken, where
 * the file is not there; else LS_ERR_IO, which tells nothing of the checkpoint. */
ls_status ls__folder_open_status(int error_number);
/* fsync of a folder, which some file systems do not know. */
ls_status ls__folder_sync(const char *path);

#endif
