/* The number of ranks as the user gives it. */
#include "cli/options.h"

#include "launch/binding.h"
#include "launch/launch.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool ls__ranks_parse(const char *text, int64_t *ranks, const char **why) {
    if (strcmp(text, "auto") == 0) {
        *ranks = ls__launch_cores();
        return true;
    }
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || text[0] == ' ') {
        *why = "is no number of ranks, want 1 to 4096 or auto";
        return false;
    }
    if (errno || number < 1 || number > LS__LAUNCH_MOST_RANKS) {
        *why = "is out of range, want 1 to 4096 or auto";
        return false;
    }
    *ranks = number;
    return true;
}
