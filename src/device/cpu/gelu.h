/* GELU and its slope, exact and in GPT-2's tanh form, one number at a time. */
#ifndef LS_DEVICE_CPU_GELU_H
#define LS_DEVICE_CPU_GELU_H

#include "device/cpu/math.h"

static const float LS__SQRT_HALF = 0.70710678118654752F;
static const float LS__SQRT_2_OVER_PI = 0.79788456080286536F;
static const float LS__INVERSE_SQRT_2_PI = 0.39894228040143268F;
static const float LS__GELU_CUBIC = 0.044715F; /* Hendrycks, Gimpel 2016 */

LS_INLINE float ls__gelu_cdf(float x) {
    return 0.5F * (1.0F + ls__erf(x * LS__SQRT_HALF));
}

LS_INLINE float ls__gelu_slope(float x) {
    return ls__gelu_cdf(x) + x * (LS__INVERSE_SQRT_2_PI * ls__exp(-0.5F * x * x));
}

/* exp(-2u), u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 is 1 / (1 + that), which costs half of
 * a tanh. Below the limit of u, x times it is 0 to f32. */
LS_INLINE float ls__gelu_tanh_power(float x) {
    float u = -2.0F * LS__SQRT_2_OVER_PI * (x + LS__GELU_CUBIC * x * x * x);
    return ls__exp(u > 80.0F ? 80.0F : u);
}

LS_INLINE float ls__gelu_tanh(float x) {
    return x / (1.0F + ls__gelu_tanh_power(x));
}

LS_INLINE float ls__gelu_tanh_slope(float x) {
    float power = ls__gelu_tanh_power(x), half = 1.0F / (1.0F + power);
    float inner = 2.0F * LS__SQRT_2_OVER_PI * (1.0F + 3.0F * LS__GELU_CUBIC * x * x);
    return half + x * inner * (power * half * half);
}

#endif
