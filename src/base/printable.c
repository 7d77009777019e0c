#include "base/printable.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Bytes of the control character at `c`; 0: it is none. */
static size_t control_bytes(const unsigned char *c) {
    if (c[0] < 0x20 || c[0] == 0x7f)
        return 1;
    return c[0] == 0xc2 && c[1] >= 0x80 && c[1] <= 0x9f ? 2 : 0;
}

const char *ls__printable(char *to, size_t size, const char *text) {
    enum { ESCAPED = 4 }; /* bytes of \xNN */
    size_t used = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        size_t control = control_bytes(c);
        if (used + (control ? control * ESCAPED : 1) >= size)
            break;
        if (!control)
            to[used++] = (char)*c;
        for (size_t i = 0; i < control; i++, used += ESCAPED)
            snprintf(to + used, size - used, "\\x%02x", c[i]);
        c += control ? control - 1 : 0;
    }
    to[used] = '\0';
    return to;
}
