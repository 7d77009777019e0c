/* The machine's own speed: what all ranks of one machine together can read, add and write, each for itself.
 *
 * An all_reduce of B bytes over p ranks has to read B and write B bytes a rank: 1/p of the elements, from p
 * buffers, to p buffers. The floor moves as much, recv[i] = send[i] + 1 over the rank's own two buffers (one
 * in place), with nobody to wait for. There are two ways to write what was not read: through the caches, which
 * then read each line first, and past them. Which is the faster depends on the machine and on what the caches
 * hold, so both are measured and the faster one is the floor. */
#include "base/clock.h"
#include "base/level.h"
#include "cli/bench_comm.h"
#include "cli/bench_common.h"

#include "base/error.h"
#include <math.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { LINE = 64 };

typedef struct stream {
    const uint64_t
        *from; /* whole lines: integers, since any bytes are numbers that add at full speed */
    uint64_t *to;
} stream;

LS_KERNEL(through_body) {
    const stream *s = arguments;
    const uint64_t *from = s->from;
    uint64_t *to = s->to;
    for (size_t i = begin; i < end; i++)
        to[i] = from[i] + 1;
}

#if defined(__x86_64__)
LS_KERNEL(past_body) {
    const stream *s = arguments;
    const __m128i one = _mm_set1_epi64x(1), *from = (const __m128i *)(s->from + begin);
    __m128i *to = (__m128i *)(s->to + begin);
    for (size_t i = 0; i < (end - begin) / 2; i++)
        _mm_stream_si128(to + i, _mm_add_epi64(_mm_load_si128(from + i), one));
    _mm_sfence();
}
#else
#define past_body through_body
#endif

typedef struct measurement {
    ls_group *group;
    stream stream;
    size_t words, iterations;
    double *times;
    ls__cpu_level level;
} measurement;

static ls_status measure(const measurement *m, ls__cpu_body *const body[LS__CPU_LEVELS],
                         double *us) {
    for (size_t i = 0; i < m->iterations + 2; i++) { /* two to warm up */
        LS_TRY(ls_barrier(m->group));
        uint64_t begin = ls__now_ns();
        body[m->level](&m->stream, 0, m->words);
        if (i >= 2)
            m->times[i - 2] = (double)(ls__now_ns() - begin) / 1e3;
    }
    LS_TRY(ls__bench_slowest(m->group, m->times, m->iterations));
    *us = ls__bench_percentile(m->times, m->iterations, 0.5);
    return LS_OK;
}

ls_status ls__bench_floor(const ls__bench_call *call, size_t bytes, int64_t iterations,
                          double *us) {
    double through = 0, past = 0;
    measurement m = {.group = call->group,
                     .stream = {.from = call->send, .to = call->recv},
                     .words = bytes / LINE * (LINE / sizeof(uint64_t)),
                     .iterations = (size_t)iterations};
    LS_TRY(ls__cpu_level_choose(getenv("LOCKSTEP_CPU"), &m.level));
    m.times = calloc(m.iterations, sizeof *m.times);
    if (!m.times)
        return ls__fail(LS_ERR_MEMORY, "--floor: no memory for %zu times", m.iterations);
    ls_status status = measure(&m, through_body, &through);
    if (status == LS_OK)
        status = measure(&m, past_body, &past);
    free(m.times);
    *us = fmin(through, past);
    return status;
}
