/* y = x W^T + b with AVX-512 where the rows of x are few and weights are stored as (out, in).
 *
 * Both x and W then run along the dimension that is summed over, so vectors of 16 lanes do too: a tile of
 * 4 rows x 6 outputs holds 24 vectors of partial sums, which are added up once at the end. Libraries run
 * their vectors along outputs instead and have to transpose W first, in every call, which for few rows is
 * no small part. One core of a Zen 4 EPYC, GFLOP/s of 105 at best, against oneDNN's sgemm and its matmul:
 * 64 rows, 1024 -> 1024: 100, 68, 87; 784 -> 1024: 104, 79, 81; 1024 -> 784: 101, 70, 87. With more rows
 * sgemm makes 105 too.
 *
 * Traffic: x is packed once; W is read where it lies, six rows at a time, which stay in the first-level cache for all rows
 * of x while the next six are on their way. Packing those too took a tenth of the time on an Intel Xeon,
 * GFLOP/s with and without: 64 rows, 1024 -> 1024: 128, 152; 784 -> 1024: 129, 138.
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
    MOST_IN = 2048,     /* six rows of W about fill the first-level cache */
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
    __mmask16 last;              /* lanes of a row's last vector */
    const float *bias;
    float *y;
    bool accumulate;
};

/* Up to ROWS rows as (steps, ROWS, LANES), zeros beyond the row's end and for rows that are not there. */
static void pack(float *to, const float *from, size_t rows, size_t in) {
    for (size_t i = 0; i < in; i += LANES)
        for (size_t r = 0; r < ROWS; r++, to += LANES) {
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

/* One step of a tile: LANES elements of each row, of W those in `lanes`. */
LS__TARGET_AVX512 LS_INLINE void tile_step(__m512 sum[2 * LANES], const float *x,
                                           const float *const w[OUTPUTS], size_t at,
                                           __mmask16 lanes) {
    __m512 xs[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
        xs[r] = _mm512_loadu_ps(x + r * LANES);
#pragma GCC unroll 6
    for (int o = 0; o < OUTPUTS; o++) {
        __m512 ws = _mm512_maskz_loadu_ps(lanes, w[o] + at);
        /* Loaded once: gcc would make it an operand of all four, and there is one load a cycle. */
        __asm__("" : "+v"(ws));
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
            sum[r * OUTPUTS + o] = _mm512_fmadd_ps(xs[r], ws, sum[r * OUTPUTS + o]);
    }
}

/* sums[r][o] of one tile. x: packed; w: OUTPUTS rows; `next`: what will be needed soon, as long as a row. */
LS__TARGET_AVX512 static void tile_sums(const struct dot_arguments *g, const float *x,
                                        const float *const w[OUTPUTS], const float *next,
                                        float sums[2 * LANES]) {
    const size_t whole = g->steps - 1;
    __m512 sum[2 * LANES];
#pragma GCC unroll 32
    for (int i = 0; i < 2 * LANES; i++)
        sum[i] = _mm512_setzero_ps();
    for (size_t s = 0; s < whole; s++) {
        _mm_prefetch(next + s * LANES, _MM_HINT_T1);
        tile_step(sum, x + s * ROWS * LANES, w, s * LANES, UINT16_MAX);
    }
    tile_step(sum, x + whole * ROWS * LANES, w, whole * LANES, g->last);
    _mm512_storeu_ps(sums, lane_sums(sum));
    _mm512_storeu_ps(sums + LANES, lane_sums(sum + LANES));
}

/* y of a tile: `outputs` of each of `rows` rows from `row` and `first` on. */
LS__TARGET_AVX512 static void store_tile(const struct dot_arguments *g, size_t row, size_t rows,
                                         size_t first, size_t outputs, const float *sums) {
    const __mmask8 mask = (__mmask8)((1U << outputs) - 1);
    const __m256 bias =
        g->bias ? _mm256_maskz_loadu_ps(mask, g->bias + first) : _mm256_setzero_ps();
    for (size_t r = 0; r < rows; r++) {
        float *y = g->y + (row + r) * g->out + first;
        __m256 value = _mm256_add_ps(_mm256_loadu_ps(sums + r * OUTPUTS), bias);
        if (g->accumulate)
            value = _mm256_add_ps(_mm256_maskz_loadu_ps(mask, y), value);
        _mm256_mask_storeu_ps(y, mask, value);
    }
}

/* Items are groups of OUTPUTS rows of W; those beyond the last are the last again. */
LS__TARGET_AVX512 static void dot_body(const void *arguments, size_t begin, size_t end) {
    const struct dot_arguments *g = arguments;
    _Alignas(64) float sums[2 * LANES];
    for (size_t item = begin; item < end; item++) {
        const size_t first = item * OUTPUTS, outputs = ls__min_size(OUTPUTS, g->out - first);
        const float *w[OUTPUTS];
        for (size_t o = 0; o < OUTPUTS; o++)
            w[o] = g->w + ls__min_size(first + o, g->out - 1) * g->in;
        for (size_t row = 0; row < g->rows; row += ROWS) {
            size_t ahead = ls__min_size(first + OUTPUTS + row / ROWS, g->out - 1);
            tile_sums(g, g->x + row * g->steps * LANES, w, g->w + ahead * g->in, sums);
            store_tile(g, row, ls__min_size(ROWS, g->rows - row), first, outputs, sums);
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
                              .last = (__mmask16)(UINT16_MAX >> (LANES - 1 - (in - 1) % LANES)),
                              .bias = bias,
                              .y = y,
                              .accumulate = accumulate};
    void *memory;
    size_t row_elements = g.steps * LANES, groups = (rows + ROWS - 1) / ROWS;
    LS_TRY(ls__cpu_scratch(device, groups * ROWS * row_elements * sizeof(float), &memory));
    for (size_t row = 0; row < rows; row += ROWS)
        pack((float *)memory + row * row_elements, x + row * in, ls__min_size(ROWS, rows - row),
             in);
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
