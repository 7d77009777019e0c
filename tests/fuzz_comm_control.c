/* libFuzzer target: what comes over the heartbeat's connections of the tcp transport, at rank 0 from two ranks
 * at once and elsewhere from rank 0. */
#include "comm/tcp/tcp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { RANKS = 3, ROUNDS = 4 };

static void require(bool holds) {
    if (!holds)
        abort();
}

/* Whatever came, what is known of the others is well-formed. */
static void check(const ls__pulse *pulse, const ls__failure *failure) {
    for (int r = 0; r < RANKS; r++) {
        require(memchr(pulse[r].phase, '\0', sizeof pulse[r].phase));
        require(pulse[r].silent_ns < UINT64_MAX / 4 && pulse[r].phase_age_ns < UINT64_MAX / 4);
    }
    require(failure->rank >= -1 && failure->rank < RANKS);
    require(memchr(failure->text, '\0', sizeof failure->text));
}

static void adopt(struct ls__tcp_control *control, int rank, int *other) {
    int pair[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    ls__tcp_control_adopt(control, rank, pair[0]);
    *other = pair[1];
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    if (size < 1)
        return 0;
    const int rank = bytes[0] & 1, lines = rank == 0 ? RANKS - 1 : 1;
    struct ls__tcp_control *control;
    int other[2];
    require(ls__tcp_control_create(&control, rank, RANKS) == LS_OK);
    for (int i = 0; i < lines; i++)
        adopt(control, rank == 0 ? i + 1 : 0, &other[i]);
    const ls__heartbeat_link link = ls__tcp_control_link(control);
    ls__pulse own = {.seen = true}, pulse[RANKS] = {{0}};
    ls__failure failure = {.rank = -1};
    struct pollfd polls[RANKS];
    /* In pieces, so that a message may be cut anywhere. */
    const size_t piece = (size - 1) / ROUNDS + 1;
    for (size_t at = 1; at < size; at += piece) {
        for (int i = 0; i < lines; i++)
            (void)send(other[i], bytes + at, size - at < piece ? size - at : piece,
                       MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)link.watch(link.context, polls, RANKS);
        link.serve(link.context, &own, pulse, &failure, at > 1, 500000000);
        check(pulse, &failure);
    }
    for (int i = 0; i < lines; i++)
        close(other[i]);
    link.serve(link.context, &own, pulse, &failure, true, 500000000);
    check(pulse, &failure);
    link.free(link.context);
    return 0;
}
