/* Comparing a checkpoint with its manifest. */
#include "checkpoint/verify.h"

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/part.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static ls_status open_file(const char *path, uint64_t bytes, int *fd) {
    struct stat info;
    /* O_NONBLOCK: opening a pipe without a writer returns, and is refused below. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return ls__fail_errno(ls__folder_open_status(errno), errno, "%s: cannot open", path);
    ls_status status = LS_OK;
    if (fstat(*fd, &info) != 0)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot stat", path);
    else if (!S_ISREG(info.st_mode))
        status = ls__fail(LS_ERR_FORMAT, "%s: is no regular file", path);
    else if ((uint64_t)info.st_size != bytes)
        status = ls__fail(LS_ERR_FORMAT, "%s: has %lld bytes, the manifest says %llu", path,
                          (long long)info.st_size, (unsigned long long)bytes);
    if (status != LS_OK)
        close(*fd);
    return status;
}

static ls_status verify_file(const char *folder, const ls__manifest_file *file) {
    char *path;
    int fd;
    if (asprintf(&path, "%s/%s", folder, file->name) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a file", folder);
    ls_status status = open_file(path, file->bytes, &fd);
    if (status == LS_OK) {
        for (size_t i = 0; status == LS_OK && i < file->part_count; i++) {
            const ls__manifest_part *part = &file->parts[i];
            uint64_t seen = 0;
            status = ls__part_hash(fd, path, part->offset, part->bytes, &seen);
            if (status == LS_OK && seen != part->hash)
                status =
                    ls__fail(LS_ERR_FORMAT,
                             "%s: bytes %llu to %llu have the checksum %016llx, the manifest says "
                             "%016llx",
                             path, (unsigned long long)part->offset,
                             (unsigned long long)(part->offset + part->bytes),
                             (unsigned long long)seen, (unsigned long long)part->hash);
        }
        close(fd);
    }
    free(path);
    return status;
}

ls_status ls__checkpoint_verify(const char *path, ls__manifest *manifest) {
    LS_TRY(ls__manifest_read(manifest, path));
    ls_status status = LS_OK;
    for (size_t i = 0; status == LS_OK && i < manifest->file_count; i++)
        status = verify_file(path, &manifest->files[i]);
    if (status != LS_OK)
        ls__manifest_free(manifest);
    return status;
}

ls_status ls_checkpoint_count(const char *folder, size_t *count) {
    if (!folder || !count)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpoint_count: an argument is NULL");
    uint64_t *steps;
    LS_TRY(ls__folder_steps(folder, &steps, count));
    free(steps);
    return LS_OK;
}

ls_status ls_checkpoint_verify(const char *path, ls_checkpoint_progress *progress) {
    if (!path)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpoint_verify: path is NULL");
    ls__manifest manifest;
    LS_TRY(ls__checkpoint_verify(path, &manifest));
    if (progress)
        *progress = manifest.progress;
    ls__manifest_free(&manifest);
    return LS_OK;
}
