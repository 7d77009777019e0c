/* Going on from a checkpoint: which one, and filling model, optimizer and items from it. */
#include "checkpoint/checkpointer.h"

#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/verify.h"
#include "nn/parameter.h"
#include "optim/state.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void tell(ls_log_fn log, void *context, const char *format, ...) LS_PRINTF(3, 4);

static void tell(ls_log_fn log, void *context, const char *format, ...) {
    char text[1400], line[1400];
    va_list args;
    if (!log)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log(context, LS_LOG_WARNING, ls__printable(line, sizeof line, text));
}

/* --- which one ------------------------------------------------------------------------------------ */

/* Whether `candidate` is whole, told to the log where it is not. One that cannot be read may be whole, and to go on
 * without it would be to lose it: that is an error. */
static ls_status try_one(const char *candidate, ls_log_fn log, void *context, bool *whole) {
    ls_status status = ls_checkpoint_verify(candidate, NULL);
    *whole = status == LS_OK;
    if (status == LS_ERR_IO)
        return ls__fail_context(status, "%s cannot be checked and may be whole", candidate);
    if (status == LS_ERR_FORMAT)
        tell(log, context, "%s is passed over: %s", candidate, ls_error_text());
    return status == LS_ERR_FORMAT ? LS_OK : status;
}

/* The newest whole one; "" in path where none was ever saved; rank 0's. */
static ls_status find_newest(const char *folder, ls_log_fn log, void *context, char *path,
                             size_t size) {
    uint64_t *steps;
    size_t count;
    bool whole = false;
    path[0] = '\0';
    LS_TRY(ls__folder_steps(folder, &steps, &count));
    ls_status status = LS_OK;
    for (size_t left = count; status == LS_OK && left > 0 && !whole;) {
        char *candidate = ls__folder_step_path(folder, steps[--left]);
        status = candidate ? try_one(candidate, log, context, &whole) : LS_ERR_MEMORY;
        if (whole && (size_t)snprintf(path, size, "%s", candidate) >= size)
            status = ls__fail(LS_ERR_ARGUMENT, "%s: longer than %zu bytes", candidate, size - 1);
        free(candidate);
    }
    free(steps);
    if (status == LS_OK && count > 0 && !whole)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: none of its %zu checkpoint%s is whole; move them away to begin again",
                        folder, count, count == 1 ? "" : "s");
    return status;
}

