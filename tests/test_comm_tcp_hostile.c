/* An authenticated peer whose bytes are broken: every frame that has no place is an error in bounded
 * time and with bounded memory, whatever the operation. */
#include "ranks.h"

#include "comm/tcp/tcp.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { RANDOM_CASES = 60 };

static uint32_t mix(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static ls__header header_of(ls__kind kind, size_t count) {
    return (ls__header){.magic = LS__HEADER_MAGIC,
                        .kind = (uint16_t)kind,
                        .dtype = LS_U8,
                        .group = 1,
                        .sequence = 1,
                        .count = count};
}

static size_t frame(char *to, uint32_t type, uint32_t claimed, const void *body, size_t bytes) {
    const uint32_t head[2] = {type, claimed};
    memcpy(to, head, sizeof head);
    if (bytes > 0)
        memcpy(to + sizeof head, body, bytes);
    return sizeof head + bytes;
}

/* Frames with plausible types, lengths and order, and noise between them. */
static size_t random_bytes(char *to, size_t capacity, uint32_t seed) {
    uint32_t state = seed * 2654435761u + 1;
    char body[4096];
    size_t used = 0;
    ls__header begin = header_of(LS__ALL_REDUCE, 100000);
    if (mix(&state) % 2)
        used += frame(to, LS__TCP_BEGIN, sizeof begin, &begin, sizeof begin);
    while (used + sizeof body + 8 < capacity) {
        size_t bytes = mix(&state) % sizeof body;
        uint32_t claimed = mix(&state) % 4 ? (uint32_t)bytes : mix(&state);
        for (size_t i = 0; i < bytes; i++)
            body[i] = (char)mix(&state);
        if (mix(&state) % 3 == 0 && bytes >= sizeof begin)
            memcpy(body, &begin, sizeof begin);
        used += frame(to + used, LS__TCP_BEGIN + mix(&state) % 8, claimed, body, bytes);
    }
    return used;
}

typedef struct hostile {
    uint32_t type, claimed; /* 0: random bytes from the seed */
    bool after_begin;
    uint32_t seed;
} hostile;

static size_t bytes_of(const hostile *h, char *to, size_t capacity) {
    ls__header begin = header_of(LS__ALL_REDUCE, 100000);
    char body[256] = "";
    size_t used = 0;
    if (h->type == 0)
        return random_bytes(to, capacity, h->seed);
    if (h->after_begin)
        used = frame(to, LS__TCP_BEGIN, sizeof begin, &begin, sizeof begin);
    return used + frame(to + used, h->type, h->claimed, body, sizeof body);
}

static ls_status operate(ls__transport *transport, ls__kind kind) {
    static char data[100000];
    ls__operation operation = {.send = data, .recv = data, .count = sizeof data, .dtype = LS_U8};
    operation.header = header_of(kind, sizeof data);
    operation.root = 1;
    operation.deadline = ls__deadline_ns(3);
    return transport->table->run(transport, &operation);
}

static void face(int rank, ls_job *job, void *context) {
    static const ls__kind kinds[] = {LS__ALL_REDUCE, LS__RECV, LS__SEND};
    const hostile *h = context;
    (void)job;
    ls__transport *transport;
    ls__job_place place = {.rank = rank, .world_size = 2, .timeout_s = 10};
    CHECK_OK(ls__tcp_open(&transport, &place, "127.0.0.1", atoi(getenv("MASTER_PORT")), NULL));
    if (rank == 1) {
        static char bytes[60000];
        size_t n = bytes_of(h, bytes, sizeof bytes);
        int fd = ((ls__tcp *)transport)->peer[0]->fd;
        for (size_t sent = 0; sent < n;) {
            ssize_t k = send(fd, bytes + sent, n - sent, MSG_NOSIGNAL);
            if (k < 0)
                break;
            sent += (size_t)k;
        }
        shutdown(fd, SHUT_WR);
        usleep(20000);
    } else {
        uint64_t begin = ls__now_ns();
        ls_status status = operate(transport, kinds[h->seed % 3]);
        CHECK(status == LS_ERR_FORMAT || status == LS_ERR_PEER || status == LS_ERR_MISMATCH);
        CHECK(strstr(ls_error_text(), "rank 1"));
        CHECK(ls__now_ns() - begin < 2500000000u);
    }
    transport->table->close(transport);
}

static void run(const hostile *h) {
    ranks r = {.size = 2, .transport = "tcp", .body = face, .no_job = true};
    r.context = (void *)h;
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

static void test_misplaced_frames(void **state) {
    (void)state;
    static const hostile frames[] = {
        {1, 8, false, 0},
        {UINT32_MAX, UINT32_MAX, false, 0},
        {LS__TCP_BEGIN, 47, false, 0},
        {LS__TCP_BEGIN, 48, true, 0},
        {LS__TCP_DATA, 0, true, 0},
        {LS__TCP_DATA, 200, false, 0},
        {LS__TCP_DATA, 131072, true, 0},     /* more than the lane takes */
        {LS__TCP_DATA, UINT32_MAX, true, 0}, /* more than a frame may hold */
        {LS__TCP_SEND, 100, true, 0},
        {LS__TCP_SEND, 8, false, 1},
        {LS__TCP_SEND, UINT32_MAX, false, 1},
        {LS__TCP_SEND, 200, false, 1}, /* no header in it */
        {LS__TCP_OFFER, 48, false, 1},
        {LS__TCP_WANT, 8, false, 2}, /* another sequence number */
        {LS__TCP_WANT, 8, false, 0},
        {LS__TCP_WANT, UINT32_MAX, false, 2},
        {LS__TCP_REFUSE, 96, true, 0},
        {LS__TCP_REFUSE, 10, true, 0},
        {LS__TCP_GOODBYE, 0, true, 0},
        {LS__TCP_GOODBYE, 513, true, 0},
        {LS__TCP_GOODBYE, 20, true, 0},
    };
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++)
        run(&frames[i]);
}

static void test_random_bytes(void **state) {
    (void)state;
    for (uint32_t seed = 0; seed < RANDOM_CASES; seed++) {
        const hostile h = {.seed = seed};
        run(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_misplaced_frames),
        cmocka_unit_test(test_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
