/* lockstep bench: finds what is to be measured, and reads its command line. */
#include "cli/bench.h"

#include "base/error.h"
#include "cli/bench_comm.h"
#include "cli/bench_overlap.h"
#include "nn/spec.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const examples[] = {
    "lockstep bench train --model cnn --batch 64",
    "lockstep bench train --model gpt2-124m --seq 64 --batch 4 --steps 5 --format json",
    NULL,
};

static const ls__option options[] = {
    LS__BENCH_ROW_MODEL(NULL, "what to train, as lockstep train takes it; a gpt needs its vocab"),
    LS__BENCH_ROW_BATCH("64", "images or sequences of one step, of all ranks together"),
    {.name = "seq",
     .placeholder = "T",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__bench_settings, seq),
     .min = 1,
     .max = 1 << 24,
     .fallback = "the model's context",
     .help = "tokens of a sequence: the model is made with this context"},
    LS__OPTION_ROW_RANKS(ls__bench_settings, "1",
                         "processes to train with on this machine, or auto: one for each core"),
    LS__OPTION_ROW_THREADS(ls__bench_settings),
    LS__OPTION_ROW_DTYPE(ls__bench_settings),
    {.name = "steps",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__bench_settings, steps),
     .min = 1,
     .max = 1 << 20,
     .fallback = "10",
     .help = "steps that are timed; up to 7 more follow a product and are not"},
    {.name = "warmup",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__bench_settings, warmup),
     .min = 0,
     .max = 1 << 20,
     .fallback = "2",
     .help = "steps before these"},
    LS__OPTION_ROW_TRANSPORT(ls__bench_settings),
    LS__OPTION_ROW_PROGRESS(ls__bench_settings),
    LS__OPTION_ROW_RECOMPUTE(ls__bench_settings),
    {.name = "profile",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__bench_settings, profile),
     .help = "time by operation, a table on stderr"},
    LS__OPTION_ROW_FORMAT(ls__bench_settings, "one object on one line"),
};

static const ls__command command = {
    .name = "bench train",
    .usage = "lockstep bench train --model SPEC [options]",
    .summary =
        "Times whole training steps on made-up data: forward, backward, reduction, update (AdamW "
        "for gpt, SGD with momentum for images). gflops counts the matrix products and "
        "convolutions that forward and backward need, a multiply-add as two; gpt: 6 x parameters "
        "x tokens + 12 x layers x width x context x tokens. peak_gflops is the matrix product "
        "of 1024 x 1024 x 1024 measured in the same processes, in turn with the steps, of both the median; share "
        "is gflops / peak_gflops. With several ranks both are sums over the ranks, step times are "
        "rank 0's and peak_rss_mb is that of the largest rank.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
};

/* What only the options together can tell. Returns the exit code, 0 when they fit. */
static int check_together(const ls__bench_settings *s) {
    if (!s->model)
        return ls__usage_error(&command, "--model is missing, for example --model cnn");
    if (!ls__is_rank() && s->batch % s->ranks != 0)
        return ls__usage_error(&command, "--batch %lld is no multiple of --ranks %lld",
                               (long long)s->batch, (long long)s->ranks);
    return 0;
}

static bool parse(int argc, char **argv, ls__bench_settings *s, int *code) {
    int first;
    if (!ls__options_parse(&command, argc, argv, s, &first, code))
        return false;
    *code = ls__transport_choose(&command, s->transport_given, &s->transport) ? check_together(s)
                                                                              : LS__EXIT_USAGE;
    return *code == 0;
}

