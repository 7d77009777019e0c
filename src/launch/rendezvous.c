#include "launch/rendezvous.h"

#include "base/error.h"
#include <stddef.h>

#ifdef LOCKSTEP_WITH_TCP
#include "base/clock.h"
#include "comm/tcp/meet_file.h"
#include "comm/tcp/tcp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const ls__tcp_names names_of_option = {.address = "--rendezvous",
                                              .port = "port for --rendezvous",
                                              .first = "node 0",
                                              .all = "launchers"};
static const ls__tcp_names names_in_file = {
    .address = "the rendezvous file's host", .port = "port", .first = "node 0", .all = "launchers"};

struct ls__rendezvous {
    const ls__launch_options *options;
    const char *command;
    char host[256]; /* as the user has it; "": only the file knows */
    int port;
    char where[LS__TCP_ADDRESS_TEXT];
    char token[LS__MEET_TOKEN_BYTES]; /* "": none */
    ls__job_place place;
    ls__tcp_join join;
    int nobody; /* join.fd */
    ls__tcp_lobby lobby;
    struct pollfd *polls;
    ls__tcp_address address; /* bound */
    bool taken;              /* the address is of this machine, and something else has the port */
    bool wrote_file;
    bool own_token; /* stands in the file */
};

static void log_line(void *context, ls_log_level level, const char *line) {
    const ls__rendezvous *r = context;
    (void)level;
    fprintf(stderr, "%s: %s\n", r->command, strncmp(line, "rank 0: ", 8) == 0 ? line + 8 : line);
}

/* `source`: where the text stands, for messages. */
static ls_status parse(const char *text, const char *source, ls__rendezvous *r) {
    const char *colon = strrchr(text, ':');
    char *end;
    size_t bytes = colon ? (size_t)(colon - text) : 0;
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || !bytes || end == colon + 1 || *end || port < 0 || port > 65535)
        return ls__fail(LS_ERR_ARGUMENT, "%s '%s' is not HOST:PORT with a port of 0 to 65535",
                        source, text);
    if (text[0] == '[' && text[bytes - 1] == ']') { /* [::1]:29400 */
        text++;
        bytes -= 2;
    }
    if (bytes >= sizeof r->host)
        return ls__fail(LS_ERR_ARGUMENT, "%s: the name of the host is too long", source);
    memcpy(r->host, text, bytes);
    r->host[bytes] = '\0';
    r->port = (int)port;
    return LS_OK;
}

static ls_status take_token(ls__rendezvous *r, const char *token) {
    if (strlen(token) >= sizeof r->token)
        return ls__fail(LS_ERR_ARGUMENT, "LOCKSTEP_TOKEN is longer than %zu bytes",
                        sizeof r->token - 1);
    memmove(r->token, token, strlen(token) + 1);
    r->join.has_token = *r->token != '\0';
    return ls__tcp_key(r->join.has_token ? r->token : NULL, r->join.key);
}

static bool is_any(const ls__tcp_address *address) {
    if (address->raw.ss_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&address->raw)->sin6_addr);
    return ((const struct sockaddr_in *)&address->raw)->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Others must be able to use what is published, and strangers must not get in. */
static ls_status may_listen(const ls__rendezvous *r, const ls__tcp_address *address) {
    char text[LS__TCP_ADDRESS_TEXT];
    ls__tcp_address_text(address, text);
    if (is_any(address))
        return ls__fail(LS_ERR_ARGUMENT,
                        "%s: %s is no address others can reach; name the one of this machine",
                        r->join.names->address, text);
    if (!r->join.has_token && !ls__tcp_address_is_loopback(address))
        return ls__fail(
            LS_ERR_AUTH,
            "%s is not a loopback address and there is no token; set LOCKSTEP_TOKEN to the "
            "same secret for all launchers, or use --rendezvous-file",
            text);
    return LS_OK;
}

/* The addresses to listen on: what the user's name stands for, or one that this machine has. */
static ls_status find_addresses(const ls__rendezvous *r, ls__tcp_address *addresses,
                                size_t *count) {
    if (*r->host)
        return ls__tcp_resolve(r->join.names, r->host, r->port, addresses, count);
    *count = 1;
    addresses[0] = (ls__tcp_address){.bytes = sizeof addresses[0].raw};
    return ls__tcp_find_address(&r->place, &addresses[0]);
}

