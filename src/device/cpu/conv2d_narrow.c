/* Convolution of few values to many channels, as a first layer has it: too narrow for a matrix product,
 * which would reach a sixth of its speed. Eight channels at a time stand in a vector; the input values
 * under the kernel are read where they lie. Items are images, each with sums of its own that are added
 * up in order, so that bits do not depend on the number of threads.
 *
 * Kernel values are numbered as in conv2d.c: k = (ky * kernel_w + kx) * in_channels + channel. */
#include "device/cpu/conv2d.h"

#include <string.h>

#include "device/cpu/vector.h"

enum {
    MOST_VALUES = 27, /* a 3 x 3 kernel over three colours */
    GROUP = 9,        /* of them are summed at once: as many vectors as there are registers for */
};

typedef struct narrow_job {
    ls__conv2d shape;
    size_t k;
    size_t image; /* floats of one padded image */
    size_t
        offsets[MOST_VALUES]; /* of value k from the first one under the kernel; the rest are 0 */
    const float *x;           /* padded */
    const float *w;           /* (k, out_channels) */
    const float *bias, *seen, *dy; /* seen: forward's y where relu took part, else NULL */
    float *y;
    float *sums; /* (batch, k + 1, out_channels): dw, and dbias as the last row */
} narrow_job;

bool ls__conv2d_is_narrow(const ls__conv2d *s) {
    return s->kernel_h * s->kernel_w * s->in_channels <= MOST_VALUES && s->out_channels % 8 == 0;
}

/* The images with their zeros around them, one after the other. */
static void pad_images(const ls__conv2d *s, const float *x, float *padded, size_t image) {
    size_t wide = (s->in_w + 2 * s->padding) * s->in_channels, row = s->in_w * s->in_channels;
    memset(padded, 0, s->batch * image * sizeof *padded);
    for (size_t b = 0; b < s->batch; b++)
        for (size_t i = 0; i < s->in_h; i++)
            memcpy(padded + b * image + (i + s->padding) * wide + s->padding * s->in_channels,
                   x + (b * s->in_h + i) * row, row * sizeof *x);
}

/* Sizes, and the device's scratch memory: the padded images, then `floats` for the caller. */
static ls_status start(ls_device *device, narrow_job *job, const float *x, size_t floats,
                       float **rest) {
    const ls__conv2d *s = &job->shape;
    size_t wide = (s->in_w + 2 * s->padding) * s->in_channels, run = s->kernel_w * s->in_channels;
    void *memory;
    job->k = s->kernel_h * run;
    job->image = (s->in_h + 2 * s->padding) * wide;
    size_t padded = s->padding > 0 ? s->batch * job->image : 0;
    LS_TRY(ls__cpu_scratch(device, (padded + floats) * sizeof(float), &memory));
    for (size_t k = 0; k < job->k; k++)
        job->offsets[k] = k / run * wide + k % run;
    job->x = padded ? memory : x;
    *rest = (float *)memory + padded;
    if (padded)
        pad_images(s, x, memory, job->image);
    return LS_OK;
}

/* *value stays where the output `seen` of relu is not 0 or less, and becomes 0 elsewhere; NaN lets it
 * through. By pointer: vectors are no arguments on processors without AVX. */
LS_INLINE void behind_relu(ls__v8 *value, const ls__v8 *seen) {
    typedef int32_t ints __attribute__((vector_size(32), aligned(4), may_alias));
    *value = (ls__v8)((ints)*value & ~(ints)(*seen <= 0));
}

/* The values under the kernel of the first pixel of output row `row` of an image; the next pixel's begin
 * step_of(job) further. Rows are walked, as a division a pixel would cost as much as its products. */
LS_INLINE const float *under(const narrow_job *job, size_t image, size_t row) {
    const ls__conv2d *s = &job->shape;
    size_t wide = (s->in_w + 2 * s->padding) * s->in_channels;
    return job->x + image * job->image + row * s->stride * wide;
}

LS_INLINE size_t step_of(const narrow_job *job) {
    return job->shape.stride * job->shape.in_channels;
}

/* `vectors` times eight channels from channel `o` on, of one output pixel */
LS_INLINE void forward_pixel(const narrow_job *job, const float *x, size_t o, size_t vectors,
                             float *y) {
    size_t channels = job->shape.out_channels;
    ls__v8 sums[4] = {{0}};
    for (size_t v = 0; v < vectors && job->bias; v++)
        sums[v] = *(const ls__v8 *)(job->bias + o + 8 * v);
    for (size_t k = 0; k < job->k; k++) {
        float value = x[job->offsets[k]];
        for (size_t v = 0; v < vectors; v++)
            sums[v] += value * *(const ls__v8 *)(job->w + k * channels + o + 8 * v);
    }
    for (size_t v = 0; v < vectors; v++) {
        if (job->shape.relu)
            behind_relu(&sums[v], &sums[v]);
        *(ls__v8 *)(y + o + 8 * v) = sums[v];
    }
}

