/* Frames on one connection: {type, bytes} in 8 bytes, then the body. Heads and short bodies pass
 * through a small buffer, so a small operation costs one recv; payload goes straight where it
 * belongs. Nothing here waits. */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

int ls__tcp_need(ls__tcp_peer *peer, size_t bytes) {
    if (peer->buffer_at > 0 && peer->buffer_at + bytes > sizeof peer->buffer) {
        memmove(peer->buffer, peer->buffer + peer->buffer_at, peer->buffer_end - peer->buffer_at);
        peer->buffer_end -= peer->buffer_at;
        peer->buffer_at = 0;
    }
    while (peer->buffer_end - peer->buffer_at < bytes) {
        ssize_t n = recv(peer->fd, peer->buffer + peer->buffer_end,
                         sizeof peer->buffer - peer->buffer_end, MSG_DONTWAIT);
        if (n > 0) {
            peer->buffer_end += (size_t)n;
        } else if (n == 0) {
            errno = ECONNRESET;
            return -1;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return 0;
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return 1;
}

void ls__tcp_take(ls__tcp_peer *peer, void *data, size_t bytes) {
    if (data)
        memcpy(data, peer->buffer + peer->buffer_at, bytes);
    peer->buffer_at += bytes;
    if (peer->buffer_at == peer->buffer_end)
        peer->buffer_at = peer->buffer_end = 0;
    if (!peer->frame_open)
        return;
    peer->frame_left -= bytes;
    if (peer->frame_left == 0)
        peer->frame_open = false;
}

/* Bodies are bounded before anything is done with them. */
static bool is_valid(const ls__tcp_frame *frame) {
    switch (frame->type) {
    case LS__TCP_BEGIN:
    case LS__TCP_OFFER:
    case LS__TCP_OFFER_BOTH:
        return frame->bytes == sizeof(ls__header);
    case LS__TCP_DATA:
        return frame->bytes > 0 && frame->bytes <= LS__TCP_FRAME_BYTES;
    case LS__TCP_SEND:
        return frame->bytes >= sizeof(ls__header) &&
               frame->bytes <= sizeof(ls__header) + LS__TCP_EAGER_BYTES;
    case LS__TCP_WANT:
        return frame->bytes == sizeof(uint64_t);
    case LS__TCP_REFUSE:
        return frame->bytes == 2 * sizeof(ls__header);
    case LS__TCP_GOODBYE:
        return frame->bytes > 1 && frame->bytes <= LS__TCP_REASON_BYTES;
    default:
        return false;
    }
}

int ls__tcp_peek(ls__tcp_peer *peer) {
    if (peer->frame_open)
        return 1;
    int got = ls__tcp_need(peer, sizeof peer->frame);
    if (got <= 0)
        return got;
    ls__tcp_take(peer, &peer->frame, sizeof peer->frame);
    if (!is_valid(&peer->frame))
        return 2;
    peer->frame_open = true;
    peer->frame_left = peer->frame.bytes;
    return 1;
}

ssize_t ls__tcp_take_some(ls__tcp_peer *peer, char *to, size_t bytes) {
    size_t held = peer->buffer_end - peer->buffer_at;
    if (held > 0) {
        size_t n = held < bytes ? held : bytes;
        ls__tcp_take(peer, to, n);
        return (ssize_t)n;
    }
    for (;;) {
        ssize_t n = recv(peer->fd, to, bytes, MSG_DONTWAIT);
        if (n > 0) {
            peer->frame_left -= (size_t)n;
            if (peer->frame_left == 0)
                peer->frame_open = false;
            return n;
        }
        if (n == 0)
            errno = ECONNRESET;
        if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
            return -1;
        if (errno != EINTR)
            return 0;
    }
}

int ls__tcp_take_lane(ls__tcp_peer *peer, ls__mesh_lane *lane) {
    while (peer->frame_open) {
        ssize_t n = ls__tcp_take_some(peer, lane->at, peer->frame_left);
        if (n <= 0)
            return (int)n;
        lane->at += n;
        lane->left -= (size_t)n;
    }
    return 1;
}

void ls__tcp_queue(ls__tcp_peer *peer, uint32_t type, const void *data, size_t bytes,
                   const void *body, size_t body_bytes) {
    const ls__tcp_frame frame = {.type = type, .bytes = (uint32_t)(bytes + body_bytes)};
    unsigned char *to = peer->head + peer->head_bytes;
    memcpy(to, &frame, sizeof frame);
    if (bytes > 0)
        memcpy(to + sizeof frame, data, bytes);
    peer->head_bytes += sizeof frame + bytes;
    if (body_bytes > 0)
        peer->body = (ls__mesh_lane){.at = (char *)body, .left = body_bytes};
}

bool ls__tcp_has_out(const ls__tcp_peer *peer) {
    return peer->head_at < peer->head_bytes || peer->body.left > 0 || peer->base.out[0].left > 0 ||
           peer->base.out[1].left > 0 || peer->owes_want;
}

/* Puts an answer, or the next piece of a lane, behind what the head holds. */
static void next_frame(ls__tcp_peer *peer) {
    const size_t room = sizeof peer->head - peer->head_bytes;
    if (peer->owes_want && room >= sizeof(ls__tcp_frame) + sizeof peer->owed_sequence) {
        ls__tcp_queue(peer, LS__TCP_WANT, &peer->owed_sequence, sizeof peer->owed_sequence, NULL,
                      0);
        peer->owes_want = false;
        return;
    }
    if (peer->head_at > 0 || room < sizeof(ls__tcp_frame))
        return;
    ls__mesh_lane *lane = peer->base.out[0].left > 0 ? &peer->base.out[0] : &peer->base.out[1];
    if (lane->left == 0)
        return;
    size_t n = lane->left < LS__TCP_FRAME_BYTES ? lane->left : LS__TCP_FRAME_BYTES;
    ls__tcp_queue(peer, LS__TCP_DATA, NULL, 0, lane->at, n);
    lane->at += n;
    lane->left -= n;
}

int ls__tcp_flush(ls__tcp_peer *peer) {
    while (ls__tcp_has_out(peer)) {
        if (peer->head_at == peer->head_bytes)
            peer->head_at = peer->head_bytes = 0;
        /* A first DATA frame travels together with the operation's header. */
        if (peer->body.left == 0)
            next_frame(peer);
        struct iovec parts[2] = {
            {.iov_base = peer->head + peer->head_at, .iov_len = peer->head_bytes - peer->head_at},
            {.iov_base = peer->body.at, .iov_len = peer->body.left}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = peer->body.left > 0 ? 2 : 1};
        ssize_t n = sendmsg(peer->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        size_t of_head = (size_t)n < parts[0].iov_len ? (size_t)n : parts[0].iov_len;
        peer->head_at += of_head;
        if (peer->body.left == 0) /* and `at` may be NULL */
            continue;
        peer->body.at += (size_t)n - of_head;
        peer->body.left -= (size_t)n - of_head;
    }
    peer->head_at = peer->head_bytes = 0;
    return 1;
}

bool ls__tcp_at_boundary(ls__tcp_peer *peer) {
    bool begun = peer->head_at > 0;
    if (!begun) {
        peer->head_bytes = 0;
        peer->body.left = 0;
    }
    peer->base.out[0].left = peer->base.out[1].left = 0;
    peer->owes_want = false;
    return peer->head_at == peer->head_bytes && peer->body.left == 0;
}
