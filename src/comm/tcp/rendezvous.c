/* How the ranks find each other. Rank 0 listens on MASTER_ADDR:MASTER_PORT; every other rank proves
 * itself there and hands in its card (host, pid, own listener); rank 0 sends everybody the table of
 * all cards; ranks above 0 then connect among themselves (mesh.c), report, and are told to go.
 *
 *   rank r: handshake    rank 0: TABLE    rank r: DONE    rank 0: BEAT    rank r: control.c    rank 0: GO
 *
 * Instead of any of these a FAIL with the reason may travel; rank 0 passes it on to all. */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOG_SECONDS = 5,
    LOG_SECONDS_MOST = 60,
    RETURN_MS = 600,
    ROUND_MS = 250,
    NOTE_SECONDS = 5,
    TEXT_BYTES = 1000
};

void ls__tcp_log(const ls__job_place *place, ls_log_level level, const char *format, ...) {
    char line[1024];
    if (!place->log)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c; c++) /* names come from the network: one line stays one line */
        *c = (unsigned char)*c < 0x20 ? ' ' : *c;
    place->log(place->log_context, level, line);
}

bool ls__tcp_log_due(ls__tcp_join *join) {
    if (ls__now_ns() < join->next_log)
        return false;
    join->log_pause_s =
        join->log_pause_s < LOG_SECONDS_MOST / 2 ? 2 * join->log_pause_s : LOG_SECONDS_MOST;
    join->next_log = ls__deadline_ns(join->log_pause_s);
    return true;
}

ls_status ls__tcp_note_send(ls__tcp_join *join, int rank, int kind, ls_status status,
                            const void *body, size_t bytes) {
    uint64_t deadline = ls__deadline_ns(NOTE_SECONDS);
    ls__tcp_note note = {
        .kind = (uint32_t)kind, .status = (uint32_t)status, .bytes = (uint32_t)bytes};
    if (ls__tcp_write_all(join->fd[rank], &note, sizeof note, deadline) <= 0 ||
        ls__tcp_write_all(join->fd[rank], body, bytes, deadline) <= 0)
        return ls__fail_errno(LS_ERR_PEER, errno, "rank %d: the connection to rank %d broke",
                              join->rank, rank);
    return LS_OK;
}

static ls_status read_error(const ls__tcp_join *join, int rank, int got) {
    if (got == 0)
        return ls__fail(LS_ERR_PEER, "rank %d: rank %d left during the start", join->rank, rank);
    if (errno == ETIMEDOUT)
        return ls__fail(LS_ERR_TIMEOUT,
                        "rank %d: timed out after %g s waiting for rank %d to go on with the start",
                        join->rank, join->place->timeout_s, rank);
    return ls__fail_errno(LS_ERR_PEER, errno, "rank %d: the connection to rank %d broke",
                          join->rank, rank);
}

static ls_status take_failure(ls__tcp_join *join, int rank, const ls__tcp_note *note) {
    char text[TEXT_BYTES + 1];
    size_t bytes = note->bytes < TEXT_BYTES ? note->bytes : TEXT_BYTES;
    int got = ls__tcp_read_all(join->fd[rank], text, bytes, ls__deadline_ns(NOTE_SECONDS));
    if (got <= 0)
        return read_error(join, rank, got);
    text[bytes] = '\0';
    bool known = note->status > LS_OK && note->status <= LS_ERR_NOT_REDUCED;
    return ls__fail(known ? (ls_status)note->status : LS_ERR_PEER, "rank %d ended the start: %s",
                    rank, text);
}

ls_status ls__tcp_note_recv(ls__tcp_join *join, int rank, int kind, void *body, size_t bytes) {
    ls__tcp_note note;
    /* A little longer than the others wait: the reason of whoever ends the start can still arrive. */
    uint64_t deadline =
        join->deadline < UINT64_MAX - 2000000000u ? join->deadline + 1000000000u : UINT64_MAX;
    int got = ls__tcp_read_all(join->fd[rank], &note, sizeof note, deadline);
    if (got <= 0)
        return read_error(join, rank, got);
    if (note.kind == LS__TCP_FAIL)
        return take_failure(join, rank, &note);
    if (note.kind != (uint32_t)kind || note.bytes != bytes)
        return ls__fail(LS_ERR_FORMAT,
                        "rank %d: rank %d sent message %u of %u bytes, want message %d of %zu",
                        join->rank, rank, note.kind, note.bytes, kind, bytes);
    got = ls__tcp_read_all(join->fd[rank], body, bytes, deadline);
    return got > 0 ? LS_OK : read_error(join, rank, got);
}

