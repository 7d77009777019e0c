#include "launch/link.h"

#include "base/clock.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10, LONGEST_LINE = 32 << 20 };
static const double BEAT_S = 0.5;

struct ls__link {
    uv_tcp_t tcp;
    uv_timer_t timer; /* bounds a close that delivers */
    int handles;      /* of the two, not closed yet */
    const ls__link_calls *calls;
    void *context;
    bool closing;
    bool unsent; /* a message could not be sent: the link is lost */
    uint64_t heard_ns, beat_ns;
    char *line; /* what has come of it */
    size_t bytes, capacity;
};

typedef struct write_request {
    uv_write_t request;
    char *text;
} write_request;

static void on_closed(uv_handle_t *handle) {
    ls__link *link = handle->data;
    if (--link->handles)
        return;
    free(link->line);
    free(link);
}

static void shut(ls__link *link) {
    if (!uv_is_closing((uv_handle_t *)&link->tcp))
        uv_close((uv_handle_t *)&link->tcp, on_closed);
    if (!uv_is_closing((uv_handle_t *)&link->timer))
        uv_close((uv_handle_t *)&link->timer, on_closed);
}

static void lose(ls__link *link, const char *why) {
    if (link->closing)
        return;
    link->closing = true;
    shut(link);
    link->calls->gone(link->context, why);
}

static void take_line(ls__link *link, const char *text, size_t bytes) {
    json_t *message = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(message))
        link->calls->message(link->context, message);
    else
        lose(link, "it sent something that is no message");
    json_decref(message);
}

static bool append(ls__link *link, const char *data, size_t bytes) {
    if (link->bytes + bytes > LONGEST_LINE)
        return false;
    if (link->bytes + bytes > link->capacity) {
        size_t capacity = link->capacity ? 2 * link->capacity : 4096;
        while (capacity < link->bytes + bytes)
            capacity *= 2;
        char *grown = realloc(link->line, capacity);
        if (!grown)
            return false;
        link->line = grown;
        link->capacity = capacity;
    }
    memcpy(link->line + link->bytes, data, bytes);
    link->bytes += bytes;
    return true;
}

static void feed(ls__link *link, const char *data, size_t bytes) {
    link->heard_ns = ls__now_ns();
    while (bytes && !link->closing) {
        const char *newline = memchr(data, '\n', bytes);
        size_t take = newline ? (size_t)(newline - data) : bytes;
        if (!append(link, data, take)) {
            lose(link, "its message is too long");
            return;
        }
        data += take;
        bytes -= take;
        if (!newline)
            return;
        data++;
        bytes--;
        size_t whole = link->bytes;
        link->bytes = 0;
        if (whole) /* an empty line is a beat */
            take_line(link, link->line, whole);
    }
}

static void on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *buffer) {
    (void)handle;
    (void)wanted;
    buffer->base = malloc(READ_BYTES);
    buffer->len = buffer->base ? READ_BYTES : 0;
}

static void on_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buffer) {
    ls__link *link = stream->data;
    if (bytes > 0)
        feed(link, buffer->base, (size_t)bytes);
    else if (bytes < 0 && bytes != UV_ENOBUFS)
        lose(link, bytes == UV_EOF ? "its connection closed" : uv_strerror((int)bytes));
    free(buffer->base);
}

ls__link *ls__link_open(uv_loop_t *loop, int fd, const ls__link_calls *calls, void *context) {
    ls__link *link = calloc(1, sizeof *link);
    if (!link) {
        close(fd);
        return NULL;
    }
    link->calls = calls;
    link->context = context;
    link->heard_ns = ls__now_ns();
    uv_tcp_init(loop, &link->tcp);
    uv_timer_init(loop, &link->timer);
    link->handles = 2;
    link->tcp.data = link->timer.data = link;
    bool taken = uv_tcp_open(&link->tcp, fd) == 0;
    if (taken && uv_read_start((uv_stream_t *)&link->tcp, on_alloc, on_read) == 0)
        return link;
    if (!taken)
        close(fd);
    shut(link);
    return NULL;
}

static void on_written(uv_write_t *request, int status) {
    write_request *w = (write_request *)request;
    ls__link *link = request->handle->data;
    free(w->text);
    free(w);
    if (status < 0 && status != UV_ECANCELED)
        lose(link, uv_strerror(status));
}

static void put(ls__link *link, char *text, size_t bytes) {
    write_request *w = text ? calloc(1, sizeof *w) : NULL;
    uv_buf_t buffer = uv_buf_init(text, (unsigned)bytes);
    if (!w) {
        link->unsent = true;
        free(text);
        return;
    }
    w->text = text;
    if (uv_write(&w->request, (uv_stream_t *)&link->tcp, &buffer, 1, on_written) != 0) {
        link->unsent = true;
        free(w->text);
        free(w);
    }
}

void ls__link_send(ls__link *link, json_t *message) {
    bool open = link && !link->closing && !link->unsent;
    char *text = open && message ? json_dumps(message, JSON_COMPACT) : NULL;
    json_decref(message);
    if (open && !text)
        link->unsent = true;
    if (!text)
        return;
    size_t bytes = strlen(text);
    text[bytes] = '\n'; /* in place of the end */
    put(link, text, bytes + 1);
}

void ls__link_look(ls__link *link) {
    uint64_t now = ls__now_ns();
    char why[80];
    if (link->closing)
        return;
    if (link->unsent) {
        lose(link, "no memory for a message to it");
        return;
    }
    if (now >= link->beat_ns) {
        link->beat_ns = ls__deadline_ns(BEAT_S);
        put(link, strdup("\n"), 1);
    }
    if (now < ls__deadline_after(link->heard_ns, LS__LINK_SILENCE_S))
        return;
    snprintf(why, sizeof why, "no sign of life for %g s", LS__LINK_SILENCE_S);
    lose(link, why);
}

bool ls__link_is_heard_since(const ls__link *link, uint64_t ns) {
    return link->heard_ns >= ns;
}

static void on_late(uv_timer_t *timer) {
    shut(timer->data);
}

static void on_shut(uv_shutdown_t *request, int status) {
    (void)status;
    shut(request->handle->data);
    free(request);
}

void ls__link_close(ls__link *link, bool deliver) {
    if (!link || link->closing)
        return;
    link->closing = true;
    uv_read_stop((uv_stream_t *)&link->tcp);
    uv_shutdown_t *request = deliver ? calloc(1, sizeof *request) : NULL;
    if (request && uv_shutdown(request, (uv_stream_t *)&link->tcp, on_shut) == 0) {
        uv_timer_start(&link->timer, on_late, 1000, 0);
        return;
    }
    free(request);
    shut(link);
}