/* The spec as the user gave it, or with the context that --seq asks for. */
static ls_status complete_spec(const ls__bench_settings *s, char text[LS__SPEC_TEXT]) {
    ls__spec spec;
    LS_TRY(ls__spec_parse(&spec, s->model, 0));
    if (s->seq && spec.kind != LS__GPT)
        return ls__fail(LS_ERR_ARGUMENT, "--seq %lld: %s has no context, only gpt has",
                        (long long)s->seq, spec.text);
    if (s->recompute && spec.kind != LS__GPT)
        return ls__fail(LS_ERR_ARGUMENT,
                        "--recompute: %s has no blocks to compute again, only gpt has", spec.text);
    snprintf(text, LS__SPEC_TEXT, "%s", spec.text);
    if (!s->seq)
        return LS_OK;
    int used =
        snprintf(text, LS__SPEC_TEXT, "gpt:layers=%zu,heads=%zu,width=%zu,context=%lld,vocab=%zu",
                 spec.layers, spec.heads, spec.width, (long long)s->seq, spec.vocab);
    if (spec.dropout > 0)
        snprintf(text + used, LS__SPEC_TEXT - (size_t)used, ",dropout=%.12f", spec.dropout);
    return LS_OK;
}

int ls__bench_train(int argc, char **argv, int full_argc, char **full_argv) {
    static const char name[] = "lockstep bench train";
    ls__bench_settings settings = {.batch = 64, .ranks = 1, .threads = 1, .steps = 10, .warmup = 2};
    char spec[LS__SPEC_TEXT];
    int code;
    if (!parse(argc, argv, &settings, &code))
        return code;
    ls_status status = complete_spec(&settings, spec);
    if (status == LS_OK && settings.ranks > 1 && !ls__is_rank())
        return ls__cli_launch_self(name, settings.ranks, settings.transport, full_argc, full_argv);
    if (status == LS_OK)
        status = ls__bench_train_run(&settings, spec);
    return status == LS_OK ? LS__EXIT_OK : ls__cli_report(name, status);
}

static void print_help(FILE *file) {
    fputs("Usage: lockstep bench train --model SPEC [options]\n"
          "       lockstep bench overlap [options]\n"
          "       lockstep bench OPERATION [options]\n"
          "       lockstep bench --explain [options]   which way an all_reduce goes, and why\n"
          "\n"
          "  train                whole training steps on made-up data\n"
          "  scaling              one job of R ranks against R independent replicas\n"
          "  checkpoint           what saving beside training costs\n"
          "  overlap              how much of the reduction hides behind backward\n"
          "\n"
          "Operations between ranks, checked and timed\n",
          file);
    for (const ls__bench_operation *const *row = ls__bench_operations(); *row; row++)
        fprintf(file, "  %-20s %s\n", (*row)->name, (*row)->what);
    fputs("\nlockstep bench train --help and lockstep bench all_reduce --help list the options.\n",
          file);
}

static int unknown(const char *name) {
    const char *names[64] = {"train", "scaling", "overlap", "checkpoint"};
    const ls__bench_operation *const *rows = ls__bench_operations();
    for (size_t i = 0; rows[i] && i + 5 < sizeof names / sizeof names[0]; i++)
        names[i + 4] = rows[i]->name;
    const char *nearest = ls__nearest(name, names);
    fprintf(stderr,
            "lockstep bench: unknown benchmark %.60s%s%s%s (lockstep bench --help lists all)\n",
            name, nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    return LS__EXIT_USAGE;
}

int ls__cli_bench(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return LS__EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return LS__EXIT_OK;
    }
    if (strcmp(argv[1], "train") == 0)
        return ls__bench_train(argc - 1, argv + 1, argc, argv);
    if (strcmp(argv[1], "scaling") == 0)
        return ls__bench_scaling(argc - 1, argv + 1, argc, argv);
    if (strcmp(argv[1], "checkpoint") == 0)
        return ls__bench_checkpoint(argc - 1, argv + 1, argc, argv);
    if (strcmp(argv[1], "overlap") == 0)
        return ls__bench_overlap(argc - 1, argv + 1, argc, argv);
    if (strcmp(argv[1], "--explain") == 0) /* which is about all_reduce */
        return ls__bench_comm(ls__bench_operation_find("all_reduce"), argc, argv, argc, argv);
    const ls__bench_operation *operation = ls__bench_operation_find(argv[1]);
    return operation ? ls__bench_comm(operation, argc - 1, argv + 1, argc, argv) : unknown(argv[1]);
}
