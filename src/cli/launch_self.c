/* Starting this program again as the ranks of a job. */
#include "cli/commands.h"

#include "launch/launch.h"
#include <lockstep/status.h>
#include <stdio.h>
#include <stdlib.h>

int ls__cli_report(const char *command, ls_status status) {
    fprintf(stderr, "%s: %s\n", command, ls_error_text());
    return ls__cli_exit_code(status);
}

void ls__cli_log(void *command, ls_log_level level, const char *line) {
    (void)level;
    fprintf(stderr, "%s: %s\n", (const char *)command, line);
}

int ls__cli_launch_self(const char *command, int64_t ranks, int transport, int argc, char **argv) {
    /* argv[0] is the command's name: the ranks are called as "lockstep NAME ..." again */
    char **again = calloc((size_t)argc + 2, sizeof *again);
    if (!again) {
        fprintf(stderr, "%s: out of memory\n", command);
        return LS__EXIT_FAILURE;
    }
    again[0] = "lockstep";
    for (int i = 0; i < argc; i++)
        again[i + 1] = argv[i];
    const ls__launch_options options = {
        .command = command,
        .ranks = (int)ranks,
        .argv = again,
        .program = ls__launch_self(),
        .transport = (ls__launch_transport)transport,
        .rank0_speaks = true,
    };
    int code = LS__EXIT_FAILURE;
    ls_status status = ls__launch(&options, &code);
    free(again);
    return status == LS_OK ? code : ls__cli_report(command, status);
}
