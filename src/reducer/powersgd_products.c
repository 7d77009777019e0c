#include "reducer/powersgd_products.h"

#include <string.h>

typedef struct product {
    const ls__powersgd_shape *shape;
    const float *from, *p, *q, *mean;
    float *to, *error;
} product;

typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
enum { LANES = 16 };

/* Sixteen partial sums, one a lane, added in their order. */
LS_INLINE float dot(const float *a, const float *b, size_t count) {
    v8 low = {0}, high = {0};
    float lane[LANES], sum = 0;
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        low += *(const v8 *)(a + i) * *(const v8 *)(b + i);
        high += *(const v8 *)(a + i + 8) * *(const v8 *)(b + i + 8);
    }
    memcpy(lane, &low, sizeof low);
    memcpy(lane + 8, &high, sizeof high);
    for (size_t l = 0; l < LANES; l++)
        sum += lane[l];
    for (; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

LS_INLINE void add_scaled(float *restrict to, float factor, const float *restrict from,
                          size_t count) {
    for (size_t i = 0; i < count; i++)
        to[i] += factor * from[i];
}

LS_KERNEL(make_p_body) {
    const product *g = arguments;
    const ls__powersgd_shape *s = g->shape;
    for (size_t i = begin; i < end; i++)
        for (size_t k = 0; k < s->r; k++)
            g->to[i * s->r + k] = dot(g->from + i * s->m, g->q + k * s->m, s->m);
}

LS_KERNEL(make_q_body) {
    const product *g = arguments;
    const ls__powersgd_shape *s = g->shape;
    for (size_t i = begin; i < end; i++)
        for (size_t k = 0; k < s->r; k++)
            add_scaled(g->to + k * s->m, g->p[i * s->r + k], g->from + i * s->m, s->m);
}

LS_KERNEL(finish_body) {
    const product *g = arguments;
    const ls__powersgd_shape *s = g->shape;
    for (size_t i = begin; i < end; i++) {
        float *row = g->to + i * s->m, *error = g->error + i * s->m;
        memcpy(error, row, s->m * sizeof *row);
        memset(row, 0, s->m * sizeof *row);
        for (size_t k = 0; k < s->r; k++) {
            add_scaled(error, -g->p[i * s->r + k], g->q + k * s->m, s->m);
            add_scaled(row, g->p[i * s->r + k], g->mean + k * s->m, s->m);
        }
    }
}

void ls__powersgd_make_p(const ls__powersgd_shape *shape, const float *matrix, const float *q,
                         float *p) {
    const product g = {.shape = shape, .from = matrix, .q = q, .to = p};
    make_p_body[shape->level](&g, 0, shape->n);
}

void ls__powersgd_make_q(const ls__powersgd_shape *shape, const float *matrix, const float *p,
                         float *q) {
    const product g = {.shape = shape, .from = matrix, .p = p, .to = q};
    memset(q, 0, shape->r * shape->m * sizeof *q);
    make_q_body[shape->level](&g, 0, shape->n);
}

void ls__powersgd_finish(const ls__powersgd_shape *shape, const float *p, const float *local,
                         const float *mean, float *matrix, float *error) {
    const product g = {
        .shape = shape, .p = p, .q = local, .mean = mean, .to = matrix, .error = error};
    finish_body[shape->level](&g, 0, shape->n);
}
