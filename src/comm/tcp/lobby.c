/* The accepting side of the handshake. Anyone may connect: each guest gets a slot, a bounded time and
 * a fixed amount of memory, and is shown the door when it is silent, garbled or has a wrong token.
 *
 *   guest: hello, we: hello, guest: proof + card, we: verdict */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { SLOTS = 128, GUEST_SECONDS = 5, REFUSALS_LOGGED = 100, REFUSALS_SECONDS = 60 };

ls_status ls__tcp_slots(const ls__tcp_join *join, int *slots) {
    enum { FEWEST = 4, OTHERS = 8 };
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t lines = !join->control ? 0 : join->rank == 0 ? (rlim_t)join->world : 1;
    rlim_t wanted = (rlim_t)join->world + lines + FEWEST + OTHERS;
    if (limit.rlim_cur < wanted)
        return ls__fail(LS_ERR_SYSTEM,
                        "rank %d: tcp among %d ranks wants %llu open files, the limit is %llu "
                        "(ulimit -n)",
                        join->rank, join->world, (unsigned long long)wanted,
                        (unsigned long long)limit.rlim_cur);
    rlim_t left = limit.rlim_cur - wanted + FEWEST;
    *slots = left < SLOTS ? (int)left : SLOTS;
    return LS_OK;
}

ls_status ls__tcp_lobby_open(ls__tcp_lobby *lobby, ls__tcp_join *join, int role) {
    *lobby = (ls__tcp_lobby){.join = join, .role = role};
    LS_TRY(ls__tcp_slots(join, &lobby->size));
    lobby->guest = calloc((size_t)lobby->size, sizeof *lobby->guest);
    if (!lobby->guest)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d connections", lobby->size);
    for (int i = 0; i < lobby->size; i++)
        lobby->guest[i].fd = -1;
    return LS_OK;
}

void ls__tcp_lobby_close(ls__tcp_lobby *lobby) {
    for (int i = 0; lobby->guest && i < lobby->size; i++)
        ls__tcp_close_fd(lobby->guest[i].fd);
    free(lobby->guest);
    lobby->guest = NULL;
}

void ls__tcp_lobby_poll(const ls__tcp_lobby *lobby, struct pollfd *polls) {
    bool has_slot = false;
    for (int i = 0; i < lobby->size; i++) {
        polls[1 + i] = (struct pollfd){.fd = lobby->guest[i].fd, .events = POLLIN};
        has_slot = has_slot || lobby->guest[i].fd < 0;
    }
    polls[0] = (struct pollfd){.fd = has_slot ? lobby->join->listener : -1, .events = POLLIN};
}

static void dismiss(ls__tcp_lobby *lobby, ls__tcp_guest *guest, const char *why) {
    char text[LS__TCP_ADDRESS_TEXT];
    ls__tcp_address_text(&guest->from, text);
    if (ls__now_ns() >= ls__deadline_after(lobby->refused_from, REFUSALS_SECONDS)) {
        lobby->refused_from = ls__now_ns();
        lobby->refused = 0;
    }
    if (++lobby->refused <= REFUSALS_LOGGED) /* a flood of strangers is none of lines */
        ls__tcp_log(lobby->join->place, LS_LOG_WARNING, "rank %d: refused a connection from %s: %s",
                    lobby->join->rank, text, why);
    ls__tcp_close_fd(guest->fd);
    guest->fd = -1;
}

static void admit_newcomers(ls__tcp_lobby *lobby) {
    for (int i = 0; i < lobby->size; i++) {
        if (lobby->guest[i].fd >= 0)
            continue;
        ls__tcp_address from = {.bytes = sizeof from.raw};
        int fd = accept4(lobby->join->listener, (struct sockaddr *)&from.raw, &from.bytes,
                         SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                lobby->error_number = errno; /* nobody will get in: better told than waited out */
            return;
        }
        lobby->guest[i] =
            (ls__tcp_guest){.fd = fd, .from = from, .deadline = ls__deadline_ns(GUEST_SECONDS)};
    }
}

