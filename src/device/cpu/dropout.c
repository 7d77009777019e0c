/* Dropout by counter: four elements of a sample share one Philox call, so any of them can be decided
 * alone, by any thread or rank. */
#include <lockstep/random.h>

#include "device/cpu/cpu.h"

struct dropout_arguments {
    size_t per_sample, groups; /* groups of four elements in a sample; the last may be partial */
    const uint64_t *samples;
    uint64_t seed, purpose;
    float p, scale;
    const float *x;
    float *y;
    bool accumulate;
};

/* Items are groups. */
LS_KERNEL static void dropout_body(const void *arguments, size_t begin, size_t end) {
    const struct dropout_arguments *g = arguments;
    for (size_t item = begin; item < end; item++) {
        size_t row = item / g->groups, group = item % g->groups;
        size_t at = row * g->per_sample + group * 4;
        size_t count = ls__min_size(4, g->per_sample - group * 4);
        float uniform[4], kept[4];
        ls_random_uniform4(g->seed, g->purpose, g->samples[row] * g->groups + group, uniform);
        for (size_t j = 0; j < count; j++)
            kept[j] = uniform[j] >= g->p ? g->x[at + j] * g->scale : 0;
        ls__cpu_store(g->y + at, kept, count, g->accumulate);
    }
}

ls_status ls__cpu_dropout(ls_device *device, ls_dtype dtype, size_t per_sample,
                          const uint64_t *samples, size_t sample_count, uint64_t seed,
                          uint64_t purpose, float p, const void *x, void *y, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "dropout"));
    struct dropout_arguments g = {.per_sample = per_sample,
                                  .groups = per_sample / 4 + (per_sample % 4 != 0),
                                  .samples = samples,
                                  .seed = seed,
                                  .purpose = purpose,
                                  .p = p,
                                  .scale = 1.0F / (1.0F - p),
                                  .x = x,
                                  .y = y,
                                  .accumulate = accumulate};
    ls__cpu_parallel(device, sample_count * g.groups, 32, dropout_body, &g);
    return LS_OK;
}
