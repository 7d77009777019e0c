#include "launch/watcher.h"

#include "base/error.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A message is one int32: a group to add, or the negative of one to remove. Writes of 4 bytes to a pipe
 * are atomic, so a message is never seen in part. */
static void update(pid_t *groups, int *count, int most, int32_t message) {
    if (message > 0 && *count < most) {
        groups[(*count)++] = message;
        return;
    }
    for (int i = 0; i < *count; i++) {
        if (groups[i] == -message) {
            groups[i] = groups[--*count];
            return;
        }
    }
}

/* Lets go of everything of the launcher's: its terminal, its signals, its files and folder. */
static void detach(int *fd) {
    setsid();
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_NAME, "lockstep-watch");
    int null = open("/dev/null", O_RDWR);
    int kept = fcntl(*fd, F_DUPFD, 3);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
    if (kept != 3) {
        dup2(kept, 3);
        kept = 3;
    }
    close_range(4, ~0U, 0);
    *fd = kept;
    if (chdir("/") != 0)
        return; /* then it keeps the folder busy for as long as the job lasts */
}

static _Noreturn void watch(int fd, pid_t *groups, int most) {
    int count = 0;
    detach(&fd);
    for (;;) {
        int32_t message;
        ssize_t n = read(fd, &message, sizeof message);
        if (n < 0 && errno == EINTR)
            continue;
        if (n != (ssize_t)sizeof message)
            break;
        update(groups, &count, most, message);
    }
    for (int i = 0; i < count; i++)
        kill(-groups[i], SIGKILL);
    _exit(0);
}

ls_status ls__watcher_start(ls__watcher *watcher, int most) {
    int ends[2];
    *watcher = (ls__watcher){.pid = -1, .fd = -1};
    pid_t *groups = calloc((size_t)most, sizeof *groups);
    if (!groups)
        return ls__fail(LS_ERR_MEMORY, "no memory to watch %d ranks", most);
    if (pipe2(ends, O_CLOEXEC) != 0) {
        free(groups);
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "cannot make a pipe");
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        watch(ends[0], groups, most);
    }
    int error_number = errno;
    free(groups);
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        return ls__fail_errno(LS_ERR_SYSTEM, error_number, "cannot start the watcher process");
    }
    *watcher = (ls__watcher){.pid = pid, .fd = ends[1]};
    return LS_OK;
}

static void tell(const ls__watcher *watcher, int32_t message) {
    if (watcher->fd < 0)
        return;
    /* A watcher that is gone (EPIPE) cannot be told, and nothing depends on it until a disaster. */
    while (write(watcher->fd, &message, sizeof message) < 0 && errno == EINTR)
        continue;
}

void ls__watcher_add(ls__watcher *watcher, pid_t group) {
    tell(watcher, group);
}

void ls__watcher_remove(ls__watcher *watcher, pid_t group) {
    tell(watcher, -group);
}

void ls__watcher_stop(ls__watcher *watcher) {
    if (watcher->fd < 0)
        return;
    kill(watcher->pid, SIGKILL); /* which ends it also where somebody has stopped it */
    close(watcher->fd);
    while (waitpid(watcher->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    *watcher = (ls__watcher){.pid = -1, .fd = -1};
}
