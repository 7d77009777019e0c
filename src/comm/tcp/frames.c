/* What each frame means to the operation under way. A peer runs its operations in order and this
 * rank runs its own in order, so a frame is either for this operation, or a send that comes early
 * (kept in the inbox), or proof that the two ranks are in operations that can never meet. */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAR_MS = 200 };

/* Between the header and the last byte of what is received. */
static bool in_data(const ls__tcp_peer *peer) {
    return peer->expect == LS__TCP_EXPECT_DATA &&
           (peer->base.in[0].left > 0 || peer->base.in[1].left > 0);
}

bool ls__tcp_wants(const ls__tcp *tcp, const ls__tcp_peer *peer) {
    if (peer->awaits_want)
        return true;
    switch (peer->expect) {
    case LS__TCP_NOTHING:
        return false;
    case LS__TCP_ANY:
        return !peer->left && ls__tcp_has_out(peer);
    case LS__TCP_EXPECT_DATA:
        return in_data(peer) && tcp->arrived >= tcp->awaited;
    default:
        return true;
    }
}

static ls_status peer_error(const ls__tcp *tcp, const ls__operation *operation,
                            const ls__tcp_peer *peer, ls_status status, const char *what) {
    return ls__operation_fail(
        status, operation, ls__own_name(&tcp->mesh.base), "rank %d (host %s, pid %lld) %s",
        ls__name_of(&tcp->mesh.base, peer->rank), peer->host, (long long)peer->pid, what);
}

ls_status ls__tcp_gave_up(ls__tcp *tcp, const ls__operation *operation,
                          const ls__failure *failure) {
    snprintf(tcp->heard, sizeof tcp->heard, "%s", failure->text);
    return ls__operation_fail(failure->status == LS_ERR_MISMATCH ? LS_ERR_MISMATCH : LS_ERR_PEER,
                              operation, ls__own_name(&tcp->mesh.base), "rank %d gave up: %s",
                              failure->rank, failure->text);
}

/* A rank that gives up and ends may leave its goodbye unsent, behind data that nobody reads any more. What it told
 * over the heartbeat's connections is on its way then, and names who is really to blame. */
static bool was_told(const ls__tcp *tcp, const ls__operation *operation, const ls__tcp_peer *peer,
                     ls__failure *failure) {
    ls__heartbeat *heartbeat = tcp->mesh.base.heartbeat;
    const uint64_t until = ls__now_ns() + HEAR_MS * UINT64_C(1000000);
    for (;;) {
        const bool more = ls__heartbeat_hears(heartbeat, ls__name_of(&tcp->mesh.base, peer->rank));
        if (ls__heartbeat_failure(heartbeat, operation->header.group, failure))
            return true;
        if (!more || ls__now_ns() >= until)
            return false;
        usleep(1000);
    }
}

static ls_status closed(ls__tcp *tcp, const ls__operation *operation, const ls__tcp_peer *peer,
                        int error) {
    char text[128], what[400], list[200];
    ls__failure failure;
    if (was_told(tcp, operation, peer, &failure))
        return ls__tcp_gave_up(tcp, operation, &failure);
    ls__tcp_list_missing(tcp, list, sizeof list);
    if (error == ECONNRESET || error == EPIPE)
        snprintf(what, sizeof what,
                 "closed its connection without a word: it ended or was killed%s", list);
    else
        snprintf(what, sizeof what, "cannot be reached any more: %s%s",
                 strerror_r(error, text, sizeof text), list);
    return peer_error(tcp, operation, peer, LS_ERR_PEER, what);
}

static ls_status garbled(const ls__tcp *tcp, const ls__operation *operation,
                         const ls__tcp_peer *peer) {
    char what[128];
    snprintf(what, sizeof what, "sent a frame of type 0x%x with %u bytes that has no place here",
             peer->frame.type, peer->frame.bytes);
    return peer_error(tcp, operation, peer, LS_ERR_FORMAT, what);
}

/* The other side learns of the difference even if this side never showed it its header. */
static void refuse(ls__tcp_peer *peer, const ls__header *mine, const ls__header *theirs) {
    ls__header both[2] = {*mine, *theirs};
    if (!ls__tcp_at_boundary(peer) && (ls__tcp_flush(peer) <= 0 || !ls__tcp_at_boundary(peer)))
        return;
    ls__tcp_queue(peer, LS__TCP_REFUSE, both, sizeof both, NULL, 0);
    (void)ls__tcp_flush(peer);
}

