/* Writing safetensors so that a crash, a full disk or a failing disk never leaves half a file under
 * the final name. */
#include "checkpoint/safetensors.h"

#include "base/error.h"
#include "base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Data begins at a multiple of this, so that a mapped file is aligned when its parts are. */
enum { DATA_ALIGNMENT = 64, TRIES = 100 };

/* --- header ------------------------------------------------------------------------------------- */

static ls_status add_entry(json_t *root, const ls_safetensors_entry *entry, uint64_t *at,
                           const char *path) {
    size_t bytes;
    if (strcmp(entry->name, "__metadata__") == 0)
        return ls__fail(LS_ERR_ARGUMENT, "%s: tensor name \"__metadata__\" is reserved", path);
    if (json_object_get(root, entry->name))
        return ls__fail(LS_ERR_ARGUMENT, "%s: tensor name \"%.100s\" is used twice", path,
                        entry->name);
    if (!ls__safetensors_bytes(entry->dtype, entry->shape, entry->dims, &bytes) ||
        bytes != entry->bytes)
        return ls__fail(LS_ERR_ARGUMENT,
                        "%s: tensor \"%.100s\" has %zu bytes, which its shape and dtype %.20s do "
                        "not come to",
                        path, entry->name, entry->bytes, entry->dtype);
    uint64_t end;
    if (__builtin_add_overflow(*at, entry->bytes, &end) || end > INT64_MAX)
        return ls__fail(LS_ERR_ARGUMENT, "%s: more than 2^63 bytes of tensors", path);
    json_t *shape = json_array();
    for (size_t i = 0; i < entry->dims; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)entry->shape[i])) != 0) {
            json_decref(shape);
            return ls__fail(LS_ERR_MEMORY, "%s: no memory for its header", path);
        }
    /* "o" takes the shape over, also on failure */
    json_t *object = json_pack("{s:s, s:o, s:[I, I]}", "dtype", entry->dtype, "shape", shape,
                               "data_offsets", (json_int_t)*at, (json_int_t)end);
    if (!object)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for its header", path);
    *at = end;
    if (json_object_set_new(root, entry->name, object) != 0)
        return ls__fail(LS_ERR_ARGUMENT, "%s: tensor name \"%.100s\" is no UTF-8", path,
                        entry->name);
    return LS_OK;
}

static ls_status fill_header(json_t *root, const char *path, const ls_safetensors_entry *entries,
                             size_t count, const char *const *keys, const char *const *values,
                             size_t metadata_count) {
    json_t *metadata = json_object();
    if (!metadata)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for its header", path);
    for (size_t i = 0; i < metadata_count; i++)
        if (json_object_set_new(metadata, keys[i], json_string(values[i])) != 0) {
            json_decref(metadata);
            return ls__fail(LS_ERR_ARGUMENT, "%s: metadata \"%.100s\" is no UTF-8", path, keys[i]);
        }
    bool kept = metadata_count == 0 || json_object_set(root, "__metadata__", metadata) == 0;
    json_decref(metadata);
    if (!kept)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for its header", path);
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++)
        LS_TRY(add_entry(root, &entries[i], &at, path));
    return LS_OK;
}

