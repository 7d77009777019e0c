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

/* Goes through RANK:WHAT,...: the streams of `rank`, 0 where it is not named, -1 where it cannot be read. */
static int look_up(const char *spec, int rank) {
    int found = 0;
    if (!strchr(spec, ':'))
        return streams_of(spec, strlen(spec));
    for (const char *at = spec;;) {
        char *end;
        if (*at < '0' || *at > '9')
            return -1;
        errno = 0;
        long number = strtol(at, &end, 10);
        size_t bytes = strcspn(*end ? end + 1 : end, ",");
        int streams = *end == ':' ? streams_of(end + 1, bytes) : -1;
        if (streams < 0 || errno)
            return -1;
        if (number == rank)
            found = streams;
        at = end + 1 + bytes;
        if (!*at)
            return found;
        at++;
    }
}

bool ls__launch_check_streams(const char *spec, const char **why) {
    *why = "want none, out, err or both for all ranks, or RANK:WHAT,RANK:WHAT,...";
    return look_up(spec, 0) >= 0;
}

static bool names(const char *spec, int rank, int stream) {
    return spec && look_up(spec, rank) > 0 && (look_up(spec, rank) & 1 << stream);
}

bool ls__logs_redirects(const ls__launch_options *options, int rank, int stream) {
    return options->log_dir && names(options->redirect, rank, stream);
}

static bool is_wanted(const ls__launch_options *options, int rank, int stream) {
    if (!options->log_dir)
        return false;
    if (!options->redirect && !options->tee)
        return true;
    return names(options->redirect, rank, stream) || names(options->tee, rank, stream);
}

static void complain(ls__launch_job *job, const char *what, int error_number) {
    if (!job->log_failed)
        fprintf(stderr, "%s: --log-dir %s: cannot write %s: %s; its lines are lost there\n",
                job->command, job->options->log_dir, what, strerror(error_number));
    job->log_failed = true;
}

void ls__logs_open(ls__launch_job *job, ls__sink *file, int rank, int stream) {
    char path[4096], round[32] = "";
    *file = (ls__sink){.fd = -1};
    if (!is_wanted(job->options, rank, stream))
        return;
    if (job->plan.round > 1)
        snprintf(round, sizeof round, ".round-%d", job->plan.round);
    int n = snprintf(path, sizeof path, "%s/rank-%d%s.%s", job->options->log_dir, rank, round,
                     stream == LS__STDOUT ? "out" : "err");
    if (mkdir(job->options->log_dir, 0777) != 0 && errno != EEXIST) {
        complain(job, "the folder", errno);
        return;
    }
    int fd = n < (int)sizeof path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (fd < 0)
        complain(job, path, n < (int)sizeof path ? errno : ENAMETOOLONG);
    else
        ls__sink_open(file, fd);
}

void ls__logs_write(ls__launch_job *job, ls__sink *file, const char *data, size_t bytes) {
    if (file->fd < 0)
        return;
    ls__sink_put(file, data, bytes);
    ls__sink_flush(file);
    if (!file->error)
        return;
    complain(job, "a file", file->error);
    ls__logs_close(file);
}

void ls__logs_close(ls__sink *file) {
    if (file->fd < 0)
        return;
    ls__sink_flush(file);
    close(file->fd);
    ls__sink_close(file);
}
