/* The exit codes of the lockstep command and of its ranks: docs/exit-codes.md. */
#ifndef LS_LAUNCH_EXIT_CODE_H
#define LS_LAUNCH_EXIT_CODE_H

enum {
    LS__EXIT_OK = 0,
    LS__EXIT_FAILURE = 1,
    LS__EXIT_USAGE = 2,
    LS__EXIT_INPUT = 3,
    LS__EXIT_RANKS = 4, /* another rank failed, or ranks disagree */
    LS__EXIT_NOT_EXECUTABLE = 126,
    LS__EXIT_NOT_FOUND = 127,
    LS__EXIT_SIGNAL = 128, /* + the number of the signal that ended it */
};

#endif
