/* Moves all connections at once until the operation under way wants nothing any more: whatever the
 * sizes, nobody waits for one peer while another could go on. Bounded by the operation's deadline. */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { SETTLE_MS = 200, LOOK_MS = 250 };

static bool is_waiting(const ls__tcp *tcp, const ls__tcp_peer *peer) {
    return peer->fd >= 0 &&
           (ls__tcp_has_out(peer) || (ls__tcp_wants(tcp, peer) && peer->expect != LS__TCP_ANY));
}

/* "1, 2, 5" */
static void list_missing(const ls__tcp *tcp, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; rank < tcp->mesh.base.size && used + 20 < bytes; rank++)
        if (is_waiting(tcp, tcp->peer[rank]))
            used += (size_t)snprintf(text + used, bytes - used, used ? ", %d" : "%d",
                                     ls__name_of(&tcp->mesh.base, rank));
}

/* A header that was not looked at yet counts. */
static bool has_arrived(ls__tcp_peer *peer) {
    return peer->expect != LS__TCP_EXPECT_BEGIN ||
           (ls__tcp_peek(peer) == 1 && peer->frame.type == LS__TCP_BEGIN);
}

void ls__tcp_list_missing(const ls__tcp *tcp, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int rank = 0; rank < tcp->mesh.base.size && used + 30 < bytes; rank++)
        if (!has_arrived(tcp->peer[rank]))
            used += (size_t)snprintf(text + used, bytes - used,
                                     used ? ", %d" : "; not arrived yet: rank %d",
                                     ls__name_of(&tcp->mesh.base, rank));
}

static ls_status timed_out(const ls__tcp *tcp, const ls__operation *operation) {
    char ranks[160], details[800] = "";
    size_t used = 0;
    int named = 0;
    list_missing(tcp, ranks, sizeof ranks);
    for (int rank = 0; rank < tcp->mesh.base.size && named < 3; rank++) {
        const ls__tcp_peer *peer = tcp->peer[rank];
        if (!is_waiting(tcp, peer))
            continue;
        char phase[100];
        ls__heartbeat_phase(tcp->mesh.base.heartbeat, ls__name_of(&tcp->mesh.base, rank), phase,
                            sizeof phase);
        bool arrived = peer->expect != LS__TCP_EXPECT_BEGIN && !peer->awaits_want &&
                       peer->expect != LS__TCP_EXPECT_MESSAGE;
        used +=
            (size_t)snprintf(details + used, sizeof details - used,
                             "%srank %d (host %s, pid %lld%s) %s", named++ ? ", " : "",
                             ls__name_of(&tcp->mesh.base, rank), peer->host, (long long)peer->pid,
                             phase, arrived ? "stopped in its middle" : "did not arrive at it");
    }
    return ls__operation_fail(LS_ERR_TIMEOUT, operation, ls__own_name(&tcp->mesh.base),
                              "timed out after %.1f s waiting for rank%s %s: %s",
                              (double)(ls__now_ns() - tcp->started_ns) * 1e-9,
                              strchr(ranks, ',') ? "s" : "", ranks, details);
}

/* Those who gave up this group's operation, and those who are waited for and beat no more. */
static ls_status look_at_heartbeats(ls__tcp *tcp, const ls__operation *operation) {
    char how[300], list[200];
    ls__failure failure;
    if (ls__heartbeat_failure(tcp->mesh.base.heartbeat, operation->header.group, &failure))
        return ls__tcp_gave_up(tcp, operation, &failure);
    for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
        const ls__tcp_peer *peer = tcp->peer[rank];
        if (!is_waiting(tcp, peer) ||
            !ls__heartbeat_stopped(tcp->mesh.base.heartbeat, ls__name_of(&tcp->mesh.base, rank),
                                   how, sizeof how))
            continue;
        ls__tcp_list_missing(tcp, list, sizeof list);
        return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&tcp->mesh.base),
                                  "rank %d (host %s, pid %lld) %s%s",
                                  ls__name_of(&tcp->mesh.base, rank), peer->host,
                                  (long long)peer->pid, how, list);
    }
    return LS_OK;
}

