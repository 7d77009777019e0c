/* Starting the ranks and the event loop that watches them. */
#include "launch/launch.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "comm/shm/segment.h"
#include "launch/binding.h"
#include "launch/environment.h"
#include "launch/exit_code.h"
#include "launch/job.h"
#include "launch/shim.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TICK_MS = 20, SINK_FULL = 256 << 10, READ_BYTES = 64 << 10 };

/* --- the event loop -------------------------------------------------------------------------------- */

static void settle(ls__launch_job *job);

static void on_tick(uv_timer_t *timer) {
    settle(timer->data);
}

static void finish_stream(ls__stream *stream) {
    if (!stream->open)
        return;
    stream->open = false;
    ls__lines_finish(&stream->lines);
    uv_close((uv_handle_t *)&stream->pipe, NULL);
}

static void on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *buffer) {
    (void)handle;
    (void)wanted;
    buffer->base = malloc(READ_BYTES);
    buffer->len = buffer->base ? READ_BYTES : 0;
}

static void on_read(uv_stream_t *pipe, ssize_t bytes, const uv_buf_t *buffer) {
    ls__stream *stream = pipe->data;
    ls__launch_job *job = stream->rank->job;
    if (bytes > 0) {
        ls__lines_feed(&stream->lines, buffer->base, (size_t)bytes);
        stream->rank->cut_ns = ls__deadline_ns(LS__CUT_S);
    } else if (bytes < 0 && bytes != UV_ENOBUFS) {
        finish_stream(stream);
    }
    free(buffer->base);
    settle(job);
}

static void pause_reading(ls__launch_job *job, bool pause) {
    if (job->paused == pause)
        return;
    job->paused = pause;
    for (int i = 0; i < job->started; i++) {
        for (int s = 0; s < LS__STREAMS; s++) {
            ls__stream *stream = &job->ranks[i].streams[s];
            if (stream->open && pause)
                uv_read_stop((uv_stream_t *)&stream->pipe);
            else if (stream->open)
                uv_read_start((uv_stream_t *)&stream->pipe, on_alloc, on_read);
        }
    }
}

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
            if (!job->stop_signal)
                ls__job_stop(job, SIGPIPE);
        }
    }
    if (full || empty)
        pause_reading(job, full);
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
                finish_stream(&rank->streams[s]);
        }
    }
}

static void close_job(ls__launch_job *job) {
    job->closing = true;
    uv_close((uv_handle_t *)&job->tick, NULL);
    for (size_t i = 0; i < sizeof job->signals / sizeof job->signals[0]; i++)
        uv_close((uv_handle_t *)&job->signals[i], NULL);
}

/* Called after everything that happened: sends on output, meets deadlines, sees the end. */
static void settle(ls__launch_job *job) {
    if (job->closing)
        return;
    bool waiting = ls__job_meet_deadlines(job);
    cut_streams(job);
    bool empty = flush(job);
    if (job->running == 0 && !waiting && empty) {
        close_job(job);
        return;
    }
    bool tick = waiting || !empty;
    if (tick && !job->ticking)
        uv_timer_start(&job->tick, on_tick, TICK_MS, TICK_MS);
    else if (!tick && job->ticking)
        uv_timer_stop(&job->tick);
    job->ticking = tick;
}

static void on_exit_of_rank(uv_process_t *process, int64_t exit_code, int signal_number) {
    ls__rank *rank = process->data;
    rank->exit_code = (int)exit_code;
    rank->signal = signal_number;
    uv_close((uv_handle_t *)process, NULL);
    ls__job_rank_exited(rank);
    settle(rank->job);
}

static void on_signal(uv_signal_t *handle, int signal_number) {
    ls__launch_job *job = handle->data;
    ls__job_stop(job, signal_number);
    settle(job);
}

const char *ls__launch_self(void) {
    const char *path = "/proc/self/exe"; /* also right when the file was moved or replaced */
    /* the kernel hands over the path as a number: NOLINTNEXTLINE(performance-no-int-to-ptr) */
    return access(path, X_OK) == 0 ? path : (const char *)getauxval(AT_EXECFN);
}

/* --- starting -------------------------------------------------------------------------------------- */