/* `folder` itself, or what lies in it. */
static ls_status find(const char *folder, ls_log_fn log, void *context, char *path, size_t size) {
    char *manifest;
    if (asprintf(&manifest, "%s/%s", folder, LS__MANIFEST_NAME) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for its name", folder);
    bool itself = access(manifest, F_OK) == 0;
    free(manifest);
    if (!itself)
        return find_newest(folder, log, context, path, size);
    if ((size_t)snprintf(path, size, "%s", folder) >= size)
        return ls__fail(LS_ERR_ARGUMENT, "%s: longer than %zu bytes", folder, size - 1);
    return ls_checkpoint_verify(folder, NULL);
}

ls_status ls_checkpoint_find(ls_group *group, const char *folder, ls_log_fn log, void *log_context,
                             char **path, ls_checkpoint_progress *progress) {
    if (!group || !folder || !path || !progress)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpoint_find: an argument is NULL");
    char found[1000] = "";
    *path = NULL;
    ls_status status = LS_OK;
    if (ls_group_rank(group) == 0)
        status = find(folder, log, log_context, found, sizeof found);
    LS_TRY(ls__checkpoint_follow(group, status, found, sizeof found));
    if (!found[0])
        return LS_OK;
    ls__manifest manifest;
    LS_TRY(ls__manifest_read(&manifest, found));
    *progress = manifest.progress;
    ls__manifest_free(&manifest);
    *path = strdup(found);
    return *path ? LS_OK : ls__fail(LS_ERR_MEMORY, "%s: no memory for its name", found);
}

/* --- facts ---------------------------------------------------------------------------------------- */

static const char *find_fact(const ls__manifest *manifest, const char *name) {
    for (size_t i = 0; i < manifest->fact_count; i++)
        if (strcmp(manifest->fact_names[i], name) == 0)
            return manifest->fact_values[i];
    return NULL;
}

static ls_status compare_facts(const ls_checkpointer *c, const ls__manifest *manifest,
                               const char *path) {
    for (size_t i = 0; i < c->contents.fact_count; i++) {
        const ls_checkpoint_fact *fact = &c->contents.facts[i];
        const char *saved = find_fact(manifest, fact->name);
        if (saved && strcmp(saved, fact->value) == 0)
            continue;
        if (fact->binding)
            return ls__fail(LS_ERR_ARGUMENT, "%s: saved with %s %s, this run has %s; give the same",
                            path, fact->name, saved ? saved : "unknown", fact->value);
        if (c->rank == 0)
            tell(c->options.log, c->options.log_context,
                 "%s: saved with %s %s, this run has %s: it will not get the bits of one that was "
                 "never interrupted",
                 path, fact->name, saved ? saved : "unknown", fact->value);
    }
    return LS_OK;
}

/* --- tensors -------------------------------------------------------------------------------------- */

static ls_status check_tensors(const ls_safetensors *file, const ls__image *image,
                               const char *path) {
    for (size_t i = 0; i < image->count; i++) {
        const ls_safetensors_entry *wanted = &image->entries[i];
        const ls_safetensors_entry *seen = ls_safetensors_find(file, wanted->name);
        if (!seen)
            return ls__fail(LS_ERR_FORMAT, "%s: no tensor %s, which this run has", path,
                            wanted->name);
        if (!ls__safetensors_same_form(seen, wanted))
            return ls__fail(LS_ERR_FORMAT,
                            "%s: tensor %s is %s of %zu bytes, this run has %s of "
                            "%zu bytes, or another shape",
                            path, wanted->name, seen->dtype, seen->bytes, wanted->dtype,
                            wanted->bytes);
    }
    for (size_t i = 0; i < ls_safetensors_count(file); i++) {
        const char *name = ls_safetensors_get(file, i)->name;
        bool known = false;
        for (size_t k = 0; !known && k < image->count; k++)
            known = strcmp(image->entries[k].name, name) == 0;
        if (!known)
            return ls__fail(LS_ERR_FORMAT, "%s: tensor %s, which this run does not have", path,
                            name);
    }
    return LS_OK;
}

/* A file of tensors that are equal on all ranks, into their memory. Checks all before it changes any. */
static ls_status load_image(const ls__image *image, const char *folder) {
    char *path;
    struct stat info;
    ls_safetensors *file;
    if (asprintf(&path, "%s/%s", folder, image->name) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a file", folder);
    if (image->count == 0 && stat(path, &info) != 0) {
        free(path);
        return LS_OK;
    }
    ls_status status = ls_safetensors_open(&file, path);
    if (status == LS_OK) {
        status = check_tensors(file, image, path);
        for (size_t i = 0; status == LS_OK && i < image->count; i++) {
            const ls_safetensors_entry *e = &image->entries[i];
            memcpy((void *)e->data, ls_safetensors_find(file, e->name)->data, e->bytes);
        }
        ls_safetensors_close(file);
    }
    free(path);
    return status;
}

/* Corrections of moments hang on them: a step that no run could have made would train on, to other weights. */
static ls_status check_steps(const ls_checkpointer *c, const char *folder) {
    ls_optimizer *optimizer = c->contents.optimizer;
    const uint64_t most = UINT64_C(1) << 48, all = optimizer ? *ls__optimizer_steps(optimizer) : 0;
    if (all > most)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: the optimizer's steps are %" PRId64 ", want 0 to %" PRIu64, folder,
                        (int64_t)all, most);
    for (size_t i = 0; optimizer && i < ls__optimizer_state_count(optimizer); i++) {
        const ls__optimizer_state s = ls__optimizer_state_get(optimizer, i);
        if (*s.steps > all)
            return ls__fail(LS_ERR_FORMAT,
                            "%s: %s.step is %" PRId64 ", want 0 to the optimizer's %" PRIu64
                            " steps",
                            folder, s.parameter->name, (int64_t)*s.steps, all);
    }
    return LS_OK;
}

/* --- what each rank has of its own ------------------------------------------------------------------ */

/* Old rank r's memory goes to new rank r * new / old. */
static bool is_heir(const ls_checkpointer *c, int64_t old_rank, int64_t old_ranks) {
    return old_rank * c->ranks / old_ranks == c->rank;
}

static ls_status load_item(const ls_checkpointer *c, const ls_checkpoint_item *item,
                           const ls_safetensors *file, int64_t old_ranks, const char *path) {
    size_t count = 1;
    for (size_t d = 0; d < item->dims; d++)
        count *= item->shape[d];
    const ls_safetensors_entry wanted = {
        .dtype = ls_dtype_name(item->dtype), .dims = item->dims, .shape = item->shape};
    float *data = item->data;
    memset(data, 0, count * sizeof *data);
    for (int64_t r = 0; r < old_ranks; r++) {
        char *name;
        if (asprintf(&name, "rank-%lld.%s", (long long)r, item->name) < 0)
            return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a tensor", path);
        const ls_safetensors_entry *seen = ls_safetensors_find(file, name);
        bool fits = seen && ls__safetensors_same_form(seen, &wanted);
        if (!fits)
            ls__error_set("%s: %s %s%s", path, seen ? "tensor" : "no tensor", name,
                          seen ? " has another shape than this run's" : ", which this run has");
        free(name);
        if (!fits)
            return LS_ERR_FORMAT;
        if (!is_heir(c, r, old_ranks))
            continue;
        for (size_t i = 0; i < count; i++) {
            float value; /* the file's bytes are not aligned */
            memcpy(&value, (const char *)seen->data + i * sizeof value, sizeof value);
            data[i] = old_ranks == c->ranks ? value : data[i] + value;
        }
    }
    return LS_OK;
}

static ls_status load_ranks(const ls_checkpointer *c, int64_t old_ranks, const char *folder) {
    char *path;
    ls_safetensors *file;
    if (c->images.of[LS__IMAGE_RANKS].count == 0)
        return LS_OK; /* what ranks had of their own is not wanted any more */
    if (asprintf(&path, "%s/%s", folder, c->images.of[LS__IMAGE_RANKS].name) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a file", folder);
    ls_status status = ls_safetensors_open(&file, path);
    if (status == LS_OK) {
        for (size_t i = 0; status == LS_OK && i < c->contents.item_count; i++)
            if (c->contents.items[i].per_rank)
                status = load_item(c, &c->contents.items[i], file, old_ranks, path);
        ls_safetensors_close(file);
    }
    free(path);
    return status;
}

/* --- all of it -------------------------------------------------------------------------------------- */

static ls_status load_model(const ls_checkpointer *c, const char *folder) {
    char *path;
    if (asprintf(&path, "%s/%s", folder, c->images.of[LS__IMAGE_MODEL].name) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a file", folder);
    ls_status status = ls_model_load(c->contents.model, path);
    free(path);
    return status;
}

static ls_status load(const ls_checkpointer *c, const char *path,
                      ls_checkpoint_progress *progress) {
    ls__manifest manifest;
    LS_TRY(ls__manifest_read(&manifest, path));
    ls_status status = compare_facts(c, &manifest, path);
    if (status == LS_OK && manifest.world_size < 1)
        status = ls__fail(LS_ERR_FORMAT, "%s: world_size is 0", path);
    if (status == LS_OK)
        status = load_image(&c->images.of[LS__IMAGE_OPTIMIZER], path);
    if (status == LS_OK)
        status = check_steps(c, path);
    if (status == LS_OK)
        status = load_image(&c->images.of[LS__IMAGE_STATE], path);
    if (status == LS_OK)
        status = load_ranks(c, manifest.world_size, path);
    if (status == LS_OK)
        status = load_model(c, path);
    *progress = manifest.progress;
    ls__manifest_free(&manifest);
    return status;
}

ls_status ls_checkpointer_load(ls_checkpointer *c, const char *path,
                               ls_checkpoint_progress *progress) {
    if (!c || !path || !progress)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpointer_load: an argument is NULL");
    (void)ls_checkpointer_wait(c);
    return ls__checkpoint_agree(c, load(c, path, progress));
}