ls_status ls__tcp_compare(ls__tcp *tcp, const ls__operation *operation, ls__tcp_peer *peer,
                          const ls__header *theirs) {
    ls__header mine = operation->header;
    if (mine.kind == LS__SENDRECV && theirs->kind == LS__SEND) {
        ls__operation send, recv;
        ls__sendrecv_split(operation, tcp->mesh.base.rank, &send, &recv);
        mine = recv.header;
    }
    ls_status status = ls__header_compare(&mine, ls__own_name(&tcp->mesh.base), theirs,
                                          ls__name_of(&tcp->mesh.base, peer->rank));
    if (status != LS_OK && peer->fd >= 0)
        refuse(peer, &mine, theirs);
    return status;
}

/* --- early sends --- */

void ls__tcp_inbox_push(ls__tcp_peer *peer, ls__tcp_message *message) {
    message->next = NULL;
    if (!peer->inbox)
        peer->inbox_end = &peer->inbox;
    *peer->inbox_end = message;
    peer->inbox_end = &message->next;
    peer->inbox_bytes += sizeof *message + message->bytes;
}

ls__tcp_message *ls__tcp_inbox_pop(ls__tcp_peer *peer) {
    ls__tcp_message *message = peer->inbox;
    if (!message)
        return NULL;
    peer->inbox = message->next;
    peer->inbox_bytes -= sizeof *message + message->bytes;
    return message;
}

/* 1: go on, 0: not now; or an error through *status */
static int fill_message(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer,
                        ls_status *status) {
    int got = ls__tcp_take_lane(peer, &peer->fill);
    if (got < 0)
        *status = closed(tcp, operation, peer, errno);
    if (got > 0) {
        ls__tcp_inbox_push(peer, peer->filling);
        peer->filling = NULL;
    }
    return got;
}

static ls_status take_early(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    size_t bytes = peer->frame.bytes - sizeof(ls__header);
    if (peer->inbox_bytes + sizeof(ls__tcp_message) + bytes > LS__TCP_INBOX_BYTES) {
        if (peer->expect == LS__TCP_ANY) {
            peer->left = true;
            return LS_OK;
        }
        return peer_error(tcp, operation, peer, LS_ERR_RANGE,
                          "has sent more than 16 MiB that this rank has not received; call "
                          "ls_recv before this operation");
    }
    ls__tcp_message *message = malloc(sizeof *message + bytes);
    if (!message)
        return ls__fail(LS_ERR_MEMORY, "no memory for a message of %zu bytes from rank %d", bytes,
                        peer->rank);
    ls__tcp_take(peer, &message->header, sizeof message->header);
    message->bytes = bytes;
    message->offered = false;
    peer->fill = (ls__mesh_lane){.at = message->data, .left = bytes};
    peer->filling = message;
    return LS_OK;
}

/* --- frames that are here as a whole, or whose header is --- */

static void arrive(ls__tcp *tcp, ls__operation *operation, int last, int wanted) {
    if (++tcp->arrived < wanted)
        return;
    operation->times.ready_ns = ls__now_ns();
    operation->times.last_rank =
        tcp->has_waited ? last : ls__header_last(&operation->header, tcp->mesh.base.rank);
}

static ls_status take_begin(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    ls__header theirs;
    if (peer->expect == LS__TCP_ANY) {
        peer->left = true;
        return LS_OK;
    }
    if (in_data(peer))
        return garbled(tcp, operation, peer);
    ls__tcp_take(peer, &theirs, sizeof theirs);
    LS_TRY(ls__tcp_compare(tcp, operation, peer, &theirs));
    if (peer->expect != LS__TCP_EXPECT_BEGIN)
        return garbled(tcp, operation, peer);
    peer->base.weight = theirs.weight;
    peer->expect = LS__TCP_EXPECT_DATA;
    arrive(tcp, operation, ls__header_last(&theirs, peer->rank), tcp->mesh.base.size - 1);
    return LS_OK;
}