static void rank_prefix(const ls__launch_job *job, int rank, int fd, char *prefix) {
    const ls__launch_options *options = job->options;
    const char *no_color = getenv("NO_COLOR");
    prefix[0] = '\0';
    if (options->prefix == LS__LAUNCH_PREFIX_NEVER || options->rank0_speaks ||
        (options->prefix == LS__LAUNCH_PREFIX_AUTO && options->ranks == 1))
        return;
    if (isatty(fd) && !(no_color && *no_color))
        snprintf(prefix, LS__PREFIX_BYTES, "\x1b[%dm[rank %d]\x1b[0m ", 31 + rank % 6, rank);
    else
        snprintf(prefix, LS__PREFIX_BYTES, "[rank %d] ", rank);
}

static void open_lines(ls__rank *rank, int s) {
    ls__launch_job *job = rank->job;
    ls__lines_mode mode = LS__LINES_WHOLE;
    char prefix[LS__PREFIX_BYTES];
    rank_prefix(job, rank->number, s == LS__STDOUT ? STDOUT_FILENO : STDERR_FILENO, prefix);
    /* nobody else's lines can come in between: prompts and progress lines appear at once */
    if (rank->number == 0 && !*prefix && (job->options->ranks == 1 || job->options->rank0_speaks))
        mode = LS__LINES_RAW;
    else if (job->options->rank0_speaks)
        mode = LS__LINES_KEEP;
    ls__lines_open(&rank->streams[s].lines, mode,
                   s == LS__STDOUT ? &job->sinks[LS__STDOUT] : job->error_sink, prefix);
}

/* Makes the rank's pipe: *write_end is for the rank, the other end is read by the loop. */
static ls_status open_stream(ls__rank *rank, int s, int *write_end) {
    ls__stream *stream = &rank->streams[s];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "cannot make a pipe for rank %d", rank->number);
    uv_pipe_init(&rank->job->loop, &stream->pipe, 0);
    stream->open = true;
    stream->rank = rank;
    stream->pipe.data = stream;
    open_lines(rank, s);
    *write_end = ends[1];
    int error = uv_pipe_open(&stream->pipe, ends[0]);
    if (error == 0)
        error = uv_read_start((uv_stream_t *)&stream->pipe, on_alloc, on_read);
    if (error == 0)
        return LS_OK;
    return ls__fail(LS_ERR_SYSTEM, "cannot read from rank %d: %s", rank->number,
                    uv_strerror(error));
}

static char **shim_arguments(const ls__launch_job *job, const char *path, char *cores, char *pid) {
    size_t count = 0;
    while (job->options->argv[count])
        count++;
    char **arguments = calloc(count + LS__SHIM_ARGV + 2, sizeof(char *));
    if (!arguments)
        return NULL;
    arguments[0] = "lockstep";
    char **shim = arguments + 1;
    shim[0] = LS__LAUNCH_SHIM;
    shim[LS__SHIM_PARENT] = pid;
    shim[LS__SHIM_LAST_FD] = job->segment_fd >= 0 ? "4" : "3";
    shim[LS__SHIM_CORES] = cores ? cores : "-";
    shim[LS__SHIM_PATH] = (char *)path;
    memcpy(shim + LS__SHIM_ARGV, job->options->argv, count * sizeof(char *));
    return arguments;
}

