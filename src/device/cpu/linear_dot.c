/* y = x W^T + b with AVX-512 where the rows of x are few and weights are stored as (out, in).
 *
 * Both x and W then run along the dimension that is summed over, so vectors of 16 lanes do too: a tile of
 * 4 rows x 6 outputs holds 24 vectors of partial sums, which are added up once at the end. Libraries run
 * their vectors along outputs instead and have to transpose W first, in every call, which for few rows is
 * no small part. One core of a Zen 4 EPYC, GFLOP/s of 105 at best, against oneDNN's sgemm and its matmul:
 * 64 rows, 1024 -> 1024: 100, 68, 87; 784 -> 1024: 104, 79, 81; 1024 -> 784: 101, 70, 87. With more rows
 * sgemm makes 105 too.
 *
 * Traffic: x is packed once; W is read once, six rows at a time, which are packed into the first-level cache
 * (rows 4 KiB apart would share one of its sets) while the next six are on their way.
 *
 * Bits: element (row, out) is 16 partial sums over i mod 16 by FMA, then added pairwise. It depends neither
 * on the other rows nor on the number of threads. */
#include "device/cpu/cpu.h"

#include <string.h>

enum {
    ROWS = 4, /* of a tile */
    OUTPUTS = 6,
    LANES = 16,
    FEWEST_ROWS = 16,
    MOST_ROWS = 255,
    MOST_IN = 2048,     /* six rows of W about fill the first-level cache; of a stack 48 KiB */
    MOST_X = 128 << 10, /* elements: half of a second-level cache of 1 MiB */
};

#if defined(__x86_64__)
#include <immintrin.h>

bool ls__cpu_linear_dot_fits(const ls_device *device, size_t rows, size_t in, bool out_first) {
    return out_first && rows >= FEWEST_ROWS && rows <= MOST_ROWS && in >= LANES && in <= MOST_IN &&
           rows <= MOST_X / in && ((const ls__cpu *)device)->level == LS__CPU_AVX512;
}

struct dot_arguments {
    size_t rows, in, out, steps; /* steps: vectors in a row */
    const float *x;              /* packed: (rows / ROWS, steps, ROWS, LANES) */
    const float *w;              /* (out, in) */
    const float *bias;
    float *y;
    bool accumulate;
};

/* Up to `group` rows as (steps, group, LANES), zeros beyond the row's end and for rows that are not there. */
static void pack(float *to, const float *from, size_t rows, size_t group, size_t in) {
    for (size_t i = 0; i < in; i += LANES)
        for (size_t r = 0; r < group; r++, to += LANES) {
            size_t count = r < rows ? ls__min_size(LANES, in - i) : 0;
            if (count == LANES) {
                memcpy(to, from + r * in + i, LANES * sizeof *to);
            } else {
                memset(to, 0, LANES * sizeof *to);
                memcpy(to, from + r * in + i, count * sizeof *to);
            }
        }
}

/* Lane j: the sum of the lanes of v[j]. Four rounds halve the vectors and add neighbours. */
LS__TARGET_AVX512 static inline __m512 lane_sums(const __m512 v[LANES]) {
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                             _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        __m512d low = _mm512_castps_pd(a[2 * i]), high = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    }
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88),
                         _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
}

/* sums[r][o] of one tile. `next`: what will be needed soon, as long as a row. */
LS__TARGET_AVX512 static void tile_sums(size_t steps, const float *x, const float *w,
                                        const float *next, float sums[2 * LANES]) {
    __m512 sum[2 * LANES];
#pragma GCC unroll 32
    for (int i = 0; i < 2 * LANES; i++)
        sum[i] = _mm512_setzero_ps();
    for (size_t s = 0; s < steps; s++, x += ROWS * LANES, w += OUTPUTS * LANES) {
        __m512 xs[ROWS];
        _mm_prefetch(next + s * LANES, _MM_HINT_T1);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
            xs[r] = _mm512_loadu_ps(x + r * LANES);
#pragma GCC unroll 6
        for (int o = 0; o < OUTPUTS; o++) {
            __m512 ws = _mm512_loadu_ps(w + o * LANES);
            /* Loaded once: gcc would make it an operand of all four, and there is one load a cycle. */
            __asm__("" : "+v"(ws));
#pragma GCC unroll 4
            for (int r = 0; r < ROWS; r++)
                sum[r * OUTPUTS + o] = _mm512_fmadd_ps(xs[r], ws, sum[r * OUTPUTS + o]);
        }
    }
    _mm512_storeu_ps(sums, lane_sums(sum));
    _mm512_storeu_ps(sums + LANES, lane_sums(sum + LANES));
}

/* Items are groups of OUTPUTS rows of W. */
LS__TARGET_AVX512 static void dot_body(const void *arguments, size_t begin, size_t end) {
    const struct dot_arguments *g = arguments;
    _Alignas(64) float panel[OUTPUTS * MOST_IN], sums[2 * LANES];
    for (size_t item = begin; item < end; item++) {
        size_t first = item * OUTPUTS, outputs = ls__min_size(OUTPUTS, g->out - first);
        pack(panel, g->w + first * g->in, outputs, OUTPUTS, g->in);
        for (size_t row = 0; row < g->rows; row += ROWS) {
            size_t ahead = ls__min_size(first + OUTPUTS + row / ROWS, g->out - 1);
            tile_sums(g->steps, g->x + row * g->steps * LANES, panel, g->w + ahead * g->in, sums);
            for (size_t r = 0; r < ROWS && row + r < g->rows; r++) {
                float *y = g->y + (row + r) * g->out + first;
                for (size_t o = 0; o < outputs; o++) {
                    float value = sums[r * OUTPUTS + o] + (g->bias ? g->bias[first + o] : 0);
                    y[o] = g->accumulate ? y[o] + value : value;
                }
            }
        }
    }
}

ls_status ls__cpu_linear_dot(ls_device *device, size_t rows, size_t in, size_t out, const float *x,
                             const float *w, const float *bias, float *y, bool accumulate) {
    static ls__cpu_body *const kernel[LS__CPU_LEVELS] = {[LS__CPU_AVX512] = dot_body};
    struct dot_arguments g = {.rows = rows,
                              .in = in,
                              .out = out,
                              .steps = (in + LANES - 1) / LANES,
                              .w = w,
                              .bias = bias,
                              .y = y,
                              .accumulate = accumulate};
    void *memory;
    size_t row_elements = g.steps * LANES, groups = (rows + ROWS - 1) / ROWS;
    LS_TRY(ls__cpu_scratch(device, groups * ROWS * row_elements * sizeof(float), &memory));
    for (size_t row = 0; row < rows; row += ROWS)
        pack((float *)memory + row * row_elements, x + row * in, ls__min_size(ROWS, rows - row),
             ROWS, in);
    g.x = memory;
    ls__cpu_parallel(device, (out + OUTPUTS - 1) / OUTPUTS, rows * in, kernel, &g);
    return LS_OK;
}

#else

bool ls__cpu_linear_dot_fits(const ls_device *device, size_t rows, size_t in, bool out_first) {
    (void)device, (void)rows, (void)in, (void)out_first;
    return false;
}

ls_status ls__cpu_linear_dot(ls_device *device, size_t rows, size_t in, size_t out, const float *x,
                             const float *w, const float *bias, float *y, bool accumulate) {
    (void)device, (void)rows, (void)in, (void)out, (void)x, (void)w, (void)bias, (void)y;
    (void)accumulate;
    return ls__fail(LS_ERR_UNSUPPORTED, "linear: the kernel for few rows wants AVX-512");
}

#endif