/* --- rank 0 --- */

static ls_status open_rendezvous(ls__tcp_join *join) {
    ls__tcp_address addresses[LS__TCP_ADDRESSES];
    size_t count;
    if (join->listener >= 0)
        return LS_OK;
    LS_TRY(ls__tcp_resolve(join->names, join->address, join->port, addresses, &count));
    ls_status status = LS_ERR_SYSTEM;
    for (size_t i = 0; i < count && status != LS_OK; i++) {
        if (!join->has_token && !ls__tcp_address_is_loopback(&addresses[i])) {
            char text[LS__TCP_ADDRESS_TEXT];
            ls__tcp_address_text(&addresses[i], text);
            return ls__fail(LS_ERR_AUTH,
                            "rank 0: %s is not a loopback address and there is no token; set "
                            "LOCKSTEP_TOKEN to the same secret on all ranks",
                            text);
        }
        int backlog = join->world < 112 ? 128 : join->world + 16;
        status = ls__tcp_listen(join->names, &addresses[i], backlog, &join->listener);
    }
    return status;
}

static bool is_missing(const void *context, int rank) {
    const ls__tcp_join *join = context;
    return rank != join->rank && join->fd[rank] < 0;
}

static int count_missing(const ls__tcp_join *join) {
    int missing = 0;
    for (int rank = 0; rank < join->world; rank++)
        missing += is_missing(join, rank);
    return missing;
}

static ls_status refuse(ls__tcp_guest *guest, ls_status status) {
    int fd = guest->fd;
    const char *text = ls_error_text();
    ls__tcp_note note = {
        .kind = LS__TCP_FAIL, .status = (uint32_t)status, .bytes = (uint32_t)strlen(text)};
    uint64_t deadline = ls__deadline_ns(1);
    if (ls__tcp_write_all(fd, &note, sizeof note, deadline) > 0)
        ls__tcp_write_all(fd, text, note.bytes, deadline);
    ls__tcp_close_fd(fd);
    return status;
}

ls_status ls__tcp_admit(ls__tcp_join *join, ls__tcp_guest *guest) {
    const ls__tcp_hello *theirs = &guest->theirs;
    const ls__tcp_card *card = &guest->credentials.card;
    char who[160];
    snprintf(who, sizeof who, "rank %u (host %s, pid %lld)", theirs->rank, card->host,
             (long long)card->pid);
    ls_status status = ls__tcp_hello_compare(&guest->mine, theirs, who);
    if (status != LS_OK)
        return refuse(guest, status);
    if (theirs->rank >= (uint32_t)join->world)
        return refuse(guest,
                      ls__fail(LS_ERR_MISMATCH, "%s: want a rank below %d", who, join->world));
    const int rank = (int)theirs->rank;
    if (rank == 0 || join->fd[rank] >= 0)
        return refuse(guest,
                      ls__fail(LS_ERR_MISMATCH,
                               "rank %d is there twice: host %s, pid %lld and host %s, pid "
                               "%lld; give every process its own RANK from 0 to %d",
                               rank, join->table[rank].host, (long long)join->table[rank].pid,
                               card->host, (long long)card->pid, join->world - 1));
    join->fd[rank] = guest->fd;
    join->table[rank] = *card;
    ls__tcp_set_options(guest->fd);
    return LS_OK;
}

/* A rank that left while the others are awaited may come back at once: its place is free again. */
static void drop_leavers(ls__tcp_join *join, const struct pollfd *polls) {
    for (int rank = 1; rank < join->world; rank++) {
        if (join->fd[rank] < 0 || polls[rank].revents == 0)
            continue;
        ls__tcp_log(join->place, LS_LOG_WARNING,
                    "rank 0: rank %d (host %s, pid %lld) left during the start", rank,
                    join->table[rank].host, (long long)join->table[rank].pid);
        ls__tcp_close_fd(join->fd[rank]);
        join->fd[rank] = -1;
        if (join->gone >= 0)
            continue;
        join->gone = rank;
        join->gone_until = ls__deadline_ns(RETURN_MS * 1e-3);
    }
}

