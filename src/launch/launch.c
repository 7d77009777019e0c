/* The event loop that watches the ranks, and what surrounds it. */
#include "launch/launch.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "comm/heartbeat.h"
#include "launch/exit_code.h"
#include "launch/job.h"
#include "launch/program.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

enum { TICK_MS = 20, MONITOR_MS = 100, SINK_FULL = 256 << 10 };

/* --- the event loop -------------------------------------------------------------------------------- */

/* Sends on what the ranks wrote; true when all of it is out. */
static bool flush(ls__launch_job *job) {
    bool empty = true, full = false;
    for (int s = 0; s < LS__STREAMS; s++) {
        ls__sink *sink = &job->sinks[s];
        ls__sink_flush(sink);
        empty &= ls__sink_waiting(sink) == 0;
        full |= ls__sink_waiting(sink) >= SINK_FULL;
        if (sink->error && !job->write_error) {
            job->write_error = sink->error;
            job->unsettled = true;
            if (!job->signal)
                ls__member_signal(job, SIGPIPE);
        }
    }
    if (full || empty)
        ls__job_pause_reading(job, full);
    return empty;
}

/* Pipes that nobody of the rank's group can hold any more, but somebody does. */
static void cut_streams(ls__launch_job *job) {
    uint64_t now = ls__now_ns();
    for (int i = 0; i < job->started; i++) {
        ls__rank *rank = &job->ranks[i];
        if (job->paused && rank->leftover_ns != UINT64_MAX) { /* nobody reads: give them time */
            rank->leftover_ns = ls__deadline_ns(LS__LEFTOVER_S);
            rank->cut_ns = ls__deadline_ns(LS__CUT_S);
        }
        if (rank->exited && !rank->group_left && now >= rank->cut_ns) {
            for (int s = 0; s < LS__STREAMS; s++)
                ls__stream_finish(&rank->streams[s]);
        }
    }
}

static void close_job(ls__launch_job *job) {
    job->closing = true;
    uv_close((uv_handle_t *)&job->tick, NULL);
    ls__signals_close(&job->signals);
}

static void on_tick(uv_timer_t *timer) {
    ls__job_settle(timer->data);
}

static void set_tick(ls__launch_job *job, int ms) {
    if (ms && ms != job->tick_ms)
        uv_timer_start(&job->tick, on_tick, (uint64_t)ms, (uint64_t)ms);
    else if (!ms && job->tick_ms)
        uv_timer_stop(&job->tick);
    job->tick_ms = ms;
}

/* Once: sends on output, meets deadlines, hears the meeting. True when that may have changed something. */
static bool settle_once(ls__launch_job *job, int *ms) {
    *ms = ls__member_look(job); /* first: what it orders sets deadlines */
    bool waiting = ls__job_meet_deadlines(job);
    cut_streams(job);
    bool empty = flush(job);
    if (waiting || !empty)
        *ms = TICK_MS;
    if (job->options->monitor_s > 0 && job->in_round) {
        ls__job_monitor(job);
        *ms = *ms && *ms < MONITOR_MS ? *ms : MONITOR_MS;
    }
    if (job->in_round && job->running == 0 && !waiting && empty) {
        job->in_round = false;
        ls__member_round_over(job);
        return true;
    }
    if (job->over && !job->in_round && empty)
        close_job(job);
    return false;
}

/* What it calls may call it: then it goes round once more. */
void ls__job_settle(ls__launch_job *job) {
    int ms = 0;
    job->unsettled = true;
    if (job->settling)
        return;
    job->settling = true;
    while (job->unsettled && !job->closing) {
        job->unsettled = false;
        job->unsettled |= settle_once(job, &ms);
    }
    job->settling = false;
    if (!job->closing)
        set_tick(job, ms);
}

static void on_signal(uv_signal_t *handle, int signal_number) {
    ls__launch_job *job = handle->data;
    if (signal_number == SIGCHLD) {
        ls__job_reap(job);
        ls__orphans_reap(job);
    } else if (signal_number == SIGUSR1 || signal_number == SIGUSR2) {
        ls__job_forward(job, signal_number);
    } else {
        ls__member_signal(job, signal_number);
    }
    ls__job_settle(job);
}

const char *ls__launch_self(void) {
    const char *path = "/proc/self/exe"; /* also right when the file was moved or replaced */
    /* the kernel hands over the path as a number: NOLINTNEXTLINE(performance-no-int-to-ptr) */
    return access(path, X_OK) == 0 ? path : (const char *)getauxval(AT_EXECFN);
}

/* --- opening and closing --------------------------------------------------------------------------- */

