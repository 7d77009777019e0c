#include "comm/variables.h"

#include "base/level.h"
#include "comm/cost.h"
#include "comm/transport.h"
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* --- the settings ------------------------------------------------------------------------------------- */

typedef struct setting {
    const char *name;
    const char *const *words; /* one of these, NULL ends */
    bool seconds;             /* or so many, above 0 */
    int low, high;            /* or a whole number; 0, 0: none */
} setting;

static const setting settings[] = {
    {.name = "LOCKSTEP_TRANSPORT", .words = ls__transport_words},
    {.name = "LOCKSTEP_MPI", .words = (const char *const[]){"openmpi", "mpich", NULL}},
    {.name = "LOCKSTEP_ALGORITHM", .words = ls__algorithm_words},
    {.name = "LOCKSTEP_STREAMS", .low = 1, .high = 8},
    {.name = "LOCKSTEP_TIMEOUT", .seconds = true},
    {.name = "LOCKSTEP_HEARTBEAT", .seconds = true, .words = (const char *const[]){"off", NULL}},
};

static bool is_word(const char *const *words, const char *text) {
    for (; words && *words; words++) {
        if (strcmp(*words, text) == 0)
            return true;
    }
    return false;
}

/* "a, b or c", and "seconds above 0 or c" */
static void list_wanted(const setting *s, char *text, size_t bytes) {
    size_t used = s->seconds ? (size_t)snprintf(text, bytes, "seconds above 0") : 0;
    for (const char *const *word = s->words; *word && used < bytes; word++) {
        const char *before = used == 0 ? "" : word[1] ? ", " : " or ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", before, *word);
    }
}

static ls_status check(const setting *s) {
    const char *text = ls__variable(s->name);
    char wanted[100];
    int number;
    if (!text || is_word(s->words, text))
        return LS_OK;
    if (s->seconds) {
        double seconds;
        ls_status status = ls__variable_seconds(s->name, NULL, 0, &seconds);
        if (status == LS_OK || !s->words)
            return status;
    }
    if (!s->words)
        return ls__variable_integer(s->name, s->low, s->high, &number);
    list_wanted(s, wanted, sizeof wanted);
    return ls__fail(LS_ERR_ARGUMENT, "%s is '%.60s', want %s", s->name, text, wanted);
}

ls_status ls__variables_check(void) {
    ls__cpu_level level;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        LS_TRY(check(&settings[i]));
    return ls__cpu_level_choose(ls__variable("LOCKSTEP_CPU"), &level);
}
