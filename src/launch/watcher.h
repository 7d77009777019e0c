/* A small process that outlives the launcher by a moment: when the launcher is killed so hard that it
 * cannot end its ranks (SIGKILL), the pipe between the two closes without a goodbye, and the watcher
 * kills the process groups of all ranks. */
#ifndef LS_LAUNCH_WATCHER_H
#define LS_LAUNCH_WATCHER_H

#include <lockstep/status.h>
#include <sys/types.h>

typedef struct ls__watcher {
    pid_t pid;
    int fd; /* the only write end */
} ls__watcher;

/* Forks: call it while the process has one thread. At most `most` groups are watched at a time. */
ls_status ls__watcher_start(ls__watcher *watcher, int most);
void ls__watcher_add(ls__watcher *watcher, pid_t group);
/* The group is empty: its number may be given to somebody else from now on. */
void ls__watcher_remove(ls__watcher *watcher, pid_t group);
/* Goodbye: the watcher ends and touches nobody. */
void ls__watcher_stop(ls__watcher *watcher);

#endif
