/* Names from files and networks, and numbers that may be none, on their way to terminals and logs. */
#ifndef LS_BASE_PRINTABLE_H
#define LS_BASE_PRINTABLE_H

#include "base/error.h"
#include <math.h>
#include <stddef.h>

/* Copies `text`, as far as it fits into `size` bytes (at least 1), with control characters as \xNN: those below space,
 * DEL, and U+0080 to U+009F in UTF-8, which terminals obey too. Returns `to`. */
LS_SHARED const char *ls__printable(char *to, size_t size, const char *text);

/* A NaN has a sign, which depends on the machine and means nothing: printed as nan, never as -nan. */
static inline double ls__printable_number(double number) {
    return isnan(number) ? fabs(number) : number;
}

#endif
