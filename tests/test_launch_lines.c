/* Cutting a rank's output into whole, prefixed lines, and the queue in front of stdout. */
#include "launch/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Feeds `text` to a stream in pieces of `piece` bytes and compares what is queued. */
static void check(ls__lines_mode mode, const char *text, size_t piece, bool end, const char *want) {
    ls__sink sink;
    ls__lines *lines = malloc(sizeof *lines);
    assert_non_null(lines);
    ls__sink_open(&sink, -1);
    ls__lines_open(lines, mode, &sink, "> ");
    for (size_t at = 0, n = strlen(text); at < n; at += piece)
        ls__lines_feed(lines, text + at, n - at < piece ? n - at : piece);
    if (end)
        ls__lines_finish(lines);
    assert_int_equal(ls__sink_waiting(&sink), strlen(want));
    assert_memory_equal(sink.data ? sink.data + sink.begin : "", want, strlen(want));
    ls__lines_close(lines);
    ls__sink_close(&sink);
    free(lines);
}

static void test_lines_come_whole(void **state) {
    (void)state;
    for (size_t piece = 1; piece < 12; piece++) {
        check(LS__LINES_WHOLE, "one\n\ntwo\nrest", piece, false, "> one\n> \n> two\n");
        check(LS__LINES_WHOLE, "one\n\ntwo\nrest", piece, true, "> one\n> \n> two\n> rest\n");
        check(LS__LINES_WHOLE, "a\rb\n", piece, true, "> a\rb\n");
        check(LS__LINES_RAW, "one\ntw", piece, false, "one\ntw");
        check(LS__LINES_KEEP, "one\ntwo", piece, true, "");
    }
}

static void test_longest_lines_are_cut_but_complete(void **state) {
    (void)state;
    const size_t piece = 60001, pieces = 60;
    ls__sink sink;
    ls__lines *lines = malloc(sizeof *lines);
    char *data = malloc(piece);
    assert_non_null(lines);
    assert_non_null(data);
    memset(data, 'x', piece);
    ls__sink_open(&sink, -1);
    ls__lines_open(lines, LS__LINES_WHOLE, &sink, "> ");
    for (size_t i = 0; i < pieces; i++)
        ls__lines_feed(lines, data, piece);
    assert_true(lines->capacity <= 2u << 20); /* memory is bounded while the line goes on */
    ls__lines_feed(lines, "\n", 1);
    size_t kept = 0;
    for (size_t i = sink.begin; i < sink.end; i++)
        kept += sink.data[i] == 'x';
    assert_int_equal(kept, piece * pieces);
    assert_int_equal(sink.data[sink.end - 1], '\n');
    ls__lines_close(lines);
    ls__sink_close(&sink);
    free(lines);
    free(data);
}

static void test_the_last_lines_are_kept(void **state) {
    (void)state;
    ls__sink sink;
    ls__lines *lines = malloc(sizeof *lines);
    assert_non_null(lines);
    ls__sink_open(&sink, -1);
    ls__lines_open(lines, LS__LINES_KEEP, &sink, "");
    assert_int_equal(ls__lines_tail_count(lines), 0);
    for (int i = 0; i < 25; i++) {
        char text[] = {(char)('a' + i), '\n', '\n'};
        ls__lines_feed(lines, text, sizeof text); /* empty lines say nothing and are not kept */
    }
    ls__lines_feed(lines, "with\ttab, no end", 16);
    ls__lines_finish(lines);
    assert_int_equal(ls__lines_tail_count(lines), LS__TAIL_LINES);
    assert_string_equal(ls__lines_tail(lines, 0), "q");
    assert_string_equal(ls__lines_tail(lines, 8), "y");
    assert_string_equal(ls__lines_tail(lines, 9), "with tab, no end");
    ls__lines_close(lines);
    ls__sink_close(&sink);
    free(lines);
}

/* The reason of a failure comes behind hours of a progress line that is written over. */
static void test_progress_lines_do_not_hide_the_reason(void **state) {
    (void)state;
    ls__sink sink;
    ls__lines *lines = malloc(sizeof *lines);
    assert_non_null(lines);
    ls__sink_open(&sink, -1);
    ls__lines_open(lines, LS__LINES_RAW, &sink, "");
    for (int i = 0; i < 100000; i++) {
        char text[80];
        int n = snprintf(text, sizeof text, "\r\x1b[Kepoch 1  step %d/100000  loss 2.1234", i);
        ls__lines_feed(lines, text, (size_t)n);
        sink.begin = sink.end = 0;
    }
    assert_true(lines->capacity < 10000);
    ls__lines_feed(lines, "\r\x1b[Kthe reason\r\n", 16);
    assert_int_equal(ls__lines_tail_count(lines), 1);
    assert_string_equal(ls__lines_tail(lines, 0), "the reason");
    ls__lines_close(lines);
    ls__sink_close(&sink);
    free(lines);
}

/* A full pipe must not block, and nothing may be lost or reordered once it is read. */
static void test_a_full_pipe_does_not_block(void **state) {
    (void)state;
    enum { NUMBERS = 100000 };
    int ends[2];
    ls__sink sink;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    ls__sink_open(&sink, ends[1]);
    for (uint32_t i = 0; i < NUMBERS; i++)
        ls__sink_put(&sink, (const char *)&i, sizeof i);
    alarm(20); /* a blocked write ends the test */
    ls__sink_flush(&sink);
    assert_true(ls__sink_waiting(&sink) > 0);
    for (uint32_t i = 0; i < NUMBERS; i++) {
        uint32_t number;
        if (i % 1000 == 0)
            ls__sink_flush(&sink);
        assert_int_equal(read(ends[0], &number, sizeof number), sizeof number);
        assert_int_equal(number, i);
    }
    assert_int_equal(ls__sink_waiting(&sink), 0);
    alarm(0);
    /* the reader goes: an error, and what comes is dropped */
    signal(SIGPIPE, SIG_IGN);
    close(ends[0]);
    ls__sink_put(&sink, "x", 1);
    ls__sink_flush(&sink);
    assert_int_equal(sink.error, EPIPE);
    ls__sink_put(&sink, "x", 1);
    assert_int_equal(ls__sink_waiting(&sink), 0);
    ls__sink_close(&sink);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_come_whole),
        cmocka_unit_test(test_longest_lines_are_cut_but_complete),
        cmocka_unit_test(test_the_last_lines_are_kept),
        cmocka_unit_test(test_progress_lines_do_not_hide_the_reason),
        cmocka_unit_test(test_a_full_pipe_does_not_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
