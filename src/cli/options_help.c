/* --help from an option table. */
#include "cli/options.h"

#include <string.h>

enum { WIDTH = 92, HELP_COLUMN = 30 };

static const char exit_codes[] =
    "Exit codes: 0 success, 1 failure while running, 2 wrong usage, 3 bad input data or file, "
    "4 a rank failed or ranks disagreed, 128+N ended by signal N. docs/exit-codes.md has more.";

void ls__print_wrapped(FILE *file, const char *text, size_t at, size_t indent) {
    size_t column = at;
    bool first = true;
    while (*text) {
        size_t length = strcspn(text, " \n");
        if (!first && column + 1 + length > WIDTH) {
            fprintf(file, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', file);
            column++;
        }
        fwrite(text, 1, length, file);
        column += length;
        first = false;
        text += length;
        text += strspn(text, " \n");
    }
    fputc('\n', file);
}

/* "  -n, --ranks N" and the column after it */
static size_t print_call(const ls__option *option, FILE *file) {
    char call[120];
    int n = option->letter
                ? snprintf(call, sizeof call, "  -%c, --%s", option->letter, option->name)
                : snprintf(call, sizeof call, "      --%s", option->name);
    size_t used = (size_t)n;
    if (option->kind == LS__OPTION_CHOICE)
        snprintf(call + used, sizeof call - used, " %s",
                 option->placeholder ? option->placeholder : option->choices);
    else if (option->kind != LS__OPTION_FLAG)
        snprintf(call + used, sizeof call - used, " %s", option->placeholder);
    fputs(call, file);
    return strlen(call);
}

static void print_option(const ls__option *option, FILE *file) {
    char text[600];
    int n = snprintf(text, sizeof text, "%s", option->help);
    if (option->kind == LS__OPTION_CHOICE && option->placeholder && n < 400)
        n += snprintf(text + n, sizeof text - (size_t)n, ": %s", option->choices);
    if (option->fallback && n < 500)
        snprintf(text + n, sizeof text - (size_t)n, " [%s]", option->fallback);
    size_t column = print_call(option, file);
    if (column + 2 > HELP_COLUMN) {
        fputc('\n', file);
        column = 0;
    }
    fprintf(file, "%*s", (int)(HELP_COLUMN - column), "");
    ls__print_wrapped(file, text, HELP_COLUMN, HELP_COLUMN);
}

void ls__options_help(const ls__command *command, FILE *file) {
    fprintf(file, "Usage: %s\n\n", command->usage);
    ls__print_wrapped(file, command->summary, 0, 0);
    for (size_t i = 0; i < command->option_count; i++) {
        const ls__option *option = &command->options[i];
        if (option->group)
            fprintf(file, "\n%s\n", option->group);
        else if (i == 0)
            fprintf(file, "\nOptions\n");
        if (option->help)
            print_option(option, file);
    }
    if (command->option_count)
        fputs("  -h, --help                  this text\n", file);
    if (command->examples) {
        fputs("\nExamples\n", file);
        for (const char *const *line = command->examples; *line; line++)
            fprintf(file, "  %s\n", *line);
    }
    fputc('\n', file);
    ls__print_wrapped(file, exit_codes, 0, 0);
}
