/* Sums in a fixed order: sixteen partial sums, one a lane, added pairwise at the end. The lanes are
 * written as a vector type, so the order does not follow from what the compiler vectorises. */
#ifndef LS_DEVICE_CPU_VECTOR_H
#define LS_DEVICE_CPU_VECTOR_H

#include "device/cpu/cpu.h"

enum { LS__LANES = 16 };
/* Two halves of eight: what AVX2 holds in a register. */
typedef float ls__v8 __attribute__((vector_size(32), aligned(4), may_alias));

/* Lane j of 16 and lane j + 8 first, then + 4, + 2, + 1. */
LS_INLINE float ls__lanes_sum(const float *lanes) {
    float s[8];
    for (int j = 0; j < 8; j++)
        s[j] = lanes[j] + lanes[j + 8];
    for (int width = 4; width > 0; width /= 2)
        for (int j = 0; j < width; j++)
            s[j] += s[j + width];
    return s[0];
}

/* Defines `float name(const float *x, const float *y, float c, size_t count)`: the sum of `term`
 * over i, with the terms of i = j mod 16 in lane j. `term` is written for vectors named p and q (x
 * and y at i) and for the number c. Without y, pass x. */
#define LS__DEFINE_SUM(name, term)                                                                 \
    LS_INLINE float name(const float *x, const float *y, float c, size_t count) {                  \
        float lanes[LS__LANES];                                                                    \
        ls__v8 low = {0}, high = {0};                                                              \
        size_t i = 0;                                                                              \
        for (; i + LS__LANES <= count; i += LS__LANES) {                                           \
            {                                                                                      \
                ls__v8 p = *(const ls__v8 *)(x + i), q = *(const ls__v8 *)(y + i);                 \
                low += (term);                                                                     \
                (void)q;                                                                           \
            }                                                                                      \
            {                                                                                      \
                ls__v8 p = *(const ls__v8 *)(x + i + 8), q = *(const ls__v8 *)(y + i + 8);         \
                high += (term);                                                                    \
                (void)q;                                                                           \
            }                                                                                      \
        }                                                                                          \
        *(ls__v8 *)lanes = low;                                                                    \
        *(ls__v8 *)(lanes + 8) = high;                                                             \
        for (size_t j = 0; i + j < count; j++) {                                                   \
            float p = x[i + j], q = y[i + j];                                                      \
            lanes[j] += (term);                                                                    \
            (void)q;                                                                               \
        }                                                                                          \
        (void)c;                                                                                   \
        return ls__lanes_sum(lanes);                                                               \
    }

/* Names for the three that several files use. */
LS__DEFINE_SUM(ls__sum_values, p)
LS__DEFINE_SUM(ls__sum_products, p *q)
LS__DEFINE_SUM(ls__sum_squares_about, (p - c) * (p - c))

typedef int32_t ls__i8 __attribute__((vector_size(32), aligned(4), may_alias));

/* Lane by lane, `best` where it is larger than x[0..8), else that. As vectors: compilers leave comparisons of lanes as
 * scalars. */
LS_INLINE void ls__keep_larger(ls__v8 *best, const float *x) {
    ls__v8 value = *(const ls__v8 *)x;
    ls__i8 keep = *best > value;
    *best = (ls__v8)(((ls__i8)*best & keep) | ((ls__i8)value & ~keep));
}

/* The largest value; NaN may be passed over. count >= 1 */
LS_INLINE float ls__largest(const float *x, size_t count) {
    float lanes[LS__LANES];
    ls__v8 low = {0}, high;
    low += x[0];
    high = low;
    size_t i = 0;
    for (; i + LS__LANES <= count; i += LS__LANES) {
        ls__keep_larger(&low, x + i);
        ls__keep_larger(&high, x + i + 8);
    }
    *(ls__v8 *)lanes = low;
    *(ls__v8 *)(lanes + 8) = high;
    for (; i < count; i++)
        lanes[0] = lanes[0] > x[i] ? lanes[0] : x[i];
    for (size_t j = 1; j < LS__LANES; j++)
        lanes[0] = lanes[0] > lanes[j] ? lanes[0] : lanes[j];
    return lanes[0];
}

#endif
