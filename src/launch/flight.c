/* What the ranks showed on the board, once the job has ended: for the report, and as files. */
#include "launch/job.h"

#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>

/* Who had not failed by then was still where it was at the first failure, give or take. */
static uint64_t moment_of(const ls__launch_job *job, const ls__rank *rank) {
    uint64_t first =
        job->first_failure >= 0 ? job->ranks[job->first_failure].exited_ns : rank->exited_ns;
    uint64_t own = rank->exited ? rank->exited_ns : ls__now_ns();
    return first && first < own ? first : own;
}

ls__flight_record *ls__job_flight_records(const ls__launch_job *job) {
    bool any = false;
    if (!job->board.mapped)
        return NULL;
    ls__flight_record *record = calloc((size_t)job->options->ranks, sizeof *record);
    for (int r = 0; record && r < job->started; r++) {
        ls__board_read(&job->board, r, moment_of(job, &job->ranks[r]), &record[r]);
        any |= record[r].pid != 0;
    }
    if (any)
        return record;
    free(record); /* a program that does not use Lockstep */
    return NULL;
}

void ls__job_flight_write(const ls__launch_job *job, const ls__flight_record *record) {
    const char *folder = job->options->flight ? job->options->flight : getenv("LOCKSTEP_FLIGHT");
    if (!folder || !*folder)
        return;
    for (int r = 0; r < job->started; r++) {
        if (!record[r].pid || ls__flight_write(folder, &record[r]) == LS_OK)
            continue;
        fprintf(stderr, "%s: %s\n", job->command, ls_error_text());
        return;
    }
}
