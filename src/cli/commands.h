/* The commands: one function each, argv[0] is the command's name, the result is the exit code. */
#ifndef LS_CLI_COMMANDS_H
#define LS_CLI_COMMANDS_H

#include "launch/exit_code.h"
#include <lockstep/ddp.h>
#include <stdint.h>

/* The exit code that tells a caller what `status` told the program. */
int ls__cli_exit_code(ls_status status);

/* After a failure: the library's text as one line on stderr; returns the exit code. */
int ls__cli_report(const char *command, ls_status status);

/* An ls_log_fn: a line on stderr; `command`: a const char *, whose name it carries ("lockstep train"). */
void ls__cli_log(void *command, ls_log_level level, const char *line);

/* What a command ended with, kept while it takes down what it made, which may fail as well: the first error
 * counts. */
typedef struct ls__kept_error {
    ls_status status;
    char text[1024]; /* of ls_error_text; empty with LS_OK */
} ls__kept_error;
ls__kept_error ls__cli_keep(ls_status status);
/* The thread's error is the kept one again; returns its status. */
ls_status ls__cli_restore(const ls__kept_error *kept);

/* After a failure of this rank between ls_ddp_begin and ls_ddp_wait: a vote tells all ranks, which end at once and
 * name this one. Returns `status`, with its text. */
ls_status ls__cli_lose_step(ls_ddp *ddp, ls_status status);

/* Runs this program again, with these arguments, as `ranks` ranks; rank 0 speaks for the job.
 * `command` ("lockstep train") is whose name messages carry, `transport` an ls__launch_transport.
 * Returns the exit code. */
int ls__cli_launch_self(const char *command, int64_t ranks, int transport, int argc, char **argv);

/* The type to compute in: what --dtype asked for (0 f32, 1 bf16), or f32 where the device cannot; if so, and
 * with `tell`, one line on stderr says what is missing. */
ls_dtype ls__cli_dtype_choose(const char *command, const ls_device *device, int wanted, bool tell);
const char *ls__cli_dtype_name(ls_dtype dtype); /* "f32", "bf16": as options and JSON have it */

int ls__cli_run(int argc, char **argv);
int ls__cli_train(int argc, char **argv);
int ls__cli_checkpoint(int argc, char **argv);
int ls__cli_bench(int argc, char **argv);
int ls__cli_doctor(int argc, char **argv);
int ls__cli_report_command(int argc, char **argv);

#endif
