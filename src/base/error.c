#include "base/error.h"

#include "base/printable.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 1024 };

static _Thread_local char error_text[TEXT_BYTES];

static const struct {
    const char *name;
    const char *text;
} statuses[] = {
#define STATUS_ROW(name, text) {"LS_" #name, text},
    LS_STATUS_LIST(STATUS_ROW)
#undef STATUS_ROW
};

enum { STATUS_COUNT = sizeof statuses / sizeof statuses[0] };

const char *ls_status_name(ls_status status) {
    return (unsigned)status < STATUS_COUNT ? statuses[status].name : "LS_?";
}

const char *ls_status_text(ls_status status) {
    return (unsigned)status < STATUS_COUNT ? statuses[status].text : "unknown status";
}

const char *ls_error_text(void) {
    return error_text;
}

/* Messages go to logs and terminals as single lines: names from files must not break that. */
static void set_text(const char *text) {
    ls__printable(error_text, sizeof error_text, text);
}

void ls__error_set(const char *format, ...) {
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    set_text(text);
}

void ls__error_set_errno(int error_number, const char *format, ...) {
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n >= 0 && n < TEXT_BYTES - 3) {
        char buffer[128];
        snprintf(text + n, sizeof text - (size_t)n, ": %s",
                 strerror_r(error_number, buffer, sizeof buffer));
    }
    set_text(text);
}

void ls__error_add_context(const char *format, ...) {
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n >= 0 && n < TEXT_BYTES - 3)
        snprintf(text + n, sizeof text - (size_t)n, ": %.*s", TEXT_BYTES - n - 3, error_text);
    set_text(text);
}
