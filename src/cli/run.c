/* lockstep run: any program as ranks, on this machine or on several. */
#include "cli/commands.h"
#include "cli/options.h"
#include "comm/started_by.h"
#include "comm/transport.h"
#include "comm/variables.h"
#include "launch/launch.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct run_settings {
    int64_t ranks; /* 0: not given */
    bool transport_given, node_rank_given;
    int transport; /* ls__launch_transport */
    int bind, format;
    bool prefix, no_prefix, dry_run;
    double grace, fail_grace, join_timeout, monitor;
    int64_t node_rank, max_restarts;
    const char *nodes, *rendezvous, *rendezvous_file;
    const char *flight, *log_dir, *redirect, *tee;
} run_settings;

#define TEXT_OF(number) TEXT_OF_TOKEN(number)
#define TEXT_OF_TOKEN(token) #token

static const char *const examples[] = {
    "lockstep run -n 4 ./trainer --epochs 3",
    "lockstep run -n auto --no-prefix -- python3 train.py",
    "lockstep run -n 4 --max-restarts 3 -- lockstep train ... --resume auto",
    "# the same on each of two machines; whoever owns the address is where they meet",
    "LOCKSTEP_TOKEN=secret lockstep run -n 8 --nnodes 2 --rendezvous 10.0.0.1:29400 ./trainer",
    NULL,
};

static const ls__option options[] = {
    {.group = "Ranks",
     .name = "ranks",
     .letter = 'n',
     .kind = LS__OPTION_RANKS,
     .placeholder = "N",
     .at = offsetof(run_settings, ranks),
     .help =
         "how many (up to 256 over shared memory); auto: one for each core. --nproc-per-node means the same"},
    {.name = "nproc-per-node",
     .kind = LS__OPTION_RANKS,
     .placeholder = "N",
     .at = offsetof(run_settings, ranks)},
    {.name = "bind",
     .kind = LS__OPTION_CHOICE,
     .choices = "cores|numa|none",
     .at = offsetof(run_settings, bind),
     .fallback = "cores",
     .help =
         "cores: divide the cores among the ranks, unless ranks outnumber them; numa: a rank stays "
         "beside one memory"},
    LS__OPTION_ROW_TRANSPORT(run_settings),
    {.group = "Several machines",
     .name = "nnodes",
     .kind = LS__OPTION_TEXT,
     .placeholder = "N|MIN:MAX",
     .at = offsetof(run_settings, nodes),
     .fallback = "1",
     .help =
         "machines, each with a launcher of its own. MIN:MAX: the job goes on with those that are "
         "left, and takes in those that come (back); its ranks are stopped (SIGTERM), and begin again "
         "with another WORLD_SIZE"},
    {.name = "node-rank",
     .kind = LS__OPTION_INTEGER,
     .placeholder = "R",
     .at = offsetof(run_settings, node_rank),
     .given = 1 + offsetof(run_settings, node_rank_given),
     .min = 0,
     .max = LS__LAUNCH_MOST_NODES - 1,
     .fallback = "in the order of arrival",
     .help = "number of this machine; 0 is where the launchers meet"},
    {.name = "rendezvous",
     .kind = LS__OPTION_TEXT,
     .placeholder = "HOST:PORT",
     .at = offsetof(run_settings, rendezvous),
     .help =
         "where the launchers meet: an address of one of the machines, which listens there. Port 0 "
         "takes a free one and says which. LOCKSTEP_TOKEN has to be the same for all"},
    {.name = "rendezvous-file",
     .kind = LS__OPTION_TEXT,
     .placeholder = "FILE",
     .at = offsetof(run_settings, rendezvous_file),
     .help =
         "in place of --rendezvous and LOCKSTEP_TOKEN: node 0 writes there, for this user only, where "
         "it listens and a token made for the job; the others wait for it"},
    {.name = "join-timeout",
     .kind = LS__OPTION_REAL,
     .placeholder = "SECONDS",
     .at = offsetof(run_settings, join_timeout),
     .low = 0.1,
     .high = 86400,
     .fallback = TEXT_OF(LS__LAUNCH_JOIN_TIMEOUT_S),
     .help = "how long machines are waited for, at the start and when too few are left"},
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
    {.name = "log-dir",
     .kind = LS__OPTION_TEXT,
     .placeholder = "DIR",
     .at = offsetof(run_settings, log_dir),
     .help =
         "also write what each rank says into DIR/rank-N.out and DIR/rank-N.err; where that fails, the "
         "ranks go on and the exit code is 3"},
    {.name = "redirect",
     .kind = LS__OPTION_TEXT,
     .placeholder = "WHAT",
     .at = offsetof(run_settings, redirect),
     .help =
         "with --log-dir: none, out, err or both, or RANK:WHAT,...: what goes only into the files"},
    {.name = "tee",
     .kind = LS__OPTION_TEXT,
     .placeholder = "WHAT",
     .at = offsetof(run_settings, tee),
     .fallback = "both, without --redirect",
     .help = "with --log-dir: what goes into the files too; what --redirect names goes only there"},
    {.name = "monitor",
     .kind = LS__OPTION_REAL,
     .placeholder = "SECONDS",
     .at = offsetof(run_settings, monitor),
     .low = 0.1,
     .high = 86400,
     .help =
         "print a table of the ranks that often: state, processor time, memory, operations, phase"},
    {.name = "dry-run",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(run_settings, dry_run),
     .help = "print the ranks of this machine and their environment, and start nothing"},
    {.group = "Ending",
     .name = "grace",
     .kind = LS__OPTION_REAL,
     .placeholder = "SECONDS",
     .at = offsetof(run_settings, grace),
     .low = 0.001,
     .high = 86400,
     .fallback = TEXT_OF(LS__LAUNCH_GRACE_S),
     .help =
         "after Ctrl-C, SIGTERM or SIGHUP, of which the ranks get SIGINT or SIGTERM, time to finish and "
         "save until SIGKILL; a second Ctrl-C kills at once. SIGUSR1 and SIGUSR2 only go on to them"},
    {.name = "stop-grace", /* its name before there was one for failures */
     .kind = LS__OPTION_REAL,
     .placeholder = "SECONDS",
     .at = offsetof(run_settings, grace),
     .low = 0.001,
     .high = 86400},
    {.name = "fail-grace",
     .kind = LS__OPTION_REAL,
     .placeholder = "SECONDS",
     .at = offsetof(run_settings, fail_grace),
     .low = 0.001,
     .high = 86400,
     .fallback = TEXT_OF(LS__LAUNCH_FAIL_GRACE_S),
     .help = "when a rank failed, time for the others to end by themselves; then SIGTERM, and "
             "SIGKILL 0.4 s later"},
    {.name = "max-restarts",
     .kind = LS__OPTION_INTEGER,
     .placeholder = "N",
     .at = offsetof(run_settings, max_restarts),
     .min = 0,
     .max = 1000000,
     .fallback = "0",
     .help = "when a rank failed, start all of them again, so often at most; they find "
             "LOCKSTEP_RESTART_COUNT, and what they saved"},
    {.name = "flight",
     .kind = LS__OPTION_TEXT,
     .placeholder = "DIR",
     .at = offsetof(run_settings, flight),
     .fallback = "LOCKSTEP_FLIGHT, else none is written",
     .help = "write the last operations of every rank there when the job ends, also of one that "
             "was killed; lockstep report --flight DIR tells what they say"},
};

