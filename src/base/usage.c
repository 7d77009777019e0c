#include "base/usage.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct usage {
    uint64_t resident, held; /* bytes */
} usage;

/* Where there is no smaps_rollup, or one without a line for each kind of page (before Linux 5.2). */
static usage read_resident(void) {
    unsigned long long total, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    uint64_t bytes = (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
    return (usage){bytes, bytes};
}

static usage read_usage(void) {
    char line[128];
    unsigned long long kib, resident = 0, held = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "Rss: %llu", &kib) == 1)
            resident = kib;
        else if (sscanf(line, "Pss_Anon: %llu", &kib) == 1 ||
                 sscanf(line, "Pss_Shmem: %llu", &kib) == 1)
            held += kib;
    }
    if (file)
        fclose(file);
    return held ? (usage){resident * 1024, held * 1024} : read_resident();
}

uint64_t ls__usage_held(void) {
    return read_usage().held;
}

uint64_t ls__usage_peak(void) {
    usage now = read_usage();
    struct rusage most;
    getrusage(RUSAGE_SELF, &most);
    uint64_t peak = (uint64_t)most.ru_maxrss * 1024, other = now.resident - now.held;
    return peak > other + now.held ? peak - other : now.held;
}
