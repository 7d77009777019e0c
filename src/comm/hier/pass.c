/* Hands the segment's descriptor to the other ranks of this machine: over a socket in the abstract namespace,
 * which has no file and ends with its owner. Who asks must be of the same user and know the secret that
 * travelled over the job's own connections. */
#include "comm/hier/hier.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct hello {
    unsigned char secret[LS__HIER_SECRET_BYTES];
} hello;

/* "\0lockstep-" and half of the secret; the other half is for the asking. */
static socklen_t address_of(const ls__hier_card *card, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t used =
        (size_t)snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "lockstep-");
    for (int i = 0; i < LS__HIER_SECRET_BYTES / 2; i++)
        used += (size_t)snprintf(address->sun_path + 1 + used, sizeof address->sun_path - 1 - used,
                                 "%02x", card->secret[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + used);
}

ls_status ls__hier_listen(const ls__hier_card *card, int *listener) {
    struct sockaddr_un address;
    socklen_t bytes = address_of(card, &address);
    *listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*listener < 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "socket for the ranks of this machine");
    if (bind(*listener, (struct sockaddr *)&address, bytes) || listen(*listener, 512)) {
        int error = errno;
        close(*listener);
        *listener = -1;
        return ls__fail_errno(LS_ERR_SYSTEM, error, "cannot listen for the ranks of this machine");
    }
    return LS_OK;
}

static bool wait_readable(int fd, uint64_t deadline) {
    for (;;) {
        const uint64_t now = ls__now_ns();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= deadline)
            return false;
        const uint64_t ms = (deadline - now) / 1000000 + 1;
        if (poll(&p, 1, ms > 1000 ? 1000 : (int)ms) > 0)
            return true;
    }
}

static bool is_same_user(int fd) {
    struct ucred who;
    socklen_t bytes = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid();
}

static bool knows_secret(int fd, const ls__hier_card *card, uint64_t deadline) {
    hello theirs;
    return wait_readable(fd, deadline) &&
           recv(fd, &theirs, sizeof theirs, MSG_DONTWAIT) == (ssize_t)sizeof theirs &&
           memcmp(theirs.secret, card->secret, sizeof theirs.secret) == 0;
}

/* One byte with the descriptor beside it. */
static bool send_descriptor(int to, int fd) {
    char byte = 0;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    return sendmsg(to, &message, MSG_NOSIGNAL) == 1;
}

static int recv_descriptor(int from) {
    char byte;
    int fd = -1;
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    if (recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1)
        return -1;
    const struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
        rights->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    return fd;
}

ls_status ls__hier_give(int listener, const ls__hier_card *card, int fd, int count,
                        uint64_t deadline) {
    while (count > 0) {
        if (!wait_readable(listener, deadline))
            return ls__fail(LS_ERR_TIMEOUT, "%d ranks of this machine did not ask for its memory",
                            count);
        int guest = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (guest < 0)
            continue;
        if (is_same_user(guest) && knows_secret(guest, card, deadline) &&
            send_descriptor(guest, fd))
            count--;
        close(guest);
    }
    return LS_OK;
}

ls_status ls__hier_take(const ls__hier_card *leader, int *fd, uint64_t deadline) {
    struct sockaddr_un address;
    socklen_t bytes = address_of(leader, &address);
    hello mine;
    memcpy(mine.secret, leader->secret, sizeof mine.secret);
    *fd = -1;
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s < 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "socket for this machine's memory");
    if (connect(s, (struct sockaddr *)&address, bytes) == 0 && is_same_user(s) &&
        send(s, &mine, sizeof mine, MSG_NOSIGNAL) == (ssize_t)sizeof mine &&
        wait_readable(s, deadline))
        *fd = recv_descriptor(s);
    int error = errno;
    close(s);
    if (*fd < 0)
        return ls__fail_errno(LS_ERR_SYSTEM, error,
                              "this machine's memory cannot be had from pid %d", leader->pid);
    return LS_OK;
}
