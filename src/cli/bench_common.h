/* What the measurements of `lockstep bench` have in common: the way into the job, and figures from many times. */
#ifndef LS_CLI_BENCH_COMMON_H
#define LS_CLI_BENCH_COMMON_H

#include <lockstep/group.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Enters the job that the environment describes. LS_ERR_ARGUMENT where --ranks was `given` and is another number
 * than its ranks; *job is to be finished then too. What the library tells goes to stderr under the name
 * `command` ("lockstep bench train"), which outlives the job. */
ls_status ls__bench_join(ls_job **job, const char *command, bool given, int64_t ranks);

void ls__bench_sort(double *values, size_t count);
/* Of sorted values, at least one: the middle one, or the mean of the two in the middle. */
double ls__bench_median(const double *sorted, size_t count);
/* The nearest to the p-th part, 0 to 1. */
double ls__bench_percentile(const double *sorted, size_t count, double p);

#endif
