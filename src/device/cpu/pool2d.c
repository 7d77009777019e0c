/* Pooling over square windows, channels last. Items are images: windows of one image may overlap.
 * Eight channels at a time, as vectors. */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

struct pool_arguments {
    ls__pool2d shape;
    const float *x, *dy;
    const int32_t *chosen;
    float *y, *dx;
    int32_t *where;
    bool accumulate;
};

/* What of the window of one output lies inside of the image: rows and columns [begin, end). */
typedef struct window {
    size_t top, bottom, left, right;
} window;

LS_INLINE void inside(size_t o, size_t in, const ls__pool2d *s, size_t *begin, size_t *end) {
    size_t first = o * s->stride, last = first + s->kernel;
    *begin = first < s->padding ? 0 : first - s->padding;
    *end = ls__min_size(last < s->padding ? 0 : last - s->padding, in);
}

LS_INLINE window window_of(const ls__pool2d *s, size_t oy, size_t ox) {
    window w;
    inside(oy, s->in_h, s, &w.top, &w.bottom);
    inside(ox, s->in_w, s, &w.left, &w.right);
    return w;
}

/* The largest of each channel and its offset in the plane; the first wins, and the first NaN. An
 * empty window has none: -infinity at -1. x: the image. Written with vector types, because compilers
 * leave such loops as branches that random data makes slow. */
typedef int32_t eight_ints __attribute__((vector_size(32), aligned(4), may_alias));

LS_INLINE void max_eight(const ls__pool2d *s, const window *w, const float *x, float *y,
                         int32_t *where) {
    ls__v8 best = {0};
    eight_ints at = {0};
    best -= INFINITY;
    at -= 1;
    for (size_t iy = w->top; iy < w->bottom; iy++) {
        for (size_t ix = w->left; ix < w->right; ix++) {
            size_t offset = iy * s->in_w + ix;
            ls__v8 value = *(const ls__v8 *)(x + offset * s->channels);
            /* NOLINTNEXTLINE(misc-redundant-expression): false where best is a NaN, which stays */
            eight_ints better = (~(value <= best) & (best == best)) | (at < 0);
            best = (ls__v8)(((eight_ints)value & better) | ((eight_ints)best & ~better));
            at = ((int32_t)offset & better) | (at & ~better);
        }
    }
    *(ls__v8 *)y = best;
    *(eight_ints *)where = at;
}

LS_INLINE void max_one(const ls__pool2d *s, const window *w, const float *x, float *y,
                       int32_t *where) {
    float best = -INFINITY;
    int32_t at = -1;
    for (size_t iy = w->top; iy < w->bottom; iy++) {
        for (size_t ix = w->left; ix < w->right; ix++) {
            size_t offset = iy * s->in_w + ix;
            float value = x[offset * s->channels];
            if (at < 0 || (!(value <= best) && best == best)) {
                best = value;
                at = (int32_t)offset;
            }
        }
    }
    *y = best;
    *where = at;
}

LS_KERNEL(max_body) {
    const struct pool_arguments *g = arguments;
    const ls__pool2d *s = &g->shape;
    for (size_t o = begin * s->out_h * s->out_w; o < end * s->out_h * s->out_w; o++) {
        const float *x = g->x + o / (s->out_h * s->out_w) * s->in_h * s->in_w * s->channels;
        float *y = g->y + o * s->channels;
        int32_t *where = g->where + o * s->channels;
        window w = window_of(s, o / s->out_w % s->out_h, o % s->out_w);
        for (size_t iy = w.top; iy < w.bottom && w.left < w.right; iy++)
            ls__cpu_ask_ahead(x + (iy * s->in_w + w.left) * s->channels,
                              (w.right - w.left) * s->channels);
        size_t c = 0;
        for (; c + 8 <= s->channels; c += 8)
            max_eight(s, &w, x + c, y + c, where + c);
        for (; c < s->channels; c++)
            max_one(s, &w, x + c, y + c, where + c);
    }
}

LS_KERNEL(average_body) {
    const struct pool_arguments *g = arguments;
    const ls__pool2d *s = &g->shape;
    float share = 1.0F / (float)(s->kernel * s->kernel);
    for (size_t o = begin * s->out_h * s->out_w; o < end * s->out_h * s->out_w; o++) {
        const float *image = g->x + o / (s->out_h * s->out_w) * s->in_h * s->in_w * s->channels;
        float *y = g->y + o * s->channels;
        window w = window_of(s, o / s->out_w % s->out_h, o % s->out_w);
        for (size_t c = 0; c < s->channels; c++)
            y[c] = 0;
        for (size_t iy = w.top; iy < w.bottom; iy++) {
            for (size_t ix = w.left; ix < w.right; ix++) {
                const float *x = image + (iy * s->in_w + ix) * s->channels;
                for (size_t c = 0; c < s->channels; c++)
                    y[c] += x[c];
            }
        }
        for (size_t c = 0; c < s->channels; c++)
            y[c] *= share;
    }
}

