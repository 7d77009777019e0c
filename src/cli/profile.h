/* What --profile of train and bench train shows and writes. */
#ifndef LS_CLI_PROFILE_H
#define LS_CLI_PROFILE_H

#include "autograd/profile.h"
#include <lockstep/lockstep.h>

typedef struct ls__profile_report {
    ls__profile profile;
    uint64_t steps, time_ns; /* that the profile covers: whole steps, evaluation left out */
} ls__profile_report;

/* Bytes that one update of `elements` weights must at least read and write. */
double ls__profile_optimizer_bytes(const ls_optimizer_options *options, size_t elements);

/* After each step, which took so long. `forget`: this and all before do not count, as the first steps
 * build kernels and touch memory for the first time. */
void ls__profile_report_step(ls__profile_report *report, uint64_t nanoseconds, bool forget);

/* Measures what the device can do, then prints the table on stderr and, where `path` is not NULL, writes
 * it there as one JSON object. */
ls_status ls__profile_report_finish(const ls__profile_report *report, ls_device *device,
                                    ls_dtype dtype, const char *path);

#endif
