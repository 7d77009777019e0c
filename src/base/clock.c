#include "base/clock.h"

#include <time.h>

uint64_t ls__now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t ls__deadline_after(uint64_t begin_ns, double seconds) {
    if (!(seconds > 0))
        return begin_ns;
    if (seconds > 1e9)
        return UINT64_MAX;
    return begin_ns + (uint64_t)(seconds * 1e9);
}

uint64_t ls__deadline_ns(double seconds) {
    return ls__deadline_after(ls__now_ns(), seconds);
}
