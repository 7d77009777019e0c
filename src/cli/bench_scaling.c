/* lockstep bench scaling: what it costs to be one job. The same processes, on the same cores and with the same
 * model, train in turn as R replicas that know nothing of each other (a ddp over a group of one each) and as
 * one data-parallel job. Caches, memory and clock are shared in both forms, so what the ratio of their speeds
 * lacks to 1 is the price of reducing and of waiting for each other. */
#include "cli/bench.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/bench_common.h"
#include "cli/bench_rank.h"
#include "nn/spec.h"
#include <stdlib.h>
#include <string.h>

/* What is measured without --model. */
typedef struct row {
    const char *name, *spec;
    int64_t batch; /* of a rank */
    double wanted; /* ratio on 2 ranks of one machine, a core each */
} row;

static const row rows[] = {
    {"gpt 10.8M", "gpt:layers=6,heads=6,width=384,context=256,vocab=65", 8, 0.97},
    {"cnn", "cnn", 64, 0.97},
    {"gpt2-124m", "gpt:layers=12,heads=12,width=768,context=64,vocab=50257", 4, 0.95},
    {"mlp", "mlp:784,1024,1024,10", 64, 0.85},
};

enum { ROW_COUNT = sizeof rows / sizeof rows[0], MAX_ROUNDS = 1000, WARMUP_SHARE = 10 };

static const char *const examples[] = {
    "lockstep bench scaling",
    "lockstep bench scaling --model cnn --batch 64 --ranks 2 --rounds 9",
    NULL,
};

static const ls__option options[] = {
    LS__BENCH_ROW_MODEL(
        "a set of four",
        "what to train, as lockstep train takes it, or the name of one of the set: gpt2-124m "
        "is there 4 sequences of 64 tokens; a gpt needs its vocab"),
    LS__BENCH_ROW_BATCH("64, the set's own", "images or sequences of one step of one rank"),
    LS__OPTION_ROW_RANKS(ls__bench_settings, "auto", "replicas, and ranks of the job"),
    LS__OPTION_ROW_THREADS(ls__bench_settings),
    LS__OPTION_ROW_DTYPE(ls__bench_settings),
    LS__BENCH_ROW_ROUNDS(MAX_ROUNDS, "15", "how often the two forms take turns"),
    {.name = "seconds",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__bench_settings, seconds),
     .low = 0.001,
     .high = 1000,
     .fallback = "0.4",
     .help = "of a turn, about; at least one step"},
    LS__OPTION_ROW_TRANSPORT(ls__bench_settings),
    LS__OPTION_ROW_PROGRESS(ls__bench_settings),
    LS__OPTION_ROW_FORMAT(ls__bench_settings, "one object a model"),
};

static const ls__command command = {
    .name = "bench scaling",
    .usage = "lockstep bench scaling [--model SPEC] [options]",
    .summary =
        "Compares one job of R ranks with R independent replicas that train at the same time in "
        "the same processes: both forms take turns, the ratio is the median over the rounds of "
        "the job's samples/s over those of all replicas together. wait is the time of a step in "
        "which a rank only waits for the reduction. Training steps as in bench train.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
};

/* --- one rank's measurement --- */

enum { APART, TOGETHER };

typedef struct bench {
    ls__bench_rank rank;
    ls_group *alone;                            /* of this rank only */
    double speed[2][MAX_ROUNDS];                /* samples/s of all ranks, by form and round */
    double ratio[MAX_ROUNDS], wait[MAX_ROUNDS]; /* of a step of the job, ms, mean of the ranks */
    size_t steps;                               /* of a turn */
} bench;

/* How many steps are a turn: by the slowest rank's, so that all do the same number. */
static ls_status choose_steps(bench *b) {
    double milliseconds = 0;
    for (size_t i = 0; i < 2; i++) { /* the first builds kernels */
        uint64_t begin = ls__now_ns();
        LS_TRY(ls__bench_rank_step(&b->rank, i));
        milliseconds = (double)(ls__now_ns() - begin) / 1e6;
    }
    LS_TRY(ls_all_reduce(b->rank.world, &milliseconds, &milliseconds, 1, LS_F64, LS_MAX));
    double steps = b->rank.settings->seconds * 1e3 / milliseconds;
    b->steps = steps < 1 ? 1 : steps > 1e6 ? 1000000 : (size_t)steps;
    return LS_OK;
}

/* A turn of one form. Its first steps do not count: the ddp is new, and so is its memory. */
static ls_status take_turn(bench *b, int form, size_t round) {
    LS_TRY(ls__bench_rank_regroup(&b->rank, form == APART ? b->alone : b->rank.world));
    for (size_t i = 0; i <= b->steps / WARMUP_SHARE; i++)
        LS_TRY(ls__bench_rank_step(&b->rank, i));
    LS_TRY(ls_barrier(b->rank.world));
    double wait = 0;
    uint64_t begin = ls__now_ns();
    for (size_t i = 0; i < b->steps; i++) {
        LS_TRY(ls__bench_rank_step(&b->rank, i));
        wait += b->rank.wait_ms;
    }
    double seconds = (double)(ls__now_ns() - begin) / 1e9;
    double sums[2] = {(double)(b->rank.batch * b->steps) / seconds,
                      wait / (double)b->steps / b->rank.ranks};
    LS_TRY(ls_all_reduce(b->rank.world, sums, sums, 2, LS_F64, LS_SUM));
    b->speed[form][round] = sums[0];
    if (form == TOGETHER)
        b->wait[round] = sums[1];
    return LS_OK;
}