static void set_port(ls__tcp_address *address, int port) {
    if (address->raw.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address->raw)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)&address->raw)->sin_port = htons((uint16_t)port);
}

/* Whether this machine has the address: some port of it can be bound. Leaves the error text alone. */
static bool is_here(ls__tcp_address address) {
    set_port(&address, 0);
    int fd = socket(address.raw.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool here = fd >= 0 && bind(fd, (const struct sockaddr *)&address.raw, address.bytes) == 0;
    ls__tcp_close_fd(fd);
    return here;
}

static ls_status listen_on(ls__rendezvous *r) {
    ls__tcp_address addresses[LS__TCP_ADDRESSES];
    size_t count;
    r->taken = false;
    LS_TRY(find_addresses(r, addresses, &count));
    ls_status status = LS_ERR_SYSTEM;
    for (size_t i = 0; i < count && status != LS_OK; i++) {
        LS_TRY(may_listen(r, &addresses[i]));
        status = ls__tcp_listen(r->join.names, &addresses[i], 128, &r->join.listener);
        if (status == LS_OK)
            r->address = addresses[i];
        else
            r->taken |= is_here(addresses[i]);
    }
    LS_TRY(status);
    ls__tcp_address_text(&r->address, r->where);
    LS_TRY(ls__tcp_lobby_open(&r->lobby, &r->join, LS__TCP_LAUNCHER));
    r->polls = calloc((size_t)r->lobby.size + 1, sizeof *r->polls);
    return r->polls ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory for the rendezvous");
}

/* A token made for the job, where the user has none. */
static ls_status make_token(ls__rendezvous *r) {
    char token[LS__NONCE_BYTES];
    if (*r->token)
        return LS_OK;
    ls__rendezvous_nonce(token);
    return take_token(r, token);
}

/* /etc/hosts often has 127.0.1.1 for the machine's own name. Who writes a loopback address himself means it. */
static void warn_of_loopback(const ls__rendezvous *r) {
    bool meant = strncmp(r->host, "127.", 4) == 0 || strcmp(r->host, "localhost") == 0 ||
                 strchr(r->host, ':');
    if (meant || r->options->max_nodes < 2 || !ls__tcp_address_is_loopback(&r->address))
        return;
    fprintf(stderr,
            "%s: the rendezvous is at %s, a loopback address, which other machines cannot reach; "
            "name an address of this machine with %s\n",
            r->command, r->where, *r->host ? "--rendezvous" : "LOCKSTEP_INTERFACE");
}

static ls_status publish(ls__rendezvous *r) {
    const ls__launch_options *options = r->options;
    if (options->rendezvous_file) {
        LS_TRY(
            ls__meet_file_write(options->rendezvous_file, r->where, r->own_token ? r->token : ""));
        r->wrote_file = true;
    }
    warn_of_loopback(r);
    if (r->port == 0)
        fprintf(stderr, "%s: rendezvous at %s\n", r->command, r->where);
    return LS_OK;
}

/* LS_ERR_TIMEOUT when it may be worth another try. */
static ls_status call_once(ls__rendezvous *r, double seconds, int *fd) {
    const char *file = r->options->rendezvous_file;
    char where[LS__TCP_ADDRESS_TEXT];
    if (file) {
        char token[LS__MEET_TOKEN_BYTES];
        LS_TRY(ls__meet_file_read(file, where, sizeof where, token));
        LS_TRY(parse(where, file, r));
        if (*token)
            LS_TRY(take_token(r, token));
    }
    r->join.address = r->host;
    r->join.port = r->port;
    r->join.deadline = ls__deadline_ns(seconds);
    r->join.next_log = UINT64_MAX;
    ls_status status = ls__tcp_dial(&r->join, LS__TCP_LAUNCHER, 0, fd);
    snprintf(r->where, sizeof r->where, "%.40s:%d", r->host, r->port);
    return status;
}

/* A rendezvous file that is there is that of a killed launcher, unless it answers. */
static ls_status refuse_second_zero(const ls__rendezvous *r) {
    const double probe_s = 1;
    ls__rendezvous probe = *r;
    int fd;
    if (call_once(&probe, probe_s, &fd) != LS_OK)
        return LS_OK;
    ls__tcp_close_fd(fd);
    return ls__fail(
        LS_ERR_ARGUMENT,
        "node rank 0 is taken by the launcher at %s, which is alive, as %s says; this one "
        "has to have another --node-rank, or its job another --rendezvous-file",
        probe.where, r->options->rendezvous_file);
}

/* Node 0 has to listen; without numbers whoever can does, and the others find the address taken or foreign. */
static ls_status try_to_listen(ls__rendezvous *r, bool *listens) {
    const ls__launch_options *options = r->options;
    bool must = options->has_node_rank && options->node_rank == 0;
    if (options->has_node_rank && !must)
        return LS_OK;
    r->own_token = !*r->token;
    if (options->rendezvous_file) {
        LS_TRY(refuse_second_zero(r));
        LS_TRY(make_token(r));
    }
    ls_status status = listen_on(r);
    *listens = status == LS_OK;
    if (status == LS_OK)
        return publish(r);
    return must || status == LS_ERR_ARGUMENT || status == LS_ERR_AUTH || r->join.listener >= 0
               ? status
               : LS_OK;
}

ls_status ls__rendezvous_check(const ls__launch_options *options) {
    ls__rendezvous read = {0};
    if (options->rendezvous && options->rendezvous_file)
        return ls__fail(LS_ERR_ARGUMENT,
                        "--rendezvous and --rendezvous-file contradict each other: leave out one; "
                        "LOCKSTEP_INTERFACE says which address the file gets");
    if (options->rendezvous)
        LS_TRY(parse(options->rendezvous, "--rendezvous", &read));
    if (options->has_node_rank && options->node_rank > 0 && options->rendezvous && !read.port)
        return ls__fail(LS_ERR_ARGUMENT,
                        "--rendezvous with port 0: only the launcher of --node-rank 0 takes a free "
                        "port; --node-rank %d has to be given the one that it prints, or all "
                        "--rendezvous-file",
                        options->node_rank);
    if (options->has_node_rank && options->node_rank == 0 && options->rendezvous_file)
        return ls__meet_file_check_target(options->rendezvous_file);
    if (options->has_node_rank || read.port)
        return LS_OK;
    return ls__fail(LS_ERR_ARGUMENT,
                    "%s: say which launcher listens: --node-rank 0 there, 1, 2, ... on the others",
                    options->rendezvous ? "--rendezvous with port 0" : "--rendezvous-file");
}

ls_status ls__rendezvous_open(ls__rendezvous **rendezvous, const ls__launch_options *options,
                              const char *command, bool *listens) {
    const char *token = getenv("LOCKSTEP_TOKEN");
    ls__rendezvous *r = calloc(1, sizeof *r);
    ls_status status;
    *listens = false;
    *rendezvous = NULL;
    if (!r)
        return ls__fail(LS_ERR_MEMORY, "no memory for the rendezvous");
    r->options = options;
    r->command = command;
    r->nobody = -1;
    const char *interface = getenv("LOCKSTEP_INTERFACE");
    r->place = (ls__job_place){.world_size = 1,
                               .interface = interface && *interface ? interface : NULL,
                               .log = log_line,
                               .log_context = r};
    r->join = (ls__tcp_join){.place = &r->place,
                             .names = options->rendezvous ? &names_of_option : &names_in_file,
                             .world = 1,
                             .listener = -1,
                             .fd = &r->nobody};
    LS_TRY_OUT(take_token(r, token ? token : ""));
    if (options->rendezvous)
        LS_TRY_OUT(parse(options->rendezvous, "--rendezvous", r));
    LS_TRY_OUT(try_to_listen(r, listens));
    *rendezvous = r;
    return LS_OK;
out:
    ls__rendezvous_close(r);
    return status;
}

void ls__rendezvous_close(ls__rendezvous *r) {
    if (!r)
        return;
    if (r->wrote_file)
        ls__meet_file_remove(r->options->rendezvous_file, r->where, r->own_token ? r->token : "");
    if (r->lobby.guest)
        ls__tcp_lobby_close(&r->lobby);
    ls__tcp_close_fd(r->join.listener);
    free(r->polls);
    free(r);
}

const char *ls__rendezvous_where(const ls__rendezvous *r) {
    return r->where;
}

/* --- where they meet ------------------------------------------------------------------------------- */

ls_status ls__rendezvous_accept(ls__rendezvous *r, ls__caller *caller) {
    ls__tcp_guest guest;
    caller->fd = -1;
    ls__tcp_lobby_poll(&r->lobby, r->polls);
    if (poll(r->polls, (nfds_t)r->lobby.size + 1, 0) < 0)
        return LS_OK;
    /* a second look lets nobody in twice: it only goes on with those whose words are there already */
    while (ls__tcp_lobby_serve(&r->lobby, r->polls, &guest)) {
        ls_status same =
            ls__tcp_hello_compare(&guest.mine, &guest.theirs, guest.credentials.card.host);
        if (same != LS_OK) {
            fprintf(stderr, "%s: refused a launcher: %s\n", r->command, ls_error_text());
            ls__tcp_close_fd(guest.fd);
            continue;
        }
        ls__tcp_set_options(guest.fd);
        caller->fd = guest.fd;
        caller->pid = guest.credentials.card.pid;
        snprintf(caller->host, sizeof caller->host, "%s", guest.credentials.card.host);
        return LS_OK;
    }
    return ls__tcp_lobby_status(&r->lobby);
}

bool ls__rendezvous_is_busy(const ls__rendezvous *r) {
    for (int i = 0; i < r->lobby.size; i++) {
        if (r->lobby.guest[i].fd >= 0)
            return true;
    }
    return false;
}

static int port_of(const ls__tcp_address *address) {
    return ntohs(address->raw.ss_family == AF_INET6
                     ? ((const struct sockaddr_in6 *)&address->raw)->sin6_port
                     : ((const struct sockaddr_in *)&address->raw)->sin_port);
}

/* "10.0.0.1", "fe80::1" from "10.0.0.1:29400", "[fe80::1]:29400" */
static void strip_port(const char *text, char address[LS__PLAN_ADDRESS_BYTES]) {
    const char *colon = strrchr(text, ':');
    size_t bytes = colon ? (size_t)(colon - text) : strlen(text);
    if (bytes > 2 && text[0] == '[') {
        text++;
        bytes -= 2;
    }
    snprintf(address, LS__PLAN_ADDRESS_BYTES, "%.*s", (int)bytes, text);
}

ls_status ls__rendezvous_hold(const ls__rendezvous *r, ls__plan *plan) {
    ls__tcp_address held = r->address, other = r->address;
    int fd;
    set_port(&held, 0);
    set_port(&other, 0);
    strip_port(r->where, plan->address);
    LS_TRY(ls__tcp_listen(r->join.names, &other, 1, &fd));
    ls_status status = ls__tcp_listen(r->join.names, &held, 1024, &plan->listener);
    ls__tcp_close_fd(fd);
    plan->held_port = port_of(&held);
    plan->port = port_of(&other);
    return status;
}

void ls__rendezvous_nonce(char nonce[LS__NONCE_BYTES]) {
    unsigned char bytes[LS__TCP_KEY_BYTES];
    ls__tcp_nonce(bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(nonce + 2 * i, 3, "%02x", bytes[i]);
}

/* --- the others ------------------------------------------------------------------------------------ */

static void peer_address(int fd, char address[LS__PLAN_ADDRESS_BYTES]) {
    ls__tcp_address peer = {.bytes = sizeof peer.raw};
    char text[LS__TCP_ADDRESS_TEXT] = "";
    if (getpeername(fd, (struct sockaddr *)&peer.raw, &peer.bytes) == 0)
        ls__tcp_address_text(&peer, text);
    strip_port(text, address);
}

/* Whether the next try may go better: nobody is there yet, a file is still that of an earlier job, or what has the port of
 * this machine's address is not for ever. */
static bool is_worth_another_try(const ls__rendezvous *r, ls_status status) {
    return status == LS_ERR_TIMEOUT || (status == LS_ERR_AUTH && r->options->rendezvous_file) ||
           (status == LS_ERR_FORMAT && r->taken);
}

static void say_waiting(const ls__rendezvous *r) {
    if (r->taken)
        fprintf(stderr,
                "%s: cannot listen on %s, an address of this machine: something else has the port, "
                "and answers as no launcher does (%s); trying again, but choose another port for "
                "--rendezvous, the same on all launchers, if it stays there\n",
                r->command, r->where, ls_error_text());
    else
        fprintf(stderr, "%s: waiting for the launcher to meet: %s\n", r->command, ls_error_text());
}

static ls_status give_up(const ls__rendezvous *r, double timeout_s) {
    if (r->taken)
        return ls__fail_context(
            LS_ERR_TIMEOUT,
            "found no launcher to meet within %g s, and could not listen on %s, "
            "an address of this machine, whose port something else has",
            timeout_s, r->where);
    return ls__fail_context(LS_ERR_TIMEOUT, "found no launcher to meet within %g s", timeout_s);
}

ls_status ls__rendezvous_call(ls__rendezvous *r, double timeout_s, const atomic_bool *cancel,
                              bool *listens, int *fd, char address[LS__PLAN_ADDRESS_BYTES]) {
    enum { PAUSE_NS = 100000000 };
    const double try_s = 2;
    double log_s = 5; /* and ever rarer */
    uint64_t deadline = ls__deadline_ns(timeout_s), log = ls__deadline_ns(log_s);
    bool said_taken = false;
    *fd = -1;
    for (;;) {
        ls_status status = r->options->has_node_rank ? LS_OK : listen_on(r);
        *listens = r->join.listener >= 0 && status == LS_OK;
        if (r->join.listener >= 0)
            return *listens ? publish(r) : status;
        status = call_once(r, try_s, fd);
        if (status == LS_OK) {
            peer_address(*fd, address);
            return LS_OK;
        }
        if (!is_worth_another_try(r, status))
            return status;
        if (atomic_load(cancel) || ls__now_ns() >= deadline)
            return give_up(r, timeout_s);
        if (ls__now_ns() >= log || (r->taken && !said_taken)) {
            said_taken |= r->taken;
            log = ls__deadline_ns(log_s *= 2);
            say_waiting(r);
        }
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

bool ls__rendezvous_token(const ls__rendezvous *r, const char *nonce,
                          char token[LS__PLAN_TOKEN_BYTES]) {
    unsigned char bytes[LS__TCP_KEY_BYTES] = {0}, derived[LS__TCP_KEY_BYTES];
    if (strlen(nonce) != 2 * sizeof bytes || strspn(nonce, "0123456789abcdef") != 2 * sizeof bytes)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++) {
        char pair[3] = {nonce[2 * i], nonce[2 * i + 1], '\0'};
        bytes[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    ls__tcp_derive_key(r->join.key, bytes, derived);
    for (size_t i = 0; i < sizeof derived; i++)
        snprintf(token + 2 * i, 3, "%02x", derived[i]);
    return true;
}

#else /* one machine is all that a build without sockets knows */

ls_status ls__rendezvous_check(const ls__launch_options *options) {
    (void)options;
    return ls__fail(LS_ERR_UNSUPPORTED, "several machines want the tcp transport, which this build "
                                        "lacks; build with libsodium");
}

ls_status ls__rendezvous_open(ls__rendezvous **rendezvous, const ls__launch_options *options,
                              const char *command, bool *listens) {
    (void)command;
    *rendezvous = NULL;
    *listens = false;
    return ls__rendezvous_check(options);
}

void ls__rendezvous_close(ls__rendezvous *rendezvous) {
    (void)rendezvous;
}

const char *ls__rendezvous_where(const ls__rendezvous *rendezvous) {
    (void)rendezvous;
    return "";
}

ls_status ls__rendezvous_accept(ls__rendezvous *rendezvous, ls__caller *caller) {
    (void)rendezvous;
    caller->fd = -1;
    return LS_OK;
}

bool ls__rendezvous_is_busy(const ls__rendezvous *rendezvous) {
    (void)rendezvous;
    return false;
}

ls_status ls__rendezvous_hold(const ls__rendezvous *rendezvous, ls__plan *plan) {
    (void)rendezvous;
    (void)plan;
    return ls__fail(LS_ERR_UNSUPPORTED, "this build lacks tcp");
}

void ls__rendezvous_nonce(char nonce[LS__NONCE_BYTES]) {
    nonce[0] = '\0';
}

ls_status ls__rendezvous_call(ls__rendezvous *rendezvous, double timeout_s,
                              const atomic_bool *cancel, bool *listens, int *fd,
                              char address[LS__PLAN_ADDRESS_BYTES]) {
    (void)rendezvous;
    (void)timeout_s;
    (void)cancel;
    (void)address;
    *listens = false;
    *fd = -1;
    return ls__fail(LS_ERR_UNSUPPORTED, "this build lacks tcp");
}

bool ls__rendezvous_token(const ls__rendezvous *rendezvous, const char *nonce,
                          char token[LS__PLAN_TOKEN_BYTES]) {
    (void)rendezvous;
    (void)nonce;
    (void)token;
    return false;
}

#endif
