#include "comm/variables.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

const char *ls__variable(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

ls_status ls__variable_integer(const char *name, int lowest, int highest, int *number) {
    const char *text = ls__variable(name);
    char *end;
    if (!text)
        return ls__fail(LS_ERR_ARGUMENT, "%s is not set; want %d to %d", name, lowest, highest);
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < lowest || value > highest)
        return ls__fail(LS_ERR_ARGUMENT, "%s is '%s', want a whole number from %d to %d", name,
                        text, lowest, highest);
    *number = (int)value;
    return LS_OK;
}

ls_status ls__variable_seconds(const char *name, const char *option_name, double option,
                               double *seconds) {
    const char *text = ls__variable(name);
    if (option != 0) {
        if (!(option > 0))
            return ls__fail(LS_ERR_ARGUMENT, "%s is %g, want seconds above 0", option_name, option);
        *seconds = option;
    } else if (text) {
        char *end;
        *seconds = strtod(text, &end);
        if (*end || end == text || !isfinite(*seconds) || *seconds <= 0)
            return ls__fail(LS_ERR_ARGUMENT, "%s is '%s', want seconds above 0", name, text);
    }
    return LS_OK;
}
