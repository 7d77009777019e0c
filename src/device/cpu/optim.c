/* What the optimizer does to memory: the norm of gradients, and fused updates in one pass each; formulas as
 * torch.optim.SGD, Adam, AdamW. */
#include <math.h>

#include "device/cpu/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Elements updated between two looks ahead. */
enum { STRIP = 64 };

struct sgd_arguments {
    ls__sgd o;
    float *weight, *momentum;
    const float *gradient;
};

LS_INLINE void sgd_elements(const struct sgd_arguments *g, size_t begin, size_t end,
                            bool has_momentum, bool first, bool nesterov) {
    const ls__sgd o = g->o;
    float *restrict weight = g->weight, *restrict momentum = g->momentum;
    const float *restrict gradient = g->gradient;
    for (size_t i = begin; i < end; i++) {
        float w = weight[i];
        float d = gradient[i] * o.grad_factor * o.grad_scale + o.weight_decay * w;
        if (has_momentum) {
            float m = first ? d : o.momentum * momentum[i] + d;
            momentum[i] = m;
            d = nesterov ? d + o.momentum * m : m;
        }
        weight[i] = w - o.rate * d;
    }
}

/* Whether there is momentum, a first step, and Nesterov's look ahead does not change within a pass:
 * constant wherever this is inlined, so each case is a loop of its own. */
LS_INLINE void sgd_pass(const struct sgd_arguments *g, size_t begin, size_t end, bool has_momentum,
                        bool first, bool nesterov) {
    size_t i = begin;
    for (; i + STRIP <= end; i += STRIP) {
        ls__cpu_ask_ahead(g->weight + i, STRIP);
        ls__cpu_ask_ahead(g->gradient + i, STRIP);
        if (has_momentum)
            ls__cpu_ask_ahead(g->momentum + i, STRIP);
        sgd_elements(g, i, i + STRIP, has_momentum, first, nesterov);
    }
    sgd_elements(g, i, end, has_momentum, first, nesterov);
}

LS_KERNEL(sgd_body) {
    const struct sgd_arguments *g = arguments;
    if (!g->momentum)
        sgd_pass(g, begin, end, false, false, false);
    else if (g->o.first && g->o.nesterov)
        sgd_pass(g, begin, end, true, true, true);
    else if (g->o.first)
        sgd_pass(g, begin, end, true, true, false);
    else if (g->o.nesterov)
        sgd_pass(g, begin, end, true, false, true);
    else
        sgd_pass(g, begin, end, true, false, false);
}

ls_status ls__cpu_sgd(ls_device *device, size_t count, const ls__sgd *o, float *weight,
                      const float *gradient, float *momentum) {
    struct sgd_arguments g = {.o = *o,
                              .weight = weight,
                              .momentum = o->momentum != 0 ? momentum : NULL,
                              .gradient = gradient};
    ls__cpu_parallel(device, count, 2, sgd_body, &g);
    return LS_OK;
}

struct adam_arguments {
    ls__adam o;
    float *weight, *first, *second;
    const float *gradient;
};

LS_INLINE void adam_elements(const struct adam_arguments *g, size_t begin, size_t end) {
    const ls__adam o = g->o;
    float *restrict weight = g->weight, *restrict first = g->first, *restrict second = g->second;
    const float *restrict gradient = g->gradient;
    float keep = o.decoupled ? 1.0F - o.rate * o.weight_decay : 1.0F;
    float decay = o.decoupled ? 0.0F : o.weight_decay;
    float step = o.rate / o.correction1, root = sqrtf(o.correction2);
    for (size_t i = begin; i < end; i++) {
        float w = weight[i] * keep;
        float d = gradient[i] * o.grad_factor * o.grad_scale + decay * w;
        float m = o.beta1 * first[i] + (1.0F - o.beta1) * d;
        float v = o.beta2 * second[i] + (1.0F - o.beta2) * (d * d);
        first[i] = m;
        second[i] = v;
        weight[i] = w - step * m / (sqrtf(v) / root + o.epsilon);
    }
}

LS_KERNEL(adam_body) {
    const struct adam_arguments *g = arguments;
    size_t i = begin;
    for (; i + STRIP <= end; i += STRIP) {
        ls__cpu_ask_ahead(g->weight + i, STRIP);
        ls__cpu_ask_ahead(g->gradient + i, STRIP);
        ls__cpu_ask_ahead(g->first + i, STRIP);
        ls__cpu_ask_ahead(g->second + i, STRIP);
        adam_elements(g, i, i + STRIP);
    }
    adam_elements(g, i, end);
}