LS_KERNEL(forward_body) {
    const narrow_job *job = arguments;
    const ls__conv2d *s = &job->shape;
    size_t channels = s->out_channels, step = step_of(job);
    for (size_t row = begin * s->out_h; row < end * s->out_h; row++) {
        const float *x = under(job, row / s->out_h, row % s->out_h);
        float *y = job->y + row * s->out_w * channels;
        for (size_t p = 0; p < s->out_w; p++, x += step, y += channels) {
            size_t o = 0;
            for (; o + 32 <= channels; o += 32)
                forward_pixel(job, x, o, 4, y);
            for (; o < channels; o += 8)
                forward_pixel(job, x, o, 1, y);
        }
    }
}

ls_status ls__conv2d_narrow_forward(ls_device *device, const ls__conv2d *shape, const float *x,
                                    const float *w, const float *bias, float *y) {
    narrow_job job = {.shape = *shape, .bias = bias, .y = y};
    size_t values = shape->kernel_h * shape->kernel_w * shape->in_channels;
    float *packed;
    LS_TRY(start(device, &job, x, values * shape->out_channels, &packed));
    size_t taps = shape->kernel_h * shape->kernel_w;
    for (size_t k = 0; k < values; k++)
        for (size_t o = 0; o < shape->out_channels; o++)
            packed[k * shape->out_channels + o] =
                w[(o * shape->in_channels + k % shape->in_channels) * taps +
                  k / shape->in_channels];
    job.w = packed;
    ls__cpu_parallel(device, shape->batch, shape->out_h * shape->out_w * shape->out_channels,
                     forward_body, &job);
    return LS_OK;
}

/* Eight channels of GROUP rows of dw, from value `first` on, and of dbias: sums over one image. */
LS_INLINE void backward_group(const narrow_job *job, size_t image, size_t first, size_t o) {
    const ls__conv2d *s = &job->shape;
    size_t pixels = s->out_h * s->out_w, channels = s->out_channels;
    const float *dy = job->dy + image * pixels * channels + o;
    const float *seen = job->seen ? job->seen + image * pixels * channels + o : NULL;
    ls__v8 sums[GROUP] = {{0}}, total = {0};
    size_t offsets[GROUP];
    for (size_t k = 0; k < GROUP; k++)
        offsets[k] = first + k < job->k ? job->offsets[first + k] : 0;
    size_t step = step_of(job);
    for (size_t row = 0; row < s->out_h; row++) {
        const float *x = under(job, image, row);
        for (size_t p = 0; p < s->out_w; p++, x += step, dy += channels) {
            ls__v8 d = *(const ls__v8 *)dy;
            if (seen) {
                behind_relu(&d, (const ls__v8 *)seen);
                seen += channels;
            }
            total += d;
            for (size_t k = 0; k < GROUP; k++)
                sums[k] += x[offsets[k]] * d;
        }
    }
    float *to = job->sums + image * (job->k + 1) * channels + o;
    for (size_t k = 0; k < GROUP && first + k < job->k; k++)
        *(ls__v8 *)(to + (first + k) * channels) = sums[k];
    *(ls__v8 *)(to + job->k * channels) = total;
}

LS_KERNEL(backward_body) {
    const narrow_job *job = arguments;
    for (size_t image = begin; image < end; image++)
        for (size_t o = 0; o < job->shape.out_channels; o += 8)
            for (size_t first = 0; first < job->k; first += GROUP)
                backward_group(job, image, first, o);
}

ls_status ls__conv2d_narrow_backward(ls_device *device, const ls__conv2d *shape, const float *x,
                                     const float *y, const float *dy, float *dw, bool accumulate_dw,
                                     float *dbias, bool accumulate_dbias) {
    narrow_job job = {.shape = *shape, .seen = shape->relu ? y : NULL, .dy = dy};
    size_t channels = shape->out_channels, taps = shape->kernel_h * shape->kernel_w;
    size_t values = taps * shape->in_channels, one = (values + 1) * channels;
    LS_TRY(start(device, &job, x, shape->batch * one, &job.sums));
    ls__cpu_parallel(device, shape->batch,
                     shape->out_h * shape->out_w * shape->out_channels * (values + 1),
                     backward_body, &job);
    for (size_t b = 1; b < shape->batch; b++)
        for (size_t i = 0; i < one; i++)
            job.sums[i] += job.sums[b * one + i];
    for (size_t k = 0; k < values && dw; k++)
        for (size_t o = 0; o < channels; o++) {
            size_t at =
                (o * shape->in_channels + k % shape->in_channels) * taps + k / shape->in_channels;
            dw[at] = job.sums[k * channels + o] + (accumulate_dw ? dw[at] : 0);
        }
    if (dbias)
        ls__cpu_store(dbias, job.sums + values * channels, channels, accumulate_dbias);
    return LS_OK;
}
