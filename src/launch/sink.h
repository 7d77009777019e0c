/* Where the launcher's output goes: a queue in front of stdout or stderr that never blocks, so that a
 * paused pager or terminal does not stop the launcher from watching its ranks. */
#ifndef LS_LAUNCH_SINK_H
#define LS_LAUNCH_SINK_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ls__sink {
    int fd;
    size_t chunk; /* bytes that a write takes without blocking once poll says writable; 0: any */
    int error;    /* errno of the write that failed; from then on everything is dropped */
    char last;    /* byte put, 0: none */
    char *data;
    size_t begin, end, capacity; /* data[begin..end) waits */
} ls__sink;

void ls__sink_open(ls__sink *sink, int fd);
void ls__sink_close(ls__sink *sink);
/* Both lead to the same terminal, pipe or file. */
bool ls__sink_same(int fd_a, int fd_b);

void ls__sink_put(ls__sink *sink, const char *data, size_t bytes);
/* Writes what can be written without waiting. */
void ls__sink_flush(ls__sink *sink);

static inline size_t ls__sink_waiting(const ls__sink *sink) {
    return sink->end - sink->begin;
}

#endif
