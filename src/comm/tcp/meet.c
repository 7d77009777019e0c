/* Ranks that have no MASTER_ADDR: rank 0 takes any port on the address of this machine, and says so in the rendezvous file,
 * with a token made for the job where there is no LOCKSTEP_TOKEN. The file is for this user only and gone when all are
 * there. One of an earlier job may still lie there: its address is tried, and the file read again. */
#include "comm/tcp/meet_file.h"
#include "comm/tcp/tcp.h"
#include "comm/variables.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TRY_S = 2, PAUSE_NS = 50000000 };

static const ls__tcp_names names_in_file = {
    .address = "the rendezvous file's host", .port = "port", .first = "rank 0", .all = "ranks"};

/* The end of a way to `name`; nothing is sent. */
static int socket_towards(const char *name) {
    ls__tcp_address addresses[LS__TCP_ADDRESSES];
    size_t count = 0;
    if (!name || ls__tcp_resolve(&ls__tcp_names_of_ranks, name, 9, addresses, &count) != LS_OK)
        return -1;
    int fd = socket(addresses[0].raw.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addresses[0].raw, addresses[0].bytes) == 0)
        return fd;
    ls__tcp_close_fd(fd);
    return -1;
}

ls_status ls__tcp_find_address(const ls__job_place *place, ls__tcp_address *address) {
    char name[256] = "";
    int fd = socket_towards(ls__variable("SLURM_LAUNCH_NODE_IPADDR"));
    if (fd < 0 && gethostname(name, sizeof name - 1) == 0)
        fd = socket_towards(name);
    if (fd < 0)
        fd = socket_towards("127.0.0.1");
    if (fd < 0)
        return ls__fail(LS_ERR_SYSTEM, "this machine has no address; set LOCKSTEP_INTERFACE");
    ls_status status = ls__tcp_own_address(place, fd, address);
    ls__tcp_close_fd(fd);
    return status;
}

static ls_status lead(ls__transport **transport, ls__job_place *place, const char *path,
                      const char *token) {
    ls__tcp_address address = {.bytes = sizeof address.raw};
    char where[LS__TCP_ADDRESS_TEXT], fresh[2 * LS__TCP_KEY_BYTES + 1] = "";
    unsigned char bytes[LS__TCP_KEY_BYTES], key[LS__TCP_KEY_BYTES];
    LS_TRY(ls__tcp_key(NULL, key)); /* starts libsodium */
    ls__tcp_nonce(bytes);
    for (size_t i = 0; i < sizeof bytes && !token; i++)
        snprintf(fresh + 2 * i, 3, "%02x", bytes[i]);
    LS_TRY(ls__tcp_find_address(place, &address));
    LS_TRY(ls__tcp_listen(&ls__tcp_names_of_ranks, &address, place->world_size + 16,
                          &place->listener));
    place->listens = true;
    ls__tcp_address_text(&address, where);
    if (ls__tcp_address_is_loopback(&address) && place->local_world_size < place->world_size &&
        !ls__variable("SLURM_LAUNCH_NODE_IPADDR")) /* as /etc/hosts has it for the own name */
        ls__tcp_log(place, LS_LOG_WARNING,
                    "rank %d: the rendezvous is at %s, a loopback address, which other machines "
                    "cannot reach; name another one with LOCKSTEP_INTERFACE",
                    place->rank, where);
    ls_status status = ls__meet_file_write(path, where, fresh);
    if (status != LS_OK) {
        ls__tcp_close_fd(place->listener);
        return status;
    }
    status = ls__tcp_open_named(transport, place, &names_in_file, where, 0, token ? token : fresh);
    ls__meet_file_remove(path, where, fresh);
    return status;
}

/* "10.0.0.1:41233" or "[::1]:41233" -> name and port */
static ls_status split(const char *path, char *where, char **name, int *port) {
    char *colon = strrchr(where, ':');
    *port = colon ? (int)strtol(colon + 1, NULL, 10) : 0;
    if (!colon || *port < 1 || *port > 65535)
        return ls__fail(LS_ERR_FORMAT, "rendezvous file: %s is none, want HOST:PORT", path);
    *colon = '\0';
    *name = where;
    if (where[0] == '[' && colon > where && colon[-1] == ']') {
        colon[-1] = '\0';
        *name = where + 1;
    }
    return LS_OK;
}

/* Once, for a moment. */
static ls_status try_once(const ls__job_place *place, const char *path, char *where, size_t bytes,
                          char *theirs, int *port, char **name) {
    ls__tcp_address address[LS__TCP_ADDRESSES];
    size_t count;
    int error;
    LS_TRY(ls__meet_file_read(path, where, bytes, theirs));
    LS_TRY(split(path, where, name, port));
    LS_TRY(ls__tcp_resolve(&names_in_file, *name, *port, address, &count));
    int fd = ls__tcp_connect(&address[0], ls__deadline_ns(TRY_S), &error);
    ls__tcp_close_fd(fd);
    return fd >= 0 ? LS_OK
                   : ls__fail_errno(LS_ERR_TIMEOUT, error, "rank %d: rendezvous file %s: %s:%d",
                                    place->rank, path, *name, *port);
}

static ls_status follow(ls__transport **transport, ls__job_place *place, const char *path,
                        const char *token) {
    uint64_t deadline = ls__deadline_ns(place->timeout_s);
    for (;;) {
        char where[LS__TCP_ADDRESS_TEXT], theirs[LS__MEET_TOKEN_BYTES], *name;
        int port;
        ls_status status = try_once(place, path, where, sizeof where, theirs, &port, &name);
        bool again = status == LS_ERR_TIMEOUT || status == LS_ERR_AUTH;
        if (status == LS_OK) {
            status = ls__tcp_open_named(transport, place, &names_in_file, name, port,
                                        *theirs ? theirs : token);
            /* the port of an earlier job may be somebody else's by now; a token of the user's own may be wrong */
            again = status == LS_ERR_FORMAT || (status == LS_ERR_AUTH && *theirs);
        }
        if (status == LS_OK || !again)
            return status;
        if (ls__now_ns() >= deadline)
            return ls__fail_context(LS_ERR_TIMEOUT,
                                    "rank %d: timed out after %g s waiting for rank 0", place->rank,
                                    place->timeout_s);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

ls_status ls__tcp_open_by_file(ls__transport **transport, ls__job_place *place, const char *path,
                               const char *token) {
    *transport = NULL;
    return place->rank == 0 ? lead(transport, place, path, token)
                            : follow(transport, place, path, token);
}