/* A few bytes on a fresh connection always fit its buffer: no waiting here. */
static bool put(const ls__tcp_guest *guest, const void *data, size_t bytes) {
    return send(guest->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

/* As much as is there: 1 complete, 0 not yet, -1 gone */
static int get(ls__tcp_guest *guest, void *data, size_t bytes) {
    while (guest->got < bytes) {
        ssize_t n = recv(guest->fd, (char *)data + guest->got, bytes - guest->got, MSG_DONTWAIT);
        if (n > 0)
            guest->got += (size_t)n;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        else if (n == 0 || errno != EINTR)
            return -1;
    }
    guest->got = 0;
    return 1;
}

static int take_hello(ls__tcp_lobby *lobby, ls__tcp_guest *guest) {
    const ls__tcp_join *join = lobby->join;
    int got = get(guest, &guest->theirs, sizeof guest->theirs);
    if (got < 0 && guest->got == 0) { /* a look whether somebody listens: no word, no line */
        ls__tcp_close_fd(guest->fd);
        guest->fd = -1;
    } else if (got < 0) {
        dismiss(lobby, guest, "it closed the connection before it said who it is");
    } else if (got > 0 && !ls__tcp_hello_is_ours(&guest->theirs)) {
        dismiss(lobby, guest, "it is no rank of Lockstep");
    }
    if (got <= 0 || guest->fd < 0)
        return 0;
    ls__tcp_hello_make(&guest->mine, lobby->role, join->rank, join->world,
                       (int)(guest->theirs.rank & INT32_MAX));
    if (!put(guest, &guest->mine, sizeof guest->mine)) {
        dismiss(lobby, guest, "it left during the handshake");
        return 0;
    }
    guest->greeted = true;
    return 1;
}

/* True when the guest has proved itself. */
static bool take_credentials(ls__tcp_lobby *lobby, ls__tcp_guest *guest) {
    ls__tcp_join *join = lobby->join;
    int got = get(guest, &guest->credentials, sizeof guest->credentials);
    if (got < 0)
        dismiss(lobby, guest, "it left during the handshake");
    if (got <= 0)
        return false;
    ls__tcp_proof want;
    ls__tcp_verdict verdict = {.status = LS_OK};
    ls__tcp_prove(&want, join->key, &guest->theirs, &guest->mine, &guest->credentials.card);
    if (!ls__tcp_proof_equal(&want, &guest->credentials.proof)) {
        char why[160];
        verdict.status = LS_ERR_AUTH;
        put(guest, &verdict, sizeof verdict);
        if (lobby->role == LS__TCP_LAUNCHER)
            snprintf(why, sizeof why,
                     "its token is wrong; LOCKSTEP_TOKEN has to be the same for all");
        else
            snprintf(
                why, sizeof why,
                "it says it is rank %u, but its token is wrong; set LOCKSTEP_TOKEN to the same "
                "secret on all ranks",
                guest->theirs.rank);
        dismiss(lobby, guest, why);
        return false;
    }
    guest->credentials.card.host[LS__TCP_HOST_BYTES - 1] = '\0';
    ls__tcp_prove(&verdict.proof, join->key, &guest->theirs, &guest->mine, NULL);
    if (guest->theirs.order == LS__TCP_ORDER && guest->theirs.role != (uint32_t)lobby->role) {
        dismiss(lobby, guest, "it wants another kind of connection");
        return false;
    }
    if (!put(guest, &verdict, sizeof verdict)) {
        dismiss(lobby, guest, "it left during the handshake");
        return false;
    }
    return true;
}

ls_status ls__tcp_lobby_status(ls__tcp_lobby *lobby) {
    int error_number = lobby->error_number;
    lobby->error_number = 0;
    if (!error_number)
        return LS_OK;
    return ls__fail_errno(LS_ERR_SYSTEM, error_number,
                          "rank %d: cannot accept connections of other ranks", lobby->join->rank);
}

bool ls__tcp_lobby_serve(ls__tcp_lobby *lobby, struct pollfd *polls, ls__tcp_guest *guest) {
    for (int i = 0; i < lobby->size; i++) {
        ls__tcp_guest *g = &lobby->guest[i];
        if (g->fd < 0)
            continue;
        bool readable = polls[1 + i].fd == g->fd && polls[1 + i].revents != 0;
        polls[1 + i].revents = 0;
        if (readable && (g->greeted || take_hello(lobby, g)) && take_credentials(lobby, g)) {
            *guest = *g;
            g->fd = -1;
            return true;
        }
        if (g->fd >= 0 && ls__now_ns() >= g->deadline)
            dismiss(lobby, g, "it did not finish the handshake in time");
    }
    if (polls[0].revents != 0)
        admit_newcomers(lobby);
    polls[0].revents = 0;
    return false;
}
