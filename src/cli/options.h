/* Options of the lockstep commands: one table says how each is called, what it takes and where the
 * value goes; parsing, errors and --help all come from the table.
 *
 *     struct settings { int64_t steps; double lr; };
 *     static const ls__option options[] = {
 *         {.group = "Training", .name = "steps", .placeholder = "N", .kind = LS__OPTION_INTEGER,
 *          .at = offsetof(struct settings, steps), .min = 1, .max = INT64_MAX,
 *          .fallback = "one epoch", .help = "..."},
 *         {.name = "lr", .placeholder = "X", .kind = LS__OPTION_REAL,
 *          .at = offsetof(struct settings, lr), .low = 0, .high = 1e3, .fallback = "0.001",
 *          .help = "learning rate"},
 *     };
 *     static const ls__command command = {.name = "train", .options = options, .option_count = 2, ...};
 *     struct settings settings = {.lr = 1e-3};
 *     int first, code;
 *     if (!ls__options_parse(&command, argc, argv, &settings, &first, &code))
 *         return code;
 */
#ifndef LS_CLI_OPTIONS_H
#define LS_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* How the value is written, and the type of the field that receives it. */
typedef enum ls__option_kind {
    LS__OPTION_FLAG,    /* bool: takes no value, becomes true */
    LS__OPTION_TEXT,    /* const char *: any text but an empty one; points into argv */
    LS__OPTION_INTEGER, /* int64_t: min..max; 0, 0 allows all of int64 */
    LS__OPTION_REAL,    /* double: low..high, finite; 0, 0 allows all */
    LS__OPTION_CHOICE,  /* int: one of "a|b|c" becomes 0, 1, 2 */
    LS__OPTION_RANKS,   /* int64_t: 1..4096, or "auto": the cores this process may use */
} ls__option_kind;

typedef struct ls__option {
    const char *name; /* without dashes: "batch-size" */
    char letter;      /* 'n' for -n, or 0 */
    ls__option_kind kind;
    const char *placeholder; /* "N"; not for flags; a choice shows its choices */
    const char *group;       /* heading in --help, on the first option of the group */
    const char *fallback;    /* the default as --help shows it; NULL: none shown */
    const char *help;        /* NULL hides the option: a synonym */
    /* offsetof(settings, field): where the value goes; left alone when the option is absent, so that the
     * caller sets the default */
    size_t at;
    size_t given; /* 1 + offsetof a bool that becomes true when the option was used; 0: none */
    int64_t min, max;
    double low, high;
    const char *choices;
} ls__option;

/* Options that several commands have. `type` is that of the command's settings, which has fields of the
 * option's name, and transport_given. */
#define LS__OPTION_ROW_TRANSPORT(type)                                                              \
    {                                                                                               \
        .name = "transport", .kind = LS__OPTION_CHOICE, .choices = "shm|tcp",                       \
        .at = offsetof(type, transport), .given = 1 + offsetof(type, transport_given),              \
        .fallback = "LOCKSTEP_TRANSPORT, else shm",                                                 \
        .help =                                                                                     \
            "how ranks of this machine meet: shared memory (up to 256 ranks), or tcp over loopback" \
    }
/* and ranks_given; `start`: the default as --help shows it */
#define LS__OPTION_ROW_RANKS(type, start, text)                                                    \
    {                                                                                              \
        .name = "ranks", .letter = 'n', .placeholder = "N", .kind = LS__OPTION_RANKS,              \
        .at = offsetof(type, ranks), .given = 1 + offsetof(type, ranks_given),                     \
        .fallback = (start), .help = (text)                                                        \
    }
#define LS__OPTION_ROW_THREADS(type)                                                               \
    {                                                                                              \
        .name = "threads", .kind = LS__OPTION_INTEGER, .placeholder = "N",                         \
        .at = offsetof(type, threads), .min = 1, .max = 1024, .fallback = "1",                     \
        .help = "threads of each rank; bits are equal for equal numbers"                           \
    }
#define LS__OPTION_ROW_DTYPE(type)                                                                 \
    {                                                                                              \
        .name = "dtype", .kind = LS__OPTION_CHOICE, .choices = "f32|bf16",                         \
        .at = offsetof(type, dtype), .fallback = "f32",                                            \
        .help = "bf16: factors of matrix products are rounded to bf16, all else is f32"            \
    }
#define LS__OPTION_ROW_PROGRESS(type)                                                              \
    {                                                                                              \
        .name = "progress", .kind = LS__OPTION_CHOICE, .choices = "thread|inline",                 \
        .at = offsetof(type, progress), .fallback = "thread",                                      \
        .help = "who reduces gradients: a thread beside backward, or backward itself"              \
    }
#define LS__OPTION_ROW_RECOMPUTE(type)                                                             \
    {                                                                                              \
        .name = "recompute", .kind = LS__OPTION_FLAG, .at = offsetof(type, recompute),             \
        .help =                                                                                    \
            "gpt: keep only the inputs of blocks, compute the rest again; less memory, same bits"  \
    }
/* `text`: what json means for this command */
#define LS__OPTION_ROW_FORMAT(type, text)                                                          \
    {                                                                                              \
        .name = "format", .kind = LS__OPTION_CHOICE, .choices = "text|json",                       \
        .at = offsetof(type, format), .fallback = "text", .help = "json: " text                    \
    }

typedef struct ls__command {
    const char *name;    /* "train" */
    const char *usage;   /* "lockstep train --model SPEC --data SPEC [options]" */
    const char *summary; /* one paragraph; is wrapped */
    const ls__option *options;
    size_t option_count;
    const char *const *examples; /* lines as typed, NULL ends; "# ..." lines explain */
    bool stop_at_positional;     /* options end at the first argument that is none (run) */
} ls__command;

/* Reads argv[1..] into `settings`; argv[0] is the command's name. True: go on, *first is the index of the first
 * argument that is no option (argc if there is none). False: the command ends with *code: 0 after
 * --help, 2 after a mistake, which was printed on stderr as one line. */
bool ls__options_parse(const ls__command *command, int argc, char **argv, void *settings,
                       int *first, int *code);

/* What --help prints. */
void ls__options_help(const ls__command *command, FILE *file);

/* One line on stderr: "lockstep train: MESSAGE (lockstep train --help lists all)"; returns 2. For
 * mistakes that only the command can see. */
int ls__usage_error(const ls__command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An option that means something only beside others. */
typedef struct ls__option_use {
    bool given, applies;
    const char *option, *of; /* "--beta1", "--optimizer adam or adamw" */
} ls__option_use;
/* Refuses the first that is given and does not apply: what has no effect is not taken silently. Returns the exit
 * code, 0 where there is none. */
int ls__options_check_uses(const ls__command *command, const ls__option_use *uses, size_t count);

/* Number of ranks from the text of -n or --ranks: 1..4096 or "auto", the cores this process may use.
 * False with `*why` (a static text) when it is neither. */
bool ls__ranks_parse(const char *text, int64_t *ranks, const char **why);

/* Something has started this process as a rank: it starts none itself. */
bool ls__is_rank(void);
/* The transport of the ranks to start: --transport where it was given, else LOCKSTEP_TRANSPORT, else
 * what *transport (an ls__launch_transport) is. False after a usage error. */
bool ls__transport_choose(const ls__command *command, bool given, int *transport);

/* The candidate nearest to `word` by edits, or NULL when none is near. NULL ends the list. */
const char *ls__nearest(const char *word, const char *const *candidates);

/* Prints `text` wrapped, from column `at` on, further lines indented by `indent`. */
void ls__print_wrapped(FILE *file, const char *text, size_t at, size_t indent);

#endif
