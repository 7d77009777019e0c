/* Convolution as matrix products, channels last. The input values under the kernel at one output pixel
 * are a row of `columns` (pixels, K), K = kernel_h * kernel_w * in_channels, copied together in runs of
 * kernel_w * in_channels. With the weights as w (out_channels, K) and y as (pixels, out_channels):
 *
 *     forward   y = columns w^T + bias        backward   dw = dy^T columns
 *                                                        dcolumns = dy w, added up into dx
 *
 * The columns are made for a block of pixels at a time, small enough to stay in cache. Threads take
 * whole images. Shapes that a first layer has, and those that oneDNN's own convolution is faster at, go
 * to conv2d_narrow.c and conv2d_direct.c. */
#include "device/cpu/conv2d.h"

#include <string.h>

#include "device/cpu/onednn.h"

enum {
    BLOCK_FLOATS = 1 << 18, /* of columns: 1 MiB, so that they stay in cache ... */
    FEWEST_ROWS = 256,      /* ... but each product reads all weights, which has to pay */
    LINE = 16,              /* floats in a cache line */
    SUMMED_ROWS = 64,
};

typedef struct conv_job {
    ls__conv2d shape;
    size_t k, ld; /* K; distance of rows of columns and w */
    size_t rows;  /* of a block */
    size_t parts; /* one a thread */
    const float *x, *w, *bias, *y, *dy;
    float *out; /* forward's y */
    float *dx;
    bool accumulate_dx, want_dw, want_dbias;
    float *scratch; /* part p's begins at p * part_floats: columns, dw, dbias, dy behind relu */
    size_t part_floats, dw_at, dbias_at, dy_at;
    dnnl_status_t *results; /* of each part */
} conv_job;

/* --- columns --- */

/* Where in an image the kernel of an output pixel lies. */
typedef struct window {
    size_t image, top, left; /* padding included: row `top` is row top - padding of the image */
} window;

static window window_of(const ls__conv2d *s, size_t pixel) {
    size_t in_image = pixel % (s->out_h * s->out_w);
    return (window){.image = pixel / (s->out_h * s->out_w),
                    .top = in_image / s->out_w * s->stride,
                    .left = in_image % s->out_w * s->stride};
}

/* The part of kernel row `ky` that lies inside the image: `count` pixels from kernel column `skip`
 * on. Returns the first one's place among all pixels of x. */
static size_t kernel_row(const ls__conv2d *s, window at, size_t ky, size_t *skip, size_t *count) {
    size_t y = at.top + ky, end = s->in_w + s->padding;
    *skip = *count = 0;
    if (y < s->padding || y >= s->in_h + s->padding)
        return 0;
    *skip = at.left < s->padding ? ls__min_size(s->padding - at.left, s->kernel_w) : 0;
    size_t first = at.left + *skip, last = ls__min_size(at.left + s->kernel_w, end);
    if (first >= last)
        return 0;
    *count = last - first;
    return (at.image * s->in_h + y - s->padding) * s->in_w + first - s->padding;
}

LS_INLINE void gather(const conv_job *job, size_t first, size_t rows, float *columns) {
    const ls__conv2d *s = &job->shape;
    size_t c = s->in_channels, run = s->kernel_w * c;
    for (size_t r = 0; r < rows; r++) {
        window at = window_of(s, first + r);
        float *to = columns + r * job->ld;
        for (size_t ky = 0; ky < s->kernel_h; ky++, to += run) {
            size_t skip, count, from = kernel_row(s, at, ky, &skip, &count);
            size_t begin = skip * c, end = begin + count * c;
            if (begin > 0)
                memset(to, 0, begin * sizeof *to);
            memcpy(to + begin, job->x + from * c, count * c * sizeof *to);
            if (end < run)
                memset(to + end, 0, (run - end) * sizeof *to);
        }
    }
}

