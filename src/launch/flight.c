/* What the ranks showed on the board, once the job has ended: for the report, and as files. */
#include "launch/job.h"

#include "base/clock.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Who had not failed by then was still where it was at the first failure, give or take. */
static uint64_t moment_of(const ls__rank *rank) {
    const ls__launch_job *job = rank->job;
    uint64_t first =
        job->first_failure >= 0 ? job->ranks[job->first_failure].exited_ns : rank->exited_ns;
    uint64_t own = rank->exited ? rank->exited_ns : ls__now_ns();
    return first && first < own ? first : own;
}

void ls__job_flight_read(const ls__rank *rank, ls__flight_record *record) {
    if (rank->job->board.mapped)
        ls__board_read(&rank->job->board, rank->number, moment_of(rank), record);
    else
        *record = (ls__flight_record){.rank = rank->number};
}

/* NULL: nobody wants records. */
static const char *folder_of(const ls__launch_job *job) {
    const char *folder = job->options->flight ? job->options->flight : getenv("LOCKSTEP_FLIGHT");
    return folder && *folder ? folder : NULL;
}

static bool is_writable(const char *folder) {
    return access(folder, W_OK | X_OK) == 0;
}

/* Whether the folder that `folder` would be made in takes it. */
static bool can_be_made(const char *folder) {
    char *parent = strdup(folder);
    size_t n = strlen(folder);
    while (parent && n > 0 && parent[n - 1] == '/')
        parent[--n] = '\0';
    char *slash = parent ? strrchr(parent, '/') : NULL;
    if (slash)
        slash[slash == parent] = '\0';
    bool good = !parent || is_writable(slash ? parent : ".");
    int error_number = errno;
    free(parent);
    errno = error_number;
    return good;
}

void ls__job_flight_check(const ls__launch_job *job) {
    const char *folder = folder_of(job);
    if (!folder || is_writable(folder) || (errno == ENOENT && can_be_made(folder)))
        return;
    fprintf(stderr, "%s: %s: no record can be written to %s: %s\n", job->command,
            job->options->flight ? "--flight" : "LOCKSTEP_FLIGHT", folder, strerror(errno));
}

void ls__job_flight_write(const ls__launch_job *job) {
    const char *folder = folder_of(job);
    ls__flight_record *record = folder ? malloc(sizeof *record) : NULL;
    for (int i = 0; record && i < job->started; i++) {
        ls__job_flight_read(&job->ranks[i], record);
        if (!record->pid || ls__flight_write(folder, record) == LS_OK)
            continue;
        fprintf(stderr, "%s: %s\n", job->command, ls_error_text());
        break;
    }
    free(record);
}
