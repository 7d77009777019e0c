#include "launch/outcome.h"

#include "launch/exit_code.h"
#include <stdlib.h>

void ls__outcome_free(ls__outcome *outcome) {
    for (int i = 0; outcome->end && i < outcome->ranks; i++)
        free(outcome->end[i].words);
    free(outcome->end);
    free(outcome->record);
    *outcome = (ls__outcome){.first_failure = -1};
}

bool ls__end_is_consequence(int signal_number, int exit_code) {
    return !signal_number && exit_code == LS__EXIT_RANKS;
}
