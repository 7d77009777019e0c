/* The measurement of `lockstep bench train`: one rank's. The path is the one that training takes: ddp,
 * reducer, optimizer; only the data is made up, so that no loader takes part. */
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/bench.h"
#include "cli/profile.h"
#include "nn/flops.h"
#include "tensor/tensor.h"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Batches taken in turn. */
enum { BATCHES = 2 };

typedef struct bench {
    const ls__bench_settings *settings;
    ls_job *job;
    ls_group *world;
    int ranks;
    ls_device *device;
    ls_dtype dtype; /* that is computed in */
    ls_model *model;
    ls_ddp *ddp;
    ls_optimizer *optimizer;
    ls_step *step;
    size_t batch;                /* samples of this rank */
    size_t inputs, targets;      /* elements of one sample */
    void *input[BATCHES];        /* f32 (batch, inputs), or I32 tokens */
    int32_t *target[BATCHES];    /* (batch, targets) */
    uint64_t *samples;           /* global numbers of this rank's samples */
    double *times;               /* ms of each timed step */
    ls__profile_report *profile; /* with --profile */
    double optimizer_bytes;      /* ls__profile_optimizer_bytes */
} bench;

typedef struct figures {
    double step_ms, samples_per_s, gflops, peak_gflops, peak_rss_mb;
} figures;

static void log_line(void *context, ls_log_level level, const char *line) {
    (void)context;
    (void)level;
    fprintf(stderr, "lockstep bench train: %s\n", line);
}

static ls_status create(bench *b, const char *spec) {
    const ls__bench_settings *s = b->settings;
    const ls_job_options job = {.log = log_line};
    LS_TRY(ls_job_init(&b->job, &job));
    b->world = ls_job_world(b->job);
    b->ranks = ls_group_size(b->world);
    if (s->ranks_given && s->ranks != b->ranks)
        return ls__fail(LS_ERR_ARGUMENT, "--ranks %lld inside of a job of WORLD_SIZE %d",
                        (long long)s->ranks, b->ranks);
    if (s->batch % b->ranks != 0)
        return ls__fail(LS_ERR_ARGUMENT, "--batch %lld is no multiple of the job's %d ranks",
                        (long long)s->batch, b->ranks);
    b->batch = (size_t)(s->batch / b->ranks);
    LS_TRY(ls_device_cpu(&b->device, (int)s->threads));
    b->dtype = ls__cli_dtype_choose("lockstep bench train", b->device, s->dtype,
                                    ls_group_rank(b->world) == 0);
    const ls_model_options model = {.device = b->device, .seed = 1};
    LS_TRY(ls_model_create(&b->model, spec, &model));
    const ls_ddp_options ddp = {.reducer = {.progress = (ls_progress)s->progress}};
    LS_TRY(ls_ddp_create(&b->ddp, b->model, b->world, &ddp));
    bool tokens = ls_model_context(b->model) > 0;
    const ls_optimizer_options optimizer = {
        .kind = tokens ? LS_ADAMW : LS_SGD,
        .momentum = tokens ? 0 : 0.9,
        .weight_decay = tokens ? 0.1 : 0,
    };
    LS_TRY(ls_optimizer_create(&b->optimizer, b->model, &optimizer));
    b->optimizer_bytes = ls__profile_optimizer_bytes(&optimizer, ls_model_element_count(b->model));
    const ls_step_options step = {.device = b->device, .seed = 1};
    LS_TRY(ls_step_create(&b->step, &step));
    if (s->profile && !(b->profile = calloc(1, sizeof *b->profile)))
        return ls__fail(LS_ERR_MEMORY, "--profile: out of memory");
    b->step->profile = b->profile ? &b->profile->profile : NULL;
    return LS_OK;
}

static uint32_t random_below(size_t limit, uint64_t stream, uint64_t index) {
    uint32_t words[4];
    ls_random_u32x4(2, stream, index, words);
    return (uint32_t)(((uint64_t)words[0] * limit) >> 32);
}

