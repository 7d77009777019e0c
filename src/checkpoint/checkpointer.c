/* Saving beside training: a copy, a thread, at most one save under way. */
#include "checkpoint/checkpointer.h"

#include "base/clock.h"
#include "base/error.h"
#include "checkpoint/folder.h"
#include "comm/hold.h"
#include "optim/state.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* How long a rank may wait for the disks of the others. */
static const double PATIENCE_S = 600;

/* --- creation ------------------------------------------------------------------------------------- */

static ls_status check_arguments(ls_checkpointer **out, ls_group *group,
                                 const ls_checkpoint_contents *contents,
                                 const ls_checkpointer_options *options) {
    if (!out || !group || !contents || !contents->model || !options || !options->folder)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_create: an argument, the model or the "
                                         "folder is NULL");
    if (options->claim && !ls__checkpoint_claims(options->claim, options->folder))
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_create: the claim is of another folder");
    if (!contents->items && contents->item_count > 0)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_create: items is NULL for %zu items",
                        contents->item_count);
    if (!contents->facts && contents->fact_count > 0)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_create: facts is NULL for %zu facts",
                        contents->fact_count);
    for (size_t i = 0; i < contents->fact_count; i++)
        if (!contents->facts[i].name || !contents->facts[i].value)
            return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_create: fact %zu is NULL", i);
    return LS_OK;
}

