#include "comm/tcp/meet_file.h"

#include "base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* "10.0.0.1:41233"; which of them can be, says who goes there. */
static bool is_place(const char *text) {
    const char *colon = strrchr(text, ':');
    return colon && colon > text && colon[1] && !colon[1 + strspn(colon + 1, "0123456789")] &&
           !strpbrk(text, " \t");
}

/* Both lines, and nothing else. */
static bool take_lines(FILE *file, char *where, size_t bytes, char token[LS__MEET_TOKEN_BYTES]) {
    return take_line(file, where, bytes) && take_line(file, token, LS__MEET_TOKEN_BYTES) &&
           fgetc(file) == EOF && is_place(where);
}

static int open_to_read(const char *path) {
    return open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe must not block */
}

ls_status ls__meet_file_read(const char *path, char *where, size_t bytes,
                             char token[LS__MEET_TOKEN_BYTES]) {
    int fd = open_to_read(path);
    if (fd < 0 && errno == ENOENT)
        return ls__fail(LS_ERR_TIMEOUT, "rendezvous file: %s is not there yet", path);
    if (fd < 0 && errno == ELOOP)
        return ls__fail(LS_ERR_IO, "rendezvous file: %s is a link, want the file itself", path);
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
    if (!take_lines(file, where, bytes, token))
        status = ls__fail(LS_ERR_FORMAT, "rendezvous file: %s is none, want HOST:PORT and a token",
                          path);
    if (status == LS_OK)
        status = check(fd, path, *token != '\0');
    fclose(file);
    return status;
}

/* --- writing it ------------------------------------------------------------------------------------ */

ls_status ls__meet_file_check_target(const char *path) {
    char where[256], token[LS__MEET_TOKEN_BYTES];
    ls_status status = ls__file_check_target(path); /* before it is opened, for devices */
    if (status != LS_OK)
        return ls__fail_context(status, "rendezvous file");
    status = ls__meet_file_read(path, where, sizeof where, token);
    if (status == LS_OK || status == LS_ERR_TIMEOUT)
        return LS_OK;
    return ls__fail_context(LS_ERR_IO,
                            "%s is there already and is not replaced; remove it, or "
                            "name another file",
                            path);
}

ls_status ls__meet_file_write(const char *path, const char *where, const char *token) {
    char fresh[4096];
    int n = snprintf(fresh, sizeof fresh, "%s.XXXXXX", path);
    if (n >= (int)sizeof fresh)
        return ls__fail(LS_ERR_ARGUMENT, "rendezvous file: the name is too long");
    LS_TRY(ls__meet_file_check_target(path));
    int fd = mkostemp(fresh, O_CLOEXEC); /* mode 0600 */
    if (fd < 0)
        return ls__fail_errno(LS_ERR_IO, errno, "rendezvous file: cannot write %s", fresh);
    bool good = dprintf(fd, "%s\n%s\n", where, token) > 0;
    good = close(fd) == 0 && good;
    if (good && rename(fresh, path) == 0)
        return LS_OK;
    ls_status status = ls__fail_errno(LS_ERR_IO, errno, "rendezvous file: cannot write %s", path);
    (void)unlink(fresh);
    return status;
}

void ls__meet_file_remove(const char *path, const char *where, const char *token) {
    char its_where[256], its_token[LS__MEET_TOKEN_BYTES];
    int fd = open_to_read(path);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    bool same = file && take_lines(file, its_where, sizeof its_where, its_token) &&
                strcmp(its_where, where) == 0 && strcmp(its_token, token) == 0;
    if (file)
        fclose(file);
    else if (fd >= 0)
        close(fd);
    if (same)
        (void)unlink(path);
}
