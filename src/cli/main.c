/* The lockstep command: finds the sub-command and calls it. */
#include "base/file.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "launch/launch.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct command_row {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} command_row;

static const command_row commands[] = {
    {"train", ls__cli_train, "train a model on this machine or as a rank of a larger job"},
    {"run", ls__cli_run, "start any program as N ranks on this machine"},
    {"checkpoint", ls__cli_checkpoint, "verify, show, compare or merge what was saved"},
    {"bench", ls__cli_bench, "measure the speed of training, and what the machine could do"},
    {"report", ls__cli_report_command, "say what the ranks of a failed job were doing"},
    {"doctor", ls__cli_doctor, "show what was found: libraries, cores, transports, data"},
};

enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static void print_help(FILE *file) {
    fputs(
        "Usage: lockstep COMMAND [options]\n"
        "\n"
        "Lockstep trains neural networks data-parallel: every rank holds the whole model, takes its\n"
        "share of every batch, and gradients are averaged while the backward pass still runs.\n"
        "\n"
        "Commands\n",
        file);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].what);
    fputs(
        "  help       this text, or that of a command: lockstep help run\n"
        "\n"
        "  --version  the version\n"
        "\n"
        "Exit codes\n"
        "  0          success\n"
        "  1          failure while running\n"
        "  2          wrong usage: options or specifications\n"
        "  3          bad input data, or a file that cannot be read or written\n"
        "  4          a rank failed, or ranks disagreed\n"
        "  126, 127   run: the program cannot be executed, cannot be found\n"
        "  128+N      ended by signal N: 130 after Ctrl-C, 137 when a rank was killed by SIGKILL\n"
        "  run returns the code of the first rank that failed.\n",
        file);
}

static const command_row *find_command(const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    }
    const char *names[COMMAND_COUNT + 2] = {"help"};
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i + 1] = commands[i].name;
    const char *nearest = ls__nearest(name, names);
    fprintf(stderr, "lockstep: unknown %s %.60s%s%s%s (lockstep help lists all)\n",
            name[0] == '-' ? "option" : "command", name, nearest ? "; did you mean " : "",
            nearest ? nearest : "", nearest ? "?" : "");
    return NULL;
}

static int help(int argc, char **argv) {
    if (argc < 2) {
        print_help(stdout);
        return LS__EXIT_OK;
    }
    const command_row *command = find_command(argv[1]);
    if (!command)
        return LS__EXIT_USAGE;
    char *ask[] = {argv[1], "--help", NULL};
    return command->run(2, ask);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return LS__EXIT_USAGE;
    }
    const char *name = argv[1];
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failed write with a message */
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        puts("lockstep " LOCKSTEP_VERSION);
        return LS__EXIT_OK;
    }
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return help(argc - 1, argv + 1);
    const command_row *command = find_command(name);
    return command ? command->run(argc - 1, argv + 1) : LS__EXIT_USAGE;
}

int main(int argc, char **argv) {
    ls__file_fill_standard();
    int code = dispatch(argc, argv);
    /* What a command printed must have arrived: a full disk is no success. Of an earlier failure the
     * reason is no longer known. */
    bool flushed = fflush(stdout) == 0;
    if (code == LS__EXIT_OK && !flushed)
        perror("lockstep: cannot write to stdout");
    else if (code == LS__EXIT_OK && ferror(stdout))
        fputs("lockstep: stdout could not be written completely\n", stderr);
    else
        return code;
    return LS__EXIT_INPUT;
}
