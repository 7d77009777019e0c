#include "launch/environment.h"

#include "base/error.h"
#include "launch/binding.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

extern char **environ;

enum { MOST_OWN = 24 };

/* Set for each rank below, so what the launcher itself was given (as a rank of another job, say) goes. */
static const char *const own_names[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCKSTEP_TOKEN",
    "LOCKSTEP_PORT",
    "LOCKSTEP_LISTEN_FD",
    "LOCKSTEP_ROUND",
    "LOCKSTEP_RESTART_COUNT",
    "LOCKSTEP_SHM_FD",
    "LOCKSTEP_BOARD_FD",
    "LOCKSTEP_TRANSPORT",
    "LOCKSTEP_TERMINAL",
};

static bool is_own(const char *entry) {
    size_t n = strcspn(entry, "=");
    for (size_t i = 0; i < sizeof own_names / sizeof own_names[0]; i++) {
        if (strlen(own_names[i]) == n && strncmp(entry, own_names[i], n) == 0)
            return true;
    }
    return false;
}

static ls_status add(ls__environment *environment, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static ls_status add(ls__environment *environment, const char *format, ...) {
    char *entry;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&entry, format, args);
    va_end(args);
    if (n < 0)
        return ls__fail(LS_ERR_MEMORY, "no memory for the environment of the ranks");
    size_t at = environment->shared;
    while (environment->entries[at])
        at++;
    environment->entries[at] = entry;
    return LS_OK;
}

/* The user's own number stays, and so does what is no number: whose business it is says so (libgomp ignores it
 * with a warning). Without one the cores are divided: N ranks with a thread for every core each would be in each
 * other's way. */
static ls_status add_threads(ls__environment *environment, int ranks) {
    const char *own = getenv("OMP_NUM_THREADS");
    return own && *own ? LS_OK : add(environment, "OMP_NUM_THREADS=%d", ls__launch_threads(ranks));
}

static ls_status add_meeting(ls__environment *environment, const ls__launch_options *options,
                             const ls__plan *plan) {
    LS_TRY(add(environment, "MASTER_ADDR=%s", plan->address));
    LS_TRY(add(environment, "MASTER_PORT=%d", plan->port));
    LS_TRY(add(environment, "LOCKSTEP_TOKEN=%s", plan->token));
    if (plan->held_port)
        LS_TRY(add(environment, "LOCKSTEP_PORT=%d", plan->held_port));
    if (plan->nodes > 1 ||
        plan->held_port) /* memory inside machines, unless sockets are asked for */
        return options->transport == LS__LAUNCH_TCP ? add(environment, "LOCKSTEP_TRANSPORT=tcp")
                                                    : LS_OK;
    if (options->transport == LS__LAUNCH_TCP)
        return add(environment, "LOCKSTEP_TRANSPORT=tcp");
    LS_TRY(add(environment, "LOCKSTEP_TRANSPORT=shm"));
    return add(environment, "LOCKSTEP_SHM_FD=%d", LS__SECOND_FD_IN_RANK);
}

static ls_status add_shared(ls__environment *environment, const ls__launch_options *options,
                            const ls__plan *plan) {
    LS_TRY(add(environment, "WORLD_SIZE=%d", plan->world));
    LS_TRY(add(environment, "LOCAL_WORLD_SIZE=%d", plan->ranks));
    LS_TRY(add(environment, "GROUP_RANK=%d", plan->node));
    LS_TRY(add(environment, "GROUP_WORLD_SIZE=%d", plan->nodes));
    LS_TRY(add_meeting(environment, options, plan));
    LS_TRY(add(environment, "LOCKSTEP_BOARD_FD=%d", LS__BOARD_FD_IN_RANK));
    LS_TRY(add(environment, "LOCKSTEP_ROUND=%d", plan->round));
    LS_TRY(add(environment, "LOCKSTEP_RESTART_COUNT=%d", plan->restarts));
    LS_TRY(add_threads(environment, plan->ranks));
    struct winsize window;
    if (isatty(STDERR_FILENO)) {
        bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
        LS_TRY(add(environment, "LOCKSTEP_TERMINAL=%d", known ? window.ws_col : 80));
    }
    return LS_OK;
}

ls_status ls__environment_create(ls__environment *environment, const ls__launch_options *options,
                                 const ls__plan *plan) {
    size_t count = 0;
    while (environ[count])
        count++;
    *environment = (ls__environment){.entries = calloc(count + MOST_OWN + 1, sizeof(char *))};
    if (!environment->entries)
        return ls__fail(LS_ERR_MEMORY, "no memory for the environment of the ranks");
    for (size_t i = 0; i < count; i++) {
        if (!is_own(environ[i]))
            environment->entries[environment->inherited++] = environ[i];
    }
    environment->shared = environment->inherited;
    LS_TRY(add_shared(environment, options, plan));
    while (environment->entries[environment->shared])
        environment->shared++;
    return LS_OK;
}

static void drop(ls__environment *environment, size_t from) {
    for (size_t i = from; environment->entries[i]; i++) {
        free(environment->entries[i]);
        environment->entries[i] = NULL;
    }
}

ls_status ls__environment_set_rank(ls__environment *environment, const ls__plan *plan, int local) {
    drop(environment, environment->shared);
    LS_TRY(add(environment, "RANK=%d", plan->first_rank + local));
    LS_TRY(add(environment, "LOCAL_RANK=%d", local));
    if (plan->first_rank + local == 0 && plan->listener >= 0)
        LS_TRY(add(environment, "LOCKSTEP_LISTEN_FD=%d", LS__SECOND_FD_IN_RANK));
    return LS_OK;
}

void ls__environment_destroy(ls__environment *environment) {
    if (environment->entries)
        drop(environment, environment->inherited);
    free(environment->entries);
    *environment = (ls__environment){0};
}