static double sorted_median(double *values, size_t count) {
    ls__bench_sort(values, count);
    return ls__bench_median(values, count);
}

static ls_status measure(bench *b) {
    size_t rounds = (size_t)b->rank.settings->rounds;
    LS_TRY(choose_steps(b));
    for (size_t round = 0; round < rounds; round++) {
        int first = round % 2 ? TOGETHER : APART; /* a drift of the clock favours neither */
        LS_TRY(take_turn(b, first, round));
        LS_TRY(take_turn(b, first == APART ? TOGETHER : APART, round));
        b->ratio[round] = b->speed[TOGETHER][round] / b->speed[APART][round];
    }
    return LS_OK;
}

static ls_status print(bench *b, const row *what) {
    const ls__bench_settings *s = b->rank.settings;
    size_t rounds = (size_t)s->rounds;
    double ratio = sorted_median(b->ratio, rounds), wait = sorted_median(b->wait, rounds);
    double apart = sorted_median(b->speed[APART], rounds);
    double together = sorted_median(b->speed[TOGETHER], rounds);
    bool compared = what->wanted > 0 && b->rank.ranks == 2;
    if (s->format == 1)
        return ls__json_write_line(
            stdout, "stdout",
            json_pack("{s:s, s:I, s:i, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:o}",
                      "model", ls_model_spec(b->rank.model), "batch_per_rank",
                      (json_int_t)b->rank.batch, "ranks", b->rank.ranks, "transport",
                      ls_job_transport(b->rank.job), "dtype", ls__cli_dtype_name(b->rank.dtype),
                      "params", (json_int_t)ls_model_element_count(b->rank.model), "rounds",
                      (json_int_t)rounds, "steps", (json_int_t)b->steps, "replicas_samples_per_s",
                      apart, "job_samples_per_s", together, "ratio", ratio, "ratio_min",
                      b->ratio[0], "ratio_max", b->ratio[rounds - 1], "wait_ms", wait, "wanted",
                      compared ? json_real(what->wanted) : json_null()));
    printf("%-10.10s %6zu %6zu %12.1f %12.1f %8.4f %8.4f %8.4f %9.3f", what->name, b->rank.batch,
           b->steps, apart, together, ratio, b->ratio[0], b->ratio[rounds - 1], wait);
    if (compared)
        printf("   %.2f%s", what->wanted, ratio < what->wanted ? " *" : "");
    printf("\n");
    fflush(stdout);
    return LS_OK;
}

static ls_status run_row(bench *b, const row *what) {
    LS_TRY(ls__bench_rank_create(&b->rank, what->spec, b->rank.world, (size_t)what->batch));
    LS_TRY(measure(b));
    if (b->rank.rank == 0)
        LS_TRY(print(b, what));
    ls__bench_rank_drop(&b->rank);
    return ls_barrier(b->rank.world);
}

static ls_status run(bench *b) {
    const ls__bench_settings *s = b->rank.settings;
    LS_TRY(ls__bench_rank_join(&b->rank));
    LS_TRY(ls_group_split(b->rank.world, b->rank.rank, 0, &b->alone));
    if (b->rank.rank == 0 && s->format == 0)
        printf(
            "%d ranks over %s against as many replicas, %lld rounds in turn, medians; samples/s of all\n"
            "%-10s %6s %6s %12s %12s %8s %8s %8s %9s %8s\n",
            b->rank.ranks, ls_job_transport(b->rank.job), (long long)s->rounds, "model", "batch",
            "steps", "replicas", "one job", "ratio", "least", "most", "wait ms", "wanted");
    bool one = false;
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (s->model && strcmp(s->model, rows[i].name) != 0)
            continue;
        row what = rows[i];
        what.batch = s->batch ? s->batch : what.batch;
        LS_TRY(run_row(b, &what));
        one = true;
    }
    if (one)
        return LS_OK;
    const row what = {s->model, s->model, s->batch ? s->batch : 64, 0};
    return run_row(b, &what);
}

static ls_status run_rank(const ls__bench_settings *settings) {
    bench *b = calloc(1, sizeof *b);
    if (!b)
        return ls__fail(LS_ERR_MEMORY, "out of memory");
    b->rank.settings = settings;
    b->rank.command = "lockstep bench scaling";
    ls__kept_error kept = ls__cli_keep(run(b));
    ls__bench_rank_drop(&b->rank);
    ls_group_destroy(b->alone);
    ls__bench_rank_close(&b->rank);
    free(b);
    return ls__cli_restore(&kept);
}

int ls__bench_scaling(int argc, char **argv, int full_argc, char **full_argv) {
    ls__bench_settings settings = {
        .threads = 1, .rounds = 15, .seconds = 0.4, .progress = LS_PROGRESS_THREAD};
    int first, code;
    const char *why;
    if (!ls__options_parse(&command, argc, argv, &settings, &first, &code))
        return code;
    if (!ls__transport_choose(&command, settings.transport_given, &settings.transport))
        return LS__EXIT_USAGE;
    if (!settings.ranks_given && !ls__ranks_parse("auto", &settings.ranks, &why))
        return ls__usage_error(&command, "--ranks auto: %s", why);
    if (!ls__is_rank())
        return ls__cli_launch_self("lockstep bench scaling", settings.ranks, settings.transport,
                                   full_argc, full_argv);
    ls_status status = run_rank(&settings);
    return status == LS_OK ? LS__EXIT_OK : ls__cli_report("lockstep bench scaling", status);
}