static ls_status spawn(ls__rank *rank, char **arguments, char **environment, const int *ends) {
    ls__launch_job *job = rank->job;
    uv_stdio_container_t stdio[] = {
        {.flags = rank->number == 0 ? UV_INHERIT_FD : UV_IGNORE, .data.fd = STDIN_FILENO},
        {.flags = UV_INHERIT_FD, .data.fd = ends[LS__STDOUT]},
        {.flags = UV_INHERIT_FD, .data.fd = ends[LS__STDERR]},
        {.flags = job->board_fd >= 0 ? UV_INHERIT_FD : UV_IGNORE, .data.fd = job->board_fd},
        {.flags = UV_INHERIT_FD, .data.fd = job->segment_fd},
    };
    const uv_process_options_t options = {
        .exit_cb = on_exit_of_rank,
        .file = ls__launch_self(),
        .args = arguments,
        .env = environment,
        .flags = UV_PROCESS_DETACHED, /* a session of its own */
        .stdio_count = job->segment_fd >= 0 ? 5 : 4,
        .stdio = stdio,
    };
    rank->process.data = rank;
    int error = uv_spawn(&job->loop, &rank->process, &options);
    if (error) {
        const char *hint = error == UV_EAGAIN   ? "; ulimit -u bounds the processes"
                           : error == UV_EMFILE ? "; ulimit -n bounds the open files"
                                                : "";
        uv_close((uv_handle_t *)&rank->process, NULL);
        return ls__fail(LS_ERR_SYSTEM, "cannot start rank %d of %d: %s%s", rank->number,
                        job->options->ranks, uv_strerror(error), hint);
    }
    rank->pid = rank->process.pid;
    job->running++;
    ls__watcher_add(&job->watcher, rank->pid);
    return LS_OK;
}

static ls_status start_rank(ls__rank *rank, const char *path, char *cores, char **environment) {
    ls__launch_job *job = rank->job;
    char pid[16];
    int ends[LS__STREAMS] = {-1, -1};
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    char **arguments = shim_arguments(job, path, cores, pid);
    ls_status status = arguments ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory to start a rank");
    job->started++;
    for (int s = 0; s < LS__STREAMS && status == LS_OK; s++)
        status = open_stream(rank, s, &ends[s]);
    if (status == LS_OK)
        status = spawn(rank, arguments, environment, ends);
    for (int s = 0; s < LS__STREAMS; s++) {
        if (ends[s] >= 0)
            close(ends[s]);
    }
    free(arguments);
    return status;
}

static ls_status start_ranks(ls__launch_job *job, const char *path) {
    int count = job->options->ranks;
    ls__environment environment;
    char **cores = calloc((size_t)count, sizeof *cores);
    if (!cores)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d ranks", count);
    if (!job->options->unbound)
        ls__launch_divide_cores(cores, count); /* where it cannot, the ranks run unbound */
    ls_status status = ls__environment_create(&environment, job->options);
    for (int rank = 0; rank < count && status == LS_OK; rank++) {
        job->ranks[rank].job = job;
        job->ranks[rank].number = rank;
        status = ls__environment_set_rank(&environment, rank);
        if (status == LS_OK)
            status = start_rank(&job->ranks[rank], path, cores[rank], environment.entries);
    }
    for (int rank = 0; rank < count; rank++)
        free(cores[rank]);
    free(cores);
    ls__environment_destroy(&environment);
    return status;
}

static ls_status open_loop(ls__launch_job *job) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction hangup;
    sigaction(SIGHUP, NULL, &hangup);
    int error = uv_loop_init(&job->loop);
    if (error)
        return ls__fail(LS_ERR_SYSTEM, "cannot make an event loop: %s", uv_strerror(error));
    uv_timer_init(&job->loop, &job->tick);
    job->tick.data = job;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        uv_signal_init(&job->loop, &job->signals[i]);
        job->signals[i].data = job;
        /* nohup stays nohup */
        if (numbers[i] != SIGHUP || hangup.sa_handler != SIG_IGN)
            uv_signal_start(&job->signals[i], on_signal, numbers[i]);
    }
    return LS_OK;
}

/* Every rank costs two descriptors here; the loop, the watcher, the segment and a start under way some
 * more, without which libuv aborts. So all of them are tried before anything begins. */
static ls_status reserve_files(int ranks) {
    enum { OWN = 24 };
    struct rlimit limit = {0};
    size_t wanted = (size_t)ranks * LS__STREAMS + OWN, got = 0;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted + 64) {
        limit.rlim_cur = limit.rlim_max < wanted + 64 ? limit.rlim_max : wanted + 64;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    int *fds = calloc(wanted, sizeof *fds), error_number = 0;
    if (!fds)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d ranks", ranks);
    for (; got < wanted; got++) {
        fds[got] = got ? dup(fds[0]) : open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (fds[got] < 0) {
            error_number = errno;
            break;
        }
    }
    for (size_t i = 0; i < got; i++)
        close(fds[i]);
    free(fds);
    if (got == wanted)
        return LS_OK;
    return ls__fail_errno(
        LS_ERR_SYSTEM, error_number,
        "%d ranks want %zu more open files of the launcher, got %zu (ulimit -n is "
        "%llu)",
        ranks, wanted, got, (unsigned long long)limit.rlim_cur);
}

