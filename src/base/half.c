#include "base/half.h"

#include <string.h>

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* f16: 1 sign, 5 exponent (bias 15), 10 fraction bits; f32: 1, 8 (bias 127), 23. */
static float f16_value(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1f, fraction = half & 0x3ffu;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24, exact in f32 */
        float value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    if (exponent == 31)
        return float_of(sign | 0x7f800000u | fraction << 13);
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static uint16_t f16_bits(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) { /* below 2^-14: subnormal; adding 0.5 lets the FPU round to 2^-24 */
        uint32_t rounded = bits_of(float_of(bits) + 0.5f) - bits_of(0.5f);
        return (uint16_t)(sign | rounded);
    }
    uint32_t odd = bits >> 13 & 1;
    return (uint16_t)(sign | (bits - 0x38000000u + 0xfffu + odd) >> 13);
}

static uint16_t bf16_bits(float value) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

void ls__f16_to_f32(float *to, const uint16_t *from, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] = f16_value(from[i]);
}

void ls__bf16_to_f32(float *to, const uint16_t *from, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] = float_of((uint32_t)from[i] << 16);
}

void ls__f32_to_f16(uint16_t *to, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] = f16_bits(from[i]);
}

void ls__f32_to_bf16(uint16_t *to, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++)
        to[i] = bf16_bits(from[i]);
}
