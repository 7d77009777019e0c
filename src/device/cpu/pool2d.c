/* Pooling over square windows. Items are (in_h, in_w) planes, one for each image and channel. */
#include <math.h>

#include "device/cpu/cpu.h"

struct pool_arguments {
    ls__pool2d shape;
    const float *x, *dy;
    const int32_t *chosen;
    float *y, *dx;
    int32_t *where;
    bool accumulate;
};

/* Outputs [*first, *last) whose window element `k` lies inside of the input: 0 <= o * stride + k -
 * padding < in. */
static void inside(size_t k, size_t in, size_t out, size_t stride, size_t padding, size_t *first,
                   size_t *last) {
    *first = k >= padding ? 0 : (padding - k + stride - 1) / stride;
    size_t end = in + padding > k ? (in + padding - k - 1) / stride + 1 : 0;
    *last = ls__min_size(end, out);
    if (*first > *last)
        *first = *last;
}

/* best = the larger of it and x for each output of a row; the first wins, and the first NaN. */
LS_INLINE void max_row(size_t count, size_t stride, const float *x, int32_t offset, float *best,
                       int32_t *where) {
    for (size_t o = 0; o < count; o++) {
        float value = x[o * stride], old = best[o];
        bool better = where[o] < 0 || (!(value <= old) && old == old);
        best[o] = better ? value : old;
        where[o] = better ? offset + (int32_t)(o * stride) : where[o];
    }
}

/* Four outputs at a time of the usual 2 x 2 windows side by side: the same choice, written with
 * vector types, because compilers leave the loop as branches that random data makes slow (15
 * against 2 ns an output). */
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t four_ints __attribute__((vector_size(16), aligned(4), may_alias));

LS_INLINE void choose_four(four_floats *best, four_ints *at, const four_floats *value,
                           int32_t offset) {
    four_ints better = ~(*value <= *best) & (*best >= -INFINITY); /* NaN stays */
    *best = (four_floats)(((four_ints)*value & better) | ((four_ints)*best & ~better));
    *at = (better & offset) | (*at & ~better);
}

/* x is the upper of the two input rows, at `offset` in the plane. */
LS_INLINE void max_four_2x2(const float *x, size_t in_w, int32_t offset, float *y, int32_t *where) {
    const four_ints steps = {0, 2, 4, 6};
    four_floats a = *(const four_floats *)x, b = *(const four_floats *)(x + 4);
    four_floats c = *(const four_floats *)(x + in_w), d = *(const four_floats *)(x + in_w + 4);
    four_floats best = __builtin_shufflevector(a, b, 0, 2, 4, 6);
    four_floats right = __builtin_shufflevector(a, b, 1, 3, 5, 7);
    four_floats below = __builtin_shufflevector(c, d, 0, 2, 4, 6);
    four_floats corner = __builtin_shufflevector(c, d, 1, 3, 5, 7);
    four_ints at = {0};
    choose_four(&best, &at, &right, 1);
    choose_four(&best, &at, &below, (int32_t)in_w);
    choose_four(&best, &at, &corner, (int32_t)in_w + 1);
    *(four_floats *)y = best;
    *(four_ints *)where = at + steps + offset;
}

/* One row of at least four outputs; the last four may be computed twice. */
LS_INLINE void max_row_2x2(size_t count, size_t in_w, const float *x, size_t offset, float *y,
                           int32_t *where) {
    for (size_t o = 0; o < count; o += 4) {
        size_t first = ls__min_size(o, count - 4);
        max_four_2x2(x + 2 * first, in_w, (int32_t)(offset + 2 * first), y + first, where + first);
    }
}

/* One row of any other windows, which may reach into the padding. */
LS_INLINE void max_row_any(const ls__pool2d *s, const float *x, size_t oy, float *y,
                           int32_t *where) {
    for (size_t ox = 0; ox < s->out_w; ox++) {
        y[ox] = -INFINITY;
        where[ox] = -1;
    }
    for (size_t k = 0; k < s->kernel * s->kernel; k++) {
        size_t iy = oy * s->stride + k / s->kernel, kx = k % s->kernel, first, last;
        if (iy < s->padding || iy - s->padding >= s->in_h)
            continue;
        inside(kx, s->in_w, s->out_w, s->stride, s->padding, &first, &last);
        size_t at = (iy - s->padding) * s->in_w + first * s->stride + kx - s->padding;
        if (first < last)
            max_row(last - first, s->stride, x + at, (int32_t)at, y + first, where + first);
    }
}

