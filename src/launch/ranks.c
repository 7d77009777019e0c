/* The ranks of one round on this machine: starting them, and reading what they write. */
#include "launch/job.h"

#include "base/clock.h"
#include "base/error.h"
#include "comm/shm/segment.h"
#include "launch/binding.h"
#include "launch/environment.h"
#include "launch/logs.h"
#include "launch/program.h"
#include "launch/stopped.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10 };

/* The ranks of a round, which live until libuv has closed the last of their handles. */
typedef struct rank_set {
    int handles; /* pipes */
    bool left;   /* the job needs them no more */
    int count;
    ls__rank rank[];
} rank_set;

static rank_set *set_of(ls__rank *first) {
    return (rank_set *)(void *)((char *)first - offsetof(rank_set, rank));
}

static void free_set(rank_set *set) {
    for (int i = 0; i < set->count; i++) {
        for (int s = 0; s < LS__STREAMS; s++) {
            ls__lines_close(&set->rank[i].streams[s].lines);
            ls__logs_close(&set->rank[i].streams[s]);
        }
    }
    free(set);
}

static void on_pipe_closed(uv_handle_t *pipe) {
    ls__rank *rank = ((ls__stream *)pipe->data)->rank;
    rank_set *set = set_of(rank - rank->local);
    if (--set->handles == 0 && set->left)
        free_set(set);
}

static ls_status make_set(ls__launch_job *job) {
    int count = job->plan.ranks;
    rank_set *set = calloc(1, sizeof *set + (size_t)count * sizeof set->rank[0]);
    if (!set)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d ranks", count);
    set->count = count;
    job->ranks = set->rank;
    for (int i = 0; i < count; i++) {
        job->ranks[i].job = job;
        job->ranks[i].local = i;
        job->ranks[i].number = job->plan.first_rank + i;
        for (int s = 0; s < LS__STREAMS; s++)
            job->ranks[i].streams[s].file.fd = -1;
    }
    return LS_OK;
}

void ls__job_free_ranks(ls__launch_job *job) {
    if (job->ranks) {
        rank_set *set = set_of(job->ranks);
        set->left = true;
        if (set->handles == 0)
            free_set(set);
    }
    job->ranks = NULL;
    job->started = 0;
    ls__board_close(&job->board, false);
    if (job->segment_fd >= 0)
        close(job->segment_fd);
    if (job->board_fd >= 0)
        close(job->board_fd);
    job->segment_fd = job->board_fd = -1;
}

/* --- reading --------------------------------------------------------------------------------------- */

void ls__stream_finish(ls__stream *stream) {
    if (!stream->open)
        return;
    stream->open = false;
    ls__lines_finish(&stream->lines);
    ls__logs_close(stream);
    uv_close((uv_handle_t *)&stream->pipe, on_pipe_closed);
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
        ls__logs_write(stream, buffer->base, (size_t)bytes);
        stream->rank->cut_ns = ls__deadline_ns(LS__CUT_S);
    } else if (bytes < 0 && bytes != UV_ENOBUFS) {
        ls__stream_finish(stream);
    }
    free(buffer->base);
    ls__job_settle(job);
}

