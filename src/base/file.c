#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ls_status check_name(const char *path) {
    return *path ? LS_OK : ls__fail(LS_ERR_ARGUMENT, "the path is empty, want that of a file");
}

/* LS_OK for a regular file. */
static ls_status check_kind(const char *path, mode_t mode) {
    if (S_ISDIR(mode))
        return ls__fail(LS_ERR_IO, "%s: is a folder, want a file", path);
    if (!S_ISREG(mode))
        return ls__fail(LS_ERR_IO, "%s: is a pipe or device, want a regular file", path);
    return LS_OK;
}

ls_status ls__file_check_target(const char *path) {
    struct stat info;
    LS_TRY(check_name(path));
    if (lstat(path, &info) != 0 || S_ISLNK(info.st_mode))
        return LS_OK; /* what else is wrong shows when it is written */
    return check_kind(path, info.st_mode);
}

ls_status ls__file_check_in_place(const char *path) {
    struct stat info;
    LS_TRY(check_name(path));
    if (stat(path, &info) != 0 || S_ISCHR(info.st_mode))
        return LS_OK; /* what else is wrong shows when it is opened */
    return check_kind(path, info.st_mode);
}

static ls_status open_regular(const char *path, int *fd, size_t *size) {
    LS_TRY(check_name(path));
    /* O_NONBLOCK: opening a pipe without a writer returns, and is refused below. */
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return ls__fail_errno(LS_ERR_IO, errno, "%s: cannot open", path);
    struct stat info;
    ls_status status = LS_OK;
    if (fstat(*fd, &info) != 0)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot stat", path);
    else
        status = check_kind(path, info.st_mode);
    if (status == LS_OK && (uint64_t)info.st_size > SIZE_MAX / 2)
        status = ls__fail(LS_ERR_MEMORY, "%s: %lld bytes do not fit into memory", path,
                          (long long)info.st_size);
    if (status != LS_OK) {
        close(*fd);
        return status;
    }
    *size = (size_t)info.st_size;
    return LS_OK;
}

ls_status ls__file_read(const char *path, unsigned char **bytes, size_t *size) {
    int fd;
    size_t want = 0, got = 0;
    LS_TRY(open_regular(path, &fd, &want));
    ls_status status = LS_OK;
    unsigned char *memory = malloc(want ? want : 1);
    if (!memory)
        status = ls__fail(LS_ERR_MEMORY, "%s: no memory for its %zu bytes", path, want);
    while (status == LS_OK && got < want) {
        ssize_t n = read(fd, memory + got, want - got);
        if (n > 0)
            got += (size_t)n;
        else if (n == 0)
            status = ls__fail(LS_ERR_IO, "%s: became shorter while it was read (%zu of %zu bytes)",
                              path, got, want);
        else if (errno != EINTR)
            status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot read at byte %zu", path, got);
    }
    close(fd);
    if (status != LS_OK) {
        free(memory);
        return status;
    }
    *bytes = memory;
    *size = want;
    return LS_OK;
}

ls_status ls__file_map(const char *path, const unsigned char **bytes, size_t *size) {
    int fd;
    LS_TRY(open_regular(path, &fd, size));
    *bytes = (const unsigned char *)"";
    void *memory = NULL;
    if (*size > 0)
        memory = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
    int error_number = errno;
    close(fd);
    if (memory == MAP_FAILED)
        return ls__fail_errno(LS_ERR_IO, error_number, "%s: cannot map %zu bytes", path, *size);
    if (*size > 0)
        *bytes = memory;
    return LS_OK;
}

void ls__file_unmap(const unsigned char *bytes, size_t size) {
    if (size > 0)
        munmap((void *)bytes, size);
}

void ls__file_fill_standard(void) {
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}
