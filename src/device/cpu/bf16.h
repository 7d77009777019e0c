/* Rounding of f32 to bf16 inside of kernels: to nearest, ties to even, as base/half.h; NaN stays NaN.
 * Integers only: the same bits at every level, denormals included. */
#ifndef LS_DEVICE_CPU_BF16_H
#define LS_DEVICE_CPU_BF16_H

#include "device/cpu/math.h"

/* The rounded number in the upper half; the lower half is of no meaning. */
LS_INLINE uint32_t ls__bf16_high(float value) {
    uint32_t bits = ls__bits_of_float(value);
    uint32_t rounded = bits + 0x7fffU + (bits >> 16 & 1);
    return (bits & 0x7fffffffU) > 0x7f800000U ? bits | 0x400000U : rounded;
}

LS_INLINE uint16_t ls__bf16_of(float value) {
    return (uint16_t)(ls__bf16_high(value) >> 16);
}

LS_INLINE float ls__float_of_bf16(uint16_t half) {
    return ls__float_of_bits((uint32_t)half << 16);
}

#endif
