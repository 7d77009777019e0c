/* Sums of f32 in one pass over memory, for what is limited by it: sources are read once, added in registers
 * in tree order, and the sum goes to every destination at once. Everything else goes through ls__reduce
 * in blocks of the first-level cache. */
#include "base/level.h"
#include "comm/reduce.h"

#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { LANES = 16, BLOCK_BYTES = 16384, SOURCES_MOST = 8 };

/* Sixteen lanes at every level: the compiler cuts them into what the processor has. */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct sum_arguments {
    const float *source[SOURCES_MOST];
    float *dst[SOURCES_MOST];
    float scale; /* 1: not multiplied */
    bool around; /* around the caches; then each dst + begin lies on a cache line */
} sum_arguments;

/* --- one step ------------------------------------------------------------------------------------ */

/* NOLINTBEGIN(bugprone-macro-parentheses): a type takes none */
#define AT(type, s) (*(const type *)(g->source[s] + i))

/* Declares `sum` = T(a, n) = T(a, m) + T(a + m, n - m), m the largest power of two below n, for n = 2, 4, 8:
 * of the `type` (float or lanes) at element i. */
#define TREE(type, sum)                                                                            \
    type sum = AT(type, 0) + AT(type, 1);                                                          \
    if (sources >= 4)                                                                              \
        sum += AT(type, 2) + AT(type, 3);                                                          \
    if (sources >= 8)                                                                              \
    sum += (AT(type, 4) + AT(type, 5)) + (AT(type, 6) + AT(type, 7))
/* NOLINTEND(bugprone-macro-parentheses) */

/* Past the caches: a line that is written as a whole need not be read first. */
LS_INLINE void store_around(float *to, const lanes *value) {
#if defined(__x86_64__)
    for (int q = 0; q < LANES / 4; q++) {
        __m128 quarter;
        memcpy(&quarter, (const char *)value + 16 * q, sizeof quarter);
        _mm_stream_ps(to + 4 * q, quarter);
    }
#else
    *(lanes *)to = *value;
#endif
}

/* --- loops ----------------------------------------------------------------------------------------- */

LS_INLINE void sum_code(const sum_arguments *g, size_t begin, size_t end, const int sources,
                        const int dsts) {
    const bool scaled = g->scale != 1, around = g->around;
    const float scale = g->scale;
    size_t i = begin;
    for (; i + LANES <= end; i += LANES) {
        TREE(lanes, sum);
        if (scaled)
            sum *= scale;
        for (int d = 0; d < dsts; d++) {
            if (around)
                store_around(g->dst[d] + i, &sum);
            else
                *(lanes *)(g->dst[d] + i) = sum;
        }
    }
    for (; i < end; i++) {
        TREE(float, sum);
        if (scaled)
            sum *= scale;
        for (int d = 0; d < dsts; d++)
            g->dst[d][i] = sum;
    }
}

LS_KERNEL(sum_2_to_1) {
    sum_code(arguments, begin, end, 2, 1);
}

LS_KERNEL(sum_2_to_2) {
    sum_code(arguments, begin, end, 2, 2);
}

LS_KERNEL(sum_4_to_1) {
    sum_code(arguments, begin, end, 4, 1);
}

LS_KERNEL(sum_4_to_4) {
    sum_code(arguments, begin, end, 4, 4);
}

LS_KERNEL(sum_8_to_1) {
    sum_code(arguments, begin, end, 8, 1);
}

LS_KERNEL(sum_8_to_8) {
    sum_code(arguments, begin, end, 8, 8);
}

static ls__cpu_body *const *find_kernel(int sources, int dsts) {
    switch (sources * 16 + dsts) {
    case 0x21:
        return sum_2_to_1;
    case 0x22:
        return sum_2_to_2;
    case 0x41:
        return sum_4_to_1;
    case 0x44:
        return sum_4_to_4;
    case 0x81:
        return sum_8_to_1;
    case 0x88:
        return sum_8_to_8;
    default:
        return NULL;
    }
}

/* --- what is called --------------------------------------------------------------------------------- */

/* Elements until dst[0] is on a cache line; SIZE_MAX where the others are not there with it. */
static size_t elements_to_line(void *const *dst, int dsts) {
    uintptr_t place = (uintptr_t)dst[0] % 64;
    for (int d = 1; d < dsts; d++)
        if ((uintptr_t)dst[d] % 64 != place)
            return SIZE_MAX;
    return place % sizeof(float) ? SIZE_MAX : (64 - place) % 64 / sizeof(float);
}

static void sum_f32(ls__cpu_body *kernel, void *const *dst, int dsts, const void *const *source,
                    int sources, size_t elements, double scale, bool around) {
    sum_arguments g = {.scale = (float)scale};
    for (int s = 0; s < sources; s++)
        g.source[s] = source[s];
    for (int d = 0; d < dsts; d++)
        g.dst[d] = dst[d];
    size_t first = around ? elements_to_line(dst, dsts) : SIZE_MAX;
    if (first >= elements) {
        kernel(&g, 0, elements);
        return;
    }
    kernel(&g, 0, first);
    g.around = true;
    kernel(&g, first, elements);
#if defined(__x86_64__)
    _mm_sfence(); /* such stores are not ordered with those that follow: the arrival would overtake them */
#endif
}

void ls__reduce_to(ls__cpu_level level, void *const *dst, int dsts, const void *const *source,
                   int sources, size_t elements, ls_dtype dtype, ls_op op, double scale,
                   bool around) {
    bool sum = dtype == LS_F32 && (op == LS_SUM || op == LS_AVG);
    ls__cpu_body *const *kernel = sum ? find_kernel(sources, dsts) : NULL;
    if (kernel) {
        sum_f32(kernel[level], dst, dsts, source, sources, elements, scale, around);
        return;
    }
    size_t element = ls_dtype_size(dtype), block = BLOCK_BYTES / element;
    for (size_t i = 0; i < elements; i += block) {
        size_t n = elements - i < block ? elements - i : block;
        const void *from[LS__REDUCE_SOURCES_MOST];
        for (int s = 0; s < sources; s++)
            from[s] = (const char *)source[s] + i * element;
        char *first = (char *)dst[0] + i * element;
        ls__reduce(first, from, sources, n, dtype, op, scale);
        for (int d = 1; d < dsts; d++)
            memcpy((char *)dst[d] + i * element, first, n * element);
    }
}
