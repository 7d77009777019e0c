#include "launch/logs.h"

#include "base/error.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bit 1 << stream for each stream wanted; -1: no such word. */
static int streams_of(const char *word, size_t bytes) {
    static const char *const names[] = {"none", "out", "err", "both"};
    if (bytes == 1 && *word >= '0' && *word <= '3')
        return *word - '0';
    for (int i = 0; i < 4; i++) {
        if (strlen(names[i]) == bytes && strncmp(word, names[i], bytes) == 0)
            return i;
    }
    return -1;
}

static bool is_list(const char *spec) {
    return strchr(spec, ':') != NULL;
}

/* Takes a RANK:WHAT of the list at *at, and what stands between it and the next one. False: it is none. */
static bool next_entry(const char **at, long *rank, int *streams) {
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *rank = strtol(*at, &end, 10);
    size_t bytes = strcspn(*end ? end + 1 : end, ",");
    *streams = *end == ':' ? streams_of(end + 1, bytes) : -1;
    if (*streams < 0 || errno)
        return false;
    *at = end + 1 + bytes;
    if (**at == ',')
        (*at)++;
    return true;
}

static bool asks_for(const char *spec, int rank, int stream) {
    long number;
    int streams = 0;
    if (!spec)
        return false;
    if (!is_list(spec))
        return streams_of(spec, strlen(spec)) & 1 << stream;
    for (const char *at = spec; *at && next_entry(&at, &number, &streams);) {
        if (number == rank)
            return streams & 1 << stream;
    }
    return false;
}

/* The first number in a list that `ranks` ranks do not have; -1: none. */
static long first_beyond(const char *spec, int64_t ranks) {
    long number = -1;
    int streams;
    for (const char *at = spec;
         spec && is_list(spec) && *at && next_entry(&at, &number, &streams);) {
        if (number >= ranks)
            return number;
    }
    return -1;
}

static bool can_be_read(const char *spec) {
    long number;
    int streams;
    size_t bytes = strlen(spec);
    if (!is_list(spec))
        return streams_of(spec, bytes) >= 0;
    if (spec[bytes - 1] == ',')
        return false;
    for (const char *at = spec; *at;) {
        if (!next_entry(&at, &number, &streams))
            return false;
    }
    return true;
}

/* A rank that stands in a list twice; -1: none does. */
static long first_repeated(const char *spec) {
    long number, other;
    int streams;
    for (const char *at = spec; is_list(spec) && *at && next_entry(&at, &number, &streams);) {
        for (const char *behind = at; *behind && next_entry(&behind, &other, &streams);) {
            if (other == number)
                return number;
        }
    }
    return -1;
}

static ls_status check_spec(const ls__launch_options *options, const char *name, const char *spec) {
    if (!spec)
        return LS_OK;
    if (!options->log_dir)
        return ls__fail(LS_ERR_ARGUMENT, "--%s wants --log-dir, the folder for the files", name);
    if (!can_be_read(spec))
        return ls__fail(LS_ERR_ARGUMENT,
                        "--%s '%.200s': want none, out, err or both for all ranks, or "
                        "RANK:WHAT,RANK:WHAT,...",
                        name, spec);
    if (first_repeated(spec) >= 0)
        return ls__fail(LS_ERR_ARGUMENT,
                        "--%s '%.200s': rank %ld is there twice; say RANK:both for out and err",
                        name, spec, first_repeated(spec));
    if (options->max_nodes <= 1 && first_beyond(spec, options->ranks) >= 0)
        return ls__fail(LS_ERR_ARGUMENT, "--%s '%.200s': there is no rank %ld, want 0 to %d", name,
                        spec, first_beyond(spec, options->ranks), options->ranks - 1);
    return LS_OK;
}

ls_status ls__logs_check(const ls__launch_options *options) {
    LS_TRY(check_spec(options, "redirect", options->redirect));
    return check_spec(options, "tee", options->tee);
}

/* The ranks of several machines are known when all are there. */
void ls__logs_begin(const ls__launch_job *job) {
    const ls__launch_options *options = job->options;
    const struct {
        const char *name, *spec;
    } lists[] = {{"redirect", options->redirect}, {"tee", options->tee}};
    if (job->plan.round > 1 || options->max_nodes != options->min_nodes)
        return;
    for (int i = 0; i < 2; i++) {
        long rank = first_beyond(lists[i].spec, job->plan.world);
        if (rank >= 0)
            fprintf(stderr, "%s: --%s '%.200s': there is no rank %ld among the %d of the job\n",
                    job->command, lists[i].name, lists[i].spec, rank, job->plan.world);
    }
}

bool ls__logs_redirects(const ls__launch_options *options, int rank, int stream) {
    return options->log_dir && asks_for(options->redirect, rank, stream);
}

static bool is_wanted(const ls__launch_options *options, int rank, int stream) {
    if (!options->log_dir)
        return false;
    if (!options->redirect && !options->tee)
        return true;
    return asks_for(options->redirect, rank, stream) || asks_for(options->tee, rank, stream);
}

/* DIR/rank-N.out; false: too long. */
static bool path_of(const ls__stream *stream, char *path, size_t bytes) {
    const ls__rank *rank = stream->rank;
    char round[32] = "";
    if (rank->job->plan.round > 1)
        snprintf(round, sizeof round, ".round-%d", rank->job->plan.round);
    return snprintf(path, bytes, "%s/rank-%d%s.%s", rank->job->options->log_dir, rank->number,
                    round, stream == &rank->streams[LS__STDOUT] ? "out" : "err") < (int)bytes;
}

static void complain(const ls__stream *stream, int error_number) {
    ls__launch_job *job = stream->rank->job;
    char path[4096];
    path_of(stream, path, sizeof path);
    if (!job->lost_lines)
        fprintf(stderr, "%s: --log-dir: cannot write %s: %s; its lines are lost there\n",
                job->command, path, strerror(error_number));
    job->lost_lines = true;
}

void ls__logs_open(ls__stream *stream) {
    const ls__rank *rank = stream->rank;
    const ls__launch_options *options = rank->job->options;
    char path[4096];
    stream->file = (ls__sink){.fd = -1};
    if (!is_wanted(options, rank->number,
                   stream == &rank->streams[LS__STDOUT] ? LS__STDOUT : LS__STDERR))
        return;
    bool fits = path_of(stream, path, sizeof path);
    if (!fits || (mkdir(options->log_dir, 0777) != 0 && errno != EEXIST)) {
        complain(stream, fits ? errno : ENAMETOOLONG);
        return;
    }
    /* a pipe that nobody reads is not waited for */
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0)
        complain(stream, errno);
    else
        ls__sink_open(&stream->file, fd);
}

void ls__logs_write(ls__stream *stream, const char *data, size_t bytes) {
    if (stream->file.fd < 0)
        return;
    ls__sink_put(&stream->file, data, bytes);
    ls__sink_flush(&stream->file);
    if (stream->file.error)
        ls__logs_close(stream);
}

void ls__logs_close(ls__stream *stream) {
    ls__sink *file = &stream->file;
    if (file->fd < 0)
        return;
    ls__sink_flush(file);
    int error_number = file->error ? file->error : ls__sink_waiting(file) ? EAGAIN : 0;
    if (close(file->fd) != 0 && !error_number) /* some file systems say it only now */
        error_number = errno;
    if (error_number)
        complain(stream, error_number);
    ls__sink_close(file);
}