/* Images of uniform noise, labels and tokens uniform too; equal on every run. */
static ls_status create_data(bench *b) {
    size_t context = ls_model_context(b->model), classes = ls_model_classes(b->model);
    b->inputs = context ? context : ls_model_input_elements(b->model);
    b->targets = context ? context : 1;
    uint64_t rank = (uint64_t)ls_group_rank(b->world);
    size_t inputs = b->batch * b->inputs, targets = b->batch * b->targets;
    b->samples = calloc(b->batch, sizeof *b->samples);
    b->times = calloc((size_t)b->settings->steps, sizeof *b->times);
    for (size_t n = 0; n < BATCHES; n++) {
        b->input[n] = calloc(inputs, sizeof(float));
        b->target[n] = calloc(targets, sizeof(int32_t));
        if (!b->samples || !b->times || !b->input[n] || !b->target[n])
            return ls__fail(LS_ERR_MEMORY, "no memory for a batch of %zu samples", b->batch);
        uint64_t stream = rank * BATCHES + n;
        for (size_t i = 0; i < targets; i++)
            b->target[n][i] = (int32_t)random_below(classes, stream, i);
        for (size_t i = 0; i < inputs; i++) {
            if (context)
                ((int32_t *)b->input[n])[i] = (int32_t)random_below(classes, stream, targets + i);
            else
                ((float *)b->input[n])[i] =
                    (float)random_below(1 << 16, stream, targets + i) / 32768 - 1;
        }
    }
    for (size_t i = 0; i < b->batch; i++)
        b->samples[i] = rank * b->batch + i;
    return LS_OK;
}

static ls_status run_step(bench *b, size_t number) {
    bool tokens = ls_model_context(b->model) > 0;
    const ls_step_mode mode = {.training = true,
                               .recompute = b->settings->recompute,
                               .compute = b->dtype,
                               .samples = b->samples,
                               .sample_count = b->batch};
    const size_t shape[2] = {b->batch, b->inputs}, rows[2] = {b->batch, b->targets};
    LS_TRY(ls_ddp_begin(b->ddp, (double)(b->batch * b->targets)));
    LS_TRY(ls_step_begin(b->step, &mode));
    ls_tensor *x =
        ls_tensor_wrap(b->step, b->input[number % BATCHES], tokens ? LS_I32 : LS_F32, shape, 2);
    ls_tensor *y =
        ls_tensor_wrap(b->step, b->target[number % BATCHES], LS_I32, rows, tokens ? 2 : 1);
    ls_tensor *loss = ls_model_loss(b->step, b->model, x, y, NULL);
    LS_TRY(ls_step_status(b->step));
    LS_TRY(ls_ddp_backward(b->ddp, b->step, loss));
    LS_TRY(ls_ddp_wait(b->ddp, NULL));
    ls__profile_add(b->step->profile, "wait for ranks", LS__PASS_UPDATE, 0, 0);
    LS_TRY(ls_optimizer_step(b->optimizer, tokens ? 1e-4 : 1e-3, NULL));
    ls__profile_add(b->step->profile, "optimizer", LS__PASS_UPDATE, 0, b->optimizer_bytes);
    return LS_OK;
}

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The median; sorts. */
static double median(double *times, size_t count) {
    qsort(times, count, sizeof *times, compare_times);
    return count % 2 ? times[count / 2] : (times[count / 2 - 1] + times[count / 2]) / 2;
}

/* All ranks at once, as in a step; the sum of theirs. */
static ls_status peak(bench *b, double *gflops) {
    LS_TRY(ls_barrier(b->world));
    LS_TRY(ls__bench_peak(b->device, b->dtype, gflops));
    return ls_all_reduce(b->world, gflops, gflops, 1, LS_F64, LS_SUM);
}