static ls_status open_loop(ls__launch_job *job) {
    int error = uv_loop_init(&job->loop);
    if (error)
        return ls__fail(LS_ERR_SYSTEM, "cannot make an event loop: %s", uv_strerror(error));
    uv_timer_init(&job->loop, &job->tick);
    job->tick.data = job;
    ls__signals_open(&job->signals, &job->loop, on_signal, job);
    return LS_OK;
}

static ls_status open_job(ls__launch_job *job) {
    ls__sink_open(&job->sinks[LS__STDOUT], STDOUT_FILENO);
    ls__sink_open(&job->sinks[LS__STDERR], STDERR_FILENO);
    job->error_sink = ls__sink_same(STDOUT_FILENO, STDERR_FILENO) ? &job->sinks[LS__STDOUT]
                                                                  : &job->sinks[LS__STDERR];
    LS_TRY(ls__orphans_open(&job->orphans));
    return ls__watcher_start(&job->watcher, job->options->ranks);
}

static void free_job(ls__launch_job *job) {
    ls__job_free_ranks(job);
    for (int s = 0; s < LS__STREAMS; s++)
        ls__sink_close(&job->sinks[s]);
    ls__watcher_stop(&job->watcher);
    ls__orphans_close(&job->orphans);
}

/* From the first call of the other launchers, or the start of the ranks, to the end. */
static ls_status run_job(ls__launch_job *job) {
    LS_TRY(open_loop(job));
    ls_status status = ls__member_open(job);
    if (status != LS_OK) {
        job->status = status;
        snprintf(job->error, sizeof job->error, "%s", ls_error_text());
        close_job(job);
    }
    uv_run(&job->loop, UV_RUN_NOWAIT); /* a signal that came before comes before the ranks */
    ls__job_settle(job);
    uv_run(&job->loop, UV_RUN_DEFAULT);
    ls__member_close(job);
    uv_run(&job->loop, UV_RUN_DEFAULT); /* handles that were closed just now */
    uv_loop_close(&job->loop);
    return job->status == LS_OK ? LS_OK : ls__fail(job->status, "%s", job->error);
}

static ls__launch_options with_defaults(const ls__launch_options *given) {
    ls__launch_options options = *given;
    if (!options.command)
        options.command = "lockstep run";
    if (options.grace_s <= 0)
        options.grace_s = LS__LAUNCH_GRACE_S;
    if (options.fail_grace_s <= 0)
        options.fail_grace_s = LS__LAUNCH_FAIL_GRACE_S;
    if (options.join_timeout_s <= 0)
        options.join_timeout_s = LS__LAUNCH_JOIN_TIMEOUT_S;
    return options;
}

/* The job from end to end; what this process did with SIGPIPE and orphans, it does again when that is over. */
static ls_status launch_program(const ls__launch_options *options, const char *path,
                                const sigset_t *rank_mask, double stopped_s, int *exit_code) {
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    ls__launch_job job = {
        .options = options,
        .command = options->command,
        .path = path,
        .rank_mask = rank_mask,
        .stopped_s = stopped_s,
        .watcher = {.pid = -1, .fd = -1},
        .plan = {.listener = -1},
        .segment_fd = -1,
        .board_fd = -1,
        .first_failure = -1,
        .code = LS__EXIT_FAILURE,
    };
    ls_status status = open_job(&job);
    if (status == LS_OK) {
        ls__job_flight_check(&job);
        status = run_job(&job);
    }
    *exit_code = status == LS_OK ? job.code : LS__EXIT_FAILURE;
    free_job(&job);
    sigaction(SIGPIPE, &before, NULL);
    return status;
}

static ls_status launch(const ls__launch_options *options, const sigset_t *rank_mask,
                        int *exit_code) {
    double stopped_s;
    LS_TRY(ls__launch_check(options));
    LS_TRY(ls__heartbeat_limit(0, &stopped_s));
    char *path =
        ls__program_find(options->program ? options->program : options->argv[0], exit_code);
    if (!path)
        return LS_ERR_ARGUMENT;
    ls__file_fill_standard();
    fflush(stdout);
    ls_status status = launch_program(options, path, rank_mask, stopped_s, exit_code);
    free(path);
    return status;
}

ls_status ls__launch(const ls__launch_options *given, int *exit_code) {
    const ls__launch_options options = with_defaults(given);
    sigset_t before;
    *exit_code = LS__EXIT_FAILURE;
    ls__signals_hold(&before);
    ls_status status = launch(&options, &before, exit_code);
    ls__signals_release(&before);
    return status;
}