static ls_status open_job(ls__launch_job *job) {
    int ranks = job->options->ranks;
    ls__sink_open(&job->sinks[LS__STDOUT], STDOUT_FILENO);
    ls__sink_open(&job->sinks[LS__STDERR], STDERR_FILENO);
    job->error_sink = ls__sink_same(STDOUT_FILENO, STDERR_FILENO) ? &job->sinks[LS__STDOUT]
                                                                  : &job->sinks[LS__STDERR];
    job->ranks = calloc((size_t)ranks, sizeof *job->ranks);
    if (!job->ranks)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d ranks", ranks);
    LS_TRY(ls__watcher_start(&job->watcher, ranks));
    /* Without a board the ranks keep their records to themselves, and the report is shorter. */
    (void)ls__board_create(&job->board, ranks, &job->board_fd);
    if (job->options->transport != LS__LAUNCH_SHM)
        return LS_OK;
    ls_status status = ls__segment_create(&job->segment_fd, ranks);
    return status == LS_OK ? LS_OK : ls__fail_context(status, "transport shm (tcp is the other)");
}

static void free_job(ls__launch_job *job) {
    for (int i = 0; i < job->started; i++) {
        for (int s = 0; s < LS__STREAMS; s++)
            ls__lines_close(&job->ranks[i].streams[s].lines);
    }
    for (int s = 0; s < LS__STREAMS; s++)
        ls__sink_close(&job->sinks[s]);
    free(job->ranks);
    if (job->segment_fd >= 0)
        close(job->segment_fd);
    if (job->board_fd >= 0)
        close(job->board_fd);
    ls__board_close(&job->board, false);
    ls__watcher_stop(&job->watcher);
}

/* Runs the loop to the end of the job, also after a start that went wrong half-way. */
static ls_status run_loop(ls__launch_job *job, const char *path) {
    char text[1024];
    LS_TRY(open_loop(job));
    job->started_ns = ls__now_ns();
    ls_status status = start_ranks(job, path);
    if (status != LS_OK) {
        snprintf(text, sizeof text, "%s", ls_error_text());
        ls__job_signal_all(job, SIGKILL);
        for (int s = 0; job->started && s < LS__STREAMS; s++) {
            if (!job->ranks[job->started - 1].pid)
                finish_stream(&job->ranks[job->started - 1].streams[s]);
        }
    }
    settle(job);
    uv_run(&job->loop, UV_RUN_DEFAULT);
    uv_loop_close(&job->loop);
    return status == LS_OK ? ls__job_report(job) : ls__fail(status, "%s", text);
}

ls_status ls__launch(const ls__launch_options *options, int *exit_code) {
    *exit_code = LS__EXIT_FAILURE;
    if (options->ranks < 1 || options->ranks > LS__LAUNCH_MOST_RANKS)
        return ls__fail(LS_ERR_ARGUMENT, "launch: %d ranks, want 1 to %d", options->ranks,
                        LS__LAUNCH_MOST_RANKS);
    char *path =
        ls__program_find(options->program ? options->program : options->argv[0], exit_code);
    if (!path)
        return LS_ERR_ARGUMENT;
    ls__file_fill_standard();
    fflush(stdout);
    ls_status status = reserve_files(options->ranks);
    if (status != LS_OK) {
        free(path);
        return status;
    }
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    ls__launch_job job = {
        .options = options,
        .command = options->command ? options->command : "lockstep run",
        .watcher = {.pid = -1, .fd = -1},
        .segment_fd = -1,
        .board_fd = -1,
        .first_failure = -1,
    };
    status = open_job(&job);
    if (status == LS_OK)
        status = run_loop(&job, path);
    if (status == LS_OK)
        *exit_code = ls__job_exit_code(&job);
    free_job(&job);
    free(path);
    sigaction(SIGPIPE, &before, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    return status;
}