/* Who died would be waited for in vain, and nobody would hear of it before the deadline. */
static ls_status check_gone(ls__tcp_join *join) {
    const int rank = join->gone;
    if (rank < 0)
        return LS_OK;
    if (join->fd[rank] >= 0)
        join->gone = -1;
    else if (ls__now_ns() >= join->gone_until)
        return ls__fail(
            LS_ERR_PEER,
            "rank 0: rank %d (host %s, pid %lld) ended, or its link did, while others were "
            "awaited",
            rank, join->table[rank].host, (long long)join->table[rank].pid);
    return LS_OK;
}

static ls_status check_absent(const ls__tcp_join *join) {
    for (int rank = 1; rank < join->world; rank++) {
        if (join->fd[rank] < 0 && ls__board_is_absent(join->place->board, rank))
            return ls__fail(LS_ERR_PEER, "rank 0: rank %d ended before it joined the job", rank);
    }
    return LS_OK;
}

static ls_status collect_round(ls__tcp_join *join, ls__tcp_lobby *lobby, struct pollfd *polls) {
    char missing[256];
    struct pollfd *lobby_polls = polls + join->world;
    ls__tcp_rank_list(missing, sizeof missing, join->world, is_missing, join);
    LS_TRY(check_absent(join));
    LS_TRY(check_gone(join));
    if (ls__now_ns() >= join->deadline)
        return ls__fail(LS_ERR_TIMEOUT,
                        "rank 0: timed out after %g s waiting for ranks %s of %d at %s:%d",
                        join->place->timeout_s, missing, join->world, join->address, join->port);
    if (ls__tcp_log_due(join))
        ls__tcp_log(join->place, LS_LOG_WARNING, "rank 0: waiting for ranks %s of %d at %s:%d",
                    missing, join->world, join->address, join->port);
    for (int rank = 0; rank < join->world; rank++)
        polls[rank] = (struct pollfd){.fd = join->fd[rank], .events = POLLIN};
    ls__tcp_lobby_poll(lobby, lobby_polls);
    int ms = ls__tcp_poll_ms(join->deadline);
    if (poll(polls, (nfds_t)join->world + (nfds_t)lobby->size + 1, ms < ROUND_MS ? ms : ROUND_MS) <
            0 &&
        errno != EINTR)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "rank 0: poll");
    drop_leavers(join, polls);
    ls__tcp_guest guest;
    while (ls__tcp_lobby_serve(lobby, lobby_polls, &guest))
        LS_TRY(ls__tcp_admit(join, &guest));
    return ls__tcp_lobby_status(lobby);
}

static ls_status collect(ls__tcp_join *join) {
    ls__tcp_lobby lobby;
    struct pollfd *polls = NULL;
    ls_status status;
    LS_TRY(ls__tcp_lobby_open(&lobby, join, LS__TCP_RENDEZVOUS));
    polls = calloc((size_t)join->world + (size_t)lobby.size + 1, sizeof *polls);
    if (!polls)
        LS_TRY_OUT(ls__fail(LS_ERR_MEMORY, "no memory to wait for %d ranks", join->world));
    status = LS_OK;
    while (status == LS_OK && count_missing(join) > 0)
        status = collect_round(join, &lobby, polls);
out:
    free(polls);
    ls__tcp_lobby_close(&lobby);
    return status;
}

typedef struct reports {
    const ls__tcp_join *join;
    bool *done; /* (world) */
} reports;

static bool is_unfinished(const void *context, int rank) {
    const reports *r = context;
    return rank != r->join->rank && !r->done[rank];
}

/* Who is stopped keeps those who want to connect to it waiting, and rank 0 cannot tell them apart. */
static ls_status unfinished(const ls__tcp_join *join, bool *done) {
    const reports r = {.join = join, .done = done};
    char ranks[256];
    ls__tcp_rank_list(ranks, sizeof ranks, join->world, is_unfinished, &r);
    return ls__fail(
        LS_ERR_TIMEOUT,
        "rank 0: timed out after %g s waiting for ranks %s to connect to the other ranks: one "
        "of them may be stopped, or its link cut",
        join->place->timeout_s, ranks);
}

/* Until everyone has reported that its connections stand; whoever fails first ends the wait. */
static ls_status await_reports(ls__tcp_join *join, struct pollfd *polls, bool *done) {
    for (int count = 1; count < join->world;) {
        for (int rank = 0; rank < join->world; rank++)
            polls[rank] = (struct pollfd){.fd = join->fd[rank], .events = POLLIN};
        if (ls__now_ns() >= join->deadline)
            return unfinished(join, done);
        if (poll(polls, (nfds_t)join->world, ls__tcp_poll_ms(join->deadline)) < 0 && errno != EINTR)
            return ls__fail_errno(LS_ERR_SYSTEM, errno, "rank 0: poll");
        for (int rank = 1; rank < join->world; rank++) {
            if (polls[rank].revents == 0)
                continue;
            LS_TRY(ls__tcp_note_recv(join, rank, LS__TCP_DONE, NULL, 0));
            count += !done[rank];
            done[rank] = true;
        }
    }
    return LS_OK;
}

