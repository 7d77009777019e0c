/* Dropout by counter: four elements of a sample share one Philox call, so any of them can be
 * decided alone, by any thread or rank. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/math.h"

struct dropout_arguments {
    size_t per_sample, groups; /* groups of four elements in a sample; the last may be partial */
    const uint64_t *samples;
    uint64_t seed, purpose;
    int32_t threshold; /* uniform >= p in units of 2^-24, as ls_random_uniform4 makes them */
    float scale;
    const float *x;
    float *y;
    bool accumulate;
};

/* ls_random_u32x4 for counters [counter, counter + RUN) at once; word w of the l-th goes to
 * words[4 * l + w]. The tests hold it against the original. Each 64-bit lane of a vector holds one
 * 32-bit word, so that a product is one instruction: compilers do not find it by themselves (0.35
 * against 0.2 elements a nanosecond). */
typedef uint64_t four_lanes __attribute__((vector_size(32), aligned(8), may_alias));
enum { VECTORS = 4, RUN = 4 * VECTORS };

LS_INLINE void philox_run(uint64_t seed, uint64_t stream, uint64_t counter, uint32_t *words) {
    const four_lanes low = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    const four_lanes steps = {0, 1, 2, 3};
    four_lanes c0[VECTORS], c1[VECTORS], c2[VECTORS] = {{0}}, c3[VECTORS] = {{0}};
    uint64_t k0 = seed & UINT32_MAX, k1 = seed >> 32;
    for (uint64_t v = 0; v < VECTORS; v++) {
        four_lanes at = counter + 4 * v + steps;
        c0[v] = at & low;
        c1[v] = at >> 32;
        c2[v] += stream & UINT32_MAX;
        c3[v] += stream >> 32;
    }
    for (int round = 0; round < 10; round++) {
        for (size_t v = 0; v < VECTORS; v++) {
            four_lanes first = c0[v] * 0xD2511F53, second = c2[v] * 0xCD9E8D57;
            c0[v] = (second >> 32) ^ c1[v] ^ k0;
            c2[v] = (first >> 32) ^ c3[v] ^ k1;
            c1[v] = second & low;
            c3[v] = first & low;
        }
        k0 = (k0 + 0x9E3779B9) & UINT32_MAX;
        k1 = (k1 + 0xBB67AE85) & UINT32_MAX;
    }
    for (size_t v = 0; v < VECTORS; v++) {
        for (size_t l = 0; l < 4; l++) {
            uint32_t *four = words + 4 * (4 * v + l);
            four[0] = (uint32_t)c0[v][l];
            four[1] = (uint32_t)c1[v][l];
            four[2] = (uint32_t)c2[v][l];
            four[3] = (uint32_t)c3[v][l];
        }
    }
}

/* Items are runs of RUN groups; the last of a sample may be partial. */
LS_KERNEL(dropout_body) {
    const struct dropout_arguments *g = arguments;
    size_t runs = (g->groups + RUN - 1) / RUN;
    int32_t threshold = g->threshold;
    float scale = g->scale;
    for (size_t item = begin; item < end; item++) {
        size_t row = item / runs, first = item % runs * RUN;
        size_t at = row * g->per_sample + 4 * first;
        size_t count = ls__min_size((size_t)4 * RUN, g->per_sample - 4 * first);
        uint32_t words[4 * RUN];
        float kept[4 * RUN];
        const float *x = g->x + at;
        philox_run(g->seed, g->purpose, g->samples[row] * g->groups + first, words);
        for (size_t j = 0; j < (size_t)4 * RUN; j++)
            words[j] = (int32_t)(words[j] >> 8) >= threshold ? UINT32_MAX : 0;
        for (size_t j = 0; j < count; j++) /* not x * 0: what is dropped may be infinite */
            kept[j] = ls__float_of_bits(ls__bits_of_float(x[j] * scale) & words[j]);
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
                                  .threshold = (int32_t)ceil((double)p * 0x1p24),
                                  .scale = 1.0F / (1.0F - p),
                                  .x = x,
                                  .y = y,
                                  .accumulate = accumulate};
    ls__cpu_parallel(device, sample_count * ((g.groups + RUN - 1) / RUN), 64 * 8, dropout_body, &g);
    return LS_OK;
}