static const ls__command command = {
    .name = "run",
    .usage = "lockstep run -n N [options] [--] PROGRAM [ARGUMENTS]",
    .summary =
        "Starts PROGRAM as N ranks on this machine, or on each of several. Each finds RANK, WORLD_SIZE, LOCAL_RANK, "
        "MASTER_ADDR and the like in its environment, as under torchrun, and programs that "
        "use Lockstep meet through shared memory, on one machine without any port. The first rank that "
        "fails ends the job and is reported with its last lines; no rank is left running, "
        "whatever happens to the launcher.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
    .stop_at_positional = true,
};

/* "2" or "2:3" */
static bool parse_nodes(const char *text, int *min, int *max) {
    char *end;
    long low = strtol(text, &end, 10), high = low;
    if (end == text || *text < '0' || *text > '9')
        return false;
    if (*end == ':') {
        const char *second = end + 1;
        high = strtol(second, &end, 10);
        if (end == second || *second < '0' || *second > '9')
            return false;
    }
    *min = (int)low;
    *max = (int)high;
    return !*end && low >= 1 && low <= high && high <= LS__LAUNCH_MOST_NODES;
}

/* An option that was given and is for several machines; NULL: none. */
static const char *option_for_machines(const run_settings *settings) {
    return settings->rendezvous        ? "rendezvous"
           : settings->rendezvous_file ? "rendezvous-file"
           : settings->node_rank_given ? "node-rank"
                                       : NULL;
}

static bool want_nodes(const char *option) {
    ls__usage_error(&command,
                    "--%s is for several machines: say how many with --nnodes, or leave it out",
                    option);
    return false;
}