/* dx += dcolumns, each to where gather took it from */
LS_INLINE void scatter(const conv_job *job, size_t first, size_t rows, const float *columns) {
    const ls__conv2d *s = &job->shape;
    size_t c = s->in_channels, run = s->kernel_w * c;
    for (size_t r = 0; r < rows; r++) {
        window at = window_of(s, first + r);
        const float *from = columns + r * job->ld;
        for (size_t ky = 0; ky < s->kernel_h; ky++, from += run) {
            size_t skip, count, to = kernel_row(s, at, ky, &skip, &count);
            float *restrict dx = job->dx + to * c;
            const float *restrict values = from + skip * c;
            for (size_t i = 0; i < count * c; i++)
                dx[i] += values[i];
        }
    }
}

/* --- what surrounds the products of a block --- */

/* y = y + bias, then relu where asked for; NaN stays */
LS_INLINE void finish_rows(const conv_job *job, size_t rows, float *y) {
    size_t n = job->shape.out_channels;
    const float *bias = job->bias;
    bool relu = job->shape.relu;
    for (size_t r = 0; r < rows && (bias || relu); r++, y += n) {
        if (bias)
            for (size_t o = 0; o < n; o++)
                y[o] += bias[o];
        if (relu)
            for (size_t o = 0; o < n; o++)
                y[o] = y[o] <= 0 ? 0 : y[o];
    }
}

LS_INLINE void mask_rows(size_t count, const float *y, const float *dy, float *masked) {
    for (size_t i = 0; i < count; i++)
        masked[i] = y[i] <= 0 ? 0 : dy[i];
}

/* dbias += the sum of the rows, a few at a time so that rounding does not grow with their number */
LS_INLINE void add_rows(size_t n, size_t rows, const float *dy, float *dbias) {
    for (size_t first = 0; first < rows; first += SUMMED_ROWS) {
        size_t last = ls__min_size(first + SUMMED_ROWS, rows);
        for (size_t o = 0; o < n; o += LINE) {
            float sums[LINE] = {0};
            size_t count = ls__min_size(LINE, n - o);
            for (size_t r = first; r < last; r++)
                for (size_t j = 0; j < count; j++)
                    sums[j] += dy[r * n + o + j];
            for (size_t j = 0; j < count; j++)
                dbias[o + j] += sums[j];
        }
    }
}

