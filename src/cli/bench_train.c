/* The measurement of `lockstep bench train`: one rank's. */
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/usage.h"
#include "cli/bench_common.h"
#include "cli/bench_rank.h"
#include "nn/flops.h"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct bench {
    ls__bench_rank rank;
    double *times; /* ms of each timed step */
} bench;

typedef struct figures {
    double step_ms, samples_per_s, gflops, peak_gflops, peak_rss_mb, memory_mb;
} figures;

/* The steps are cut into so many turns; after each comes the matrix product they are compared with. */
enum { TURNS = 8 };

/* All ranks at once, as in a step; the sum of theirs. */
static ls_status peak(bench *b, double *gflops) {
    LS_TRY(ls_barrier(b->rank.world));
    LS_TRY(ls__bench_peak(b->rank.device, b->rank.dtype, gflops));
    return ls_all_reduce(b->rank.world, gflops, gflops, 1, LS_F64, LS_SUM);
}

static ls_status timed_step(bench *b, size_t number, double *ms) {
    uint64_t begin = ls__now_ns();
    LS_TRY(ls__bench_rank_step(&b->rank, number));
    uint64_t nanoseconds = ls__now_ns() - begin;
    *ms = (double)nanoseconds / 1e6;
    if (b->rank.profile)
        ls__profile_report_step(b->rank.profile, nanoseconds, false);
    return LS_OK;
}

/* A step that counts nowhere. */
static ls_status idle_step(bench *b, size_t number) {
    ls__profile *profile = b->rank.step->profile;
    b->rank.step->profile = NULL;
    ls_status status = ls__bench_rank_step(&b->rank, number);
    b->rank.step->profile = profile;
    return status;
}

/* Of this process; MiB. */
static void measure_memory(figures *f) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    f->peak_rss_mb = (double)usage.ru_maxrss / 1024;
    f->memory_mb = (double)ls__usage_peak() / (1 << 20);
}

/* Fills b->times and sorts them. The machine's speed drifts, so steps and products take turns and of both the median
 * counts; the best product of a run against its median step would count the drift as the steps'. */
static ls_status measure_steps(bench *b, figures *f) {
    const size_t warmup = (size_t)b->rank.settings->warmup, steps = (size_t)b->rank.settings->steps;
    const size_t turns = steps < TURNS ? steps : TURNS;
    double peaks[TURNS];
    size_t number = 0;
    while (number < warmup)
        LS_TRY(idle_step(b, number++));
    for (size_t turn = 0, i = 0; turn < turns; turn++) {
        if (turn > 0) /* the product has taken the caches */
            LS_TRY(idle_step(b, number++));
        for (; i < steps * (turn + 1) / turns; i++)
            LS_TRY(timed_step(b, number++, &b->times[i]));
        if (turn == 0) /* the matrices of the product are no memory of the training */
            measure_memory(f);
        LS_TRY(peak(b, &peaks[turn]));
    }
    ls__bench_sort(b->times, steps);
    ls__bench_sort(peaks, turns);
    f->step_ms = ls__bench_median(b->times, steps);
    f->peak_gflops = ls__bench_median(peaks, turns);
    return LS_OK;
}

static ls_status measure(bench *b, figures *f) {
    const ls__bench_settings *s = b->rank.settings;
    LS_TRY(measure_steps(b, f));
    f->samples_per_s = (double)s->batch / f->step_ms * 1e3;
    f->gflops = ls__model_step_flops(b->rank.model, (size_t)s->batch) / f->step_ms / 1e6;
    double most[2] = {f->peak_rss_mb, f->memory_mb};
    LS_TRY(ls_all_reduce(b->rank.world, most, most, 2, LS_F64, LS_MAX));
    f->peak_rss_mb = most[0];
    f->memory_mb = most[1];
    return LS_OK;
}

