#include "comm/variables.h"

#include "base/level.h"
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
    const char *words; /* one of "a|b|c" */
    bool seconds;      /* or so many, above 0 */
    int low, high;     /* or a whole number; 0, 0: none */
} setting;

static const setting settings[] = {
    {.name = "LOCKSTEP_TRANSPORT", .words = "shm|tcp|mpi"},
    {.name = "LOCKSTEP_MPI", .words = "openmpi|mpich"},
    {.name = "LOCKSTEP_ALGORITHM", .words = "auto|one-shot|pairwise|flat"},
    {.name = "LOCKSTEP_STREAMS", .low = 1, .high = 8},
    {.name = "LOCKSTEP_TIMEOUT", .seconds = true},
    {.name = "LOCKSTEP_HEARTBEAT", .seconds = true, .words = "off"},
};

static bool is_word(const char *words, const char *text) {
    size_t bytes = strlen(text);
    for (const char *word = words; word; word = strchr(word, '|') ? strchr(word, '|') + 1 : NULL) {
        if (strcspn(word, "|") == bytes && strncmp(word, text, bytes) == 0)
            return true;
    }
    return false;
}

/* "a, b or c" */
static void list_words(const char *words, char *text, size_t bytes) {
    size_t used = 0;
    for (const char *word = words; word && used < bytes;) {
        const char *bar = strchr(word, '|');
        const char *before = used == 0 ? "" : bar ? ", " : " or ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%.*s", before,
                                 (int)strcspn(word, "|"), word);
        word = bar ? bar + 1 : NULL;
    }
}

static ls_status check(const setting *s) {
    const char *text = ls__variable(s->name);
    char words[100];
    double seconds;
    int number;
    if (!text || (s->words && is_word(s->words, text)))
        return LS_OK;
    if (s->seconds)
        return ls__variable_seconds(s->name, NULL, 0, &seconds);
    if (!s->words)
        return ls__variable_integer(s->name, s->low, s->high, &number);
    list_words(s->words, words, sizeof words);
    return ls__fail(LS_ERR_ARGUMENT, "%s is '%.60s', want %s", s->name, text, words);
}

ls_status ls__variables_check(void) {
    ls__cpu_level level;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        LS_TRY(check(&settings[i]));
    return ls__cpu_level_choose(ls__variable("LOCKSTEP_CPU"), &level);
}