static ls_status gave_up(ls__tcp *tcp, const ls__operation *operation) {
    pthread_mutex_lock(&tcp->reason_lock);
    ls_status status = ls__operation_fail(LS_ERR_STATE, operation, ls__own_name(&tcp->mesh.base),
                                          "this rank gave up: %s", tcp->reason);
    pthread_mutex_unlock(&tcp->reason_lock);
    return status;
}

/* The first error seen in a pass; a mismatch goes before the failures that follow from it. */
typedef struct verdict {
    ls_status status;
    char text[1024];
} verdict;

static void judge(verdict *v, ls_status status) {
    if (status == LS_OK || (v->status != LS_OK && status != LS_ERR_MISMATCH))
        return;
    if (v->status == LS_ERR_MISMATCH)
        return;
    v->status = status;
    snprintf(v->text, sizeof v->text, "%s", ls_error_text());
}

static void serve(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer, short events,
                  verdict *v) {
    if (ls__tcp_wants(tcp, peer))
        judge(v, ls__tcp_read_peer(tcp, operation, peer));
    else if ((events & (POLLRDHUP | POLLHUP | POLLERR)) && ls__tcp_has_out(peer))
        judge(v, ls__tcp_last_words(tcp, operation, peer));
    if (ls__tcp_has_out(peer) && v->status == LS_OK && ls__tcp_flush(peer) < 0)
        judge(v, ls__tcp_last_words(tcp, operation, peer));
}

/* Has one of those who have done their part given up? Only while others are waited for: who fails in a later
 * operation does not hinder this one, and its words are kept for the next. */
static void watch_idle(ls__tcp *tcp, ls__operation *operation, const struct pollfd *polls,
                       verdict *v) {
    bool waiting = false;
    for (int rank = 0; rank < tcp->mesh.base.size; rank++)
        waiting = waiting || is_waiting(tcp, tcp->peer[rank]);
    for (int rank = 0; rank < tcp->mesh.base.size && waiting; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd >= 0 && polls[rank].revents != 0 && !ls__tcp_wants(tcp, peer) &&
            !ls__tcp_has_out(peer))
            judge(v, ls__tcp_watch(tcp, operation, peer));
    }
}

/* One visit to every peer that is ready, or to all (polls NULL). */
static ls_status visit_once(ls__tcp *tcp, ls__operation *operation, const struct pollfd *polls) {
    verdict v = {.status = LS_OK};
    for (int rank = 0; rank < tcp->mesh.base.size && !polls; rank++) {
        /* Headers go out before anything is read: a peer must see the difference, too. */
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd >= 0 && ls__tcp_has_out(peer) && ls__tcp_flush(peer) < 0)
            judge(&v, ls__tcp_last_words(tcp, operation, peer));
    }
    for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd >= 0 && (!polls || polls[rank].revents != 0))
            serve(tcp, operation, peer, polls ? polls[rank].revents : 0, &v);
    }
    if (polls && v.status == LS_OK)
        watch_idle(tcp, operation, polls, &v);
    for (int rank = 0; rank < tcp->mesh.base.size && v.status != LS_OK; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd >= 0 && ls__tcp_wants(tcp, peer))
            judge(&v, ls__tcp_read_peer(tcp, operation, peer));
    }
    return v.status == LS_OK ? LS_OK : ls__fail(v.status, "%s", v.text);
}

/* With the last header here, payload may be read that waited for it, also what is in buffers already. */
static ls_status visit(ls__tcp *tcp, ls__operation *operation, const struct pollfd *polls) {
    const bool waited = tcp->arrived < tcp->awaited;
    LS_TRY(visit_once(tcp, operation, polls));
    return waited && tcp->arrived >= tcp->awaited ? visit_once(tcp, operation, NULL) : LS_OK;
}

