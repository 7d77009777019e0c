/* The connecting side of the handshake, with its retries: ranks start in any order. */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { ATTEMPT_SECONDS = 10 };

/* One answer of an attempt: done, try again, or stop with the thread's error text. */
typedef enum attempt { ATTEMPT_DONE, ATTEMPT_AGAIN, ATTEMPT_STOP } attempt;

typedef struct dialled {
    ls__tcp_join *join;
    int role, target;
    char own[32]; /* what messages call this side */
    char where[LS__TCP_ADDRESS_TEXT];
    char why[256]; /* why the last attempt did not work */
    ls_status status;
} dialled;

static uint64_t earlier(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static dialled dialling(ls__tcp_join *join, int role, int target) {
    dialled d = {.join = join, .role = role, .target = target};
    if (role == LS__TCP_LAUNCHER)
        snprintf(d.own, sizeof d.own, "this launcher");
    else
        snprintf(d.own, sizeof d.own, "rank %d", join->rank);
    return d;
}

static attempt again(dialled *d, const char *why) {
    snprintf(d->why, sizeof d->why, "%s: %s", d->where, why);
    return ATTEMPT_AGAIN;
}

static attempt stop(dialled *d, ls_status status) {
    d->status = status;
    return ATTEMPT_STOP;
}

/* This rank's own listener, on the address through which it reached the rendezvous, or the one wanted. */
static ls_status open_listener(ls__tcp_join *join, int fd, ls__tcp_address *address) {
    if (join->listener >= 0 || join->rank == join->world - 1)
        return LS_OK;
    LS_TRY(ls__tcp_own_address(join->place, fd, address));
    if (!join->has_token && !ls__tcp_address_is_loopback(address))
        return ls__fail(LS_ERR_AUTH,
                        "rank %d: LOCKSTEP_INTERFACE is '%s', not loopback, and there is no token; "
                        "set LOCKSTEP_TOKEN to the same secret on all ranks",
                        join->rank, join->place->interface);
    return ls__tcp_listen(join->names, address, join->world + 16, &join->listener);
}

static attempt make_credentials(dialled *d, int fd, ls__tcp_card *card) {
    ls__tcp_join *join = d->join;
    ls__tcp_address address = {.bytes = sizeof address.raw};
    if (d->role == LS__TCP_MESH) {
        *card = join->table[join->rank];
        return ATTEMPT_DONE;
    }
    if (d->role == LS__TCP_CONTROL) {
        ls_status made = ls__tcp_card_make(card, NULL);
        return made == LS_OK ? ATTEMPT_DONE : stop(d, made);
    }
    if (join->listener >= 0 &&
        getsockname(join->listener, (struct sockaddr *)&address.raw, &address.bytes) != 0)
        return stop(d, ls__fail_errno(LS_ERR_SYSTEM, errno, "getsockname"));
    ls_status status = open_listener(join, fd, &address);
    if (status == LS_OK)
        status = ls__tcp_card_make(card, join->listener >= 0 ? &address : NULL);
    return status == LS_OK ? ATTEMPT_DONE : stop(d, status);
}

static attempt judge(dialled *d, const unsigned char *key, const ls__tcp_hello *mine,
                     const ls__tcp_hello *theirs, const ls__tcp_verdict *verdict) {
    char who[LS__TCP_ADDRESS_TEXT + 32];
    ls__tcp_proof want;
    ls__tcp_prove(&want, key, mine, theirs, NULL);
    bool proved = verdict->status == LS_OK && ls__tcp_proof_equal(&want, &verdict->proof);
    if (!proved && d->role == LS__TCP_LAUNCHER)
        return stop(d, ls__fail(LS_ERR_AUTH,
                                "this launcher and the one at %s do not have the same token; set "
                                "LOCKSTEP_TOKEN to the same secret for all launchers",
                                d->where));
    if (!proved)
        return stop(d, ls__fail(LS_ERR_AUTH,
                                "rank %u and rank %d at %s do not have the same token; set "
                                "LOCKSTEP_TOKEN to the same secret on all ranks",
                                mine->rank, d->target, d->where));
    snprintf(who, sizeof who, "rank %d at %s", d->target, d->where);
    ls_status status = ls__tcp_hello_compare(mine, theirs, who);
    if (status != LS_OK)
        return stop(d, status);
    if (theirs->rank != mine->target || theirs->role != mine->role)
        return stop(d, ls__fail(LS_ERR_MISMATCH, "rank %u expected rank %u at %s, found rank %u",
                                mine->rank, mine->target, d->where, theirs->rank));
    return ATTEMPT_DONE;
}

static attempt handshake(dialled *d, int fd) {
    ls__tcp_join *join = d->join;
    uint64_t deadline = earlier(join->deadline, ls__deadline_ns(ATTEMPT_SECONDS));
    ls__tcp_hello mine, theirs;
    ls__tcp_verdict verdict;
    struct {
        ls__tcp_proof proof;
        ls__tcp_card card;
    } credentials;
    ls__tcp_hello_make(&mine, d->role, join->rank, join->world, d->target);
    if (ls__tcp_write_all(fd, &mine, sizeof mine, deadline) <= 0 ||
        ls__tcp_read_all(fd, &theirs, sizeof theirs, deadline) <= 0)
        return again(d, "connected, but got no answer");
    if (!ls__tcp_hello_is_ours(&theirs))
        return stop(d, ls__fail(LS_ERR_FORMAT,
                                "%s: what answers at %s is no %s of Lockstep; is %s taken by "
                                "another service?",
                                d->own, d->where, d->role == LS__TCP_LAUNCHER ? "launcher" : "rank",
                                join->names->port));
    attempt result = make_credentials(d, fd, &credentials.card);
    if (result != ATTEMPT_DONE)
        return result;
    ls__tcp_prove(&credentials.proof, join->key, &mine, &theirs, &credentials.card);
    if (ls__tcp_write_all(fd, &credentials, sizeof credentials, deadline) <= 0 ||
        ls__tcp_read_all(fd, &verdict, sizeof verdict, deadline) <= 0)
        return again(d, "the handshake was cut short");
    return judge(d, join->key, &mine, &theirs, &verdict);
}

ls_status ls__tcp_handshake(ls__tcp_join *join, int role, int target, int fd) {
    dialled d = dialling(join, role, target);
    snprintf(d.where, sizeof d.where, "a connection");
    switch (handshake(&d, fd)) {
    case ATTEMPT_DONE:
        return LS_OK;
    case ATTEMPT_AGAIN:
        return ls__fail(LS_ERR_PEER, "rank %d: %s", join->rank, d.why);
    default:
        return d.status;
    }
}

static attempt try_address(dialled *d, const ls__tcp_address *address, int *fd) {
    ls__tcp_join *join = d->join;
    int error;
    ls__tcp_address_text(address, d->where);
    if (!join->has_token && !ls__tcp_address_is_loopback(address))
        return stop(d, ls__fail(LS_ERR_AUTH,
                                "%s: %s is not a loopback address and there is no token; set "
                                "LOCKSTEP_TOKEN to the same secret on all %s",
                                d->own, d->where, join->names->all));
    *fd =
        ls__tcp_connect(address, earlier(join->deadline, ls__deadline_ns(ATTEMPT_SECONDS)), &error);
    if (*fd < 0) {
        char text[128];
        return again(d, strerror_r(error, text, sizeof text));
    }
    attempt result = handshake(d, *fd);
    if (result == ATTEMPT_DONE) {
        ls__tcp_set_options(*fd);
    } else {
        ls__tcp_close_fd(*fd);
        *fd = -1;
    }
    return result;
}

static attempt try_all(dialled *d, int *fd) {
    ls__tcp_join *join = d->join;
    ls__tcp_address addresses[LS__TCP_ADDRESSES];
    size_t count = 1;
    if (d->role == LS__TCP_MESH || !join->address) {
        ls_status status = ls__tcp_card_address(&join->table[d->target], &addresses[0]);
        if (status != LS_OK)
            return stop(d, status);
    } else if (ls__tcp_resolve(join->names, join->address, join->port, addresses, &count) !=
               LS_OK) {
        /* Names of a cluster's hosts may appear late: not final. */
        snprintf(d->why, sizeof d->why, "%s", ls_error_text());
        return ATTEMPT_AGAIN;
    }
    attempt result = ATTEMPT_AGAIN;
    for (size_t i = 0; i < count && result == ATTEMPT_AGAIN; i++)
        result = try_address(d, &addresses[i], fd);
    return result;
}

/* In the mesh: has rank 0 ended the start? Then this becomes the error. */
static ls_status check_root(ls__tcp_join *join) {
    struct pollfd p = {.fd = join->fd[0], .events = POLLIN};
    if (p.fd < 0 || poll(&p, 1, 0) <= 0)
        return LS_OK;
    return ls__tcp_note_recv(join, 0, LS__TCP_FAIL, NULL, 0);
}

ls_status ls__tcp_dial(ls__tcp_join *join, int role, int target, int *fd) {
    dialled d = dialling(join, role, target);
    long pause_ms = 10;
    *fd = -1;
    for (;;) {
        attempt result = try_all(&d, fd);
        if (result != ATTEMPT_AGAIN)
            return result == ATTEMPT_DONE ? LS_OK : d.status;
        LS_TRY(check_root(join));
        if (ls__board_is_absent(join->place->board, target))
            return ls__fail(LS_ERR_PEER, "rank %d: rank %d ended before it joined the job",
                            join->rank, target);
        if (ls__now_ns() >= join->deadline && role == LS__TCP_LAUNCHER)
            return ls__fail(LS_ERR_TIMEOUT, "%s", d.why);
        if (ls__now_ns() >= join->deadline)
            return ls__fail(LS_ERR_TIMEOUT,
                            "rank %d: timed out after %g s waiting for rank %d: %s; is it "
                            "running, and are %s and %s the same on all %s?",
                            join->rank, join->place->timeout_s, target, d.why, join->names->address,
                            join->names->port, join->names->all);
        if (ls__tcp_log_due(join))
            ls__tcp_log(join->place, LS_LOG_WARNING, "rank %d: waiting for rank %d: %s", join->rank,
                        target, d.why);
        struct timespec pause = {.tv_nsec = pause_ms * 1000000};
        nanosleep(&pause, NULL);
        pause_ms = pause_ms < 250 ? pause_ms * 2 : 250;
    }
}
