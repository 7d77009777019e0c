#include "checkpoint/folder.h"

#include "base/error.h"
#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char PREFIX[] = "step-";

/* --- names ---------------------------------------------------------------------------------------- */

char *ls__folder_step_path(const char *folder, uint64_t step) {
    char *path;
    if (asprintf(&path, "%s/%s%08" PRIu64, folder, PREFIX, step) >= 0)
        return path;
    ls__error_set("%s: no memory for the name of a checkpoint", folder);
    return NULL;
}

/* step-00000010, and nothing else that means 10: as it is written. */
static bool parse_step(const char *name, uint64_t *step) {
    const char *digits = name + sizeof PREFIX - 1;
    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0 || strlen(digits) < 8 ||
        strlen(digits) > 19 || strspn(digits, "0123456789") != strlen(digits))
        return false;
    *step = strtoull(digits, NULL, 10);
    char again[32];
    snprintf(again, sizeof again, "%08" PRIu64, *step);
    return strcmp(again, digits) == 0;
}

bool ls__folder_path_step(const char *path, uint64_t *step) {
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    char name[64];
    if (end - begin >= sizeof name)
        return false;
    snprintf(name, sizeof name, "%.*s", (int)(end - begin), path + begin);
    return parse_step(name, step);
}

static int compare_steps(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

ls_status ls__folder_steps(const char *folder, uint64_t **steps, size_t *count) {
    size_t room = 0;
    *steps = NULL;
    *count = 0;
    DIR *entries = opendir(folder);
    if (!entries && errno == ENOENT)
        return LS_OK;
    if (!entries)
        return ls__fail_errno(LS_ERR_IO, errno, "%s: cannot look into the folder", folder);
    ls_status status = LS_OK;
    for (struct dirent *entry; status == LS_OK && (entry = readdir(entries));) {
        uint64_t step;
        if (!parse_step(entry->d_name, &step))
            continue;
        if (*count == room) {
            room = room ? 2 * room : 16;
            uint64_t *more = realloc(*steps, room * sizeof *more);
            if (!more) {
                status = ls__fail(LS_ERR_MEMORY, "%s: no memory for its list", folder);
                break;
            }
            *steps = more;
        }
        (*steps)[(*count)++] = step;
    }
    closedir(entries);
    if (status != LS_OK) {
        free(*steps);
        *steps = NULL;
        *count = 0;
        return status;
    }
    if (*count > 0)
        qsort(*steps, *count, sizeof **steps, compare_steps);
    return LS_OK;
}

enum { TOKEN_BYTES = 6 }; /* two digits each */

/* Whether hidden_path could have made it: other names that begin like these are somebody's own. */
static bool is_hidden(const char *name) {
    uint64_t step;
    char plain[32];
    const char *token = name[0] == '.' ? strchr(name + 1, '.') : NULL;
    if (!token || (size_t)(token - name) > sizeof plain)
        return false;
    snprintf(plain, sizeof plain, "%.*s", (int)(token - name - 1), name + 1);
    return parse_step(plain, &step) && strlen(token + 1) == 2 * TOKEN_BYTES &&
           strspn(token + 1, "0123456789abcdef") == 2 * TOKEN_BYTES;
}

/* FOLDER/.step-N.TOKEN */
static char *hidden_path(const char *folder, const char *step) {
    unsigned char random[TOKEN_BYTES];
    char *path = NULL;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        memset(random, (int)getpid(), sizeof random);
    if (asprintf(&path, "%s/.%s.%02x%02x%02x%02x%02x%02x", folder, step, random[0], random[1],
                 random[2], random[3], random[4], random[5]) < 0)
        return NULL;
    return path;
}

/* --- removing ------------------------------------------------------------------------------------- */

/* A checkpoint holds plain files only; what else is in there stays, and so does the folder. */
static void remove_tree(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    if (!entries) {
        if (fd >= 0)
            close(fd);
        unlink(path); /* a link */
        return;
    }
    for (struct dirent *entry; (entry = readdir(entries));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
    rmdir(path);
}

static void hide_and_remove(const char *folder, const char *path) {
    char *hidden = hidden_path(folder, strstr(strrchr(path, '/'), PREFIX)); /* of old-step-N too */
    if (hidden && rename(path, hidden) == 0) /* else it stays whole */
        remove_tree(hidden);
    free(hidden);
}

bool ls__folder_is_own(const char *path) {
    struct stat about;
    return lstat(path, &about) != 0 || S_ISDIR(about.st_mode); /* gone by now: nobody's link */
}

bool ls__folder_remove(const char *folder, const char *path) {
    if (strrchr(path, '/')[1] == '.')
        remove_tree(path);
    else if (ls__folder_is_own(path))
        hide_and_remove(folder, path);
    else
        return false;
    return true;
}

/* The links may point to what is gone; the next save makes them. */
static void remove_links(const char *folder) {
    static const char *const links[] = {"latest", "best"};
    for (size_t i = 0; i < 2; i++) {
        char *path;
        if (asprintf(&path, "%s/%s", folder, links[i]) >= 0) {
            if (ls__file_check_target(path) == LS_OK) /* else of no save */
                unlink(path);
            free(path);
        }
    }
}

static void tell_left(const char *path, ls_log_fn log, void *context) {
    char line[1200];
    snprintf(line, sizeof line, "%.1000s: is no folder, so of no run; it stays", path);
    if (log)
        log(context, LS_LOG_WARNING, line);
}

void ls__folder_tell_left(const char *folder, ls_log_fn log, void *log_context) {
    uint64_t *steps;
    size_t count;
    if (ls__folder_steps(folder, &steps, &count) != LS_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        char *path = ls__folder_step_path(folder, steps[i]);
        if (path && !ls__folder_is_own(path))
            tell_left(path, log, log_context);
        free(path);
    }
    free(steps);
}

void ls__folder_empty(const char *folder, ls_log_fn log, void *log_context) {
    uint64_t *steps;
    size_t count;
    if (ls__folder_steps(folder, &steps, &count) != LS_OK)
        return;
    while (count > 0) {
        char *path = ls__folder_step_path(folder, steps[--count]);
        if (path && !ls__folder_remove(folder, path))
            tell_left(path, log, log_context);
        free(path);
    }
    free(steps);
    remove_links(folder);
}

/* FOLDER/step-N becomes FOLDER/old-step-N, and what has that name goes. */
static ls_status set_aside(const char *folder, uint64_t step) {
    char *from = ls__folder_step_path(folder, step), *to = NULL;
    ls_status status = LS_OK;
    if (!from || asprintf(&to, "%s/old-%s%08" PRIu64, folder, PREFIX, step) < 0) {
        free(from);
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a checkpoint", folder);
    }
    struct stat about;
    if (lstat(to, &about) == 0) /* a link to nothing as well */
        hide_and_remove(folder, to);
    if (rename(from, to) != 0)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot become %s", from, to);
    free(from);
    free(to);
    return status;
}

ls_status ls__folder_rewind(const char *folder, uint64_t step, size_t *moved) {
    uint64_t *steps;
    size_t count;
    *moved = 0;
    LS_TRY(ls__folder_steps(folder, &steps, &count));
    ls_status status = LS_OK;
    while (status == LS_OK && count > 0 && steps[count - 1] > step) {
        status = set_aside(folder, steps[--count]);
        *moved += status == LS_OK;
    }
    free(steps);
    if (*moved > 0)
        remove_links(folder);
    return status == LS_OK && *moved > 0 ? ls__folder_sync(folder) : status;
}

void ls__folder_clean(const char *folder) {
    DIR *entries = opendir(folder);
    if (!entries)
        return;
    for (struct dirent *entry; (entry = readdir(entries));) {
        char *path = NULL;
        if (is_hidden(entry->d_name) && asprintf(&path, "%s/%s", folder, entry->d_name) >= 0) {
            remove_tree(path);
            free(path);
        }
    }
    closedir(entries);
}

ls_status ls__folder_open_status(int error_number) {
    return error_number == ENOENT || error_number == ENOTDIR || error_number == ELOOP
               ? LS_ERR_FORMAT
               : LS_ERR_IO;
}

/* --- making --------------------------------------------------------------------------------------- */

ls_status ls__folder_sync(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return ls__fail_errno(LS_ERR_IO, errno, "%s: cannot open the folder", path);
    ls_status status = LS_OK;
    if (fsync(fd) != 0 && errno != EINVAL)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot bring the folder to the disk", path);
    close(fd);
    return status;
}

ls_status ls__folder_begin(const char *folder, uint64_t step, char **path) {
    char name[48];
    snprintf(name, sizeof name, "%s%08" PRIu64, PREFIX, step);
    *path = hidden_path(folder, name);
    if (!*path)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for the name of a checkpoint", folder);
    if (mkdir(*path, 0777) == 0)
        return LS_OK;
    ls_status status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot make the folder", *path);
    free(*path);
    *path = NULL;
    return status;
}

/* Of a run that was taken back to an earlier step there is one of that name: it goes when the new one has the name, so
 * that the step is there at every instant. File systems that cannot exchange names have an instant without it. */
static ls_status replace(const char *folder, const char *name, const char *path) {
    if (renameat2(AT_FDCWD, path, AT_FDCWD, name, RENAME_EXCHANGE) == 0) {
        ls_status status = ls__folder_sync(folder);
        if (status == LS_OK)
            ls__folder_remove(folder, path);
        else
            (void)renameat2(AT_FDCWD, path, AT_FDCWD, name, RENAME_EXCHANGE);
        return status;
    }
    ls__folder_remove(folder, name);
    if (rename(path, name) != 0)
        return ls__fail_errno(LS_ERR_IO, errno, "%s: cannot take its name", name);
    return LS_OK;
}

ls_status ls__folder_publish(const char *folder, uint64_t step, const char *path) {
    char *name = ls__folder_step_path(folder, step);
    if (!name)
        return LS_ERR_MEMORY;
    ls_status status = ls__folder_sync(path);
    /* No folder, so not of a save: a link that somebody made to where he moved it. It is kept. */
    if (status == LS_OK && !ls__folder_is_own(name))
        status = set_aside(folder, step);
    if (status == LS_OK && rename(path, name) != 0)
        status = errno == ENOTEMPTY || errno == EEXIST
                     ? replace(folder, name, path)
                     : ls__fail_errno(LS_ERR_IO, errno, "%s: cannot take its name", name);
    if (status == LS_OK)
        status = ls__folder_sync(folder);
    free(name);
    return status;
}

void ls__folder_link(const char *folder, const char *name, uint64_t step) {
    char target[48], *path = NULL;
    snprintf(target, sizeof target, "%s%08" PRIu64, PREFIX, step);
    char *hidden = hidden_path(folder, target); /* so that a leftover is removed as such */
    if (hidden && asprintf(&path, "%s/%s", folder, name) >= 0) {
        if (ls__file_check_target(path) == LS_OK && symlink(target, hidden) == 0 &&
            rename(hidden, path) != 0)
            unlink(hidden);
        free(path);
    }
    free(hidden);
}