ls_status ls__cpu_adam(ls_device *device, size_t count, const ls__adam *o, float *weight,
                       const float *gradient, float *first, float *second) {
    struct adam_arguments g = {
        .o = *o, .weight = weight, .first = first, .second = second, .gradient = gradient};
    ls__cpu_parallel(device, count, 4, adam_body, &g);
    return LS_OK;
}

/* --- the norm: items are blocks of LS__SQUARES_BLOCK elements, with as many partial sums as hide an addition's
 * latency --- */

enum { BLOCK = LS__SQUARES_BLOCK, PARTIALS = 16 };
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef double four_doubles __attribute__((vector_size(32), aligned(8), may_alias));

struct norm_arguments {
    size_t count;
    float factor;
    const float *x;
    double *parts; /* a block's sum */
};

LS_INLINE void add_squares(four_doubles *sum, const float *x, float factor) {
    four_doubles p = __builtin_convertvector(*(const four_floats *)x * factor, four_doubles);
    *sum += p * p;
}

/* What is left of a block behind its last whole PARTIALS joins the partial sums, which become one. */
LS_INLINE double finish_squares(double *partial, const float *x, float factor, size_t count) {
    for (size_t j = 0; j < count; j++) {
        double value = (double)(x[j] * factor);
        partial[j] += value * value;
    }
    for (size_t width = PARTIALS / 2; width > 0; width /= 2)
        for (size_t j = 0; j < width; j++)
            partial[j] += partial[j + width];
    return partial[0];
}

/* Elements i = j mod 16 go to partial sum j. */
LS_INLINE double block_squares(const float *x, float factor, size_t count) {
    double partial[PARTIALS];
    four_doubles a = {0}, b = {0}, c = {0}, d = {0};
    size_t i = 0;
    for (; i + PARTIALS <= count; i += PARTIALS) {
        add_squares(&a, x + i, factor);
        add_squares(&b, x + i + 4, factor);
        add_squares(&c, x + i + 8, factor);
        add_squares(&d, x + i + 12, factor);
    }
    *(four_doubles *)partial = a;
    *(four_doubles *)(partial + 4) = b;
    *(four_doubles *)(partial + 8) = c;
    *(four_doubles *)(partial + 12) = d;
    return finish_squares(partial, x + i, factor, count - i);
}

LS_KERNEL(norm_body) {
    const struct norm_arguments *g = arguments;
    for (size_t block = begin; block < end; block++) {
        size_t first = block * BLOCK;
        g->parts[block] =
            block_squares(g->x + first, g->factor, ls__min_size(BLOCK, g->count - first));
    }
}

#if defined(__x86_64__)
/* The same partial sums, eight to a vector, by FMA: the square of an f32 is exact in f64, so only the
 * addition rounds, as above. 45 GB/s from the first-level cache instead of 24. */
LS__TARGET_AVX512 static double wide_block_squares(const float *x, float factor, size_t count) {
    double partial[PARTIALS];
    __m512d low = _mm512_setzero_pd(), high = low;
    size_t i = 0;
    for (; i + PARTIALS <= count; i += PARTIALS) {
        ls__cpu_ask_ahead(x + i, PARTIALS);
        __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(factor));
        __m512d a = _mm512_cvtps_pd(_mm512_castps512_ps256(v)),
                b = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        low = _mm512_fmadd_pd(a, a, low);
        high = _mm512_fmadd_pd(b, b, high);
    }
    _mm512_storeu_pd(partial, low);
    _mm512_storeu_pd(partial + PARTIALS / 2, high);
    return finish_squares(partial, x + i, factor, count - i);
}

LS__TARGET_AVX512 static void wide_norm_body(const void *arguments, size_t begin, size_t end) {
    const struct norm_arguments *g = arguments;
    for (size_t block = begin; block < end; block++)
        g->parts[block] = wide_block_squares(g->x + block * BLOCK, g->factor,
                                             ls__min_size(BLOCK, g->count - block * BLOCK));
}
#else
#define wide_norm_body norm_body_avx512
#endif

ls_status ls__cpu_squares(ls_device *device, size_t count, float factor, const float *x,
                          double *sums) {
    struct norm_arguments g = {.count = count, .factor = factor, .x = x, .parts = sums};
    ls__cpu_body *const kernel[LS__CPU_LEVELS] = {norm_body[LS__CPU_BASELINE],
                                                  norm_body[LS__CPU_AVX2], wide_norm_body};
    ls__cpu_parallel(device, ls__squares_blocks(count), BLOCK, kernel, &g);
    return LS_OK;
}