static ls_status take_send(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    ls__header theirs;
    if (in_data(peer))
        return garbled(tcp, operation, peer);
    if (peer->expect != LS__TCP_EXPECT_MESSAGE)
        return take_early(tcp, operation, peer);
    size_t bytes = peer->frame.bytes - sizeof theirs;
    ls__tcp_take(peer, &theirs, sizeof theirs);
    LS_TRY(ls__tcp_compare(tcp, operation, peer, &theirs));
    if (bytes != peer->base.in[0].left)
        return garbled(tcp, operation, peer);
    peer->frame.type = LS__TCP_DATA; /* what is left of the frame is payload */
    peer->expect = LS__TCP_EXPECT_DATA;
    arrive(tcp, operation, peer->rank, 1);
    return LS_OK;
}

void ls__tcp_accept(ls__tcp_peer *peer, const ls__header *offer) {
    peer->owes_want = true;
    peer->owed_sequence = offer->sequence;
    peer->expect = LS__TCP_EXPECT_DATA;
}

/* This rank sends to the peer and the peer to this rank, but receives at the same time: its offer can wait. */
static ls_status keep_offer(const ls__tcp *tcp, const ls__operation *operation, ls__tcp_peer *peer,
                            const ls__header *theirs) {
    if (peer->inbox_bytes + sizeof(ls__tcp_message) > LS__TCP_INBOX_BYTES)
        return garbled(tcp, operation, peer);
    ls__tcp_message *message = calloc(1, sizeof *message);
    if (!message)
        return ls__fail(LS_ERR_MEMORY, "no memory for an offer of rank %d", peer->rank);
    message->header = *theirs;
    message->offered = true;
    ls__tcp_inbox_push(peer, message);
    return LS_OK;
}

static ls_status take_offer(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    ls__header theirs;
    if (peer->expect == LS__TCP_ANY) {
        peer->left = true;
        return LS_OK;
    }
    if (in_data(peer))
        return garbled(tcp, operation, peer);
    const bool can_wait = peer->frame.type == LS__TCP_OFFER_BOTH;
    ls__tcp_take(peer, &theirs, sizeof theirs);
    if (peer->awaits_want && peer->expect != LS__TCP_EXPECT_MESSAGE && can_wait)
        return keep_offer(tcp, operation, peer, &theirs);
    if (peer->awaits_want && peer->expect != LS__TCP_EXPECT_MESSAGE)
        return peer_error(tcp, operation, peer, LS_ERR_MISMATCH,
                          "sends to this rank, which sends to it: with more than 64 KiB one of "
                          "them must call ls_recv first, or both ls_sendrecv");
    LS_TRY(ls__tcp_compare(tcp, operation, peer, &theirs));
    if (peer->expect != LS__TCP_EXPECT_MESSAGE)
        return garbled(tcp, operation, peer);
    ls__tcp_accept(peer, &theirs);
    arrive(tcp, operation, peer->rank, 1);
    return LS_OK;
}

static ls_status take_want(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    uint64_t sequence;
    if (!peer->awaits_want)
        return garbled(tcp, operation, peer);
    ls__tcp_take(peer, &sequence, sizeof sequence);
    if (sequence != operation->header.sequence)
        return garbled(tcp, operation, peer);
    peer->base.out[0] = (ls__mesh_lane){.at = (char *)operation->send,
                                        .left = operation->count * ls_dtype_size(operation->dtype)};
    peer->awaits_want = false;
    arrive(tcp, operation, peer->rank, 1);
    return LS_OK;
}

static ls_status take_refuse(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    ls__header both[2];
    ls__tcp_take(peer, both, sizeof both);
    LS_TRY(ls__header_compare(&both[1], ls__own_name(&tcp->mesh.base), &both[0],
                              ls__name_of(&tcp->mesh.base, peer->rank)));
    return garbled(tcp, operation, peer);
}

/* The first byte is the leaver's status: LS_OK says that it leaves in peace. That ranks disagree is
 * LS_ERR_MISMATCH also for those who hear of it; every other reason is LS_ERR_PEER. */
static ls_status take_goodbye(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    char reason[LS__TCP_REASON_BYTES], what[LS__TCP_REASON_BYTES + 16];
    size_t bytes = peer->frame.bytes;
    ls__tcp_take(peer, reason, bytes);
    reason[bytes - 1] = '\0';
    if (reason[0] == LS_OK)
        return peer_error(tcp, operation, peer, LS_ERR_PEER,
                          "has left the job before this operation");
    snprintf(what, sizeof what, "gave up: %s", reason + 1);
    snprintf(tcp->heard, sizeof tcp->heard, "%s", reason + 1);
    return peer_error(tcp, operation, peer,
                      reason[0] == LS_ERR_MISMATCH ? LS_ERR_MISMATCH : LS_ERR_PEER, what);
}