static ls_status print_json(const bench *b, const figures *f) {
    const ls__bench_settings *s = b->rank.settings;
    size_t context = ls_model_context(b->rank.model);
    json_t *object = json_pack(
        "{s:s, s:I, s:o, s:I, s:I, s:s, s:b, s:I, s:I, s:f, s:f, s:o, s:f, s:f, s:f, s:f, s:f}",
        "model", ls_model_spec(b->rank.model), "batch", (json_int_t)s->batch, "seq",
        context ? json_integer((json_int_t)context) : json_null(), "ranks",
        (json_int_t)b->rank.ranks, "threads", (json_int_t)s->threads, "dtype",
        ls__cli_dtype_name(b->rank.dtype), "recompute", s->recompute, "params",
        (json_int_t)ls_model_element_count(b->rank.model), "steps", (json_int_t)s->steps,
        "step_ms_p50", f->step_ms, "samples_per_s", f->samples_per_s, "tokens_per_s",
        context ? json_real(f->samples_per_s * (double)context) : json_null(), "gflops", f->gflops,
        "peak_gflops", f->peak_gflops, "share", f->gflops / f->peak_gflops, "peak_rss_mb",
        f->peak_rss_mb, "memory_mb", f->memory_mb);
    return ls__json_write_line(stdout, "stdout", object);
}

static ls_status print(const bench *b, const figures *f) {
    const ls__bench_settings *s = b->rank.settings;
    if (s->format == 1)
        return print_json(b, f);
    size_t context = ls_model_context(b->rank.model);
    printf("model          %s, %zu parameters, %s%s\n", ls_model_spec(b->rank.model),
           ls_model_element_count(b->rank.model), ls__cli_dtype_name(b->rank.dtype),
           s->recompute ? ", recomputed" : "");
    printf("job            batch %lld, %d rank%s of %lld thread%s\n", (long long)s->batch,
           b->rank.ranks, b->rank.ranks == 1 ? "" : "s", (long long)s->threads,
           s->threads == 1 ? "" : "s");
    printf("step           %.2f ms, median of %lld (%.2f to %.2f)\n", f->step_ms,
           (long long)s->steps, b->times[0], b->times[s->steps - 1]);
    printf("throughput     %.1f samples/s", f->samples_per_s);
    if (context)
        printf(", %.0f tokens/s", f->samples_per_s * (double)context);
    printf("\narithmetic     %.1f GFLOP/s, %.1f %% of %.1f (matrix product)\n", f->gflops,
           100 * f->gflops / f->peak_gflops, f->peak_gflops);
    printf("peak memory    %.0f MiB%s\n", f->peak_rss_mb, b->rank.ranks == 1 ? "" : " a rank");
    return LS_OK;
}

static ls_status run(bench *b, const char *spec) {
    const ls__bench_settings *s = b->rank.settings;
    figures f = {0};
    LS_TRY(ls__bench_rank_join(&b->rank));
    if (s->batch % b->rank.ranks != 0)
        return ls__fail(LS_ERR_ARGUMENT, "--batch %lld is no multiple of the job's %d ranks",
                        (long long)s->batch, b->rank.ranks);
    b->times = calloc((size_t)s->steps, sizeof *b->times);
    if (!b->times)
        return ls__fail(LS_ERR_MEMORY, "no memory for the times of %lld steps",
                        (long long)s->steps);
    LS_TRY(
        ls__bench_rank_create(&b->rank, spec, b->rank.world, (size_t)(s->batch / b->rank.ranks)));
    LS_TRY(measure(b, &f));
    if (b->rank.rank == 0) {
        LS_TRY(print(b, &f));
        if (b->rank.profile)
            LS_TRY(ls__profile_report_finish(b->rank.profile, b->rank.device, b->rank.dtype, NULL));
    }
    return ls_barrier(b->rank.world);
}

ls_status ls__bench_train_run(const ls__bench_settings *settings, const char *spec) {
    bench b = {.rank = {.settings = settings, .command = "lockstep bench train"}};
    ls__kept_error kept = ls__cli_keep(run(&b, spec));
    free(b.times);
    ls__bench_rank_close(&b.rank);
    return ls__cli_restore(&kept);
}
