#include "base/clock.h"

#include <stdio.h>
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

uint64_t ls__clock_identity(void) {
    static const char *const files[] = {"/proc/sys/kernel/random/boot_id",
                                        "/proc/self/timens_offsets"};
    uint64_t hash = UINT64_C(14695981039346656037); /* FNV-1a of what they hold */
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FILE *file = fopen(files[i], "re");
        for (int c; file && (c = getc(file)) != EOF;)
            hash = (hash ^ (uint64_t)c) * UINT64_C(1099511628211);
        if (file)
            fclose(file);
    }
    return hash;
}
