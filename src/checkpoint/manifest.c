#include "checkpoint/manifest.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/folder.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

static const char FORMAT[] = "lockstep-checkpoint";
static const char SELF[] = "xxh64"; /* of the manifest without this key, compact, keys sorted */

/* The text that the checksum is of. Numbers keep 17 digits, so writing and reading do not change it. */
static char *plain_text(const json_t *root) {
    return json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
}

static void hash_text(uint64_t hash, char text[17]) {
    snprintf(text, 17, "%016llx", (unsigned long long)hash);
}

static bool parse_hash(const json_t *value, uint64_t *hash) {
    const char *text = json_string_value(value);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return false;
    *hash = strtoull(text, NULL, 16);
    return true;
}

/* --- writing -------------------------------------------------------------------------------------- */

static json_t *file_object(const ls__manifest_file *file) {
    json_t *parts = json_array();
    for (size_t i = 0; i < file->part_count; i++) {
        const ls__manifest_part *part = &file->parts[i];
        char hash[17];
        hash_text(part->hash, hash);
        json_array_append_new(parts,
                              json_pack("{s:I, s:I, s:s}", "offset", (json_int_t)part->offset,
                                        "bytes", (json_int_t)part->bytes, "xxh64", hash));
    }
    if (json_array_size(parts) != file->part_count) {
        json_decref(parts);
        return NULL;
    }
    return json_pack("{s:s, s:I, s:o}", "name", file->name, "bytes", (json_int_t)file->bytes,
                     "parts", parts);
}

static json_t *manifest_object(const ls__manifest *m) {
    const ls_checkpoint_progress *p = &m->progress;
    json_t *files = json_array(), *facts = json_object();
    for (size_t i = 0; i < m->file_count; i++)
        json_array_append_new(files, file_object(&m->files[i]));
    for (size_t i = 0; i < m->fact_count; i++)
        json_object_set_new(facts, m->fact_names[i], json_string(m->fact_values[i]));
    bool whole =
        json_array_size(files) == m->file_count && json_object_size(facts) == m->fact_count;
    /* "o" takes objects over, also on failure */
    json_t *root =
        json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}",
                  "format", FORMAT, "version", LS__MANIFEST_VERSION, "lockstep", LOCKSTEP_VERSION,
                  "step", (json_int_t)p->step, "epoch", (json_int_t)p->epoch, "position",
                  (json_int_t)p->position, "seed", (json_int_t)p->seed, "shards",
                  (json_int_t)p->shards, "world_size", (json_int_t)m->world_size, "train_loss",
                  ls__json_real(p->train_loss), "val_loss", ls__json_real(p->val_loss), "best_loss",
                  ls__json_real(p->best_loss), "facts", facts, "files", files);
    if (root && !whole) {
        json_decref(root);
        root = NULL;
    }
    return root;
}

char *ls__manifest_text(const ls__manifest *manifest) {
    json_t *root = manifest_object(manifest);
    char *plain = root ? plain_text(root) : NULL, *text = NULL;
    if (plain) {
        char hash[17];
        hash_text(XXH64(plain, strlen(plain), 0), hash);
        if (json_object_set_new(root, SELF, json_string(hash)) == 0)
            text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    }
    free(plain);
    json_decref(root);
    return text;
}

/* --- reading -------------------------------------------------------------------------------------- */

static ls_status take_count(json_t *object, const char *key, const char *name, uint64_t *value) {
    const json_t *number = json_object_get(object, key);
    if (!json_is_integer(number) || json_integer_value(number) < 0)
        return ls__fail(LS_ERR_FORMAT, "%s: \"%s\" is no whole number >= 0", name, key);
    *value = (uint64_t)json_integer_value(number);
    return LS_OK;
}

/* null is how JSON has NaN. */
static ls_status take_real(json_t *object, const char *key, const char *name, double *value) {
    const json_t *number = json_object_get(object, key);
    if (!json_is_number(number) && !json_is_null(number))
        return ls__fail(LS_ERR_FORMAT, "%s: \"%s\" is neither a number nor null", name, key);
    *value = json_is_null(number) ? NAN : json_number_value(number);
    return LS_OK;
}