void ls__job_pause_reading(ls__launch_job *job, bool pause) {
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

void ls__job_reap(ls__launch_job *job) {
    for (int i = 0; i < job->started; i++) {
        ls__rank *rank = &job->ranks[i];
        int status;
        if (!rank->pid || rank->exited ||
            waitpid(rank->pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != rank->pid)
            continue;
        if (!WIFEXITED(status) && !WIFSIGNALED(status)) {
            ls__stopped_see(rank, status);
            continue;
        }
        rank->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        rank->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        ls__job_rank_exited(rank);
    }
}

/* --- starting -------------------------------------------------------------------------------------- */

static void rank_prefix(const ls__launch_job *job, int rank, int fd, char *prefix) {
    const ls__launch_options *options = job->options;
    const char *no_color = getenv("NO_COLOR");
    char host[24] = "", name[64];
    prefix[0] = '\0';
    if (options->prefix == LS__LAUNCH_PREFIX_NEVER || options->rank0_speaks ||
        (options->prefix == LS__LAUNCH_PREFIX_AUTO && job->plan.world == 1))
        return;
    if (job->plan.nodes > 1)
        (void)gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "[%s%srank %d]", host, *host ? " " : "", rank);
    if (isatty(fd) && !(no_color && *no_color))
        snprintf(prefix, LS__PREFIX_BYTES, "\x1b[%dm%.36s\x1b[0m ", 31 + rank % 6, name);
    else
        snprintf(prefix, LS__PREFIX_BYTES, "%.40s ", name);
}

static void open_lines(ls__rank *rank, int s) {
    ls__launch_job *job = rank->job;
    ls__stream *stream = &rank->streams[s];
    ls__lines_mode mode = LS__LINES_WHOLE;
    char prefix[LS__PREFIX_BYTES];
    rank_prefix(job, rank->number, s == LS__STDOUT ? STDOUT_FILENO : STDERR_FILENO, prefix);
    ls__logs_open(stream);
    if (ls__logs_redirects(job->options, rank->number, s))
        mode = LS__LINES_KEEP;
    /* nobody else's lines can come in between: prompts and progress lines appear at once */
    else if (rank->number == 0 && !*prefix && (job->plan.world == 1 || job->options->rank0_speaks))
        mode = LS__LINES_RAW;
    else if (job->options->rank0_speaks)
        mode = LS__LINES_KEEP;
    ls__lines_open(&stream->lines, mode,
                   s == LS__STDOUT ? &job->sinks[LS__STDOUT] : job->error_sink, prefix);
}

/* Makes the rank's pipe: *write_end is for the rank, the other end is read by the loop. */
static ls_status open_stream(ls__rank *rank, int s, int *write_end) {
    ls__stream *stream = &rank->streams[s];
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "cannot make a pipe for rank %d", rank->number);
    uv_pipe_init(&rank->job->loop, &stream->pipe, 0);
    set_of(rank - rank->local)->handles++;
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

/* What a rank inherits behind the board: the segment, or rank 0 the socket it listens on; -1: nothing. */
static int second_fd(const ls__rank *rank) {
    const ls__launch_job *job = rank->job;
    return job->segment_fd >= 0 ? job->segment_fd : rank->number == 0 ? job->plan.listener : -1;
}

static ls_status spawn(ls__rank *rank, char *cores, char **environment, const int *ends) {
    ls__launch_job *job = rank->job;
    ls__spawn how = {
        .path = job->path,
        .argv = job->options->argv,
        .environment = environment,
        .fd = {rank->number == 0 ? STDIN_FILENO : -1, ends[LS__STDOUT], ends[LS__STDERR],
               job->board_fd, second_fd(rank)},
        .mask = job->rank_mask,
    };
    cpu_set_t *set = cores ? ls__launch_parse_cores(cores, &how.cores_bytes) : NULL;
    how.cores = set;
    rank->pid = ls__program_spawn(&how);
    int error_number = errno;
    CPU_FREE(set);
    if (rank->pid < 0) {
        const char *hint = error_number == EAGAIN   ? "; ulimit -u bounds the processes"
                           : error_number == EMFILE ? "; ulimit -n bounds the open files"
                                                    : "";
        rank->pid = 0;
        return ls__fail(LS_ERR_SYSTEM, "cannot start rank %d of %d: %s%s", rank->number,
                        job->plan.world, strerror(error_number), hint);
    }
    job->running++;
    ls__watcher_add(&job->watcher, rank->pid);
    return LS_OK;
}

static ls_status start_rank(ls__rank *rank, char *cores, char **environment) {
    ls_status status = LS_OK;
    int ends[LS__STREAMS] = {-1, -1};
    rank->job->started++;
    for (int s = 0; s < LS__STREAMS && status == LS_OK; s++)
        status = open_stream(rank, s, &ends[s]);
    if (status == LS_OK)
        status = spawn(rank, cores, environment, ends);
    for (int s = 0; s < LS__STREAMS; s++) {
        if (ends[s] >= 0)
            close(ends[s]);
    }
    return status;
}

static ls_status start_all(ls__launch_job *job) {
    int count = job->plan.ranks;
    ls__environment environment;
    char **cores = calloc((size_t)count, sizeof *cores);
    if (!cores)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d ranks", count);
    /* where it cannot, the ranks run unbound */
    if (job->options->bind != LS__LAUNCH_BIND_NONE)
        ls__launch_divide(cores, count, job->options->bind == LS__LAUNCH_BIND_NUMA);
    ls_status status = ls__environment_create(&environment, job->options, &job->plan);
    for (int i = 0; i < count && status == LS_OK; i++) {
        status = ls__environment_set_rank(&environment, &job->plan, i);
        if (status == LS_OK)
            status = start_rank(&job->ranks[i], cores[i], environment.entries);
    }
    for (int i = 0; i < count; i++)
        free(cores[i]);
    free(cores);
    ls__environment_destroy(&environment);
    return status;
}

static ls_status open_memory(ls__launch_job *job) {
    /* Without a board the ranks keep their records to themselves, and the report is shorter. */
    (void)ls__board_create(&job->board, job->plan.world, &job->board_fd);
    if (job->plan.nodes > 1 || job->plan.held_port || job->options->transport != LS__LAUNCH_SHM)
        return LS_OK;
    ls_status status = ls__segment_create(&job->segment_fd, job->plan.world);
    return status == LS_OK ? LS_OK : ls__fail_context(status, "transport shm (tcp is the other)");
}

ls_status ls__job_start_ranks(ls__launch_job *job) {
    ls_status status;
    job->started_ns = ls__now_ns();
    ls__logs_begin(job);
    LS_TRY_OUT(make_set(job));
    LS_TRY_OUT(open_memory(job));
    LS_TRY_OUT(start_all(job));
    return LS_OK;
out:
    ls__job_signal_all(job, SIGKILL);
    for (int s = 0; job->started && s < LS__STREAMS; s++) {
        if (!job->ranks[job->started - 1].pid)
            ls__stream_finish(&job->ranks[job->started - 1].streams[s]);
    }
    return status;
}
