/* lockstep bench OPERATION: its command line. */
#include "cli/bench_comm.h"

#include "base/error.h"
#include "cli/options.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* "4,64K,25M": bytes, K, M and G are powers of 1024. */
static bool parse_sizes(const char *text, ls__bench_comm_settings *s) {
    static const size_t largest = (size_t)1 << 40;
    s->sizes = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        unsigned long long bytes = strtoull(at, &end, 10);
        const char *units = "KMG", *unit = *end ? strchr(units, *end) : NULL;
        int shift = unit ? 10 * (int)(unit - units + 1) : 0;
        if (errno || end == at || *at < '0' || *at > '9' || bytes == 0 ||
            bytes > largest >> shift || s->sizes == LS__BENCH_SIZES_MAX)
            return false;
        s->size[s->sizes++] = (size_t)bytes << shift;
        at = unit ? end + 1 : end;
        if (*at == '\0')
            return true;
        if (*at != ',')
            return false;
    }
}

/* Options that say nothing about this operation. Returns the exit code, 0 where there is none. */
static int check_apply(const ls__command *command, const ls__bench_comm_settings *s) {
    const ls__bench_operation *o = s->operation;
    const bool sums_in_one_pass = strncmp(o->name, "all_reduce", 10) == 0;
    const struct {
        bool given, applies;
        const char *option, *why;
    } rows[] = {
        {s->op_given, ls__bench_reduces(o), "--op", "it reduces nothing"},
        {s->root_given, o->rooted, "--root", "all its ranks do the same"},
        {s->sizes_given, !o->empty, "--sizes", "it moves nothing"},
        {s->dtype_given, !o->empty, "--dtype", "it moves nothing"},
        {s->registered, !o->empty, "--registered", "it has no buffers"},
        {s->in_place, o->in_place != LS__BENCH_IN_PLACE_NEVER, "--in-place",
         "it has no form in place"},
        {s->floor, sums_in_one_pass, "--floor", "it is the floor of all_reduce"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].given && !rows[i].applies)
            return ls__usage_error(command, "%s does not apply to %s: %s", rows[i].option, o->name,
                                   rows[i].why);
    return 0;
}

/* --explain asks for sizes and memory alone, and measures no call. */
static int check_uses(const ls__command *command, const ls__bench_comm_settings *s) {
    const char *measured = "the measurement, which --explain does not make";
    const ls__option_use uses[] = {
        {s->store != NULL, s->explain, "--store", "--explain"},
        {s->dtype_given, !s->explain, "--dtype", measured},
        {s->op_given, !s->explain, "--op", measured},
        {s->in_place, !s->explain, "--in-place", measured},
        {s->iterations > 0, !s->explain, "--iterations", measured},
        {s->warmup >= 0, !s->explain, "--warmup", measured},
        {s->floor, !s->explain, "--floor", measured},
    };
    return ls__options_check_uses(command, uses, sizeof uses / sizeof uses[0]);
}

/* What only the options together can tell. Returns the exit code, 0 when they fit. */
static int check_together(const ls__command *command, const ls__bench_comm_settings *s) {
    bool is_float = s->dtype <= LS_BF16;
    const int code = check_apply(command, s);
    if (code)
        return code;
    if (s->operation->weighted && !is_float)
        return ls__usage_error(command, "%s wants a float --dtype", s->operation->name);
    if (s->operation->weighted && s->op != LS_SUM)
        return ls__usage_error(command, "%s sums: --op does not apply", s->operation->name);
    if (!ls__is_rank() && s->root >= s->ranks)
        return ls__usage_error(command, "--root %lld, but the ranks are 0 to %lld",
                               (long long)s->root, (long long)s->ranks - 1);
    if (s->explain && strncmp(s->operation->name, "all_reduce", 10) != 0)
        return ls__usage_error(
            command, "--explain knows all_reduce only: the other operations have one way each");
    return check_uses(command, s);
}

static const char summary[] =
    "Times one collective of ranks on this machine, which it starts, in the manner of nccl-tests. First "
    "one call is compared with the exact result, bit by bit; then calls run one after the other, and the "
    "time of each is that of the slowest rank. algbw is the size over the median time, where the size is "
    "that of the larger buffer of a rank; busbw is algbw times the traffic a rank cannot avoid, as in "
    "nccl-tests: 2 (n - 1) / n for all_reduce, (n - 1) / n for reduce_scatter and all_gather. Registered "
    "memory comes from ls_group_alloc, which all local ranks map: no copies. --floor is what the "
    "machine can do: all ranks at once read as many bytes of their send buffer, add and write them to their recv "
    "buffer, without any exchange, through the caches or past them, whichever is faster.";

static const char *const examples[] = {
    "lockstep bench all_reduce --ranks 2 --sizes 4,1M,25M --registered --floor",
    "lockstep bench all_reduce --ranks 4 --transport tcp --explain",
    "lockstep bench all_gather --ranks 4 --transport tcp --dtype bf16 --format json",
    NULL,
};

