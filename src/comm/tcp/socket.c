/* Addresses, sockets, and bounded waits for one of them. All sockets are close-on-exec. */
#include "comm/tcp/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void ls__tcp_address_text(const ls__tcp_address *address, char text[LS__TCP_ADDRESS_TEXT]) {
    char ip[INET6_ADDRSTRLEN] = "?";
    if (address->raw.ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)&address->raw;
        inet_ntop(AF_INET6, &a->sin6_addr, ip, sizeof ip);
        snprintf(text, LS__TCP_ADDRESS_TEXT, "[%s]:%d", ip, ntohs(a->sin6_port));
    } else {
        const struct sockaddr_in *a = (const struct sockaddr_in *)&address->raw;
        inet_ntop(AF_INET, &a->sin_addr, ip, sizeof ip);
        snprintf(text, LS__TCP_ADDRESS_TEXT, "%s:%d", ip, ntohs(a->sin_port));
    }
}

bool ls__tcp_address_is_loopback(const ls__tcp_address *address) {
    if (address->raw.ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)&address->raw;
        if (IN6_IS_ADDR_V4MAPPED(&a->sin6_addr))
            return a->sin6_addr.s6_addr[12] == 127;
        return IN6_IS_ADDR_LOOPBACK(&a->sin6_addr);
    }
    const struct sockaddr_in *a = (const struct sockaddr_in *)&address->raw;
    return ntohl(a->sin_addr.s_addr) >> 24 == 127;
}

const ls__tcp_names ls__tcp_names_of_ranks = {
    .address = "MASTER_ADDR", .port = "MASTER_PORT", .first = "rank 0", .all = "ranks"};

ls_status ls__tcp_resolve(const ls__tcp_names *names, const char *name, int port,
                          ls__tcp_address *addresses, size_t *count) {
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    *count = 0;
    /* RFC 6761: localhost is the loopback address, also where no /etc/hosts says so; and always the
     * IPv4 one, so that ranks cannot miss each other on two loopbacks. */
    const char *host = strcmp(name, "localhost") == 0 ? "127.0.0.1" : name;
    int code = getaddrinfo(host, service, &hints, &found);
    if (code != 0)
        return ls__fail(LS_ERR_SYSTEM, "%s \"%s\" has no address: %s", names->address, name,
                        gai_strerror(code));
    for (const struct addrinfo *a = found; a && *count < LS__TCP_ADDRESSES; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        ls__tcp_address *address = &addresses[(*count)++];
        memset(address, 0, sizeof *address);
        memcpy(&address->raw, a->ai_addr, a->ai_addrlen);
        address->bytes = a->ai_addrlen;
    }
    freeaddrinfo(found);
    if (*count == 0)
        return ls__fail(LS_ERR_SYSTEM, "%s \"%s\" has no IPv4 or IPv6 address", names->address,
                        name);
    return LS_OK;
}

static ls_status listen_error(const ls__tcp_names *names, int error, const char *text) {
    if (error == EADDRINUSE)
        return ls__fail(LS_ERR_SYSTEM,
                        "cannot listen on %s: the port is in use by another process; choose "
                        "another %s, the same on all %s",
                        text, names->port, names->all);
    if (error == EADDRNOTAVAIL)
        return ls__fail(LS_ERR_SYSTEM,
                        "cannot listen on %s: no address of this machine; %s must name "
                        "the machine on which %s runs",
                        text, names->address, names->first);
    return ls__fail_errno(LS_ERR_SYSTEM, error, "cannot listen on %s", text);
}

ls_status ls__tcp_listen(const ls__tcp_names *names, ls__tcp_address *address, int backlog,
                         int *fd) {
    char text[LS__TCP_ADDRESS_TEXT];
    ls__tcp_address_text(address, text);
    const int on = 1;
    int s = socket(address->raw.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *fd = -1;
    if (s < 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "socket for %s", text);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->raw.ss_family == AF_INET6)
        setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(s, (const struct sockaddr *)&address->raw, address->bytes) != 0 ||
        listen(s, backlog) != 0 ||
        getsockname(s, (struct sockaddr *)&address->raw, &address->bytes) != 0) {
        int error = errno;
        close(s);
        return listen_error(names, error, text);
    }
    *fd = s;
    return LS_OK;
}

/* No TCP_USER_TIMEOUT: it would also end a connection whose peer computes for long and reads nothing. A host
 * that vanishes with data under way is the heartbeat's. */
void ls__tcp_set_options(int fd) {
    const int on = 1, idle_s = 10, interval_s = 5, probes = 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int ls__tcp_poll_ms(uint64_t deadline) {
    uint64_t now = ls__now_ns();
    if (now >= deadline)
        return 0;
    uint64_t ms = (deadline - now) / 1000000 + 1;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* 1 ready (or failed: the next call tells), 0 deadline, -1 errno */
static int wait_for(int fd, short events, uint64_t deadline) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        int ms = ls__tcp_poll_ms(deadline);
        int n = poll(&p, 1, ms);
        if (n > 0)
            return 1;
        if (n == 0 && ls__now_ns() >= deadline)
            return 0;
        if (n < 0 && errno != EINTR)
            return -1;
    }
}

int ls__tcp_connect(const ls__tcp_address *address, uint64_t deadline, int *error) {
    int fd = socket(address->raw.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        *error = errno;
        return -1;
    }
    *error = 0;
    if (connect(fd, (const struct sockaddr *)&address->raw, address->bytes) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) {
            *error = errno;
        } else {
            socklen_t bytes = sizeof *error;
            int ready = wait_for(fd, POLLOUT, deadline);
            if (ready == 0)
                *error = ETIMEDOUT;
            else if (ready < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &bytes) != 0)
                *error = errno;
        }
    }
    if (*error != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* After a call that moved no byte: waits where that helps. False with errno when it is over. */
static bool may_go_on(int fd, short events, uint64_t deadline) {
    if (errno == EINTR)
        return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return false;
    int ready = wait_for(fd, events, deadline);
    if (ready == 0)
        errno = ETIMEDOUT;
    return ready > 0;
}

int ls__tcp_write_all(int fd, const void *data, size_t bytes, uint64_t deadline) {
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (!may_go_on(fd, POLLOUT, deadline)) {
            return -1;
        }
    }
    return 1;
}

int ls__tcp_read_all(int fd, void *data, size_t bytes, uint64_t deadline) {
    char *at = data;
    while (bytes > 0) {
        ssize_t n = recv(fd, at, bytes, MSG_DONTWAIT);
        if (n == 0)
            return 0;
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (!may_go_on(fd, POLLIN, deadline)) {
            return -1;
        }
    }
    return 1;
}

void ls__tcp_close_fd(int fd) {
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
}

void ls__tcp_rank_list(char *text, size_t bytes, int size, bool (*has)(const void *, int),
                       const void *context) {
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; rank < size; rank++) {
        if (!has(context, rank))
            continue;
        if (used + 20 > bytes) {
            snprintf(text + used, bytes - used, ", ...");
            return;
        }
        used += (size_t)snprintf(text + used, bytes - used, used ? ", %d" : "%d", rank);
    }
}
