#include "launch/lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A line longer than this leaves in pieces, each on a line of its own behind the prefix: memory stays
 * bounded and no other rank waits for the end of a line that may never come. */
enum { LONGEST_LINE = 1 << 20 };

void ls__lines_open(ls__lines *lines, ls__lines_mode mode, ls__sink *sink, const char *prefix) {
    memset(lines, 0, sizeof *lines);
    lines->mode = mode;
    lines->sink = sink;
    strncpy(lines->prefix, prefix, sizeof lines->prefix - 1);
}

void ls__lines_close(ls__lines *lines) {
    free(lines->data);
    lines->data = NULL;
    lines->bytes = lines->capacity = 0;
}

/* Where the text of data[0..bytes) begins that a terminal would still show: behind the last '\r' that
 * is followed by something, and behind an "erase" that follows it. */
static size_t visible(const char *data, size_t bytes) {
    const char *back = bytes ? memrchr(data, '\r', bytes) : NULL;
    size_t begin = back ? (size_t)(back - data) + 1 : 0;
    if (bytes - begin >= 3 && memcmp(data + begin, "\x1b[K", 3) == 0)
        begin += 3;
    return begin;
}

/* Bytes of the line without its end. */
static size_t text_bytes(const ls__lines *lines) {
    size_t n = lines->bytes;
    while (n && (lines->data[n - 1] == '\n' || lines->data[n - 1] == '\r'))
        n--;
    return n;
}

static void keep(ls__lines *lines) {
    size_t n = text_bytes(lines), begin = visible(lines->data, n);
    n -= begin;
    if (n == 0)
        return;
    if (n >= LS__TAIL_BYTES)
        n = LS__TAIL_BYTES - 1;
    char *line = lines->tail[lines->tail_count++ % LS__TAIL_LINES];
    memcpy(line, lines->data + begin, n);
    line[n] = '\0';
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)line[i] < 0x20)
            line[i] = ' ';
    }
}

/* A progress line that is written over again and again is one line without end: what cannot be seen any
 * more need not be stored. */
static void forget_overwritten(ls__lines *lines) {
    size_t begin = visible(lines->data, text_bytes(lines));
    if (begin) {
        lines->bytes -= begin;
        memmove(lines->data, lines->data + begin, lines->bytes);
    }
}

/* The line, or the part of it so far, leaves. */
static void leave(ls__lines *lines, bool whole) {
    if (!lines->continued)
        keep(lines);
    if (lines->mode == LS__LINES_WHOLE) {
        ls__sink_put(lines->sink, lines->prefix, strlen(lines->prefix));
        ls__sink_put(lines->sink, lines->data, lines->bytes);
        if (!whole)
            ls__sink_put(lines->sink, "\n", 1);
    }
    lines->bytes = 0;
    lines->continued = !whole;
}

static bool append(ls__lines *lines, const char *data, size_t bytes) {
    if (lines->bytes + bytes > lines->capacity) {
        size_t capacity = lines->capacity ? lines->capacity : 512;
        while (capacity < lines->bytes + bytes)
            capacity *= 2;
        char *grown = realloc(lines->data, capacity);
        if (!grown)
            return false;
        lines->data = grown;
        lines->capacity = capacity;
    }
    memcpy(lines->data + lines->bytes, data, bytes);
    lines->bytes += bytes;
    return true;
}

void ls__lines_feed(ls__lines *lines, const char *data, size_t bytes) {
    if (lines->mode == LS__LINES_RAW)
        ls__sink_put(lines->sink, data, bytes);
    while (bytes) {
        const char *newline = memchr(data, '\n', bytes);
        size_t end = newline ? (size_t)(newline - data) + 1 : 0;
        size_t take = end ? end : bytes;
        bool whole = end != 0;
        if (lines->bytes + take > LONGEST_LINE) {
            take = LONGEST_LINE - lines->bytes;
            whole = take == end;
        }
        if (take && !append(lines, data, take)) {
            lines->sink->error = ENOMEM;
            return;
        }
        if (take && lines->mode != LS__LINES_WHOLE)
            forget_overwritten(lines);
        data += take;
        bytes -= take;
        if (whole || lines->bytes == LONGEST_LINE)
            leave(lines, whole);
    }
}

void ls__lines_finish(ls__lines *lines) {
    if (lines->bytes)
        leave(lines, false);
}

size_t ls__lines_tail_count(const ls__lines *lines) {
    return lines->tail_count < LS__TAIL_LINES ? lines->tail_count : LS__TAIL_LINES;
}

const char *ls__lines_tail(const ls__lines *lines, size_t index) {
    size_t first = lines->tail_count - ls__lines_tail_count(lines);
    return lines->tail[(first + index) % LS__TAIL_LINES];
}