ls_status ls__safetensors_make_header(const char *path, const ls_safetensors_entry *entries,
                                      size_t count, const char *const *keys,
                                      const char *const *values, size_t metadata_count,
                                      char **header, size_t *size) {
    json_t *root = json_object();
    ls_status status = fill_header(root, path, entries, count, keys, values, metadata_count);
    char *text = status == LS_OK ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (status != LS_OK)
        return status;
    size_t length = text ? strlen(text) : 0;
    size_t padded = (8 + length + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
    *header = text ? malloc(padded) : NULL;
    if (!*header) {
        status = ls__fail(LS_ERR_MEMORY, "%s: no memory for its header", path);
    } else if (padded - 8 > LS__SAFETENSORS_HEADER_MAX) {
        status = ls__fail(LS_ERR_ARGUMENT, "%s: a header of %zu bytes, want at most %d", path,
                          padded - 8, LS__SAFETENSORS_HEADER_MAX);
        free(*header);
        *header = NULL;
    } else {
        for (int i = 0; i < 8; i++)
            (*header)[i] = (char)((padded - 8) >> (8 * i) & 0xff);
        memcpy(*header + 8, text, length);
        memset(*header + 8 + length, ' ', padded - 8 - length);
        *size = padded;
    }
    free(text);
    return status;
}

/* --- file --------------------------------------------------------------------------------------- */

static ls_status write_all(int fd, const void *bytes, size_t size, const char *path) {
    const char *p = bytes;
    while (size > 0) {
        ssize_t n = write(fd, p, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ls__fail_errno(LS_ERR_IO, n == 0 ? ENOSPC : errno, "%s: cannot write", path);
        p += n;
        size -= (size_t)n;
    }
    return LS_OK;
}

/* A new file beside `path`, with the permissions a plain open would give. */
static ls_status create_temporary(const char *path, char **temporary, int *fd) {
    for (int try = 0; try < TRIES; try++) {
        if (asprintf(temporary, "%s.tmp-%ld-%d", path, (long)getpid(), try) < 0) {
            *temporary = NULL;
            return ls__fail(LS_ERR_MEMORY, "%s: no memory for a temporary name", path);
        }
        *fd = open(*temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (*fd >= 0)
            return LS_OK;
        int error_number = errno;
        free(*temporary);
        *temporary = NULL;
        if (error_number != EEXIST)
            return ls__fail_errno(LS_ERR_IO, error_number, "%s: cannot create a file beside it",
                                  path);
    }
    return ls__fail(LS_ERR_IO, "%s: %d temporary files lie beside it (.tmp-%ld-*), remove them",
                    path, TRIES, (long)getpid());
}

/* Is what the disk holds what was meant? */
static ls_status check_written(const char *temporary, const char *path,
                               const ls_safetensors_entry *entries, size_t count) {
    ls_safetensors *file;
    ls_status status = ls_safetensors_open(&file, temporary);
    if (status != LS_OK)
        return ls__fail_context(LS_ERR_IO, "%s: cannot read back what was written", path);
    bool same = ls_safetensors_count(file) == count;
    for (size_t i = 0; same && i < count; i++) {
        const ls_safetensors_entry *e = ls_safetensors_find(file, entries[i].name);
        same =
            e && e->bytes == entries[i].bytes && e->dims == entries[i].dims &&
            strcmp(e->dtype, entries[i].dtype) == 0 &&
            (e->dims == 0 || memcmp(e->shape, entries[i].shape, e->dims * sizeof(size_t)) == 0) &&
            (e->bytes == 0 || memcmp(e->data, entries[i].data, e->bytes) == 0);
        if (!same)
            status = ls__fail(LS_ERR_IO,
                              "%s: tensor \"%.100s\" reads back different from what was written; "
                              "the disk or the memory is faulty, or the tensor changed meanwhile",
                              path, entries[i].name);
    }
    if (!same && status == LS_OK)
        status = ls__fail(LS_ERR_IO, "%s: reads back different from what was written", path);
    ls_safetensors_close(file);
    return status;
}

/* The folder of `path`, open for fsync. */
static ls_status open_folder(const char *path, int *fd) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!folder)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of its folder", path);
    *fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ls_status status = LS_OK;
    if (*fd < 0)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot open its folder", path);
    free(folder);
    return status;
}

/* Writes, syncs and checks the temporary file, and closes `fd`. */
static ls_status write_temporary(int fd, const char *temporary, const char *path,
                                 const char *header, size_t header_size,
                                 const ls_safetensors_entry *entries, size_t count) {
    ls_status status = write_all(fd, header, header_size, path);
    for (size_t i = 0; status == LS_OK && i < count; i++)
        status = write_all(fd, entries[i].data, entries[i].bytes, path);
    if (status == LS_OK && fsync(fd) != 0)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot bring it to the disk", path);
    /* Drop the pages that are on disk now, so that reading back reads the disk where it can. */
    if (status == LS_OK)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close(fd) != 0 && status == LS_OK)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot close it", path);
    return status == LS_OK ? check_written(temporary, path, entries, count) : status;
}

/* Renames, and makes the rename last. Some file systems know no fsync of a folder (EINVAL). */
static ls_status publish(const char *temporary, const char *path, int folder, bool *renamed) {
    if (rename(temporary, path) != 0)
        return ls__fail_errno(LS_ERR_IO, errno, "%s: cannot rename the complete file to it", path);
    *renamed = true;
    if (fsync(folder) != 0 && errno != EINVAL)
        return ls__fail_errno(LS_ERR_IO, errno,
                              "%s: is complete, but may not outlast a power cut: fsync of its "
                              "folder",
                              path);
    return LS_OK;
}

ls_status ls__safetensors_write(const char *path, const ls_safetensors_entry *entries, size_t count,
                                const char *const *keys, const char *const *values,
                                size_t metadata_count) {
    char *header = NULL, *temporary = NULL;
    size_t header_size = 0;
    int folder = -1, fd = -1;
    bool renamed = false;
    ls_status status;
    LS_TRY_OUT(ls__safetensors_make_header(path, entries, count, keys, values, metadata_count,
                                           &header, &header_size));
    LS_TRY_OUT(ls__file_check_target(path));
    LS_TRY_OUT(open_folder(path, &folder));
    LS_TRY_OUT(create_temporary(path, &temporary, &fd));
    LS_TRY_OUT(write_temporary(fd, temporary, path, header, header_size, entries, count));
    LS_TRY_OUT(publish(temporary, path, folder, &renamed));
out:
    if (temporary && !renamed)
        unlink(temporary);
    if (folder >= 0)
        close(folder);
    free(temporary);
    free(header);
    return status;
}
