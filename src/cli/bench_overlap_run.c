/* The measurement of `lockstep bench overlap`, one rank's. */
#include "cli/bench_overlap.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/bench_common.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

typedef struct bench {
    const ls__overlap_settings *settings;
    ls__timeline *timeline;
    ls_job *job;
    ls_group *world;
    ls_reducer *reducer;
    size_t *parameter; /* (timeline->count) the reducer's number of each layer; SIZE_MAX: none */
    size_t buckets;
    double transfer_ms, hideable_ms;
    double *step_ms[2]; /* (steps) without and with overlap */
} bench;

/* --- a step ------------------------------------------------------------------------------------- */

static void sleep_until(uint64_t when_ns) {
    const struct timespec when = {.tv_sec = (time_t)(when_ns / 1000000000),
                                  .tv_nsec = (long)(when_ns % 1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL) == EINTR)
        ;
}

static ls_status report_ready(bench *b, size_t layer) {
    return b->parameter[layer] == SIZE_MAX ? LS_OK
                                           : ls_reducer_ready(b->reducer, b->parameter[layer]);
}

/* What ls_reducer_ready takes is the reducer's time, not backward's: backward goes on later by as much. */
static ls_status backward(bench *b, bool overlap, uint64_t begin_ns) {
    uint64_t now = begin_ns;
    for (size_t i = 0; i < b->timeline->count; i++) {
        now += (uint64_t)(b->timeline->layer[i].ms * 1e6);
        sleep_until(now);
        if (!overlap)
            continue;
        uint64_t before = ls__now_ns();
        LS_TRY(report_ready(b, i));
        now += ls__now_ns() - before;
    }
    for (size_t i = 0; !overlap && i < b->timeline->count; i++)
        LS_TRY(report_ready(b, i));
    return LS_OK;
}

/* *ms: the time of the step on the slowest rank; `computes`: with forward and backward. */
static ls_status run_step(bench *b, bool computes, bool overlap, double *ms) {
    ls_reducer_report report;
    LS_TRY(ls_barrier(b->world));
    uint64_t begin = ls__now_ns(), forward = (uint64_t)(b->timeline->forward_ms * 1e6);
    LS_TRY(ls_reducer_begin(b->reducer, 1));
    if (computes) {
        sleep_until(begin + forward);
        LS_TRY(backward(b, overlap, begin + forward));
    } else
        for (size_t i = 0; i < b->timeline->count; i++)
            LS_TRY(report_ready(b, i));
    LS_TRY(ls_reducer_wait(b->reducer, &report));
    *ms = (double)(ls__now_ns() - begin) / 1e6;
    b->buckets = report.bucket_count;
    return ls_all_reduce(b->world, ms, ms, 1, LS_F64, LS_MAX);
}

/* --- the reducer -------------------------------------------------------------------------------- */

/* As ddp makes it: the order of backward is known before the first step reduces. */
static ls_status open_reducer(bench *b, ls_reducer_param *params) {
    const ls__timeline *t = b->timeline;
    size_t count = 0;
    ls_reducer_hook *hook;
    LS_TRY(ls_hook_create(&hook, b->settings->compress));
    for (size_t i = 0; i < t->count; i++) {
        b->parameter[i] = t->layer[i].elements ? count : SIZE_MAX;
        if (t->layer[i].elements)
            params[count++] = (ls_reducer_param){
                .name = t->layer[i].name, .dtype = LS_F32, .shape = t->layer[i].shape, .dims = 2};
    }
    const ls_reducer_options options = {.first_bucket_bytes = (size_t)b->settings->first_bucket,
                                        .bucket_bytes = (size_t)b->settings->bucket,
                                        .progress = (ls_progress)b->settings->progress,
                                        .hook = hook};
    ls_status status = ls_reducer_create(&b->reducer, b->world, params, count, &options);
    if (status != LS_OK) {
        ls_hook_destroy(hook);
        return status;
    }
    size_t *order = calloc(count, sizeof *order);
    if (!order)
        return ls__fail(LS_ERR_MEMORY, "bench overlap: out of memory");
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    status = ls_reducer_set_order(b->reducer, order);
    free(order);
    return status;
}

static ls_status new_reducer(bench *b) {
    ls_reducer_param *params = calloc(b->timeline->count, sizeof *params);
    ls_reducer_destroy(b->reducer);
    b->reducer = NULL;
    ls_status status =
        params ? open_reducer(b, params) : ls__fail(LS_ERR_MEMORY, "bench overlap: out of memory");
    free(params);
    return status;
}

/* --- printing, rank 0 ---------------------------------------------------------------------------- */

static void print_head(const bench *b) {
    const ls__timeline *t = b->timeline;
    double backward_ms = ls__timeline_backward_ms(t);
    printf(
        "%s: %.1f MB of gradients in %zu buckets, %d ranks over %s\n"
        "transfer %.1f ms (%.0f MB/s), forward %.1f ms, backward %.1f ms\n"
        "hideable %.1f ms: %.1f ms of the transfer are left after backward by the best schedule\n"
        "%6s %8s %11s %11s %11s %8s\n",
        b->settings->timeline ? b->settings->timeline : "GPT-2 124M",
        (double)ls__timeline_bytes(t) / 1e6, b->buckets, ls_group_size(b->world),
        ls_job_transport(b->job), b->transfer_ms,
        (double)ls__timeline_bytes(t) / b->transfer_ms / 1e3, t->forward_ms, backward_ms,
        b->hideable_ms, b->transfer_ms - b->hideable_ms, "step", "overlap", "step ms", "exposed ms",
        "hidden ms", "share");
}

