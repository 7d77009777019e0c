/* exp, expm1, tanh and erf as straight-line code that a compiler turns into vector instructions.
 * Only IEEE operations in a written order: the same bits on every x86-64, with any vector width.
 * Errors against the exact value, measured by tests/test_device_elementwise.c: exp, expm1, tanh and
 * erf below 3e-7 relative. NaN gives NaN, infinities their limits. */
#ifndef LS_DEVICE_CPU_MATH_H
#define LS_DEVICE_CPU_MATH_H

#include <stdint.h>
#include <string.h>

#include "device/cpu/cpu.h"

LS_INLINE float ls__float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

LS_INLINE uint32_t ls__bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* x = n ln 2 + r with |r| <= ln 2 / 2. Returns r; n as a biased integer in *n (n + LS__EXP_BIAS).
 * Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. ln 2 is split into a part
 * whose products with n are exact and a rest (Cody, Waite 1980). */
enum { LS__EXP_BIAS = 0x4B400000 };
LS_INLINE float ls__exp_reduce(float x, uint32_t *n) {
    const float round = 12582912.0F;
    float shifted = x * 1.44269504F + round;
    float whole = shifted - round;
    *n = ls__bits_of_float(shifted);
    return (x - whole * 0.693359375F) + whole * 2.12194440e-4F;
}

/* exp(r) - 1 for |r| <= ln 2 / 2: Taylor's polynomial of degree 7, error 5e-9 */
LS_INLINE float ls__expm1_small(float r) {
    float p = 1.0F / 5040;
    p = p * r + 1.0F / 720;
    p = p * r + 1.0F / 120;
    p = p * r + 1.0F / 24;
    p = p * r + 1.0F / 6;
    p = p * r + 0.5F;
    return r + r * r * p;
}

/* 2^(n/2) for the biased n; the other half of n is left in *rest, so that products of the two
 * reach the denormal and the largest numbers. */
LS_INLINE float ls__exp_scale(uint32_t biased, float *rest) {
    int32_t n = (int32_t)(biased - LS__EXP_BIAS);
    int32_t half = n >> 1;
    *rest = ls__float_of_bits((uint32_t)(n - half + 127) << 23);
    return ls__float_of_bits((uint32_t)(half + 127) << 23);
}

LS_INLINE float ls__exp(float x) {
    x = x < -104.0F ? -104.0F : x;
    x = x > 89.0F ? 89.0F : x;
    uint32_t n;
    float r = ls__exp_reduce(x, &n);
    float rest, scale = ls__exp_scale(n, &rest);
    return (1.0F + ls__expm1_small(r)) * scale * rest;
}

/* exp(x) - 1 for -87 <= x <= 87; beyond these limits their value */
LS_INLINE float ls__expm1(float x) {
    x = x < -87.0F ? -87.0F : x;
    x = x > 87.0F ? 87.0F : x;
    uint32_t n;
    float r = ls__exp_reduce(x, &n);
    float power = ls__float_of_bits((n - LS__EXP_BIAS + 127) << 23);
    return power * ls__expm1_small(r) + (power - 1.0F);
}

/* `magnitude` with the sign of `x` */
LS_INLINE float ls__with_sign(float magnitude, float x) {
    return ls__float_of_bits(ls__bits_of_float(magnitude) | (ls__bits_of_float(x) & 0x80000000U));
}

LS_INLINE float ls__magnitude(float x) {
    return ls__float_of_bits(ls__bits_of_float(x) & 0x7FFFFFFFU);
}

/* tanh |x| = e / (e + 2) with e = exp(2 |x|) - 1; 1 from |x| = 9.02 on, to 24 bits */
LS_INLINE float ls__tanh(float x) {
    float a = ls__magnitude(x);
    a = a > 10.0F ? 10.0F : a;
    float e = ls__expm1(a + a);
    return ls__with_sign(e / (e + 2.0F), x);
}

/* erf |x| = 1 - exp(-|x| P(|x|)): P = -log(erfc(x)) / x is smooth, and this form keeps the relative
 * error small at both ends. P by Chebyshev interpolation on [0, 4], error 2e-8; erf(4) is 1 to 24
 * bits. */
LS_INLINE float ls__erf(float x) {
    float a = ls__magnitude(x);
    a = a > 4.0F ? 4.0F : a;
    float p = -1.01397727357e-7F;
    p = p * a + 2.55876505984e-6F;
    p = p * a - 2.8743581766e-5F;
    p = p * a + 1.88092176373e-4F;
    p = p * a - 7.71879746349e-4F;
    p = p * a + 1.82303072295e-3F;
    p = p * a - 2.58150394793e-4F;
    p = p * a - 1.91213860316e-2F;
    p = p * a + 0.102773360949F;
    p = p * a + 0.636619567365F;
    p = p * a + 1.1283791709F;
    return ls__with_sign(-ls__expm1(-(a * p)), x);
}

LS_INLINE float ls__sigmoid(float x) {
    return 1.0F / (1.0F + ls__exp(-x));
}

#endif