static ls_status measure(bench *b, figures *f) {
    const ls__bench_settings *s = b->settings;
    double before, after;
    LS_TRY(peak(b, &before));
    size_t warmup = (size_t)s->warmup, steps = (size_t)s->steps;
    for (size_t i = 0; i < warmup + steps; i++) {
        uint64_t begin = ls__now_ns();
        LS_TRY(run_step(b, i));
        uint64_t nanoseconds = ls__now_ns() - begin;
        if (i >= warmup)
            b->times[i - warmup] = (double)nanoseconds / 1e6;
        if (b->profile)
            ls__profile_report_step(b->profile, nanoseconds, i < warmup);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    LS_TRY(peak(b, &after));
    *f = (figures){.step_ms = median(b->times, steps),
                   .peak_gflops = before > after ? before : after,
                   .peak_rss_mb = (double)usage.ru_maxrss / 1024};
    f->samples_per_s = (double)s->batch / f->step_ms * 1e3;
    f->gflops = ls__model_step_flops(b->model, (size_t)s->batch) / f->step_ms / 1e6;
    return ls_all_reduce(b->world, &f->peak_rss_mb, &f->peak_rss_mb, 1, LS_F64, LS_MAX);
}

static ls_status print_json(const bench *b, const figures *f) {
    const ls__bench_settings *s = b->settings;
    size_t context = ls_model_context(b->model);
    json_t *object = json_pack(
        "{s:s, s:I, s:o, s:I, s:I, s:s, s:b, s:I, s:I, s:f, s:f, s:o, s:f, s:f, s:f, s:f}", "model",
        ls_model_spec(b->model), "batch", (json_int_t)s->batch, "seq",
        context ? json_integer((json_int_t)context) : json_null(), "ranks", (json_int_t)b->ranks,
        "threads", (json_int_t)s->threads, "dtype", ls__cli_dtype_name(b->dtype), "recompute",
        s->recompute, "params", (json_int_t)ls_model_element_count(b->model), "steps",
        (json_int_t)s->steps, "step_ms_p50", f->step_ms, "samples_per_s", f->samples_per_s,
        "tokens_per_s", context ? json_real(f->samples_per_s * (double)context) : json_null(),
        "gflops", f->gflops, "peak_gflops", f->peak_gflops, "share", f->gflops / f->peak_gflops,
        "peak_rss_mb", f->peak_rss_mb);
    return ls__json_write_line(stdout, "stdout", object);
}

static ls_status print(const bench *b, const figures *f) {
    const ls__bench_settings *s = b->settings;
    if (s->format == 1)
        return print_json(b, f);
    size_t context = ls_model_context(b->model);
    printf("model          %s, %zu parameters, %s%s\n", ls_model_spec(b->model),
           ls_model_element_count(b->model), ls__cli_dtype_name(b->dtype),
           s->recompute ? ", recomputed" : "");
    printf("job            batch %lld, %d rank%s of %lld thread%s\n", (long long)s->batch, b->ranks,
           b->ranks == 1 ? "" : "s", (long long)s->threads, s->threads == 1 ? "" : "s");
    printf("step           %.2f ms, median of %lld (%.2f to %.2f)\n", f->step_ms,
           (long long)s->steps, b->times[0], b->times[s->steps - 1]);
    printf("throughput     %.1f samples/s", f->samples_per_s);
    if (context)
        printf(", %.0f tokens/s", f->samples_per_s * (double)context);
    printf("\narithmetic     %.1f GFLOP/s, %.1f %% of %.1f (matrix product)\n", f->gflops,
           100 * f->gflops / f->peak_gflops, f->peak_gflops);
    printf("peak memory    %.0f MiB%s\n", f->peak_rss_mb, b->ranks == 1 ? "" : " a rank");
    return LS_OK;
}

static ls_status run(bench *b, const char *spec) {
    figures f;
    LS_TRY(create(b, spec));
    LS_TRY(create_data(b));
    LS_TRY(measure(b, &f));
    if (ls_group_rank(b->world) == 0) {
        LS_TRY(print(b, &f));
        if (b->profile)
            LS_TRY(ls__profile_report_finish(b->profile, b->device, b->dtype, NULL));
    }
    return ls_barrier(b->world);
}

ls_status ls__bench_train_run(const ls__bench_settings *settings, const char *spec) {
    bench b = {.settings = settings};
    ls_status status = run(&b, spec);
    char text[1024]; /* taking things down may fail as well; the first error counts */
    snprintf(text, sizeof text, "%s", ls_error_text());
    for (size_t n = 0; n < BATCHES; n++) {
        free(b.input[n]);
        free(b.target[n]);
    }
    free(b.samples);
    free(b.times);
    ls_step_destroy(b.step);
    free(b.profile);
    ls_optimizer_destroy(b.optimizer);
    ls_ddp_destroy(b.ddp);
    ls_model_destroy(b.model);
    ls_device_destroy(b.device);
    ls_job_finish(b.job);
    return status == LS_OK ? LS_OK : ls__fail(status, "%s", text);
}
