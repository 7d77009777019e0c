#include "cli/options.h"

#include "base/printable.h"
#include "cli/commands.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_BYTES = 60, MISTAKE_BYTES = 300 };

int ls__usage_error(const ls__command *command, const char *format, ...) {
    char text[1024], line[1024]; /* one line of printable characters, whatever the user typed */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "lockstep %s: %s (lockstep %s --help lists all)\n", command->name,
            ls__printable(line, sizeof line, text), command->name);
    return LS__EXIT_USAGE;
}

int ls__options_check_uses(const ls__command *command, const ls__option_use *uses, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (uses[i].given && !uses[i].applies)
            return ls__usage_error(command, "%s is only for %s; leave it out", uses[i].option,
                                   uses[i].of);
    return 0;
}

/* Levenshtein distance, for words short enough to be option names. */
static size_t edits(const char *a, const char *b) {
    enum { LONGEST = 40 };
    size_t rows = strlen(a), columns = strlen(b);
    if (rows > LONGEST || columns > LONGEST)
        return LONGEST;
    size_t above[LONGEST + 1];
    for (size_t j = 0; j <= columns; j++)
        above[j] = j;
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = above[0];
        above[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (above[j - 1] + 1 < best)
                best = above[j - 1] + 1;
            diagonal = above[j];
            above[j] = best;
        }
    }
    return above[columns];
}

/* The search for what was meant: `least` edits so far, to `nearest`. */
typedef struct search {
    const char *word, *nearest;
    size_t least;
} search;

static search search_for(const char *word) {
    return (search){.word = word, .least = strlen(word) / 3 + 2};
}

static void consider(search *s, const char *candidate) {
    size_t distance = edits(s->word, candidate);
    if (distance < s->least) {
        s->least = distance;
        s->nearest = candidate;
    }
}

const char *ls__nearest(const char *word, const char *const *candidates) {
    search s = search_for(word);
    for (; *candidates; candidates++)
        consider(&s, *candidates);
    return s.nearest;
}

static const char *nearest_option(const ls__command *command, const char *name) {
    search s = search_for(name);
    for (size_t i = 0; i < command->option_count; i++)
        consider(&s, command->options[i].name);
    return s.nearest;
}

static const ls__option *find_name(const ls__command *command, const char *name, size_t length) {
    for (size_t i = 0; i < command->option_count; i++) {
        const char *candidate = command->options[i].name;
        if (strncmp(candidate, name, length) == 0 && candidate[length] == '\0')
            return &command->options[i];
    }
    return NULL;
}

static const ls__option *find_letter(const ls__command *command, char letter) {
    for (size_t i = 0; i < command->option_count; i++) {
        if (command->options[i].letter && command->options[i].letter == letter)
            return &command->options[i];
    }
    return NULL;
}

/* Each store function writes the mistake into `why` and returns false when the value will not do. `to` is
 * the option's field of the settings. */

static bool store_integer(const ls__option *option, const char *value, int64_t *to, char *why) {
    bool ranged = option->min != 0 || option->max != 0;
    errno = 0;
    char *end;
    long long number = strtoll(value, &end, 10);
    if (isspace((unsigned char)value[0]) || end == value || *end) {
        snprintf(why, MISTAKE_BYTES, "is no whole number");
        return false;
    }
    if (errno == ERANGE || (ranged && (number < option->min || number > option->max))) {
        if (ranged && option->max == INT64_MAX && errno != ERANGE)
            snprintf(why, MISTAKE_BYTES, "is out of range, want at least %" PRId64, option->min);
        else if (ranged)
            snprintf(why, MISTAKE_BYTES, "is out of range, want %" PRId64 " to %" PRId64,
                     option->min, option->max);
        else
            snprintf(why, MISTAKE_BYTES, "is out of range");
        return false;
    }
    *to = number;
    return true;
}

static bool store_real(const ls__option *option, const char *value, double *to, char *why) {
    bool ranged = option->low != 0 || option->high != 0;
    char *end;
    double number = strtod(value, &end);
    if (isspace((unsigned char)value[0]) || end == value || *end || !isfinite(number)) {
        snprintf(why, MISTAKE_BYTES, "is no finite number");
        return false;
    }
    if (ranged && (number < option->low || number > option->high)) {
        snprintf(why, MISTAKE_BYTES, "is out of range, want %.10g to %.10g", option->low,
                 option->high);
        return false;
    }
    *to = number;
    return true;
}