static dnnl_status_t product(char ta, char tb, size_t m, size_t n, size_t k, const float *a,
                             size_t lda, const float *b, size_t ldb, float beta, float *c,
                             size_t ldc) {
    return dnnl_sgemm(ta, tb, (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, 1.0F, a, (dnnl_dim_t)lda,
                      b, (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)ldc);
}

/* --- one part: the images [part * batch / parts, (part + 1) * batch / parts) --- */

static size_t first_pixel(const conv_job *job, size_t part) {
    const ls__conv2d *s = &job->shape;
    return s->batch * part / job->parts * s->out_h * s->out_w;
}

LS_INLINE dnnl_status_t forward_part(const conv_job *job, size_t part) {
    size_t n = job->shape.out_channels, end = first_pixel(job, part + 1);
    float *columns = job->scratch + part * job->part_floats;
    dnnl_status_t result = dnnl_success;
    for (size_t p = first_pixel(job, part); p < end && result == dnnl_success; p += job->rows) {
        size_t rows = ls__min_size(job->rows, end - p);
        gather(job, p, rows, columns);
        result = product('N', 'T', rows, n, job->k, columns, job->ld, job->w, job->ld, 0,
                         job->out + p * n, n);
        finish_rows(job, rows, job->out + p * n);
    }
    return result;
}

LS_INLINE dnnl_status_t backward_part(const conv_job *job, size_t part) {
    const ls__conv2d *s = &job->shape;
    size_t n = s->out_channels, begin = first_pixel(job, part), end = first_pixel(job, part + 1);
    float *columns = job->scratch + part * job->part_floats, *dw = columns + job->dw_at;
    float *dbias = columns + job->dbias_at, *masked = columns + job->dy_at;
    dnnl_status_t result = dnnl_success;
    if (job->dx && !job->accumulate_dx) {
        size_t image = s->in_h * s->in_w * s->in_channels, first = begin / (s->out_h * s->out_w);
        memset(job->dx + first * image, 0,
               (end / (s->out_h * s->out_w) - first) * image * sizeof(float));
    }
    memset(dbias, 0, n * sizeof *dbias);
    for (size_t p = begin; p < end && result == dnnl_success; p += job->rows) {
        size_t rows = ls__min_size(job->rows, end - p);
        const float *dy = job->dy + p * n;
        if (s->relu) {
            mask_rows(rows * n, job->y + p * n, dy, masked);
            dy = masked;
        }
        if (job->want_dbias)
            add_rows(n, rows, dy, dbias);
        if (job->want_dw) {
            gather(job, p, rows, columns);
            result = product('T', 'N', n, job->k, rows, dy, n, columns, job->ld,
                             p == begin ? 0.0F : 1.0F, dw, job->ld);
        }
        if (job->dx && result == dnnl_success) {
            result =
                product('N', 'N', rows, job->k, n, dy, n, job->w, job->ld, 0, columns, job->ld);
            scatter(job, p, rows, columns);
        }
    }
    return result;
}

LS_KERNEL(forward_body) {
    const conv_job *job = arguments;
    for (size_t part = begin; part < end; part++)
        job->results[part] = forward_part(job, part);
}

LS_KERNEL(backward_body) {
    const conv_job *job = arguments;
    for (size_t part = begin; part < end; part++)
        job->results[part] = backward_part(job, part);
}

/* --- weights: (out, in, kernel_h * kernel_w) of the caller, (out, kernel_h * kernel_w, in) here --- */

LS_INLINE void pack_weights(const conv_job *job, const float *w, float *packed) {
    const ls__conv2d *s = &job->shape;
    size_t c = s->in_channels, taps = s->kernel_h * s->kernel_w;
    for (size_t o = 0; o < s->out_channels; o++)
        for (size_t t = 0; t < taps; t++)
            for (size_t i = 0; i < c; i++)
                packed[o * job->ld + t * c + i] = w[(o * c + i) * taps + t];
}

/* dw (+)= the sum over the parts, in order */
LS_INLINE void unpack_weights(const conv_job *job, float *dw, bool accumulate) {
    const ls__conv2d *s = &job->shape;
    size_t c = s->in_channels, taps = s->kernel_h * s->kernel_w;
    float *sum = job->scratch + job->dw_at;
    for (size_t o = 0; o < s->out_channels; o++) {
        float *row = sum + o * job->ld, *to = dw + o * job->k;
        for (size_t part = 1; part < job->parts; part++)
            for (size_t i = 0; i < job->k; i++)
                row[i] += row[part * job->part_floats + i];
        for (size_t i = 0; i < c; i++)
            for (size_t t = 0; t < taps; t++)
                to[i * taps + t] = row[t * c + i] + (accumulate ? to[i * taps + t] : 0);
    }
}

static void sum_bias(const conv_job *job, float *dbias, bool accumulate) {
    for (size_t o = 0; o < job->shape.out_channels; o++) {
        float sum = 0;
        for (size_t part = 0; part < job->parts; part++)
            sum += job->scratch[part * job->part_floats + job->dbias_at + o];
        dbias[o] = accumulate ? dbias[o] + sum : sum;
    }
}

/* --- a whole convolution --- */

static size_t whole_lines(size_t floats) {
    return (floats + LINE - 1) / LINE * LINE;
}

/* Sizes, and the device's scratch memory: the packed weights, then the parts'. */
static ls_status start(ls_device *device, conv_job *job, const float *w, bool backward) {
    const ls__conv2d *s = &job->shape;
    size_t n = s->out_channels;
    job->k = s->kernel_h * s->kernel_w * s->in_channels;
    job->ld = whole_lines(job->k) + LINE; /* never a large power of two apart */
    job->parts = ls__min_size((size_t)device->threads, s->batch);
    size_t most = (s->batch + job->parts - 1) / job->parts * s->out_h * s->out_w;
    job->rows = BLOCK_FLOATS / job->ld < FEWEST_ROWS ? FEWEST_ROWS : BLOCK_FLOATS / job->ld;
    job->rows = ls__min_size(job->rows, most);
    job->dw_at = job->rows * job->ld;
    job->dbias_at = job->dw_at + (backward && job->want_dw ? n * job->ld : 0);
    job->dy_at = job->dbias_at + whole_lines(n);
    job->part_floats = job->dy_at + (backward && s->relu ? whole_lines(job->rows * n) : 0);
    size_t results = whole_lines(job->parts * sizeof *job->results);
    void *memory;
    LS_TRY(ls__cpu_scratch(
        device, (n * job->ld + job->parts * job->part_floats + results) * sizeof(float), &memory));
    float *packed = memory;
    job->w = packed;
    job->scratch = packed + n * job->ld;
    job->results = (void *)(job->scratch + job->parts * job->part_floats);
    if (!backward || job->dx)
        pack_weights(job, w, packed);
    return LS_OK;
}

static ls_status run(ls_device *device, const conv_job *job, ls__cpu_body *const kernel[],
                     const char *what) {
    int before = ls__onednn_enter(device);
    ls__cpu_parallel(device, job->parts, LS__CPU_GRAIN, kernel, job);
    ls__onednn_leave(device, before);
    for (size_t part = 0; part < job->parts; part++)
        LS_TRY(ls__onednn_check(job->results[part], what));
    return LS_OK;
}

ls_status ls__cpu_conv2d_forward(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                 const void *x, const void *w, const void *bias, void *y) {
    LS_TRY(ls__cpu_require_f32(dtype, "conv2d"));
    if (ls__conv2d_is_narrow(shape))
        return ls__conv2d_narrow_forward(device, shape, x, w, bias, y);
    if (ls__conv2d_is_direct(shape))
        return ls__conv2d_direct_forward(device, shape, x, w, bias, y);
    conv_job job = {.shape = *shape, .x = x, .bias = bias, .out = y};
    LS_TRY(start(device, &job, w, false));
    return run(device, &job, forward_body, "conv2d");
}

ls_status ls__cpu_conv2d_backward(ls_device *device, ls_dtype dtype, const ls__conv2d *shape,
                                  const void *x, const void *w, const void *y, const void *dy,
                                  void *dx, bool accumulate_dx, void *dw, bool accumulate_dw,
                                  void *dbias, bool accumulate_dbias) {
    LS_TRY(ls__cpu_require_f32(dtype, "conv2d"));
    if (!dx && ls__conv2d_is_narrow(shape))
        return ls__conv2d_narrow_backward(device, shape, x, y, dy, dw, accumulate_dw, dbias,
                                          accumulate_dbias);
    if (dx && ls__conv2d_is_direct(shape)) {
        LS_TRY(ls__conv2d_direct_input(device, shape, w, dy, dx, accumulate_dx));
        dx = NULL;
    }
    if (!dx && !dw && !dbias)
        return LS_OK;
    if (!dx && dw && ls__conv2d_weights_are_direct(shape))
        return ls__conv2d_direct_weights(device, shape, x, dy, dw, accumulate_dw, dbias,
                                         accumulate_dbias);
    conv_job job = {.shape = *shape,
                    .x = x,
                    .y = y,
                    .dy = dy,
                    .dx = dx,
                    .accumulate_dx = accumulate_dx,
                    .want_dw = dw != NULL,
                    .want_dbias = dbias != NULL};
    LS_TRY(start(device, &job, w, true));
    LS_TRY(run(device, &job, backward_body, "conv2d backward"));
    if (dw)
        unpack_weights(&job, dw, accumulate_dw);
    if (dbias)
        sum_bias(&job, dbias, accumulate_dbias);
    return LS_OK;
}
