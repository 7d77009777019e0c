/* `lockstep train`: reads the command line, starts the ranks (this program again) or is one. */
#include "cli/train.h"

#include "launch/launch.h"
#include <stdlib.h>

/* Exit code after a failure; its text goes to stderr as one line. */
static int report(ls_status status) {
    fprintf(stderr, "lockstep train: %s\n", ls_error_text());
    return ls__cli_exit_code(status);
}

static int launch(const ls__train_settings *settings, int argc, char **argv) {
    /* argv[0] is "train": the ranks are called as "lockstep train ..." again */
    char **again = calloc((size_t)argc + 2, sizeof *again);
    if (!again) {
        fprintf(stderr, "lockstep train: out of memory\n");
        return LS__EXIT_FAILURE;
    }
    again[0] = "lockstep";
    for (int i = 0; i < argc; i++)
        again[i + 1] = argv[i];
    const ls__launch_options options = {
        .command = "lockstep train",
        .ranks = (int)settings->ranks,
        .argv = again,
        .program = "/proc/self/exe",
        .transport = (ls__launch_transport)settings->transport,
        .rank0_speaks = true,
    };
    int code = LS__EXIT_FAILURE;
    ls_status status = ls__launch(&options, &code);
    free(again);
    return status == LS_OK ? code : report(status);
}

int ls__cli_train(int argc, char **argv) {
    ls__train_settings settings;
    int code;
    if (!ls__train_parse(argc, argv, &settings, &code))
        return code;
    bool is_rank = getenv("RANK") != NULL;
    if (settings.ranks > 1 && !is_rank) {
        ls_status status = ls__train_check(&settings);
        return status == LS_OK ? launch(&settings, argc, argv) : report(status);
    }
    ls_status status = ls__train_run(&settings);
    return status == LS_OK ? LS__EXIT_OK : report(status);
}
