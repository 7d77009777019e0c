/* lockstep bench overlap: its command line. */
#include "cli/bench_overlap.h"

#include "base/error.h"

static const char summary[] =
    "How much of the reduction of gradients hides behind backward. Ranks sleep instead of computing, "
    "layer by layer as a timeline says, and report each gradient to the reducer when its time has come; "
    "so the result does not depend on cores. transfer is the time of reducing all gradients at once, the "
    "fastest of two tries before the first step. hideable is what the best schedule could hide: bytes go "
    "one after the other at the rate of transfer, each not before its gradient is complete; what that "
    "leaves after backward (the tail) nobody can hide. A step's exposed time is what it takes longer than "
    "forward and backward, on the slowest rank; hidden is transfer minus exposed, and share is hidden / "
    "hideable. The first step counts: the reducer is new there. Then the same without overlap, where all "
    "gradients are reported when backward has ended.";

static const char *const examples[] = {
    "lockstep bench overlap --ranks 2 --backward 1",
    "lockstep bench overlap --timeline resnet.json --backward 0 --format json",
    "# FILE: {\"forward_ms\": 5, \"backward\": [{\"name\": \"fc\", \"elements\": 1000, \"ms\": 2.5}, ...]},",
    "# in the order of backward; after its ms the gradient of a layer's elements (f32) is complete;",
    "# \"columns\": 10 makes a matrix of them, for --compress powersgd",
    "bench/overlap  # two hosts with a link of 1 Gbit/s, 2 ranks on each",
    NULL,
};

static const ls__option options[] = {
    {.name = "timeline",
     .placeholder = "FILE",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__overlap_settings, timeline),
     .fallback = "GPT-2 of 124 million parameters",
     .help = "layers and their times, JSON"},
    {.name = "backward",
     .placeholder = "RATIO",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__overlap_settings, ratio),
     .low = 0,
     .high = 1000,
     .fallback = "1",
     .help = "stretch the timeline until backward takes RATIO times the transfer; 0: as it is"},
    {.name = "overlap",
     .kind = LS__OPTION_CHOICE,
     .at = offsetof(ls__overlap_settings, mode),
     .choices = "both|on|off",
     .fallback = "both",
     .help = "which steps to run"},
    {.name = "steps",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__overlap_settings, steps),
     .min = 1,
     .max = 1 << 20,
     .fallback = "3",
     .help = "steps of each kind"},
    LS__OPTION_ROW_RANKS(ls__overlap_settings, "2",
                         "processes to start on this machine, or auto: one for each core"),
    {.name = "first-bucket",
     .placeholder = "BYTES",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__overlap_settings, first_bucket),
     .min = 64,
     .max = (int64_t)1 << 40,
     .fallback = "the reducer's",
     .help = "size of the first bucket"},
    {.name = "bucket",
     .placeholder = "BYTES",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__overlap_settings, bucket),
     .min = 64,
     .max = (int64_t)1 << 40,
     .fallback = "the reducer's",
     .help = "size of the others"},
    {.name = "compress",
     .placeholder = "HOOK",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__overlap_settings, compress),
     .fallback = "none",
     .help = "as lockstep train --compress; transfer is the time with it"},
    LS__OPTION_ROW_TRANSPORT(ls__overlap_settings),
    LS__OPTION_ROW_PROGRESS(ls__overlap_settings),
    LS__OPTION_ROW_FORMAT(ls__overlap_settings,
                          "an object a line for each step, and one at the end"),
};

static const ls__command command = {
    .name = "bench overlap",
    .usage = "lockstep bench overlap [options]",
    .summary = summary,
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
};

int ls__bench_overlap(int argc, char **argv, int full_argc, char **full_argv) {
    static const char name[] = "lockstep bench overlap";
    ls__overlap_settings settings = {.ratio = 1, .ranks = 2, .steps = 3, .compress = "none"};
    int first, code;
    if (!ls__options_parse(&command, argc, argv, &settings, &first, &code))
        return code;
    if (!ls__transport_choose(&command, settings.transport_given, &settings.transport))
        return LS__EXIT_USAGE;
    ls__timeline timeline;
    ls_status status = ls__timeline_read(&timeline, settings.timeline);
    if (status == LS_OK && settings.ranks > 1 && !ls__is_rank())
        code = ls__cli_launch_self(name, settings.ranks, settings.transport, full_argc, full_argv);
    else if (status == LS_OK && (status = ls__bench_overlap_run(&settings, &timeline)) == LS_OK)
        code = LS__EXIT_OK;
    if (status != LS_OK)
        code = ls__cli_report(name, status);
    ls__timeline_free(&timeline);
    return code;
}
