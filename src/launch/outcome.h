/* How a round of a job ended, on all machines: what the report tells. */
#ifndef LS_LAUNCH_OUTCOME_H
#define LS_LAUNCH_OUTCOME_H

#include "comm/flight.h"
#include "launch/launch.h"
#include "launch/lines.h"
#include "launch/rounds.h"
#include <stdint.h>
#include <sys/types.h>

/* One rank. */
typedef struct ls__end {
    int number;
    char host[LS__FLIGHT_NAME_BYTES]; /* of its launcher; "": one machine */
    pid_t pid;                        /* 0: nothing was heard of it */
    bool exited;
    int exit_code, signal;
    int signal_sent;     /* by the launcher, last */
    uint64_t exited_ns;  /* on the clock of the machine that reports */
    bool words_of_error; /* the last lines are of stderr, not of stdout */
    int word_count;
    char (*words)[LS__TAIL_BYTES]; /* (word_count) its last lines, oldest first */
} ls__end;

typedef struct ls__outcome {
    const char *command;
    const ls__launch_options *options;
    ls__why why;
    int restarts; /* used before it */
    int nodes;
    int ranks;
    ls__end *end;              /* (ranks) */
    ls__flight_record *record; /* (ranks) what is known of each, pid 0: nothing; NULL: of none */
    int first_failure;         /* rank, -1: none */
    int stop_signal;           /* the launcher was told to stop */
    int write_error;           /* errno: output could not be written */
    char
        lost_lines[LS__FLIGHT_NAME_BYTES]; /* host whose --log-dir could not be written; "": none */
    bool line_open;                        /* a progress line stands on stderr */
    uint64_t started_ns;
    char missing[400]; /* LS__WHY_LOST, LS__WHY_FEW: who, for people */
} ls__outcome;

void ls__outcome_free(ls__outcome *outcome);
/* A rank that ended like this tells, as far as one can tell, of another one's end: it is no first cause where there is
 * another. */
bool ls__end_is_consequence(int signal_number, int exit_code);

/* --- report.c --- */

const char *ls__signal_name(int signal_number); /* "SIGKILL" */
/* It asks the ranks to finish what they do, save and leave: ends with code 0 are no failure then. */
bool ls__signal_asks(int signal_number);
/* What the command returns. */
int ls__outcome_exit_code(const ls__outcome *outcome);
/* On stderr; silent after success. */
void ls__outcome_report(const ls__outcome *outcome);
/* The same on stdout, as one JSON object. */
ls_status ls__outcome_write_json(const ls__outcome *outcome);
/* "rank 3 on host b failed first: it exited with code 7": for those who do not print the report */
void ls__outcome_summary(const ls__outcome *outcome, char *text, size_t bytes);
/* "was killed by signal 9 (SIGKILL)", "exited with code 7" */
void ls__end_describe(int signal_number, int exit_code, char *text, size_t bytes);

#endif