static ls_status take_parts(ls__manifest_file *file, json_t *parts, const char *name) {
    if (!json_is_array(parts))
        return ls__fail(LS_ERR_FORMAT, "%s: file %s has no \"parts\"", name, file->name);
    file->parts = calloc(json_array_size(parts) + 1, sizeof *file->parts);
    if (!file->parts)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for it", name);
    uint64_t at = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *object = json_array_get(parts, i);
        ls__manifest_part *part = &file->parts[i];
        LS_TRY(take_count(object, "offset", name, &part->offset));
        LS_TRY(take_count(object, "bytes", name, &part->bytes));
        if (part->offset != at || part->bytes == 0 || part->bytes > file->bytes - at)
            return ls__fail(LS_ERR_FORMAT,
                            "%s: file %s: part %zu is %llu bytes from %llu on, want it to follow "
                            "on byte %llu of %llu",
                            name, file->name, i, (unsigned long long)part->bytes,
                            (unsigned long long)part->offset, (unsigned long long)at,
                            (unsigned long long)file->bytes);
        if (!parse_hash(json_object_get(object, "xxh64"), &part->hash))
            return ls__fail(LS_ERR_FORMAT, "%s: file %s: part %zu has no \"xxh64\" of 16 digits",
                            name, file->name, i);
        at += part->bytes;
        file->part_count++;
    }
    if (at != file->bytes)
        return ls__fail(LS_ERR_FORMAT, "%s: file %s: its parts end at byte %llu of %llu", name,
                        file->name, (unsigned long long)at, (unsigned long long)file->bytes);
    return LS_OK;
}

/* A name that leads out of the folder, or to what is not part of a checkpoint, is refused. */
static bool is_plain_name(const char *text) {
    size_t length = text ? strlen(text) : 0;
    return length > 0 && length < 200 && text[0] != '.' && !strchr(text, '/') &&
           strcmp(text, LS__MANIFEST_NAME) != 0;
}

static ls_status take_files(ls__manifest *m, json_t *files, const char *name) {
    size_t count = json_array_size(files);
    if (!json_is_array(files) || count == 0 || count > LS__MANIFEST_MAX_FILES)
        return ls__fail(LS_ERR_FORMAT, "%s: \"files\" is no list of 1 to %d files", name,
                        LS__MANIFEST_MAX_FILES);
    m->files = calloc(count, sizeof *m->files);
    if (!m->files)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for it", name);
    for (size_t i = 0; i < count; i++) {
        json_t *object = json_array_get(files, i);
        ls__manifest_file *file = &m->files[i];
        const char *text = json_string_value(json_object_get(object, "name"));
        if (!is_plain_name(text))
            return ls__fail(LS_ERR_FORMAT, "%s: file %zu is called \"%.100s\", want a plain name",
                            name, i, text ? text : "");
        for (size_t k = 0; k < i; k++)
            if (strcmp(m->files[k].name, text) == 0)
                return ls__fail(LS_ERR_FORMAT, "%s: file %s is listed twice", name, text);
        file->name = strdup(text);
        if (!file->name)
            return ls__fail(LS_ERR_MEMORY, "%s: no memory for it", name);
        m->file_count++;
        LS_TRY(take_count(object, "bytes", name, &file->bytes));
        LS_TRY(take_parts(file, json_object_get(object, "parts"), name));
    }
    return LS_OK;
}

static ls_status take_facts(ls__manifest *m, json_t *facts, const char *name) {
    if (!json_is_object(facts))
        return ls__fail(LS_ERR_FORMAT, "%s: \"facts\" is no object", name);
    m->fact_names = calloc(json_object_size(facts) + 1, sizeof *m->fact_names);
    m->fact_values = calloc(json_object_size(facts) + 1, sizeof *m->fact_values);
    if (!m->fact_names || !m->fact_values)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for it", name);
    const char *key;
    json_t *value;
    json_object_foreach(facts, key, value) {
        if (!json_is_string(value))
            return ls__fail(LS_ERR_FORMAT, "%s: fact \"%.100s\" is no text", name, key);
        size_t i = m->fact_count++;
        m->fact_names[i] = strdup(key);
        m->fact_values[i] = strdup(json_string_value(value));
        if (!m->fact_names[i] || !m->fact_values[i])
            return ls__fail(LS_ERR_MEMORY, "%s: no memory for it", name);
    }
    return LS_OK;
}

/* Whoever copies or renames a checkpoint to another step would have it taken for the newest. */
static ls_status check_step(const ls__manifest *m, const char *folder) {
    uint64_t named;
    if (!ls__folder_path_step(folder, &named) || named == m->progress.step)
        return LS_OK;
    return ls__fail(LS_ERR_FORMAT, "%s: its manifest says step %llu; give it the name step-%08llu",
                    folder, (unsigned long long)m->progress.step,
                    (unsigned long long)m->progress.step);
}