/* What contradicts something else, means nothing, or cannot be read. */
static bool check(const run_settings *settings, int *min_nodes, int *max_nodes) {
    *min_nodes = *max_nodes = 1;
    if (settings->prefix && settings->no_prefix)
        ls__usage_error(&command, "--prefix and --no-prefix contradict each other");
    else if (settings->dry_run && settings->format == 1)
        ls__usage_error(&command, "--format json says how a job ended, and --dry-run starts none: "
                                  "leave out one");
    else if (!settings->nodes && option_for_machines(settings))
        return want_nodes(option_for_machines(settings));
    else if (settings->nodes && !parse_nodes(settings->nodes, min_nodes, max_nodes))
        ls__usage_error(&command, "--nnodes '%s' is neither N nor MIN:MAX, of 1 to %d",
                        settings->nodes, LS__LAUNCH_MOST_NODES);
    else if (*max_nodes > 1 && !settings->rendezvous && !settings->rendezvous_file)
        ls__usage_error(&command,
                        "--nnodes %s: say where the launchers meet: --rendezvous HOST:PORT "
                        "or --rendezvous-file FILE",
                        settings->nodes);
    else if (settings->node_rank_given && settings->node_rank >= *max_nodes)
        ls__usage_error(&command, "--node-rank %d: want 0 to %d, as --nnodes has it",
                        (int)settings->node_rank, *max_nodes - 1);
    else
        return true;
    return false;
}

static ls__launch_options options_of(const run_settings *settings, char **argv) {
    return (ls__launch_options){
        .command = "lockstep run",
        .ranks = (int)settings->ranks,
        .argv = argv,
        .transport = (ls__launch_transport)settings->transport,
        .prefix = settings->prefix      ? LS__LAUNCH_PREFIX_ALWAYS
                  : settings->no_prefix ? LS__LAUNCH_PREFIX_NEVER
                                        : LS__LAUNCH_PREFIX_AUTO,
        .bind = (ls__launch_bind_to)settings->bind,
        .grace_s = settings->grace,
        .fail_grace_s = settings->fail_grace,
        .json = settings->format == 1,
        .flight = settings->flight,
        .log_dir = settings->log_dir,
        .redirect = settings->redirect,
        .tee = settings->tee,
        .monitor_s = settings->monitor,
        .max_restarts = (int)settings->max_restarts,
        .rendezvous = settings->rendezvous,
        .rendezvous_file = settings->rendezvous_file,
        .has_node_rank = settings->node_rank_given,
        .node_rank = (int)settings->node_rank,
        .join_timeout_s = settings->join_timeout,
    };
}

/* srun -N 2 --ntasks-per-node=1 lockstep run ...: each is the launcher of its machine, and all are of one job. Anything else
 * would be as many jobs. */
static bool join_slurm(const run_settings *settings, ls__launch_options *how, char *path,
                       size_t bytes) {
    if (settings->nodes)
        return true;
    if (ls__mpi_launcher()) {
        ls__usage_error(&command,
                        "mpirun has started several of this command: it starts ranks itself "
                        "(mpirun -n N PROGRAM), or say --nnodes and --rendezvous");
        return false;
    }
    if (!ls__started_by_slurm() || !ls__meet_path(path, bytes))
        return true;
    int nodes = 0;
    if (ls__variable_integer("SLURM_STEP_NUM_TASKS", 1, LS__LAUNCH_MOST_NODES, &nodes) != LS_OK ||
        ls__variable_integer("SLURM_PROCID", 0, nodes - 1, &how->node_rank) != LS_OK) {
        ls__usage_error(&command, "%s", ls_error_text());
        return false;
    }
    how->min_nodes = how->max_nodes = nodes;
    how->has_node_rank = true;
    how->rendezvous_file = path;
    return true;
}

static int launch(run_settings *settings, char **argv) {
    int min_nodes, max_nodes, code;
    char path[4096];
    if (!check(settings, &min_nodes, &max_nodes) ||
        !ls__transport_choose(&command, settings->transport_given, &settings->transport))
        return LS__EXIT_USAGE;
    ls__launch_options how = options_of(settings, argv);
    how.min_nodes = min_nodes;
    how.max_nodes = max_nodes;
    if (!join_slurm(settings, &how, path, sizeof path) ||
        (settings->join_timeout > 0 && !settings->nodes && !ls__launch_meets(&how) &&
         !want_nodes("join-timeout")))
        return LS__EXIT_USAGE;
    ls_status status =
        settings->dry_run ? ls__launch_dry_run(&how, &code) : ls__launch(&how, &code);
    if (status == LS_OK)
        return code;
    fprintf(stderr, "lockstep run: %s\n", ls_error_text());
    return code > LS__EXIT_FAILURE ? code : ls__cli_exit_code(status);
}

int ls__cli_run(int argc, char **argv) {
    run_settings settings = {0};
    int first, code;
    if (!ls__options_parse(&command, argc, argv, &settings, &first, &code))
        return code;
    if (!settings.ranks)
        return ls__usage_error(&command, "say how many ranks: -n N");
    if (first >= argc)
        return ls__usage_error(&command, "say which program to run");
    return launch(&settings, argv + first);
}
