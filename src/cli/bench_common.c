#include "cli/bench_common.h"

#include "base/error.h"
#include "cli/commands.h"
#include <stdlib.h>

ls_status ls__bench_join(ls_job **job, const char *command, bool given, int64_t ranks) {
    const ls_job_options options = {.log = ls__cli_log, .log_context = (void *)command};
    LS_TRY(ls_job_init(job, &options));
    if (given && ranks != ls_job_world_size(*job))
        return ls__fail(LS_ERR_ARGUMENT, "--ranks %lld inside of a job of WORLD_SIZE %d",
                        (long long)ranks, ls_job_world_size(*job));
    return LS_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

void ls__bench_sort(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
}

double ls__bench_median(const double *sorted, size_t count) {
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

double ls__bench_percentile(const double *sorted, size_t count, double p) {
    size_t i = (size_t)(p * (double)(count - 1) + 0.5);
    return sorted[i];
}
