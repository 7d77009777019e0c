/* What the ranks showed on the board, once the job has ended: for the report, and as files. */
#include "launch/job.h"

#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>

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

void ls__job_flight_write(const ls__launch_job *job) {
    const char *folder = job->options->flight ? job->options->flight : getenv("LOCKSTEP_FLIGHT");
    ls__flight_record *record = folder && *folder ? malloc(sizeof *record) : NULL;
    for (int i = 0; record && i < job->started; i++) {
        ls__job_flight_read(&job->ranks[i], record);
        if (!record->pid || ls__flight_write(folder, record) == LS_OK)
            continue;
        fprintf(stderr, "%s: %s\n", job->command, ls_error_text());
        break;
    }
    free(record);
}
