/* Is a process still alive? kill(pid, 0) is not enough: it succeeds for one that has ended and was not
 * waited for, and for another that got the same number. */
#include "comm/shm/layout.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* State letter and start time (fields 3 and 22 of /proc/PID/stat); false where it cannot be read. */
static bool read_stat(uint32_t pid, char *state, uint64_t *start_time) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *field = strrchr(text, ')'); /* the name in front may hold anything */
    unsigned long long start = 0;
    if (!field || sscanf(field,
                         ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                         "%*s %*s %*s %llu",
                         state, &start) != 2)
        return false;
    *start_time = start;
    return true;
}

uint64_t ls__process_start_time(uint32_t pid) {
    char state;
    uint64_t start_time;
    return read_stat(pid, &state, &start_time) ? start_time : 0;
}

bool ls__process_gone(uint32_t pid, uint64_t start_time) {
    char state;
    uint64_t start_now;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return true;
    if (!read_stat(pid, &state, &start_now))
        return false;
    return state == 'Z' || state == 'X' || (start_time && start_now != start_time);
}
