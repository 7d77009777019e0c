/* Dropout by counter: four elements of a sample share one Philox call, so any of them can be
 * decided alone, by any thread or rank. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/math.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

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
 * 32-bit word: 0.35 elements a nanosecond against 0.2 one counter after the other. */
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
typedef struct run {
    uint64_t counter;
    size_t at, count; /* elements */
} run;

LS_INLINE run run_of(const struct dropout_arguments *g, size_t item) {
    size_t runs = (g->groups + RUN - 1) / RUN, row = item / runs, first = item % runs * RUN;
    return (run){.counter = g->samples[row] * g->groups + first,
                 .at = row * g->per_sample + 4 * first,
                 .count = ls__min_size((size_t)4 * RUN, g->per_sample - 4 * first)};
}

LS_KERNEL(dropout_body) {
    const struct dropout_arguments *g = arguments;
    int32_t threshold = g->threshold;
    float scale = g->scale;
    for (size_t item = begin; item < end; item++) {
        const run r = run_of(g, item);
        const size_t at = r.at, count = r.count;
        uint32_t words[4 * RUN];
        float kept[4 * RUN];
        const float *x = g->x + at;
        ls__cpu_ask_ahead(x, count);
        philox_run(g->seed, g->purpose, r.counter, words);
        for (size_t j = 0; j < (size_t)4 * RUN; j++)
            words[j] = (int32_t)(words[j] >> 8) >= threshold ? UINT32_MAX : 0;
        for (size_t j = 0; j < count; j++) /* not x * 0: what is dropped may be infinite */
            kept[j] = ls__float_of_bits(ls__bits_of_float(x[j] * scale) & words[j]);
        ls__cpu_store(g->y + at, kept, count, g->accumulate);
    }
}

#if defined(__x86_64__)
/* The same by eight counters a vector. A 32-bit product is one instruction here, which compilers miss: they
 * multiply all 64 bits, in three. What lies above bit 32 of a word is never looked at. Of cnn's step on an Intel Xeon
 * dropout took 3.4 ms of 41 before, 1.5 after. */
enum { WIDE = RUN / 8 };

LS__TARGET_AVX512 LS_INLINE void wide_philox(const struct dropout_arguments *g, uint64_t counter,
                                             __m512i c[WIDE][4]) {
    const __m512i steps = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i first = _mm512_set1_epi64(0xD2511F53), second = _mm512_set1_epi64(0xCD9E8D57);
    __m512i k0 = _mm512_set1_epi64((int64_t)(g->seed & UINT32_MAX)),
            k1 = _mm512_set1_epi64((int64_t)(g->seed >> 32));
#pragma GCC unroll 2
    for (int v = 0; v < WIDE; v++) {
        c[v][0] = _mm512_add_epi64(_mm512_set1_epi64((int64_t)counter + 8 * v), steps);
        c[v][1] = _mm512_srli_epi64(c[v][0], 32);
        c[v][2] = _mm512_set1_epi64((int64_t)g->purpose);
        c[v][3] = _mm512_srli_epi64(c[v][2], 32);
    }
    for (int round = 0; round < 10; round++) {
#pragma GCC unroll 2
        for (int v = 0; v < WIDE; v++) {
            __m512i p0 = _mm512_mul_epu32(c[v][0], first), p1 = _mm512_mul_epu32(c[v][2], second);
            c[v][0] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p1, 32), c[v][1]), k0);
            c[v][2] = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p0, 32), c[v][3]), k1);
            c[v][1] = p1;
            c[v][3] = p0;
        }
        k0 = _mm512_add_epi32(k0, _mm512_set1_epi64(0x9E3779B9));
        k1 = _mm512_add_epi32(k1, _mm512_set1_epi64(0xBB67AE85));
    }
}

/* Words 0 to 3 of counters 0 to 7, as those of counters 0 to 3 and 4 to 7 one behind the other. */
LS__TARGET_AVX512 LS_INLINE void in_order(const __m512i c[4], __m512i words[2]) {
    const __m512i low = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0),
                  high = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    const __mmask16 odd = 0xAAAA;
    __m512i a = _mm512_mask_blend_epi32(odd, c[0], _mm512_slli_epi64(c[1], 32)),
            b = _mm512_mask_blend_epi32(odd, c[2], _mm512_slli_epi64(c[3], 32));
    words[0] = _mm512_permutex2var_epi64(a, low, b);
    words[1] = _mm512_permutex2var_epi64(a, high, b);
}

LS__TARGET_AVX512 static void wide_dropout_body(const void *arguments, size_t begin, size_t end) {
    const struct dropout_arguments *g = arguments;
    const __m512i threshold = _mm512_set1_epi32(g->threshold);
    const __m512 scale = _mm512_set1_ps(g->scale);
    for (size_t item = begin; item < end; item++) {
        const run r = run_of(g, item);
        __m512i c[WIDE][4], words[2];
        ls__cpu_ask_ahead(g->x + r.at, r.count);
        wide_philox(g, r.counter, c);
        for (size_t i = 0; i < r.count; i += 16) {
            const size_t left = r.count - i;
            const __mmask16 here = (__mmask16)(left < 16 ? (1U << left) - 1 : UINT16_MAX);
            if (i % 32 == 0)
                in_order(c[i / 32], words);
            __mmask16 keep =
                _mm512_cmpge_epi32_mask(_mm512_srli_epi32(words[i / 16 % 2], 8), threshold);
            float *y = g->y + r.at + i;
            __m512 value =
                _mm512_maskz_mul_ps(keep, _mm512_maskz_loadu_ps(here, g->x + r.at + i), scale);
            if (g->accumulate)
                value = _mm512_add_ps(_mm512_maskz_loadu_ps(here, y), value);
            _mm512_mask_storeu_ps(y, here, value);
        }
    }
}
#else
#define wide_dropout_body dropout_body_avx512
#endif

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
    ls__cpu_body *const kernel[LS__CPU_LEVELS] = {dropout_body[LS__CPU_BASELINE],
                                                  dropout_body[LS__CPU_AVX2], wide_dropout_body};
    ls__cpu_parallel(device, sample_count * ((g.groups + RUN - 1) / RUN), 64 * 8, kernel, &g);
    return LS_OK;
}