ls_status ls__cpu_pool2d_forward(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                 const void *x, void *y, int32_t *where) {
    LS_TRY(ls__cpu_require_f32(dtype, "pool2d"));
    struct pool_arguments g = {.shape = *shape, .x = x, .y = y, .where = where};
    ls__cpu_parallel(device, shape->batch,
                     shape->channels * shape->out_h * shape->out_w * shape->kernel * shape->kernel,
                     shape->average ? average_body : max_body, &g);
    return LS_OK;
}

/* dx (+)= dy where the element at `offset` was chosen; the rest of it stays, or becomes 0. */
LS_INLINE void give_chosen(size_t channels, int32_t offset, const float *dy, const int32_t *chosen,
                           float *dx, bool add) {
    size_t c = 0;
    for (; c + 8 <= channels; c += 8) {
        eight_ints mask = *(const eight_ints *)(chosen + c) == offset;
        /* cppcheck-suppress invalidPointerCast ; the bits are masked, not read as numbers */
        ls__v8 given = (ls__v8)(*(const eight_ints *)(dy + c) & mask);
        if (add)
            given += *(const ls__v8 *)(dx + c);
        *(ls__v8 *)(dx + c) = given;
    }
    for (; c < channels; c++) {
        float given = chosen[c] == offset ? dy[c] : 0;
        dx[c] = add ? dx[c] + given : given;
    }
}

/* Windows side by side that cover the image: each element is written once. */
static bool tiles(const ls__pool2d *s) {
    return s->kernel == s->stride && s->padding == 0 && s->out_h * s->kernel == s->in_h &&
           s->out_w * s->kernel == s->in_w;
}

LS_KERNEL(max_backward_body) {
    const struct pool_arguments *g = arguments;
    const ls__pool2d *s = &g->shape;
    size_t in = s->in_h * s->in_w * s->channels;
    bool add = g->accumulate || !tiles(s);
    if (add && !g->accumulate)
        memset(g->dx + begin * in, 0, (end - begin) * in * sizeof *g->dx);
    for (size_t o = begin * s->out_h * s->out_w; o < end * s->out_h * s->out_w; o++) {
        float *dx = g->dx + o / (s->out_h * s->out_w) * in;
        window w = window_of(s, o / s->out_w % s->out_h, o % s->out_w);
        for (size_t iy = w.top; iy < w.bottom; iy++) {
            for (size_t ix = w.left; ix < w.right; ix++) {
                size_t offset = iy * s->in_w + ix;
                give_chosen(s->channels, (int32_t)offset, g->dy + o * s->channels,
                            g->chosen + o * s->channels, dx + offset * s->channels, add);
            }
        }
    }
}

LS_KERNEL(average_backward_body) {
    const struct pool_arguments *g = arguments;
    const ls__pool2d *s = &g->shape;
    size_t in = s->in_h * s->in_w * s->channels;
    float share = 1.0F / (float)(s->kernel * s->kernel);
    if (!g->accumulate)
        memset(g->dx + begin * in, 0, (end - begin) * in * sizeof *g->dx);
    for (size_t o = begin * s->out_h * s->out_w; o < end * s->out_h * s->out_w; o++) {
        const float *dy = g->dy + o * s->channels;
        window w = window_of(s, o / s->out_w % s->out_h, o % s->out_w);
        for (size_t iy = w.top; iy < w.bottom; iy++) {
            for (size_t ix = w.left; ix < w.right; ix++) {
                float *dx =
                    g->dx + o / (s->out_h * s->out_w) * in + (iy * s->in_w + ix) * s->channels;
                for (size_t c = 0; c < s->channels; c++)
                    dx[c] += dy[c] * share;
            }
        }
    }
}

ls_status ls__cpu_pool2d_backward(ls_device *device, ls_dtype dtype, const ls__pool2d *shape,
                                  const void *dy, const int32_t *where, void *dx, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "pool2d"));
    struct pool_arguments g = {
        .shape = *shape, .dy = dy, .chosen = where, .dx = dx, .accumulate = accumulate};
    ls__cpu_parallel(device, shape->batch, shape->channels * shape->in_h * shape->in_w,
                     shape->average ? average_backward_body : max_backward_body, &g);
    return LS_OK;
}