/* Room for this rank's parts. Its pages are touched now: at the first save that would cost more than the copy. */
static ls_status take_copy(ls_checkpointer *c) {
    for (size_t i = 0; i < c->images.part_count; i++)
        if (c->images.parts[i].rank == c->rank)
            c->copy_bytes += (size_t)c->images.parts[i].bytes;
    if (c->options.synchronous || c->copy_bytes == 0)
        return LS_OK;
    void *memory = mmap(NULL, c->copy_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return ls__fail(LS_ERR_MEMORY,
                        "checkpoint: no memory for a copy of %zu bytes; saving that training "
                        "waits for needs none",
                        c->copy_bytes);
    c->copy = memory;
    return LS_OK;
}

/* A weight that is unfrozen gets state in its first update. */
static size_t count_states(const ls_checkpointer *c) {
    size_t count = 0;
    if (!c->contents.optimizer)
        return 0;
    for (size_t i = 0; i < ls__optimizer_state_count(c->contents.optimizer); i++)
        count += ls__optimizer_state_get(c->contents.optimizer, i).first != NULL;
    return count;
}

static void drop_layout(ls_checkpointer *c) {
    ls__images_free(&c->images);
    if (c->copy)
        munmap(c->copy, c->copy_bytes);
    c->copy = NULL;
    c->copy_bytes = 0;
}

static ls_status make_layout(ls_checkpointer *c) {
    drop_layout(c);
    c->state_count = SIZE_MAX; /* after a failure the next save tries again */
    LS_TRY(ls__images_create(&c->images, &c->contents, c->rank, c->ranks));
    LS_TRY(take_copy(c));
    c->state_count = count_states(c);
    return LS_OK;
}

/* Collective. Where one rank cannot, none has a layout, so that all try again. */
static ls_status make_layout_together(ls_checkpointer *c) {
    ls_status status = ls__checkpoint_agree(c, make_layout(c));
    if (status != LS_OK)
        c->state_count = SIZE_MAX;
    return status;
}

/* What can fail on one rank alone. */
static ls_status prepare(ls_checkpointer *c) {
    c->folder = strdup(c->options.folder);
    if (!c->folder)
        return ls__fail(LS_ERR_MEMORY, "checkpoint: out of memory");
    LS_TRY(make_layout(c));
    if (c->rank != 0)
        return LS_OK;
    if (!c->options.claim)
        LS_TRY(
            ls__folder_lock(c->folder, "", true, c->options.log, c->options.log_context, &c->lock));
    ls__folder_clean(c->folder);
    if (c->options.keep > 0 && !c->options.start_over) /* which tells it itself */
        ls__folder_tell_left(c->folder, c->options.log, c->options.log_context);
    return LS_OK;
}

ls_status ls_checkpointer_create(ls_checkpointer **out, ls_group *group,
                                 const ls_checkpoint_contents *contents,
                                 const ls_checkpointer_options *options) {
    if (out)
        *out = NULL;
    LS_TRY(check_arguments(out, group, contents, options));
    ls_checkpointer *c = calloc(1, sizeof *c);
    if (!c)
        return ls__fail(LS_ERR_MEMORY, "checkpoint: out of memory");
    pthread_mutex_init(&c->lock_outcomes, NULL);
    c->lock = -1;
    c->rank = ls_group_rank(group);
    c->ranks = ls_group_size(group);
    c->contents = *contents;
    c->options = *options;
    ls_status status = LS_OK;
    c->words = calloc((size_t)c->ranks, sizeof *c->words);
    if (!c->words)
        LS_TRY_OUT(ls__fail(LS_ERR_MEMORY, "checkpoint: out of memory"));
    LS_TRY_OUT(ls_group_split(group, 0, c->rank, &c->group));
    ls__group_hold(c->group);
    LS_TRY_OUT(ls_group_set_timeout(c->group, PATIENCE_S));
    LS_TRY_OUT(ls__checkpoint_agree(c, prepare(c)));
    /* Only now: what a rank cannot go on from must not cost the checkpoints. */
    if (c->rank == 0 && c->options.start_over)
        ls__folder_empty(c->folder, c->options.log, c->options.log_context);
    LS_TRY_OUT(ls_barrier(c->group));
    *out = c;
    return LS_OK;
out:
    ls_checkpointer_destroy(c);
    return status;
}

void ls_checkpointer_destroy(ls_checkpointer *c) {
    if (!c)
        return;
    if (c->running)
        pthread_join(c->thread, NULL);
    ls_group_destroy(c->group);
    ls__group_release(c->group);
    drop_layout(c);
    if (c->lock >= 0)
        close(c->lock);
    pthread_mutex_destroy(&c->lock_outcomes);
    free(c->folder);
    free(c->words);
    free(c);
}

/* --- saving --------------------------------------------------------------------------------------- */

static void note_outcome(ls_checkpointer *c, ls_status status, const char *path, double seconds) {
    pthread_mutex_lock(&c->lock_outcomes);
    if (c->outcome_count == LS__OUTCOMES) { /* nobody asked: the oldest goes */
        c->outcomes[0] = c->outcomes[1];
        c->outcome_count--;
    }
    ls_checkpoint_outcome *o = &c->outcomes[c->outcome_count++];
    *o = (ls_checkpoint_outcome){.step = c->progress.step,
                                 .status = status,
                                 .bytes = c->images.bytes,
                                 .copy_s = c->copy_s,
                                 .write_s = seconds};
    snprintf(o->text, sizeof o->text, "%s", status == LS_OK ? path : ls_error_text());
    c->last = status;
    memcpy(c->last_text, o->text, sizeof c->last_text);
    pthread_mutex_unlock(&c->lock_outcomes);
}

static ls_status write_now(ls_checkpointer *c) {
    uint64_t begin = ls__now_ns();
    char *path;
    ls_status status = ls__checkpoint_write(c, &path);
    note_outcome(c, status, path, (double)(ls__now_ns() - begin) / 1e9);
    free(path);
    return status;
}

static void *thread_main(void *argument) {
    write_now(argument);
    return NULL;
}

static ls_status copy_piece(void *context, const void *bytes, size_t size) {
    char **to = context;
    memcpy(*to, bytes, size);
    *to += size;
    return LS_OK;
}

static ls_status copy_parts(ls_checkpointer *c) {
    char *to = c->copy;
    for (size_t i = 0; c->copy && i < c->images.part_count; i++)
        if (c->images.parts[i].rank == c->rank)
            LS_TRY(ls__part_pieces(&c->images, &c->images.parts[i], copy_piece, &to));
    return LS_OK;
}

/* Signals are the other threads' business. */
static bool start_thread(ls_checkpointer *c) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool good = pthread_create(&c->thread, NULL, thread_main, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return good;
}

static void join(ls_checkpointer *c) {
    if (c->running)
        pthread_join(c->thread, NULL);
    c->running = false;
}

ls_status ls_checkpointer_save(ls_checkpointer *c, const ls_checkpoint_progress *progress) {
    if (!c || !progress)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_save: an argument is NULL");
    if (progress->step > INT64_MAX || progress->epoch > INT64_MAX ||
        progress->position > INT64_MAX || progress->seed > INT64_MAX)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_save: a number of 2^63 or more");
    join(c);
    uint64_t begin = ls__now_ns();
    if (count_states(c) != c->state_count) /* on all ranks, as they make the same updates */
        LS_TRY(make_layout_together(c));
    c->progress = *progress;
    LS_TRY(copy_parts(c));
    c->copy_s = (double)(ls__now_ns() - begin) / 1e9;
    /* A rank without bytes of its own takes part in the meetings all the same. */
    c->running = !c->options.synchronous && start_thread(c);
    if (!c->running) /* as asked, or for want of a thread */
        write_now(c);
    return LS_OK;
}

ls_status ls_checkpointer_clear(ls_checkpointer *c) {
    if (!c)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_clear: checkpointer is NULL");
    join(c);
    if (c->rank == 0)
        ls__folder_empty(c->folder, c->options.log, c->options.log_context);
    return ls_barrier(c->group);
}

ls_status ls_checkpointer_rewind(ls_checkpointer *c, uint64_t step, size_t *moved) {
    if (!c || !moved)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_rewind: an argument is NULL");
    join(c);
    *moved = 0;
    ls_status status = c->rank == 0 ? ls__folder_rewind(c->folder, step, moved) : LS_OK;
    LS_TRY(ls__checkpoint_agree(c, status));
    uint64_t count = *moved;
    LS_TRY(ls_broadcast(c->group, &count, sizeof count, LS_U8, 0));
    *moved = (size_t)count;
    return LS_OK;
}

bool ls_checkpointer_poll(ls_checkpointer *c, ls_checkpoint_outcome *outcome) {
    if (!c || !outcome)
        return false;
    pthread_mutex_lock(&c->lock_outcomes);
    bool any = c->outcome_count > 0;
    if (any) {
        *outcome = c->outcomes[0];
        c->outcomes[0] = c->outcomes[1];
        c->outcome_count--;
    }
    pthread_mutex_unlock(&c->lock_outcomes);
    return any;
}

ls_status ls_checkpointer_wait(ls_checkpointer *c) {
    if (!c)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_wait: checkpointer is NULL");
    join(c);
    return c->last == LS_OK ? LS_OK : ls__fail(c->last, "%s", c->last_text);
}