#define DEFAULT_SIZES "4,1K,64K,1M,25M"

static const ls__option options[] = {
    {.name = "sizes",
     .placeholder = "BYTES,...",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__bench_comm_settings, size_list),
     .given = 1 + offsetof(ls__bench_comm_settings, sizes_given),
     .fallback = DEFAULT_SIZES,
     .help = "of the larger buffer of a rank; K, M, G multiply by 1024; whole blocks are taken"},
    LS__OPTION_ROW_RANKS(ls__bench_comm_settings, "2",
                         "processes to start on this machine, or auto: one for each core"),
    {.name = "dtype",
     .kind = LS__OPTION_CHOICE,
     .at = offsetof(ls__bench_comm_settings, dtype),
     .given = 1 + offsetof(ls__bench_comm_settings, dtype_given),
     .choices = "f32|f64|f16|bf16|i8|u8|i32|i64",
     .fallback = "f32",
     .help = "of the elements"},
    {.name = "op",
     .kind = LS__OPTION_CHOICE,
     .at = offsetof(ls__bench_comm_settings, op),
     .given = 1 + offsetof(ls__bench_comm_settings, op_given),
     .choices = "sum|product|min|max|avg",
     .fallback = "sum",
     .help = "the reduction, of operations that reduce"},
    {.name = "root",
     .placeholder = "RANK",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__bench_comm_settings, root),
     .given = 1 + offsetof(ls__bench_comm_settings, root_given),
     .min = 0,
     .max = 1 << 20,
     .fallback = "0",
     .help = "of operations where one rank is apart"},
    LS__OPTION_ROW_TRANSPORT(ls__bench_comm_settings),
    {.name = "registered",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__bench_comm_settings, registered),
     .help = "buffers from ls_group_alloc; else ordinary memory"},
    {.name = "in-place",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__bench_comm_settings, in_place),
     .help = "send and receive in the same buffer"},
    {.name = "iterations",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__bench_comm_settings, iterations),
     .min = 1,
     .max = 1 << 24,
     .fallback = "by size",
     .help = "calls that are timed"},
    {.name = "warmup",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__bench_comm_settings, warmup),
     .min = 0,
     .max = 1 << 24,
     .fallback = "a tenth of these",
     .help = "calls before them"},
    {.name = "floor",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__bench_comm_settings, floor),
     .help = "measure the memory's speed too, and compare"},
    {.name = "explain",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__bench_comm_settings, explain),
     .help =
         "do not measure it: say which ways there are for each size, what each would take, which is "
         "chosen and why"},
    {.name = "store",
     .placeholder = "FILE",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__bench_comm_settings, store),
     .help = "with --explain: write what the network costs there, for LOCKSTEP_COST_TABLE"},
    LS__OPTION_ROW_FORMAT(ls__bench_comm_settings, "one object a line for each size"),
};

static bool parse(const ls__bench_operation *operation, int argc, char **argv,
                  ls__bench_comm_settings *s, int *code) {
    char name[64], usage[96];
    snprintf(name, sizeof name, "bench %s", operation->name);
    snprintf(usage, sizeof usage, "lockstep bench %s [options]", operation->name);
    const ls__command command = {
        .name = name,
        .usage = usage,
        .summary = summary,
        .options = options,
        .option_count = sizeof options / sizeof options[0],
        .examples = examples,
    };
    int first;
    if (!ls__options_parse(&command, argc, argv, s, &first, code))
        return false;
    *code = 0;
    if (!parse_sizes(s->size_list, s))
        *code = ls__usage_error(&command,
                                "--sizes %.60s: want up to %d numbers of bytes, 1 to 1024G, "
                                "separated by commas",
                                s->size_list, LS__BENCH_SIZES_MAX);
    else if (!ls__transport_choose(&command, s->transport_given, &s->transport))
        *code = LS__EXIT_USAGE;
    else
        *code = check_together(&command, s);
    return *code == 0;
}

int ls__bench_comm(const ls__bench_operation *operation, int argc, char **argv, int full_argc,
                   char **full_argv) {
    ls__bench_comm_settings settings = {
        .operation = operation, .size_list = DEFAULT_SIZES, .ranks = 2, .warmup = -1};
    char name[64];
    int code;
    if (!parse(operation, argc, argv, &settings, &code))
        return code;
    snprintf(name, sizeof name, "lockstep bench %s", operation->name);
    if (settings.ranks > 1 && !ls__is_rank())
        return ls__cli_launch_self(name, settings.ranks, settings.transport, full_argc, full_argv);
    ls_status status = ls__bench_comm_run(&settings);
    return status == LS_OK ? LS__EXIT_OK : ls__cli_report(name, status);
}