static ls_status take_frame(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    switch (peer->frame.type) {
    case LS__TCP_BEGIN:
        return take_begin(tcp, operation, peer);
    case LS__TCP_SEND:
        return take_send(tcp, operation, peer);
    case LS__TCP_OFFER:
    case LS__TCP_OFFER_BOTH:
        return take_offer(tcp, operation, peer);
    case LS__TCP_WANT:
        return take_want(tcp, operation, peer);
    case LS__TCP_REFUSE:
        return take_refuse(tcp, operation, peer);
    default:
        return take_goodbye(tcp, operation, peer);
    }
}

/* Payload: 1 a piece is complete, 0 not now, -1 with *status */
static int take_data(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer,
                     ls_status *status) {
    ls__mesh_lane *lane = peer->base.in[0].left > 0 ? &peer->base.in[0] : &peer->base.in[1];
    if (peer->expect != LS__TCP_EXPECT_DATA || peer->frame_left > lane->left) {
        *status = garbled(tcp, operation, peer);
        return -1;
    }
    int got = ls__tcp_take_lane(peer, lane);
    if (got < 0)
        *status = closed(tcp, operation, peer, errno);
    return got;
}

/* The bytes of a frame's body that must be here before it can be looked at. */
static size_t fixed_bytes(const ls__tcp_frame *frame) {
    return frame->type == LS__TCP_SEND ? sizeof(ls__header) : frame->bytes;
}

ls_status ls__tcp_read_peer(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    ls_status status = LS_OK;
    while (status == LS_OK && ls__tcp_wants(tcp, peer)) {
        int got = peer->filling ? 1 : ls__tcp_peek(peer);
        if (got == 2)
            return garbled(tcp, operation, peer);
        if (got < 0)
            return closed(tcp, operation, peer, errno);
        if (got == 0)
            return LS_OK;
        if (peer->filling) {
            got = fill_message(tcp, operation, peer, &status);
        } else if (peer->frame.type == LS__TCP_DATA) {
            got = take_data(tcp, operation, peer, &status);
        } else {
            got = ls__tcp_need(peer, fixed_bytes(&peer->frame));
            if (got < 0)
                return closed(tcp, operation, peer, errno);
            if (got > 0)
                status = take_frame(tcp, operation, peer);
        }
        if (got <= 0)
            return status;
    }
    return status;
}

ls_status ls__tcp_watch(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    int got = peer->filling ? -1 : ls__tcp_peek(peer);
    if (got == 0)
        return LS_OK;
    bool tells =
        got == 1 && (peer->frame.type == LS__TCP_REFUSE || peer->frame.type == LS__TCP_GOODBYE);
    if (tells)
        got = ls__tcp_need(peer, peer->frame.bytes);
    if (tells && got == 0)
        return LS_OK;
    /* One that has done its part and leaves, well or not, does not hinder this operation. */
    if (!tells || got < 0 || peer->buffer[peer->buffer_at] == LS_OK) {
        peer->left = true;
        return LS_OK;
    }
    return take_frame(tcp, operation, peer);
}

ls_status ls__tcp_last_words(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer) {
    char sink[4096];
    for (;;) {
        int got = ls__tcp_peek(peer);
        if (got == 2)
            return garbled(tcp, operation, peer);
        if (got <= 0)
            return closed(tcp, operation, peer, ECONNRESET);
        uint32_t type = peer->frame.type;
        bool tells = type == LS__TCP_REFUSE || type == LS__TCP_GOODBYE ||
                     (type == LS__TCP_BEGIN && peer->expect == LS__TCP_EXPECT_BEGIN);
        if (tells && peer->frame_left == peer->frame.bytes) {
            if (ls__tcp_need(peer, peer->frame.bytes) <= 0)
                return closed(tcp, operation, peer, ECONNRESET);
            LS_TRY(take_frame(tcp, operation, peer));
            continue;
        }
        while (peer->frame_open) {
            size_t n = peer->frame_left < sizeof sink ? peer->frame_left : sizeof sink;
            if (ls__tcp_take_some(peer, sink, n) <= 0)
                return closed(tcp, operation, peer, ECONNRESET);
        }
    }
}
