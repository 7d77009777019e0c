#include "launch/environment.h"

#include "base/error.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

enum { MOST_OWN = 16, TOKEN_BYTES = 32 };

/* Set for each rank below, so what the launcher itself was given (as a rank of another job, say) goes. */
static const char *const own_names[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCKSTEP_TOKEN",
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

/* A port of loopback that was free a moment ago: for programs that listen there. Ranks that use shared
 * memory open none. */
static ls_status free_port(int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int bad = fd < 0 || bind(fd, (struct sockaddr *)&address, bytes) != 0 ||
              getsockname(fd, (struct sockaddr *)&address, &bytes) != 0;
    int error_number = errno;
    if (fd >= 0)
        close(fd);
    if (bad)
        return ls__fail_errno(LS_ERR_SYSTEM, error_number, "no free port on 127.0.0.1");
    *port = ntohs(address.sin_port);
    return LS_OK;
}

static ls_status make_token(char *text) {
    unsigned char bytes[TOKEN_BYTES];
    /* up to 256 bytes come at once and are never cut short: getrandom(2) */
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "no random bytes for the job's token");
    for (size_t i = 0; i < TOKEN_BYTES; i++)
        sprintf(text + 2 * i, "%02x", bytes[i]);
    return LS_OK;
}

static ls_status add_shared(ls__environment *environment, const ls__launch_options *options) {
    char token[2 * TOKEN_BYTES + 1];
    int port = 0;
    LS_TRY(make_token(token));
    LS_TRY(free_port(&port));
    LS_TRY(add(environment, "WORLD_SIZE=%d", options->ranks));
    LS_TRY(add(environment, "LOCAL_WORLD_SIZE=%d", options->ranks));
    LS_TRY(add(environment, "GROUP_RANK=0"));
    LS_TRY(add(environment, "MASTER_ADDR=127.0.0.1"));
    LS_TRY(add(environment, "MASTER_PORT=%d", port));
    LS_TRY(add(environment, "LOCKSTEP_TOKEN=%s", token));
    LS_TRY(add(environment, "LOCKSTEP_BOARD_FD=%d", LS__BOARD_FD_IN_RANK));
    if (options->transport == LS__LAUNCH_TCP) {
        LS_TRY(add(environment, "LOCKSTEP_TRANSPORT=tcp"));
    } else {
        LS_TRY(add(environment, "LOCKSTEP_TRANSPORT=shm"));
        LS_TRY(add(environment, "LOCKSTEP_SHM_FD=%d", LS__SHM_FD_IN_RANK));
    }
    if (!getenv("OMP_NUM_THREADS"))
        LS_TRY(add(environment, "OMP_NUM_THREADS=1"));
    struct winsize window;
    if (isatty(STDERR_FILENO)) {
        bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
        LS_TRY(add(environment, "LOCKSTEP_TERMINAL=%d", known ? window.ws_col : 80));
    }
    return LS_OK;
}

ls_status ls__environment_create(ls__environment *environment, const ls__launch_options *options) {
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
    LS_TRY(add_shared(environment, options));
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

ls_status ls__environment_set_rank(ls__environment *environment, int rank) {
    drop(environment, environment->shared);
    LS_TRY(add(environment, "RANK=%d", rank));
    return add(environment, "LOCAL_RANK=%d", rank);
}

void ls__environment_destroy(ls__environment *environment) {
    if (environment->entries)
        drop(environment, environment->inherited);
    free(environment->entries);
    *environment = (ls__environment){0};
}
