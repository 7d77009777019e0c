/* `lockstep train`: reads the command line, starts the ranks (this program again) or is one. */
#include "cli/train.h"

#include <stdlib.h>

const char ls__train_name[] = "lockstep train";

int ls__cli_train(int argc, char **argv) {
    ls__train_settings settings;
    int code;
    if (!ls__train_parse(argc, argv, &settings, &code))
        return code;
    bool is_rank = ls__is_rank();
    if (settings.ranks > 1 && !is_rank) {
        ls_status status = ls__train_check(&settings);
        if (status != LS_OK)
            return ls__cli_report(ls__train_name, status);
        return ls__cli_launch_self(ls__train_name, settings.ranks, settings.transport, argc, argv);
    }
    ls_status status = ls__train_run(&settings);
    return status == LS_OK ? LS__EXIT_OK : ls__cli_report(ls__train_name, status);
}
