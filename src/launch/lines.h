/* One stream of one rank, cut into lines: each goes out whole behind the rank's prefix, and the last
 * ones are kept for the report. */
#ifndef LS_LAUNCH_LINES_H
#define LS_LAUNCH_LINES_H

#include "launch/sink.h"

enum { LS__TAIL_LINES = 10, LS__TAIL_BYTES = 400, LS__PREFIX_BYTES = 48 };

typedef enum ls__lines_mode {
    LS__LINES_WHOLE, /* lines leave when they are complete */
    LS__LINES_RAW,   /* every byte leaves at once */
    LS__LINES_KEEP,  /* nothing leaves: only the last lines are kept */
} ls__lines_mode;

typedef struct ls__lines {
    ls__lines_mode mode;
    ls__sink *sink;
    char prefix[LS__PREFIX_BYTES];
    char *data; /* the line so far */
    size_t bytes, capacity;
    bool continued;                            /* the line is so long that a part of it has left */
    char tail[LS__TAIL_LINES][LS__TAIL_BYTES]; /* a ring of the last lines, cut */
    size_t tail_count;                         /* lines ever seen */
} ls__lines;

void ls__lines_open(ls__lines *lines, ls__lines_mode mode, ls__sink *sink, const char *prefix);
void ls__lines_close(ls__lines *lines);

void ls__lines_feed(ls__lines *lines, const char *data, size_t bytes);
/* The stream has ended: a last line without a newline leaves too. */
void ls__lines_finish(ls__lines *lines);

/* The kept lines, oldest first: index 0 .. count - 1. */
size_t ls__lines_tail_count(const ls__lines *lines);
const char *ls__lines_tail(const ls__lines *lines, size_t index);

#endif
