/* The commands: one function each, argv[0] is the command's name, the result is the exit code. */
#ifndef LS_CLI_COMMANDS_H
#define LS_CLI_COMMANDS_H

#include <lockstep/status.h>

/* docs/exit-codes.md. Ended by a signal: LS__EXIT_SIGNAL + its number. */
enum {
    LS__EXIT_OK = 0,
    LS__EXIT_FAILURE = 1,
    LS__EXIT_USAGE = 2,
    LS__EXIT_INPUT = 3,
    LS__EXIT_RANKS = 4,
    LS__EXIT_NOT_EXECUTABLE = 126,
    LS__EXIT_NOT_FOUND = 127,
    LS__EXIT_SIGNAL = 128,
};

/* The exit code that tells a caller what `status` told the program. */
int ls__cli_exit_code(ls_status status);

int ls__cli_run(int argc, char **argv);
int ls__cli_train(int argc, char **argv);
int ls__cli_doctor(int argc, char **argv);

#endif
