/* 16-bit floats to and from f32, in whole arrays. Written with integers: the same bits everywhere,
 * also where the processor or compiler has no such type. */
#ifndef LS_BASE_HALF_H
#define LS_BASE_HALF_H

#include <stddef.h>
#include <stdint.h>

/* Exact. NaN stays NaN. */
void ls__f16_to_f32(float *to, const uint16_t *from, size_t n);
void ls__bf16_to_f32(float *to, const uint16_t *from, size_t n);

/* Rounded to nearest, ties to even; too large becomes infinity, NaN a quiet NaN. */
void ls__f32_to_f16(uint16_t *to, const float *from, size_t n);
void ls__f32_to_bf16(uint16_t *to, const float *from, size_t n);

#endif
