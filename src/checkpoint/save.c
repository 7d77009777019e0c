/* One save, from the first file to its name. Three meetings of all ranks: rank 0 has made the files; all have
 * written, synced and checked their parts; rank 0 has written the manifest and given the folder its
 * name. An error of any rank in between is everybody's, with its text. */
#include "checkpoint/checkpointer.h"

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "checkpoint/part.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the steps ------------------------------------------------------------------------------------ */

static ls_status make_files(const ls_checkpointer *c, char *path, size_t size) {
    char *made;
    LS_TRY(ls__folder_begin(c->folder, c->progress.step, &made));
    bool fits = (size_t)snprintf(path, size, "%s", made) < size;
    if (!fits) {
        path[0] = '\0'; /* cut off, it would be somebody else's name */
        rmdir(made);
        ls__error_set("checkpoint: longer than %zu bytes: %s", size - 1, made);
    }
    free(made);
    if (!fits)
        return LS_ERR_ARGUMENT;
    for (size_t i = 0; i < LS__IMAGES; i++)
        if (c->images.of[i].count > 0)
            LS_TRY(ls__part_make_file(&c->images.of[i], path));
    return LS_OK;
}

/* hashes[i] of this rank's parts; the others' stay 0. */
static ls_status write_parts(const ls_checkpointer *c, const char *path, uint64_t *hashes) {
    const char *copy = c->copy;
    for (size_t i = 0; i < c->images.part_count; i++) {
        const ls__part *part = &c->images.parts[i];
        if (part->rank != c->rank)
            continue;
        LS_TRY(ls__part_write(&c->images, part, path, copy, &hashes[i]));
        if (copy)
            copy += part->bytes;
    }
    return LS_OK;
}

static ls_status write_text(const char *folder, const char *text) {
    char *path;
    if (asprintf(&path, "%s/%s", folder, LS__MANIFEST_NAME) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a file", folder);
    FILE *file = fopen(path, "wxe");
    ls_status status = LS_OK;
    bool good = file && fputs(text, file) >= 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (!good)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", path);
    if (file && fclose(file) != 0 && status == LS_OK)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", path);
    free(path);
    return status;
}

static ls_status fill_files(const ls_checkpointer *c, const uint64_t *hashes,
                            ls__manifest *manifest) {
    for (size_t i = 0, p = 0; i < LS__IMAGES; i++) {
        const ls__image *image = &c->images.of[i];
        if (image->count == 0)
            continue;
        ls__manifest_file *file = &manifest->files[manifest->file_count++];
        file->bytes = image->bytes;
        file->name = strdup(image->name);
        file->parts = calloc(c->images.part_count, sizeof *file->parts);
        if (!file->name || !file->parts)
            return ls__fail(LS_ERR_MEMORY, "checkpoint: no memory for its manifest");
        for (; p < c->images.part_count && c->images.parts[p].image == i; p++) {
            const ls__part *part = &c->images.parts[p];
            file->parts[file->part_count++] = (ls__manifest_part){
                .offset = part->offset, .bytes = part->bytes, .hash = hashes[p]};
        }
    }
    return LS_OK;
}

static ls_status write_manifest(const ls_checkpointer *c, const char *path,
                                const uint64_t *hashes) {
    ls__manifest m = {.progress = c->progress, .world_size = c->ranks};
    size_t facts = c->contents.fact_count;
    m.files = calloc(LS__IMAGES, sizeof *m.files);
    m.fact_names = calloc(facts + 1, sizeof *m.fact_names);
    m.fact_values = calloc(facts + 1, sizeof *m.fact_values);
    ls_status status = LS_OK;
    if (!m.files || !m.fact_names || !m.fact_values)
        status = ls__fail(LS_ERR_MEMORY, "%s: no memory for its manifest", path);
    for (; status == LS_OK && m.fact_count < facts; m.fact_count++) {
        m.fact_names[m.fact_count] = strdup(c->contents.facts[m.fact_count].name);
        m.fact_values[m.fact_count] = strdup(c->contents.facts[m.fact_count].value);
        if (!m.fact_names[m.fact_count] || !m.fact_values[m.fact_count])
            status = ls__fail(LS_ERR_MEMORY, "%s: no memory for its manifest", path);
    }
    if (status == LS_OK)
        status = fill_files(c, hashes, &m);
    char *text = status == LS_OK ? ls__manifest_text(&m) : NULL;
    if (status == LS_OK)
        status = text ? write_text(path, text)
                      : ls__fail(LS_ERR_MEMORY, "%s: no memory for its manifest", path);
    free(text);
    ls__manifest_free(&m);
    return status;
}

static ls_status commit(ls_checkpointer *c, const char *path, const uint64_t *hashes) {
    LS_TRY(write_manifest(c, path, hashes));
    return ls__folder_publish(c->folder, c->progress.step, path);
}

/* A save that failed leaves nothing; the error's text stays. */
static void give_up(const ls_checkpointer *c, const char *half) {
    char text[1024];
    snprintf(text, sizeof text, "%s", ls_error_text());
    if (c->rank == 0 && half[0])
        ls__folder_remove(c->folder, half);
    ls__error_set("%s", text);
}

ls_status ls__checkpoint_write(ls_checkpointer *c, char **path) {
    char half[1000] = "";
    uint64_t *hashes = calloc(c->images.part_count, sizeof *hashes);
    *path = NULL;
    ls_status status = c->rank == 0 ? make_files(c, half, sizeof half) : LS_OK;
    LS_TRY_OUT(ls__checkpoint_follow(c->group, status, half, sizeof half));
    *path = ls__folder_step_path(c->folder, c->progress.step);
    status = hashes && *path ? write_parts(c, half, hashes)
                             : ls__fail(LS_ERR_MEMORY, "checkpoint: out of memory");
    LS_TRY_OUT(ls__checkpoint_agree(c, status));
    /* each is 0 on all ranks but one */
    LS_TRY_OUT(ls_all_reduce(c->group, hashes, hashes, c->images.part_count, LS_I64, LS_SUM));
    status = c->rank == 0 ? commit(c, half, hashes) : LS_OK;
    LS_TRY_OUT(ls__checkpoint_follow(c->group, status, half, sizeof half));
    if (c->rank == 0)
        ls__checkpoint_retain(c, c->progress.step);
out:
    if (status != LS_OK) {
        give_up(c, half);
        free(*path);
        *path = NULL;
    }
    free(hashes);
    return status;
}
