#include "base/futex.h"

#include "base/clock.h"
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

bool ls__futex_wait(const _Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns) {
    /* FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC; no PRIVATE flag: other processes
     * may wake us. */
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, expected, deadline_ns == UINT64_MAX ? NULL : &until,
            NULL, FUTEX_BITSET_MATCH_ANY);
    return ls__now_ns() < deadline_ns;
}

void ls__futex_wake_all(const _Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
