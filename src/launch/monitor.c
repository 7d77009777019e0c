/* lockstep run --monitor: a table of this machine's ranks on stderr, every so often. Plain lines: they may go to a file,
 * and the ranks' own output comes in between. */
#include "launch/job.h"

#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct usage {
    char state;       /* as ps shows it: R runs, S sleeps, T is stopped, D waits for a disk */
    double cpu_s;     /* used so far */
    double memory_mb; /* resident */
} usage;

/* From /proc/PID/stat; the program's name in it may hold anything, also ')'. */
static bool read_usage(pid_t pid, usage *u) {
    char path[64], text[1024];
    unsigned long user, kernel;
    long pages;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    if (!end ||
        sscanf(end + 1,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d "
               "%*u %*u %ld",
               &u->state, &user, &kernel, &pages) != 4)
        return false;
    u->cpu_s = (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
    u->memory_mb = (double)pages * (double)sysconf(_SC_PAGESIZE) / 1e6;
    return true;
}

static void print_rank(const ls__rank *rank, ls__flight_record *record) {
    usage u;
    if (rank->exited) {
        char how[80];
        ls__end_describe(rank->signal, rank->exit_code, how, sizeof how);
        fprintf(stderr, "  %5d %8d  %s\n", rank->number, (int)rank->pid, how);
        return;
    }
    if (!read_usage(rank->pid, &u))
        return;
    ls__job_flight_read(rank, record);
    const ls__flight_entry *last =
        record->entry_count ? &record->entry[record->entry_count - 1] : NULL;
    const char *phase = *record->phase ? record->phase : record->pid ? "running" : "";
    fprintf(stderr, "  %5d %8d  %c  %8.1f s  %9.1f MB  %10llu  %s\n", rank->number, (int)rank->pid,
            u.state, u.cpu_s, u.memory_mb, last ? (unsigned long long)last->number : 0ULL, phase);
}

void ls__job_monitor(ls__launch_job *job) {
    uint64_t now = ls__now_ns();
    if (!job->monitor_ns)
        job->monitor_ns = ls__deadline_ns(job->options->monitor_s);
    if (now < job->monitor_ns)
        return;
    job->monitor_ns = ls__deadline_ns(job->options->monitor_s);
    ls__flight_record *record = malloc(sizeof *record);
    if (!record)
        return;
    fprintf(
        stderr,
        "%s: %d ranks after %.0f s\n   rank      pid  st  cpu time      resident  operations  phase\n",
        job->command, job->plan.ranks, (double)(now - job->started_ns) * 1e-9);
    for (int i = 0; i < job->started; i++)
        print_rank(&job->ranks[i], record);
    free(record);
}
