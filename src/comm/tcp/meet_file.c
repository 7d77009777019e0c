#include "comm/tcp/meet_file.h"

#include "base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ls_status ls__meet_file_write(const char *path, const char *where, const char *token) {
    char fresh[4096];
    int n = snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    if (n >= (int)sizeof fresh)
        return ls__fail(LS_ERR_ARGUMENT, "rendezvous file: the name is too long");
    ls_status status = ls__file_check_target(path);
    if (status != LS_OK)
        return ls__fail_context(status, "rendezvous file");
    (void)unlink(fresh);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file)
        return ls__fail_errno(LS_ERR_IO, errno, "rendezvous file: cannot write %s", fresh);
    bool good = fprintf(file, "%s\n%s\n", where, token) > 0;
    good = fclose(file) == 0 && good;
    if (good && rename(fresh, path) == 0)
        return LS_OK;
    status = ls__fail_errno(LS_ERR_IO, errno, "rendezvous file: cannot write %s", path);
    (void)unlink(fresh);
    return status;
}

/* Whoever can write it chooses where we go, whoever can read it may join. */
static ls_status check(int fd, const char *path, bool secret) {
    struct stat about;
    if (fstat(fd, &about) != 0)
        return ls__fail_errno(LS_ERR_IO, errno, "rendezvous file: %s", path);
    if (!S_ISREG(about.st_mode) || about.st_uid != geteuid() ||
        (about.st_mode & (secret ? 0077 : 0022)))
        return ls__fail(
            LS_ERR_AUTH,
            "rendezvous file: %s is not a file of this user with mode 0600; what others can "
            "change or read is no place for the job's token",
            path);
    return LS_OK;
}

static bool take_line(FILE *file, char *line, size_t bytes) {
    if (!fgets(line, (int)bytes, file))
        return false;
    size_t n = strcspn(line, "\n");
    bool whole = line[n] == '\n';
    line[n] = '\0';
    return whole;
}

ls_status ls__meet_file_read(const char *path, char *where, size_t bytes,
                             char token[LS__MEET_TOKEN_BYTES]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe must not block */
    if (fd < 0 && errno == ENOENT)
        return ls__fail(LS_ERR_TIMEOUT, "rendezvous file: %s is not there yet", path);
    if (fd < 0)
        return ls__fail_errno(LS_ERR_IO, errno, "rendezvous file: cannot read %s", path);
    ls_status status = check(fd, path, false);
    FILE *file = status == LS_OK ? fdopen(fd, "r") : NULL;
    if (!file) {
        if (status == LS_OK)
            status = ls__fail_errno(LS_ERR_IO, errno, "rendezvous file: cannot read %s", path);
        close(fd);
        return status;
    }
    if (!take_line(file, where, bytes) || !take_line(file, token, LS__MEET_TOKEN_BYTES))
        status = ls__fail(LS_ERR_FORMAT, "rendezvous file: %s is none, want HOST:PORT and a token",
                          path);
    if (status == LS_OK)
        status = check(fd, path, *token != '\0');
    fclose(file);
    return status;
}
