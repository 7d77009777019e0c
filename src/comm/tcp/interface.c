/* Where other ranks reach this one: the interface that the user names, or the address through which this rank
 * reached another. */
#include "comm/tcp/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static void ip_text(const struct sockaddr *address, char text[INET6_ADDRSTRLEN]) {
    const void *ip =
        address->sa_family == AF_INET6
            ? (const void *)&((const struct sockaddr_in6 *)(const void *)address)->sin6_addr
            : (const void *)&((const struct sockaddr_in *)(const void *)address)->sin_addr;
    text[0] = '\0';
    inet_ntop(address->sa_family, ip, text, INET6_ADDRSTRLEN);
}

static bool has_ip(const struct ifaddrs *entry) {
    return entry->ifa_addr &&
           (entry->ifa_addr->sa_family == AF_INET || entry->ifa_addr->sa_family == AF_INET6);
}

/* An address of the family of the job's other connections goes first; then any but a link's own. */
static int rank_entry(const struct ifaddrs *entry, const char *wanted, int family) {
    char text[INET6_ADDRSTRLEN];
    if (!has_ip(entry))
        return 0;
    ip_text(entry->ifa_addr, text);
    if (strcmp(text, wanted) == 0)
        return 4;
    if (strcmp(entry->ifa_name, wanted) != 0)
        return 0;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)entry->ifa_addr;
    if (entry->ifa_addr->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
        return 1;
    return entry->ifa_addr->sa_family == family ? 3 : 2;
}

static ls_status no_interface(const struct ifaddrs *all, const char *wanted) {
    char list[400] = "", text[INET6_ADDRSTRLEN];
    size_t used = 0;
    for (const struct ifaddrs *entry = all; entry && used + 80 < sizeof list;
         entry = entry->ifa_next) {
        if (!has_ip(entry))
            continue;
        ip_text(entry->ifa_addr, text);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s (%s)", used ? ", " : "",
                                 entry->ifa_name, text);
    }
    return ls__fail(
        LS_ERR_ARGUMENT,
        "LOCKSTEP_INTERFACE is '%s', no interface or address of this machine; there are %s", wanted,
        list);
}

static ls_status find_interface(const char *wanted, ls__tcp_address *address) {
    struct ifaddrs *all = NULL, *best = NULL;
    const int family = address->raw.ss_family;
    int best_rank = 0;
    if (getifaddrs(&all))
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "getifaddrs");
    for (struct ifaddrs *entry = all; entry; entry = entry->ifa_next) {
        const int rank = rank_entry(entry, wanted, family);
        if (rank > best_rank) {
            best_rank = rank;
            best = entry;
        }
    }
    ls_status status = best ? LS_OK : no_interface(all, wanted);
    if (best) {
        address->bytes = best->ifa_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                                               : sizeof(struct sockaddr_in);
        memcpy(&address->raw, best->ifa_addr, address->bytes);
    }
    freeifaddrs(all);
    return status;
}

ls_status ls__tcp_own_address(const ls__job_place *place, int fd, ls__tcp_address *address) {
    *address = (ls__tcp_address){.bytes = sizeof address->raw};
    if (getsockname(fd, (struct sockaddr *)&address->raw, &address->bytes) != 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "getsockname");
    if (place->interface)
        LS_TRY(find_interface(place->interface, address));
    if (address->raw.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address->raw)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&address->raw)->sin_port = 0;
    return LS_OK;
}
