/* libFuzzer target: what an authenticated peer may send during an operation of the tcp transport. The peer's
 * side of each connection has been written and closed before the operation begins, so nothing waits. */
#include "comm/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { RANKS_MOST = 3, COUNT_MOST = 70000, BLOCKS = RANKS_MOST, RUNS = 2, OPTIONS = 3 };

static const ls__kind kinds[] = {
    LS__ALL_REDUCE, LS__REDUCE_SCATTER, LS__ALL_GATHER, LS__BROADCAST,
    LS__BARRIER,    LS__SEND,           LS__RECV,       LS__REDUCE,
    LS__GATHER,     LS__SCATTER,        LS__ALL_TO_ALL, LS__SENDRECV,
    LS__ALLOC,      LS__ALL_REDUCE,     LS__RECV,       LS__ALL_REDUCE,
};
static const size_t counts[] = {0, 1, 100, 5000, 65536, COUNT_MOST};

static char send_buffer[BLOCKS * COUNT_MOST], recv_buffer[BLOCKS * COUNT_MOST];

/* The first bytes say what this rank does; all that follows is what the peers send. */
typedef struct scenario {
    ls__kind kind;
    size_t count;
    int ranks, rank;
    bool agrees; /* the peers' first frame is the header that this rank wants */
    const uint8_t *bytes;
    size_t size;
} scenario;

static scenario choose(const uint8_t *bytes, size_t size) {
    uint8_t option[OPTIONS] = {0};
    size_t given = size < OPTIONS ? size : OPTIONS;
    if (given > 0)
        memcpy(option, bytes, given);
    scenario s = {.kind = kinds[option[0] % (sizeof kinds / sizeof kinds[0])],
                  .count = counts[option[1] % (sizeof counts / sizeof counts[0])],
                  .ranks = 2 + (option[2] & 1),
                  .agrees = option[2] & 2,
                  .bytes = bytes + given,
                  .size = size - given};
    s.rank = (option[2] >> 2 & 3) % s.ranks;
    return s;
}

static ls__operation describe(const scenario *s, uint64_t sequence, void **memory) {
    ls__operation o = {.send = send_buffer,
                       .recv = recv_buffer,
                       .count = s->count,
                       .dtype = LS_U8,
                       .root = (s->rank + 1) % s->ranks,
                       .from = (s->rank + s->ranks - 1) % s->ranks,
                       .recv_count = s->count,
                       .recv_sequence = sequence,
                       .bytes = s->count,
                       .memory = memory,
                       .deadline = ls__deadline_ns(10)};
    o.header = (ls__header){.magic = LS__HEADER_MAGIC,
                            .kind = (uint16_t)s->kind,
                            .dtype = LS_U8,
                            .group = 1,
                            .sequence = sequence,
                            .count = s->kind == LS__BARRIER ? 0 : s->count,
                            .root = (uint32_t)o.root};
    return o;
}

static void write_bytes(int fd, const void *data, size_t bytes) {
    if (bytes > 0 && send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return; /* more than a socket's buffer holds: the rest is cut off, as by a peer that dies */
}

/* A frame whose body is the header, as this rank wants it. */
static void write_header(int fd, const scenario *s) {
    void *none = NULL;
    ls__operation o = describe(s, 1, &none);
    const bool message = s->kind == LS__RECV || s->kind == LS__SENDRECV;
    if (message) {
        o.header.kind = LS__SEND;
        o.header.root = (uint32_t)s->rank;
    }
    const bool small = s->count <= LS__TCP_EAGER_BYTES;
    struct {
        ls__tcp_frame frame;
        ls__header header;
    } first = {.frame = {.type = !message ? LS__TCP_BEGIN
                                 : small  ? LS__TCP_SEND
                                          : LS__TCP_OFFER,
                         .bytes = sizeof o.header},
               .header = o.header};
    if (message && small)
        first.frame.bytes += (uint32_t)s->count;
    write_bytes(fd, &first, sizeof first);
}

/* A connection whose other end has said all it will say; that end, still open for what this rank sends. */
static int connect_peer(const scenario *s, int *other) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        abort();
    if (s->agrees)
        write_header(pair[1], s);
    write_bytes(pair[1], s->bytes, s->size);
    shutdown(pair[1], SHUT_WR);
    *other = pair[1];
    return pair[0];
}

static ls__transport *open_transport(const scenario *s, int other[RANKS_MOST]) {
    static const ls__job_place place;
    ls__tcp_join join = {.place = &place,
                         .names = &ls__tcp_names_of_ranks,
                         .rank = s->rank,
                         .world = s->ranks,
                         .listener = -1,
                         .connected = true,
                         .fd = calloc((size_t)s->ranks, sizeof *join.fd),
                         .table = calloc((size_t)s->ranks, sizeof *join.table)};
    ls__transport *transport;
    if (!join.fd || !join.table)
        abort();
    for (int r = 0; r < s->ranks; r++) {
        other[r] = -1;
        join.fd[r] = r == s->rank ? -1 : connect_peer(s, &other[r]);
    }
    if (ls__tcp_open_join(&transport, &join) != LS_OK)
        abort();
    return transport;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const scenario s = choose(bytes, size);
    int other[RANKS_MOST];
    void *memory = NULL;
    ls__transport *transport = open_transport(&s, other);
    /* twice: what came early waits for the second */
    for (uint64_t i = 1; i <= RUNS; i++) {
        ls__operation operation = describe(&s, i, &memory);
        ls_status status = transport->table->run(transport, &operation);
        if (status != LS_OK && !ls_error_text()[0])
            abort();
    }
    transport->table->close(transport);
    for (int r = 0; r < s.ranks; r++)
        ls__tcp_close_fd(other[r]);
    return 0;
}
