#include "checkpoint/part.h"

#include "base/error.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

enum { CHUNK = 1 << 20 };

typedef struct part_writer {
    int fd;
    const char *path;
    uint64_t at;
    XXH64_state_t *hash;
} part_writer;

/* A chunk is hashed right before it is written, while it is in the cache. */
static ls_status write_piece(void *context, const void *bytes, size_t size) {
    part_writer *w = context;
    const char *p = bytes;
    while (size > 0) {
        size_t chunk = size < CHUNK ? size : CHUNK;
        ssize_t n = pwrite(w->fd, p, chunk, (off_t)w->at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ls__fail_errno(LS_ERR_IO, n == 0 ? ENOSPC : errno, "%s: cannot write", w->path);
        XXH64_update(w->hash, p, (size_t)n);
        p += n;
        w->at += (uint64_t)n;
        size -= (size_t)n;
    }
    return LS_OK;
}

ls_status ls__part_hash(int fd, const char *path, uint64_t offset, uint64_t bytes, uint64_t *hash) {
    XXH64_state_t *state = XXH64_createState();
    char *buffer = malloc(CHUNK);
    ls_status status = LS_OK;
    if (!state || !buffer)
        status = ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", path);
    else
        XXH64_reset(state, 0);
    while (status == LS_OK && bytes > 0) {
        ssize_t n = pread(fd, buffer, bytes < CHUNK ? (size_t)bytes : CHUNK, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot read at byte %llu", path,
                                    (unsigned long long)offset);
        else if (n == 0)
            status = ls__fail(LS_ERR_FORMAT, "%s: ends at byte %llu, %llu more are missing", path,
                              (unsigned long long)offset, (unsigned long long)bytes);
        if (status != LS_OK)
            break;
        XXH64_update(state, buffer, (size_t)n);
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    if (status == LS_OK)
        *hash = XXH64_digest(state);
    XXH64_freeState(state);
    free(buffer);
    return status;
}

static ls_status check_part(int fd, const char *path, const ls__part *part, uint64_t wanted) {
    uint64_t seen;
    /* Drop the pages that are on disk now, so that reading back reads the disk where it can. */
    (void)posix_fadvise(fd, (off_t)part->offset, (off_t)part->bytes, POSIX_FADV_DONTNEED);
    LS_TRY(ls__part_hash(fd, path, part->offset, part->bytes, &seen));
    if (seen != wanted)
        return ls__fail(LS_ERR_IO,
                        "%s: reads back different from what was written; the disk or the memory is "
                        "faulty",
                        path);
    return LS_OK;
}

ls_status ls__part_write(const ls__images *images, const ls__part *part, const char *folder,
                         const void *copy, uint64_t *hash) {
    char *path = NULL;
    part_writer w = {.fd = -1, .at = part->offset, .hash = XXH64_createState()};
    ls_status status = LS_OK;
    if (asprintf(&path, "%s/%s", folder, images->of[part->image].name) < 0 || !w.hash) {
        XXH64_freeState(w.hash);
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to write a part", folder);
    }
    w.path = path;
    XXH64_reset(w.hash, 0);
    w.fd = open(path, O_RDWR | O_CLOEXEC);
    if (w.fd < 0) {
        status = ls__fail_errno(LS_ERR_IO, errno,
                                "%s: cannot open what rank 0 has made; checkpoints want a folder "
                                "that all ranks see",
                                path);
        goto out;
    }
    if (copy)
        LS_TRY_OUT(write_piece(&w, copy, (size_t)part->bytes));
    else
        LS_TRY_OUT(ls__part_pieces(images, part, write_piece, &w));
    if (fsync(w.fd) != 0) {
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot bring it to the disk", path);
        goto out;
    }
    *hash = XXH64_digest(w.hash);
    LS_TRY_OUT(check_part(w.fd, path, part, *hash));
out:
    if (w.fd >= 0 && close(w.fd) != 0 && status == LS_OK)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot close it", path);
    XXH64_freeState(w.hash);
    free(path);
    return status;
}

ls_status ls__part_make_file(const ls__image *image, const char *folder) {
    char *path;
    if (asprintf(&path, "%s/%s", folder, image->name) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a file", folder);
    ls_status status = LS_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot make it", path);
    } else {
        /* Reserves; a file system that cannot do that finds a full disk while it writes. */
        if (fallocate(fd, 0, 0, (off_t)image->bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
            status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot reserve its %llu bytes", path,
                                    (unsigned long long)image->bytes);
        if (status == LS_OK && ftruncate(fd, (off_t)image->bytes) != 0)
            status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot reserve its %llu bytes", path,
                                    (unsigned long long)image->bytes);
        close(fd);
    }
    free(path);
    return status;
}
