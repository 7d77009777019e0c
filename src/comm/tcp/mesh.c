/* The connections among ranks above 0: each dials those below it, then accepts those above it. Rank 1
 * dials nobody, so by induction nobody waits for someone who waits for it. */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <stdlib.h>

enum { ROUND_MS = 250 };

static bool is_missing(const void *context, int rank) {
    const ls__tcp_join *join = context;
    return rank > join->rank && join->fd[rank] < 0;
}

static void admit(ls__tcp_join *join, ls__tcp_guest *guest) {
    const ls__tcp_hello *theirs = &guest->theirs;
    bool fits = theirs->order == LS__TCP_ORDER && theirs->version == LS__TCP_VERSION &&
                theirs->world == (uint32_t)join->world && theirs->rank < theirs->world &&
                theirs->target == (uint32_t)join->rank;
    if (!fits || !is_missing(join, (int)theirs->rank)) {
        ls__tcp_log(join->place, LS_LOG_WARNING,
                    "rank %d: refused a connection of rank %u of %u to rank %u", join->rank,
                    theirs->rank, theirs->world, theirs->target);
        ls__tcp_close_fd(guest->fd);
        return;
    }
    join->fd[theirs->rank] = guest->fd;
    ls__tcp_set_options(guest->fd);
}

static ls_status accept_round(ls__tcp_join *join, ls__tcp_lobby *lobby, struct pollfd *polls) {
    char missing[256];
    ls__tcp_rank_list(missing, sizeof missing, join->world, is_missing, join);
    if (ls__now_ns() >= join->deadline)
        return ls__fail(LS_ERR_TIMEOUT,
                        "rank %d: timed out after %g s waiting for ranks %s to connect to it",
                        join->rank, join->place->timeout_s, missing);
    if (ls__tcp_log_due(join))
        ls__tcp_log(join->place, LS_LOG_WARNING, "rank %d: waiting for ranks %s to connect to it",
                    join->rank, missing);
    ls__tcp_lobby_poll(lobby, polls);
    polls[lobby->size + 1] = (struct pollfd){.fd = join->fd[0], .events = POLLIN};
    int ms = ls__tcp_poll_ms(join->deadline);
    if (poll(polls, (nfds_t)lobby->size + 2, ms < ROUND_MS ? ms : ROUND_MS) < 0 && errno != EINTR)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "rank %d: poll", join->rank);
    if (polls[lobby->size + 1].revents != 0) /* only a failure can come now */
        LS_TRY(ls__tcp_note_recv(join, 0, LS__TCP_FAIL, NULL, 0));
    ls__tcp_guest guest;
    while (ls__tcp_lobby_serve(lobby, polls, &guest))
        admit(join, &guest);
    return ls__tcp_lobby_status(lobby);
}

static int count_missing(const ls__tcp_join *join) {
    int missing = 0;
    for (int rank = 0; rank < join->world; rank++)
        missing += is_missing(join, rank);
    return missing;
}

ls_status ls__tcp_mesh(ls__tcp_join *join) {
    for (int rank = 1; rank < join->rank; rank++)
        LS_TRY(ls__tcp_dial(join, LS__TCP_MESH, rank, &join->fd[rank]));
    if (count_missing(join) == 0)
        return LS_OK;
    ls__tcp_lobby lobby;
    LS_TRY(ls__tcp_lobby_open(&lobby, join, LS__TCP_MESH));
    ls_status status = LS_OK;
    struct pollfd *polls = calloc((size_t)lobby.size + 2, sizeof *polls);
    if (!polls)
        status = ls__fail(LS_ERR_MEMORY, "no memory for %d connections", lobby.size);
    while (status == LS_OK && count_missing(join) > 0)
        status = accept_round(join, &lobby, polls);
    free(polls);
    ls__tcp_lobby_close(&lobby);
    return status;
}