/* How many peers something is still wanted from or for. */
static int prepare(ls__tcp *tcp) {
    int count = 0;
    for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        int events = 0;
        if (peer->fd >= 0 && ls__tcp_wants(tcp, peer))
            events |= POLLIN | POLLRDHUP;
        if (peer->fd >= 0 && ls__tcp_has_out(peer))
            events |= POLLOUT | POLLRDHUP;
        if (peer->fd >= 0 && events == 0 && !peer->left) /* it may still give up */
            events = POLLIN | POLLRDHUP;
        tcp->polls[rank] = (struct pollfd){.fd = events ? peer->fd : -1, .events = (short)events};
        count += is_waiting(tcp, peer);
    }
    tcp->polls[tcp->mesh.base.size] = (struct pollfd){.fd = tcp->wake_fd, .events = POLLIN};
    return count;
}

ls_status ls__tcp_drive(ls__tcp *tcp, ls__operation *operation) {
    if (atomic_load(&tcp->aborted))
        return gave_up(tcp, operation);
    for (int rank = 0; rank < tcp->mesh.base.size; rank++)
        tcp->peer[rank]->left = false;
    LS_TRY(visit(tcp, operation, NULL));
    while (prepare(tcp) > 0) {
        tcp->has_waited = true;
        uint64_t deadline = ls__operation_deadline(tcp->mesh.base.heartbeat, operation);
        int ms = ls__tcp_poll_ms(deadline);
        if (tcp->mesh.base.heartbeat && ms > LOOK_MS)
            ms = LOOK_MS;
        int n = poll(tcp->polls, (nfds_t)tcp->mesh.base.size + 1, ms);
        if (n < 0 && errno != EINTR)
            return ls__fail_errno(LS_ERR_SYSTEM, errno, "rank %d: poll", tcp->mesh.base.rank);
        if (atomic_load(&tcp->aborted))
            return gave_up(tcp, operation);
        if (n > 0)
            LS_TRY(visit(tcp, operation, tcp->polls));
        /* With data still coming the deadline holds as well. */
        if (ls__now_ns() >= deadline && prepare(tcp) > 0)
            return timed_out(tcp, operation);
        if (n == 0)
            LS_TRY(look_at_heartbeats(tcp, operation));
    }
    return LS_OK;
}

void ls__tcp_settle(ls__tcp *tcp) {
    uint64_t deadline = ls__now_ns() + SETTLE_MS * UINT64_C(1000000);
    for (;;) {
        int count = 0;
        for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
            ls__tcp_peer *peer = tcp->peer[rank];
            peer->expect = LS__TCP_NOTHING;
            tcp->polls[rank] = (struct pollfd){.fd = -1};
            if (peer->fd < 0 || ls__tcp_at_boundary(peer))
                continue;
            if (ls__tcp_flush(peer) == 0) {
                tcp->polls[rank] = (struct pollfd){.fd = peer->fd, .events = POLLOUT};
                count++;
            }
        }
        if (count == 0 || ls__now_ns() >= deadline)
            return;
        (void)poll(tcp->polls, (nfds_t)tcp->mesh.base.size, ls__tcp_poll_ms(deadline));
    }
}

void ls__tcp_goodbye(ls__tcp *tcp, ls_status status, const char *reason) {
    char text[LS__TCP_REASON_BYTES];
    if (tcp->said_goodbye)
        return;
    tcp->said_goodbye = true;
    text[0] = (char)status;
    snprintf(text + 1, sizeof text - 1, "%s", reason);
    for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        if (peer->fd < 0)
            continue;
        if (ls__tcp_at_boundary(peer)) {
            peer->head_at = peer->head_bytes = 0;
            ls__tcp_queue(peer, LS__TCP_GOODBYE, NULL, 0, text, strlen(text + 1) + 2);
            (void)ls__tcp_flush(peer);
            peer->head_at = peer->head_bytes = peer->body.left = 0;
        }
        shutdown(peer->fd, SHUT_WR);
    }
}