static ls_status print_step(const bench *b, int64_t step, bool overlap, double ms) {
    double exposed = ms - b->timeline->forward_ms - ls__timeline_backward_ms(b->timeline);
    double hidden = b->transfer_ms - exposed, share = hidden / b->hideable_ms;
    if (b->settings->format)
        return ls__json_write_line(stdout, "stdout",
                                   json_pack("{s:s, s:I, s:b, s:f, s:f, s:f, s:o}", "event", "step",
                                             "step", (json_int_t)step, "overlap", overlap,
                                             "step_ms", ms, "exposed_ms", exposed, "hidden_ms",
                                             hidden, "share", ls__json_real(share)));
    printf("%6lld %8s %11.1f %11.1f %11.1f", (long long)step, overlap ? "on" : "off", ms, exposed,
           hidden);
    if (overlap)
        printf(" %7.1f%%", 100 * share);
    putchar('\n');
    fflush(stdout);
    return LS_OK;
}

static ls_status print_end(bench *b) {
    const ls__overlap_settings *s = b->settings;
    double median[2];
    for (int i = 0; i < 2; i++) {
        ls__bench_sort(b->step_ms[i], (size_t)s->steps);
        median[i] = ls__bench_median(b->step_ms[i], (size_t)s->steps);
    }
    double off = median[0], on = median[1];
    double gain = off > 0 && on > 0 ? 1 - on / off : NAN;
    if (s->format)
        return ls__json_write_line(
            stdout, "stdout",
            json_pack("{s:s, s:s, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:o}", "event", "summary",
                      "transport", ls_job_transport(b->job), "ranks", ls_group_size(b->world),
                      "bytes", (json_int_t)ls__timeline_bytes(b->timeline), "buckets",
                      (json_int_t)b->buckets, "transfer_ms", b->transfer_ms, "forward_ms",
                      b->timeline->forward_ms, "backward_ms", ls__timeline_backward_ms(b->timeline),
                      "hideable_ms", b->hideable_ms, "gain", ls__json_real(gain)));
    if (isfinite(gain))
        printf("overlap takes %.1f %% off the step: %.1f ms become %.1f (medians)\n", 100 * gain,
               off, on);
    return LS_OK;
}

/* --- the whole ------------------------------------------------------------------------------------ */

static ls_status calibrate(bench *b) {
    LS_TRY(new_reducer(b));
    b->transfer_ms = INFINITY;
    for (int i = 0; i < 2; i++) {
        double ms;
        LS_TRY(run_step(b, false, false, &ms));
        b->transfer_ms = fmin(b->transfer_ms, ms);
    }
    if (b->settings->ratio > 0)
        ls__timeline_scale(b->timeline, b->settings->ratio * b->transfer_ms);
    b->hideable_ms = b->transfer_ms - ls__timeline_tail_ms(b->timeline, b->transfer_ms);
    return LS_OK;
}

static ls_status run_steps(bench *b, bool overlap) {
    LS_TRY(new_reducer(b));
    for (int64_t step = 0; step < b->settings->steps; step++) {
        double *ms = &b->step_ms[overlap][step];
        LS_TRY(run_step(b, true, overlap, ms));
        if (ls_group_rank(b->world) == 0)
            LS_TRY(print_step(b, step + 1, overlap, *ms));
    }
    return LS_OK;
}

static ls_status run(bench *b) {
    const ls__overlap_settings *s = b->settings;
    b->parameter = calloc(b->timeline->count, sizeof *b->parameter);
    b->step_ms[0] = calloc((size_t)s->steps, sizeof(double));
    b->step_ms[1] = calloc((size_t)s->steps, sizeof(double));
    if (!b->parameter || !b->step_ms[0] || !b->step_ms[1])
        return ls__fail(LS_ERR_MEMORY, "bench overlap: out of memory");
    LS_TRY(ls__bench_join(&b->job, "lockstep bench overlap", s->ranks_given, s->ranks));
    b->world = ls_job_world(b->job);
    int rank = ls_group_rank(b->world);
    LS_TRY(calibrate(b));
    if (rank == 0 && !s->format)
        print_head(b);
    if (s->mode != LS__OVERLAP_OFF)
        LS_TRY(run_steps(b, true));
    if (s->mode != LS__OVERLAP_ON)
        LS_TRY(run_steps(b, false));
    if (rank == 0)
        LS_TRY(print_end(b));
    ls_reducer_destroy(b->reducer);
    b->reducer = NULL;
    return ls_barrier(b->world);
}

ls_status ls__bench_overlap_run(const ls__overlap_settings *settings, ls__timeline *timeline) {
    bench b = {.settings = settings, .timeline = timeline};
    ls__kept_error kept = ls__cli_keep(run(&b));
    ls_job_finish(b.job);
    free(b.parameter);
    free(b.step_ms[0]);
    free(b.step_ms[1]);
    return ls__cli_restore(&kept);
}
