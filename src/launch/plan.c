#include "launch/plan.h"

#include "base/error.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* A socket that listens on any port of loopback. */
static ls_status listen_on_loopback(int *fd, int *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&address, bytes) != 0 || listen(*fd, 1024) != 0 ||
        getsockname(*fd, (struct sockaddr *)&address, &bytes) != 0) {
        ls_status status = ls__fail_errno(LS_ERR_SYSTEM, errno, "no free port on 127.0.0.1");
        if (*fd >= 0)
            close(*fd);
        *fd = -1;
        return status;
    }
    *port = ntohs(address.sin_port);
    return LS_OK;
}

static ls_status make_token(char token[LS__PLAN_TOKEN_BYTES]) {
    unsigned char bytes[(LS__PLAN_TOKEN_BYTES - 1) / 2];
    /* up to 256 bytes come at once and are never cut short: getrandom(2) */
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "no random bytes for the job's token");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return LS_OK;
}

ls_status ls__plan_make_local(ls__plan *plan, int ranks, bool hold) {
    int free_fd;
    *plan = (ls__plan){
        .nodes = 1, .ranks = ranks, .world = ranks, .address = "127.0.0.1", .listener = -1};
    LS_TRY(make_token(plan->token));
    LS_TRY(listen_on_loopback(&free_fd, &plan->port));
    ls_status status = hold ? listen_on_loopback(&plan->listener, &plan->held_port) : LS_OK;
    close(free_fd); /* not before: the two must differ */
    return status;
}