static ls_status lead(ls__tcp_join *join) {
    const size_t bytes = (size_t)join->world * sizeof *join->table;
    ls_status status = LS_OK;
    struct pollfd *polls = calloc((size_t)join->world, sizeof *polls);
    bool *done = calloc((size_t)join->world, sizeof *done);
    if (!polls || !done)
        LS_TRY_OUT(ls__fail(LS_ERR_MEMORY, "no memory to wait for %d ranks", join->world));
    for (int rank = 1; rank < join->world; rank++)
        LS_TRY_OUT(ls__tcp_note_send(join, rank, LS__TCP_TABLE, LS_OK, join->table, bytes));
    LS_TRY_OUT(await_reports(join, polls, done));
    for (int rank = 1; rank < join->world && join->control; rank++)
        LS_TRY_OUT(ls__tcp_note_send(join, rank, LS__TCP_BEAT, LS_OK, NULL, 0));
    if (join->control)
        LS_TRY_OUT(ls__tcp_control_collect(join));
    for (int rank = 1; rank < join->world; rank++)
        LS_TRY_OUT(ls__tcp_note_send(join, rank, LS__TCP_GO, LS_OK, NULL, 0));
out:
    free(polls);
    free(done);
    return status;
}

/* Everyone who is there learns why. Keeps this thread's error text. */
static void tell_all(ls__tcp_join *join, ls_status status) {
    char text[1024];
    snprintf(text, sizeof text, "%s", ls_error_text());
    size_t bytes = strlen(text);
    for (int rank = 0; rank < join->world; rank++)
        if (join->fd[rank] >= 0)
            (void)ls__tcp_note_send(join, rank, LS__TCP_FAIL, status, text, bytes);
    ls__fail(status, "%s", text);
}

static ls_status run_root(ls__tcp_join *join) {
    ls_status status = open_rendezvous(join);
    if (status == LS_OK)
        status = ls__tcp_card_make(&join->table[0], NULL);
    if (status == LS_OK)
        status = collect(join);
    if (status == LS_OK)
        status = lead(join);
    if (status != LS_OK)
        tell_all(join, status);
    return status;
}

/* --- the others --- */

static ls_status give_up(ls__tcp_join *join, ls_status status) {
    char text[1024];
    snprintf(text, sizeof text, "%s", ls_error_text());
    (void)ls__tcp_note_send(join, 0, LS__TCP_FAIL, status, text, strlen(text));
    return ls__fail(status, "%s", text);
}

static ls_status follow(ls__tcp_join *join) {
    LS_TRY(ls__tcp_dial(join, LS__TCP_RENDEZVOUS, 0, &join->fd[0]));
    const size_t bytes = (size_t)join->world * sizeof *join->table;
    LS_TRY(ls__tcp_note_recv(join, 0, LS__TCP_TABLE, join->table, bytes));
    for (int rank = 0; rank < join->world; rank++)
        join->table[rank].host[LS__TCP_HOST_BYTES - 1] = '\0';
    ls_status status = ls__tcp_mesh(join);
    if (status != LS_OK)
        return give_up(join, status);
    LS_TRY(ls__tcp_note_send(join, 0, LS__TCP_DONE, LS_OK, NULL, 0));
    if (join->control) {
        LS_TRY(ls__tcp_note_recv(join, 0, LS__TCP_BEAT, NULL, 0));
        status = ls__tcp_control_dial(join);
    }
    if (status != LS_OK)
        return give_up(join, status);
    return ls__tcp_note_recv(join, 0, LS__TCP_GO, NULL, 0);
}

ls_status ls__tcp_rendezvous(ls__tcp_join *join) {
    join->log_pause_s = LOG_SECONDS;
    join->next_log = ls__deadline_ns(LOG_SECONDS);
    join->gone = -1;
    ls_status status = join->rank == 0 ? run_root(join) : follow(join);
    ls__tcp_close_fd(join->listener);
    join->listener = -1;
    return status;
}