/* Is it a manifest of this version, and as it was written? */
static ls_status check_self(json_t *root, const char *name) {
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, FORMAT) != 0)
        return ls__fail(LS_ERR_FORMAT, "%s: \"format\" is not \"%s\"", name, FORMAT);
    const json_t *version = json_object_get(root, "version");
    if (!json_is_integer(version) || json_integer_value(version) != LS__MANIFEST_VERSION)
        return ls__fail(LS_ERR_FORMAT, "%s: version is %lld, this lockstep reads %d", name,
                        (long long)json_integer_value(version), LS__MANIFEST_VERSION);
    uint64_t wanted;
    if (!parse_hash(json_object_get(root, SELF), &wanted))
        return ls__fail(LS_ERR_FORMAT, "%s: has no \"%s\" of 16 digits", name, SELF);
    json_object_del(root, SELF);
    char *plain = plain_text(root);
    if (!plain)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for it", name);
    uint64_t seen = XXH64(plain, strlen(plain), 0);
    free(plain);
    if (seen != wanted)
        return ls__fail(LS_ERR_FORMAT, "%s: was changed: its checksum is %016llx, it says %016llx",
                        name, (unsigned long long)seen, (unsigned long long)wanted);
    return LS_OK;
}

static ls_status take_all(ls__manifest *m, json_t *root, const char *name) {
    ls_checkpoint_progress *p = &m->progress;
    uint64_t shards, ranks;
    LS_TRY(check_self(root, name));
    LS_TRY(take_count(root, "step", name, &p->step));
    LS_TRY(take_count(root, "epoch", name, &p->epoch));
    LS_TRY(take_count(root, "position", name, &p->position));
    LS_TRY(take_count(root, "seed", name, &p->seed));
    LS_TRY(take_count(root, "shards", name, &shards));
    LS_TRY(take_count(root, "world_size", name, &ranks));
    p->shards = (size_t)shards;
    m->world_size = (int64_t)ranks;
    LS_TRY(take_real(root, "train_loss", name, &p->train_loss));
    LS_TRY(take_real(root, "val_loss", name, &p->val_loss));
    LS_TRY(take_real(root, "best_loss", name, &p->best_loss));
    LS_TRY(take_facts(m, json_object_get(root, "facts"), name));
    return take_files(m, json_object_get(root, "files"), name);
}

ls_status ls__manifest_parse(ls__manifest *manifest, const char *text, size_t size,
                             const char *name) {
    *manifest = (ls__manifest){0};
    if (size > LS__MANIFEST_MAX_BYTES)
        return ls__fail(LS_ERR_FORMAT, "%s: has %zu bytes, want at most %d", name, size,
                        LS__MANIFEST_MAX_BYTES);
    json_error_t error;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root)) {
        json_decref(root);
        return ls__fail(LS_ERR_FORMAT, "%s: is no JSON object: %.200s (line %d)", name,
                        root ? "another type" : error.text, error.line);
    }
    ls_status status = take_all(manifest, root, name);
    json_decref(root);
    if (status != LS_OK)
        ls__manifest_free(manifest);
    return status;
}

ls_status ls__manifest_read(ls__manifest *manifest, const char *folder) {
    *manifest = (ls__manifest){0};
    char *path;
    if (asprintf(&path, "%s/%s", folder, LS__MANIFEST_NAME) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for its name", folder);
    struct stat info;
    unsigned char *text = NULL;
    size_t size = 0;
    ls_status status = LS_OK;
    if (stat(path, &info) != 0)
        status = ls__fail_errno(ls__folder_open_status(errno), errno, "%s: cannot open", path);
    else if (!S_ISREG(info.st_mode)) /* a pipe would be waited for */
        status = ls__fail(LS_ERR_FORMAT, "%s: is a %s, want a regular file", path,
                          S_ISDIR(info.st_mode) ? "folder" : "pipe or device");
    else if (info.st_size > LS__MANIFEST_MAX_BYTES) /* before memory is taken for it */
        status = ls__fail(LS_ERR_FORMAT, "%s: has %lld bytes, want at most %d", path,
                          (long long)info.st_size, LS__MANIFEST_MAX_BYTES);
    if (status == LS_OK)
        status = ls__file_read(path, &text, &size);
    if (status == LS_OK)
        status = ls__manifest_parse(manifest, (const char *)text, size, path);
    if (status == LS_OK && (status = check_step(manifest, folder)) != LS_OK)
        ls__manifest_free(manifest);
    free(text);
    free(path);
    return status;
}

void ls__manifest_free(ls__manifest *m) {
    for (size_t i = 0; i < m->file_count; i++) {
        free(m->files[i].name);
        free(m->files[i].parts);
    }
    for (size_t i = 0; i < m->fact_count; i++) {
        free(m->fact_names[i]);
        free(m->fact_values[i]);
    }
    free(m->files);
    free(m->fact_names);
    free(m->fact_values);
    *m = (ls__manifest){0};
}