static bool store_choice(const ls__option *option, const char *value, int *to, char *why) {
    size_t length = strlen(value);
    int index = 0;
    for (const char *choice = option->choices; choice; index++) {
        size_t n = strcspn(choice, "|");
        if (n == length && strncmp(choice, value, n) == 0) {
            *to = index;
            return true;
        }
        choice = choice[n] ? choice + n + 1 : NULL;
    }
    snprintf(why, MISTAKE_BYTES, "is none of %s", option->choices);
    return false;
}

static bool store_ranks(const char *value, int64_t *to, char *why) {
    const char *mistake;
    if (ls__ranks_parse(value, to, &mistake))
        return true;
    snprintf(why, MISTAKE_BYTES, "%s", mistake);
    return false;
}

static bool store(const ls__option *option, const char *value, void *to, char *why) {
    switch (option->kind) {
    case LS__OPTION_FLAG:
        *(bool *)to = true;
        return true;
    case LS__OPTION_TEXT:
        if (!*value) {
            snprintf(why, MISTAKE_BYTES, "is empty");
            return false;
        }
        *(const char **)to = value;
        return true;
    case LS__OPTION_INTEGER:
        return store_integer(option, value, to, why);
    case LS__OPTION_REAL:
        return store_real(option, value, to, why);
    case LS__OPTION_CHOICE:
        return store_choice(option, value, to, why);
    case LS__OPTION_RANKS:
        return store_ranks(value, to, why);
    }
    return false;
}

static int unknown_option(const ls__command *command, const char *name, size_t length) {
    char shown[SHOWN_BYTES + 1];
    snprintf(shown, sizeof shown, "%.*s", length < SHOWN_BYTES ? (int)length : SHOWN_BYTES, name);
    const char *nearest = nearest_option(command, shown);
    if (nearest)
        return ls__usage_error(command, "unknown option --%s; did you mean --%s?", shown, nearest);
    return ls__usage_error(command, "unknown option --%s", shown);
}

/* Takes the option at argv[*at] and its value; *at is left on the last argument taken. Returns 0, or
 * the exit code of a mistake. */
static int take(const ls__command *command, int argc, char **argv, void *settings, int *at) {
    const char *word = argv[*at];
    const ls__option *option;
    const char *value = NULL;
    char shown[SHOWN_BYTES + 1];
    if (word[1] == '-') {
        const char *name = word + 2;
        size_t length = strcspn(name, "=");
        option = find_name(command, name, length);
        if (!option)
            return unknown_option(command, name, length);
        value = name[length] ? name + length + 1 : NULL;
        snprintf(shown, sizeof shown, "--%s", option->name);
    } else {
        option = find_letter(command, word[1]);
        if (!option)
            return ls__usage_error(command, "unknown option -%c", word[1]);
        value = word[2] ? word + 2 : NULL;
        snprintf(shown, sizeof shown, "-%c", word[1]);
    }
    if (option->kind == LS__OPTION_FLAG) {
        if (value)
            return ls__usage_error(command, "%s takes no value, got '%.*s'", shown, SHOWN_BYTES,
                                   value);
    } else if (!value) {
        if (*at + 1 >= argc)
            return ls__usage_error(command, "%s needs a value (%s)", shown,
                                   option->choices ? option->choices : option->placeholder);
        value = argv[++*at];
    }
    char why[MISTAKE_BYTES];
    char *fields = settings;
    if (!store(option, value ? value : "", fields + option->at, why))
        return ls__usage_error(command, "%s: '%.*s' %s", shown, SHOWN_BYTES, value ? value : "",
                               why);
    if (option->given)
        *(bool *)(fields + option->given - 1) = true;
    return 0;
}

bool ls__options_parse(const ls__command *command, int argc, char **argv, void *settings,
                       int *first, int *code) {
    int at = 1;
    for (; at < argc; at++) {
        const char *word = argv[at];
        if (strcmp(word, "--") == 0) {
            at++;
            break;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            ls__options_help(command, stdout);
            *code = LS__EXIT_OK;
            return false;
        }
        if (word[0] != '-' || !word[1])
            break;
        *code = take(command, argc, argv, settings, &at);
        if (*code)
            return false;
    }
    *first = at;
    if (at < argc && !command->stop_at_positional) {
        *code = ls__usage_error(command, "unexpected argument '%.*s'", SHOWN_BYTES, argv[at]);
        return false;
    }
    return true;
}