LS_KERNEL static void max_body(const void *arguments, size_t begin, size_t end) {
    const struct pool_arguments *g = arguments;
    const ls__pool2d *s = &g->shape;
    bool is_2x2 = s->kernel == 2 && s->stride == 2 && s->padding == 0 && s->out_w >= 4;
    for (size_t item = begin; item < end; item++) {
        const float *x = g->x + item * s->in_h * s->in_w;
        for (size_t oy = 0; oy < s->out_h; oy++) {
            float *y = g->y + (item * s->out_h + oy) * s->out_w;
            int32_t *where = g->where + (item * s->out_h + oy) * s->out_w;
            size_t offset = 2 * oy * s->in_w;
            if (is_2x2)
                max_row_2x2(s->out_w, s->in_w, x + offset, offset, y, where);
            else
                max_row_any(s, x, oy, y, where);
        }
    }
}

LS_KERNEL static void average_body(const void *arguments, size_t begin, size_t end) {
    const struct pool_arguments *g = arguments;
    const ls__pool2d *s = &g->shape;
    float share = 1.0F / (float)(s->kernel * s->kernel);
    for (size_t item = begin; item < end; item++) {
        const float *x = g->x + item * s->in_h * s->in_w;
        for (size_t oy = 0; oy < s->out_h; oy++) {
            float *y = g->y + (item * s->out_h + oy) * s->out_w;
            for (size_t ox = 0; ox < s->out_w; ox++)
                y[ox] = 0;
            for (size_t k = 0; k < s->kernel * s->kernel; k++) {
                size_t iy = oy * s->stride + k / s->kernel, kx = k % s->kernel, first, last;
                if (iy < s->padding || iy - s->padding >= s->in_h)
                    continue;
                inside(kx, s->in_w, s->out_w, s->stride, s->padding, &first, &last);
                const float *row = x + (iy - s->padding) * s->in_w;
                for (size_t ox = first; ox < last; ox++)
                    y[ox] += row[ox * s->stride + kx - s->padding];
            }
            for (size_t ox = 0; ox < s->out_w; ox++)
                y[ox] *= share;
        }
    }
}

ls_status ls__cpu_pool2d_forward(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                 const void *x, void *y, int32_t *where) {
    LS_TRY(ls__cpu_require_f32(dtype, "pool2d"));
    struct pool_arguments g = {.shape = *shape, .x = x, .y = y, .where = where};
    ls__cpu_parallel(device, shape->batch * shape->channels,
                     shape->out_h * shape->out_w * shape->kernel * shape->kernel,
                     shape->average ? average_body : max_body, &g);
    return LS_OK;
}

static void max_backward_body(const void *arguments, size_t begin, size_t end) {
    const struct pool_arguments *g = arguments;
    size_t in = g->shape.in_h * g->shape.in_w, out = g->shape.out_h * g->shape.out_w;
    for (size_t item = begin; item < end; item++) {
        float *dx = g->dx + item * in;
        if (!g->accumulate)
            for (size_t i = 0; i < in; i++)
                dx[i] = 0;
        for (size_t o = item * out; o < (item + 1) * out; o++)
            if (g->chosen[o] >= 0) /* a window that lies in the padding alone chose nothing */
                dx[g->chosen[o]] += g->dy[o];
    }
}

LS_KERNEL static void average_backward_body(const void *arguments, size_t begin, size_t end) {
    const struct pool_arguments *g = arguments;
    const ls__pool2d *s = &g->shape;
    float share = 1.0F / (float)(s->kernel * s->kernel);
    for (size_t item = begin; item < end; item++) {
        float *dx = g->dx + item * s->in_h * s->in_w;
        if (!g->accumulate)
            for (size_t i = 0; i < s->in_h * s->in_w; i++)
                dx[i] = 0;
        for (size_t oy = 0; oy < s->out_h; oy++) {
            const float *dy = g->dy + (item * s->out_h + oy) * s->out_w;
            for (size_t k = 0; k < s->kernel * s->kernel; k++) {
                size_t iy = oy * s->stride + k / s->kernel, kx = k % s->kernel, first, last;
                if (iy < s->padding || iy - s->padding >= s->in_h)
                    continue;
                inside(kx, s->in_w, s->out_w, s->stride, s->padding, &first, &last);
                float *row = dx + (iy - s->padding) * s->in_w;
                for (size_t ox = first; ox < last; ox++)
                    row[ox * s->stride + kx - s->padding] += dy[ox] * share;
            }
        }
    }
}

ls_status ls__cpu_pool2d_backward(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                  const void *dy, const int32_t *where, void *dx, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "pool2d"));
    struct pool_arguments g = {
        .shape = *shape, .dy = dy, .chosen = where, .dx = dx, .accumulate = accumulate};
    ls__cpu_parallel(device, shape->batch * shape->channels, shape->in_h * shape->in_w,
                     shape->average ? average_backward_body : max_backward_body, &g);
    return LS_OK;
}
