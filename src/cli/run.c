/* lockstep run: any program as N ranks on this machine. */
#include "cli/commands.h"
#include "cli/options.h"
#include "launch/launch.h"
#include <stdio.h>

typedef struct run_settings {
    int64_t ranks; /* 0: not given */
    bool transport_given;
    int transport; /* ls__launch_transport */
    int bind, format;
    bool prefix, no_prefix;
    double grace, stop_grace;
    const char *flight;
} run_settings;

static const char *const examples[] = {
    "lockstep run -n 4 ./trainer --epochs 3",
    "lockstep run -n auto --no-prefix -- python3 train.py",
    "lockstep run -n 2 --transport tcp --format json ./trainer",
    NULL,
};

static const ls__option options[] = {
    {.group = "Ranks",
     .name = "ranks",
     .letter = 'n',
     .kind = LS__OPTION_RANKS,
     .placeholder = "N",
     .at = offsetof(run_settings, ranks),
     .help = "how many; auto: one for each core. --nproc-per-node means the same"},
    {.name = "nproc-per-node",
     .kind = LS__OPTION_RANKS,
     .placeholder = "N",
     .at = offsetof(run_settings, ranks)},
    {.name = "bind",
     .kind = LS__OPTION_CHOICE,
     .choices = "core|none",
     .at = offsetof(run_settings, bind),
     .fallback = "core",
     .help = "core: divide the cores among the ranks, none where ranks outnumber cores"},
    LS__OPTION_ROW_TRANSPORT(run_settings),
    {.group = "Output",
     .name = "prefix",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(run_settings, prefix),
     .help = "put [rank 0] in front of every line [when there are several ranks]"},
    {.name = "no-prefix",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(run_settings, no_prefix),
     .help = "leave the lines as they are; they still come whole"},
    LS__OPTION_ROW_FORMAT(run_settings,
                          "how the job ended, as one JSON object on the last line of stdout"),
    {.group = "Ending",
     .name = "grace",
     .kind = LS__OPTION_REAL,
     .placeholder = "SECONDS",
     .at = offsetof(run_settings, grace),
     .low = 0.001,
     .high = 86400,
     .fallback = "0.5",
     .help = "when a rank failed, time for the others to end by themselves; then SIGTERM, and "
             "SIGKILL 0.4 s later"},
    {.name = "flight",
     .kind = LS__OPTION_TEXT,
     .placeholder = "DIR",
     .at = offsetof(run_settings, flight),
     .fallback = "LOCKSTEP_FLIGHT, else none is written",
     .help = "write the last operations of every rank there when the job ends, also of one that "
             "was killed; lockstep report --flight DIR tells what they say"},
    {.name = "stop-grace",
     .kind = LS__OPTION_REAL,
     .placeholder = "SECONDS",
     .at = offsetof(run_settings, stop_grace),
     .low = 0.001,
     .high = 86400,
     .fallback = "5",
     .help = "after Ctrl-C or SIGTERM, which the ranks get too, time until SIGKILL; a second "
             "Ctrl-C kills at once"},
};

static const ls__command command = {
    .name = "run",
    .usage = "lockstep run -n N [options] [--] PROGRAM [ARGUMENTS]",
    .summary =
        "Starts PROGRAM as N ranks on this machine. Each finds RANK, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR and the like in its environment, as under torchrun, and programs that "
        "use Lockstep meet through shared memory without any port. The first rank that "
        "fails ends the job and is reported with its last lines; nothing is left running, "
        "whatever happens to the launcher.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
    .stop_at_positional = true,
};

static int launch(run_settings *settings, char **argv) {
    if (settings->prefix && settings->no_prefix)
        return ls__usage_error(&command, "--prefix and --no-prefix contradict each other");
    if (!ls__transport_choose(&command, settings->transport_given, &settings->transport))
        return LS__EXIT_USAGE;
    const ls__launch_options how = {
        .command = "lockstep run",
        .ranks = (int)settings->ranks,
        .argv = argv,
        .transport = (ls__launch_transport)settings->transport,
        .prefix = settings->prefix      ? LS__LAUNCH_PREFIX_ALWAYS
                  : settings->no_prefix ? LS__LAUNCH_PREFIX_NEVER
                                        : LS__LAUNCH_PREFIX_AUTO,
        .unbound = settings->bind == 1,
        .grace_s = settings->grace,
        .stop_grace_s = settings->stop_grace,
        .json = settings->format == 1,
        .flight = settings->flight,
    };
    int code;
    ls_status status = ls__launch(&how, &code);
    if (status == LS_OK)
        return code;
    fprintf(stderr, "lockstep run: %s\n", ls_error_text());
    return code > LS__EXIT_FAILURE ? code : ls__cli_exit_code(status);
}

int ls__cli_run(int argc, char **argv) {
    run_settings settings = {.grace = 0.5, .stop_grace = 5};
    int first, code;
    if (!ls__options_parse(&command, argc, argv, &settings, &first, &code))
        return code;
    if (!settings.ranks)
        return ls__usage_error(&command, "say how many ranks: -n N");
    if (first >= argc)
        return ls__usage_error(&command, "say which program to run");
    return launch(&settings, argv + first);
}
