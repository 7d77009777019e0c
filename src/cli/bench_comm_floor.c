/* The machine's own speed: what the ranks of one machine can read, add and write at the same time. An
 * all_reduce of B bytes over p ranks has to read B and write B bytes a rank (1/p of the elements, from
 * p buffers, to p buffers), which is what x[i] += c over B bytes does. */
#include "base/clock.h"
#include "base/level.h"
#include "cli/bench_comm.h"

#include "base/error.h"
#include <stdlib.h>

struct stream_arguments {
    float *x;
};

LS_KERNEL(stream_body) {
    float *x = ((const struct stream_arguments *)arguments)->x;
    for (size_t i = begin; i < end; i++)
        x[i] += 1;
}

static ls_status measure(ls_group *group, float *x, size_t elements, size_t iterations,
                         double *times, double *us) {
    ls__cpu_level level;
    const struct stream_arguments stream = {x};
    LS_TRY(ls__cpu_level_choose(getenv("LOCKSTEP_CPU"), &level));
    for (size_t i = 0; i < iterations + 2; i++) { /* two to warm up */
        LS_TRY(ls_barrier(group));
        uint64_t begin = ls__now_ns();
        stream_body[level](&stream, 0, elements);
        if (i >= 2)
            times[i - 2] = (double)(ls__now_ns() - begin) / 1e3;
    }
    LS_TRY(ls__bench_slowest(group, times, iterations));
    *us = ls__bench_percentile(times, iterations, 0.5);
    return LS_OK;
}

ls_status ls__bench_floor(ls_group *group, size_t bytes, int64_t iterations, double *us) {
    void *memory = NULL;
    size_t elements = bytes / sizeof(float) + (bytes % sizeof(float) != 0);
    LS_TRY(ls_group_alloc(group, elements * sizeof(float), &memory));
    double *times = calloc((size_t)iterations, sizeof *times);
    ls_status status =
        times ? measure(group, memory, elements, (size_t)iterations, times, us)
              : ls__fail(LS_ERR_MEMORY, "--floor: no memory for %lld times", (long long)iterations);
    free(times);
    if (status == LS_OK)
        status = ls_group_free(group, memory);
    return status;
}
