/* One run in a folder at a time. */
#include "checkpoint/folder.h"

#include "base/clock.h"
#include "base/error.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

/* A run that was killed while it saved holds its lock until the disk has answered; one that nobody here can see may be
 * such a one. Until MOMENT_S nobody looks who it is. */
enum { MOMENT_S = 2, PATIENCE_S = 30 };

/* --- making the folder ---------------------------------------------------------------------------- */

/* Brings the name of a folder that was just made to the disk. */
static ls_status sync_parent(const char *path) {
    const char *slash = strrchr(path, '/');
    char *parent = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!parent)
        return ls__fail(LS_ERR_MEMORY, "%s: out of memory", path);
    /* One that may be written and not read cannot be opened for fsync. */
    ls_status status = access(parent, R_OK) == 0 ? ls__folder_sync(parent) : LS_OK;
    free(parent);
    return status;
}

/* mkdir -p, on the disk when it returns */
static ls_status make_folder(const char *folder, const char *option) {
    char *path = strdup(folder);
    if (!path)
        return ls__fail(LS_ERR_MEMORY, "%s%s: out of memory", option, folder);
    ls_status status = LS_OK;
    for (char *end = path; status == LS_OK && *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char kept = *end;
        *end = '\0';
        if (*path && mkdir(path, 0777) == 0)
            status = sync_parent(path);
        else if (*path && errno != EEXIST)
            status =
                ls__fail_errno(LS_ERR_IO, errno, "%s%s: cannot make the folder", option, folder);
        *end = kept;
    }
    free(path);
    return status;
}

/* --- who has it ----------------------------------------------------------------------------------- */

/* The process that locked the folder, as this machine knows it; 0: none that can be seen here. */
static long find_holder(int fd) {
    struct stat about;
    char line[256];
    long holder = 0;
    FILE *locks = fstat(fd, &about) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (locks && holder <= 0 && fgets(line, sizeof line, locks)) {
        long pid;
        unsigned high, low;
        unsigned long long inode;
        if (sscanf(line, "%*d: FLOCK %*s WRITE %ld %x:%x:%llu", &pid, &high, &low, &inode) == 4 &&
            inode == about.st_ino && high == major(about.st_dev) && low == minor(about.st_dev))
            holder = pid;
    }
    if (locks)
        fclose(locks);
    return holder > 0 ? holder : 0;
}

/* Whether the process is gone but for what the kernel still does for it (proc_pid_stat(5)). */
static bool is_ending(long pid) {
    enum { EXITING = 0x4, KILLED = 1 << (9 - 1) }; /* of flags; of pending signals */
    char path[64], text[1024], state;
    unsigned flags;
    unsigned long pending;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *file = fopen(path, "re");
    const char *line = file ? fgets(text, sizeof text, file) : NULL;
    if (file)
        fclose(file);
    const char *name_end = line ? strrchr(line, ')') : NULL;
    if (!name_end || sscanf(name_end + 1,
                            " %c %*d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                            "%*d %*d %*u %*u %*d %*u %*u %*u %*u %*u %*u %lu",
                            &state, &flags, &pending) != 3)
        return true;
    return state == 'Z' || state == 'X' || flags & EXITING || pending & KILLED;
}

/* --- waiting for it ------------------------------------------------------------------------------- */

static void tell_waiting(const char *folder, const char *option, long holder, ls_log_fn log,
                         void *context) {
    char line[1200];
    snprintf(line, sizeof line,
             "%s%.1000s: another run is writing there, which %s; waiting %d s for its end", option,
             folder, holder > 0 ? "is ending" : "cannot be seen from here", PATIENCE_S);
    log(context, LS_LOG_WARNING, line);
}

static ls_status refuse(const char *folder, const char *option, long holder) {
    if (holder > 0 && is_ending(holder))
        return ls__fail(LS_ERR_ARGUMENT,
                        "%s%s: another run was writing there, process %ld, which has ended or been "
                        "killed; its lock is still held: end what it started, or choose another "
                        "folder",
                        option, folder, holder);
    if (holder == 0)
        return ls__fail(LS_ERR_ARGUMENT,
                        "%s%s: another run is writing there, which cannot be seen from here; "
                        "choose another folder, or end it",
                        option, folder);
    return ls__fail(LS_ERR_ARGUMENT,
                    "%s%s: another run is writing there, process %ld; choose another folder, or "
                    "end it",
                    option, folder, holder);
}

/* Also where the file system knows no locks. */
static bool try_lock(int fd) {
    return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

static ls_status wait_for_lock(int fd, const char *folder, const char *option, bool outwait_unseen,
                               ls_log_fn log, void *log_context) {
    const struct timespec pause = {.tv_nsec = 20000000};
    uint64_t moment = ls__deadline_ns(MOMENT_S), patience = ls__deadline_ns(PATIENCE_S);
    while (!try_lock(fd)) {
        if (ls__now_ns() >= moment) {
            long holder = find_holder(fd);
            bool may_end = holder > 0 ? is_ending(holder) : outwait_unseen;
            if (!may_end || ls__now_ns() >= patience) /* whom nobody saw may just have ended */
                return try_lock(fd) ? LS_OK : refuse(folder, option, holder);
            if (log)
                tell_waiting(folder, option, holder, log, log_context);
            log = NULL; /* once */
        }
        nanosleep(&pause, NULL);
    }
    return LS_OK;
}

ls_status ls__folder_lock(const char *folder, const char *option, bool outwait_unseen,
                          ls_log_fn log, void *log_context, int *fd) {
    *fd = -1;
    if (!*folder)
        return ls__fail(LS_ERR_ARGUMENT, "%sthe path of the folder is empty", option);
    LS_TRY(make_folder(folder, option));
    int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock < 0)
        return ls__fail_errno(LS_ERR_IO, errno, "%s%s: cannot open the folder", option, folder);
    ls_status status = wait_for_lock(lock, folder, option, outwait_unseen, log, log_context);
    if (status == LS_OK)
        *fd = lock;
    else
        close(lock);
    return status;
}
