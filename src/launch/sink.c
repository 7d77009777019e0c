#include "launch/sink.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void ls__sink_open(ls__sink *sink, int fd) {
    struct stat file;
    *sink = (ls__sink){.fd = fd, .chunk = 1024};
    if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode))
        sink->chunk = 0;
    else if (fstat(fd, &file) == 0 && S_ISFIFO(file.st_mode))
        sink->chunk = 4096; /* poll says writable once a page is free: pipe(7) */
}

void ls__sink_close(ls__sink *sink) {
    free(sink->data);
    *sink = (ls__sink){.fd = -1};
}

bool ls__sink_same(int fd_a, int fd_b) {
    struct stat a, b;
    return fstat(fd_a, &a) == 0 && fstat(fd_b, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static void fail(ls__sink *sink, int error_number) {
    sink->error = error_number;
    sink->begin = sink->end = 0;
}

static bool make_room(ls__sink *sink, size_t bytes) {
    if (sink->capacity - sink->end >= bytes)
        return true;
    size_t waiting = ls__sink_waiting(sink);
    if (waiting)
        memmove(sink->data, sink->data + sink->begin, waiting);
    sink->begin = 0;
    sink->end = waiting;
    if (sink->capacity - waiting >= bytes)
        return true;
    size_t capacity = sink->capacity ? sink->capacity : 4096;
    while (capacity - waiting < bytes)
        capacity *= 2;
    char *data = realloc(sink->data, capacity);
    if (!data)
        return false;
    sink->data = data;
    sink->capacity = capacity;
    return true;
}

void ls__sink_put(ls__sink *sink, const char *data, size_t bytes) {
    if (sink->error || bytes == 0)
        return;
    if (!make_room(sink, bytes)) {
        fail(sink, ENOMEM);
        return;
    }
    memcpy(sink->data + sink->end, data, bytes);
    sink->end += bytes;
    sink->last = data[bytes - 1];
}

void ls__sink_flush(ls__sink *sink) {
    while (!sink->error && sink->begin < sink->end) {
        struct pollfd ready = {.fd = sink->fd, .events = POLLOUT};
        if (poll(&ready, 1, 0) <= 0)
            return;
        size_t bytes = ls__sink_waiting(sink);
        if (sink->chunk && bytes > sink->chunk)
            bytes = sink->chunk;
        ssize_t n = write(sink->fd, sink->data + sink->begin, bytes);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n < 0) {
            fail(sink, errno);
            return;
        }
        sink->begin += (size_t)n;
    }
    if (sink->begin == sink->end)
        sink->begin = sink->end = 0;
}
