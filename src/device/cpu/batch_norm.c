/* Batch normalisation of x (rows, channels), with what may follow it at once: y = relu(norm + residual).
 *
 * Rows are cut into chunks of a fixed size. Each gives its sums for every channel, in float, while it
 * lies in the first cache; those are added up in double and in order, so that neither the number of
 * threads nor that of rows costs accuracy or changes bits. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

struct batch_norm_arguments {
    ls__batch_norm shape;
    size_t chunk;           /* rows of one */
    const float *x;         /* (rows, channels), as are y, dy, residual, dx, dresidual */
    const float *residual;  /* NULL: none */
    const float *dy, *seen; /* seen: forward's y where relu took part, else NULL */
    float *y, *dx, *dresidual;
    bool accumulate_dx, accumulate_dresidual;
    const float *centre;         /* (channels) of which the sums of a chunk are centred */
    float *sums;                 /* (chunks, 2, channels) */
    const float *scale, *shift;  /* (channels) */
    const float *offset, *slope; /* (channels), backward */
};

/* A stripe is the channels whose sums are in registers at once. With one cache line of each row, memory
 * is read in strides and at half the speed. */
enum { CHUNK_FLOATS = 8192, STRIPE = 64 };

static size_t chunk_rows(const ls__batch_norm *s) {
    return s->channels < CHUNK_FLOATS ? CHUNK_FLOATS / s->channels : 1;
}

static size_t chunk_count(const ls__batch_norm *s) {
    return (s->rows + chunk_rows(s) - 1) / chunk_rows(s);
}

/* For `width` <= STRIPE channels: the sums of x - centre and of its square over some rows. */
LS_INLINE void forward_stripe(const struct batch_norm_arguments *g, size_t rows, const float *x,
                              const float *centre, size_t width, float *sums, float *squares) {
    for (size_t r = 0; r < rows; r++, x += g->shape.channels) {
        ls__cpu_ask_ahead(x, width);
        for (size_t j = 0; j < width; j++) {
            float d = x[j] - centre[j];
            sums[j] += d;
            squares[j] += d * d;
        }
    }
}

/* The sums of dy behind relu and of its product with x - centre. */
LS_INLINE void backward_stripe(const struct batch_norm_arguments *g, size_t rows, size_t at,
                               const float *centre, size_t width, float *sums, float *products) {
    for (size_t r = 0; r < rows; r++, at += g->shape.channels) {
        ls__cpu_ask_ahead(g->x + at, width);
        ls__cpu_ask_ahead(g->dy + at, width);
        if (g->seen)
            ls__cpu_ask_ahead(g->seen + at, width);
        for (size_t j = 0; j < width; j++) {
            float d = g->dy[at + j];
            if (g->seen)
                d = g->seen[at + j] <= 0 ? 0 : d;
            sums[j] += d;
            products[j] += d * (g->x[at + j] - centre[j]);
        }
    }
}

/* Items are chunks. */
LS_INLINE void chunk_sums(const struct batch_norm_arguments *g, size_t chunk, bool backward) {
    size_t channels = g->shape.channels, first = chunk * g->chunk;
    size_t rows = ls__min_size(g->chunk, g->shape.rows - first);
    float *to = g->sums + chunk * 2 * channels;
    for (size_t c = 0; c < channels; c += STRIPE) {
        float one[STRIPE] = {0}, two[STRIPE] = {0};
        size_t width = ls__min_size(STRIPE, channels - c), at = first * channels + c;
        if (backward && width == STRIPE)
            backward_stripe(g, rows, at, g->centre + c, STRIPE, one, two);
        else if (backward)
            backward_stripe(g, rows, at, g->centre + c, width, one, two);
        else if (width == STRIPE)
            forward_stripe(g, rows, g->x + at, g->centre + c, STRIPE, one, two);
        else
            forward_stripe(g, rows, g->x + at, g->centre + c, width, one, two);
        for (size_t j = 0; j < width; j++) {
            to[c + j] = one[j];
            to[channels + c + j] = two[j];
        }
    }
}

LS_KERNEL(forward_sums_body) {
    for (size_t chunk = begin; chunk < end; chunk++)
        chunk_sums(arguments, chunk, false);
}

LS_KERNEL(backward_sums_body) {
    for (size_t chunk = begin; chunk < end; chunk++)
        chunk_sums(arguments, chunk, true);
}

/* The two sums of one channel over all chunks. */
static void total(const struct batch_norm_arguments *g, size_t channel, double *one, double *two) {
    *one = *two = 0;
    for (size_t chunk = 0; chunk < chunk_count(&g->shape); chunk++) {
        const float *sums = g->sums + chunk * 2 * g->shape.channels + channel;
        *one += (double)sums[0];
        *two += (double)sums[g->shape.channels];
    }
}

LS_KERNEL(normalise_body) {
    const struct batch_norm_arguments *g = arguments;
    size_t channels = g->shape.channels;
    const float *restrict mean = g->centre, *restrict scale = g->scale, *restrict shift = g->shift;
    for (size_t row = begin; row < end; row++) {
        const float *x = g->x + row * channels;
        float *restrict y = g->y + row * channels;
        ls__cpu_ask_ahead(x, channels);
        for (size_t c = 0; c < channels; c++)
            y[c] = (x[c] - mean[c]) * scale[c] + shift[c];
        if (g->residual)
            for (size_t c = 0; c < channels; c++)
                y[c] += g->residual[row * channels + c];
        if (g->shape.relu)
            for (size_t c = 0; c < channels; c++)
                y[c] = y[c] <= 0 ? 0 : y[c]; /* NaN stays */
    }
}

/* The same over all parts of the batch, whose first rows differ: sums about 0, which in double is as good
 * as long as values lie within 1e4 times their spread. values: (1 + 2 channels). */
static ls_status joint_statistics(const struct batch_norm_arguments *g, double *values, float *mean,
                                  float *variance) {
    size_t channels = g->shape.channels;
    double rows = (double)g->shape.rows;
    values[0] = rows;
    for (size_t c = 0; c < channels; c++) {
        double sum, squares, first = (double)g->x[c];
        total(g, c, &sum, &squares);
        values[1 + c] = sum + rows * first;
        values[1 + channels + c] = squares + 2 * first * sum + rows * first * first;
    }
    LS_TRY(g->shape.sum(g->shape.sum_context, values, 1 + 2 * channels));
    double n = *g->shape.all_rows = values[0];
    for (size_t c = 0; c < channels; c++) {
        double middle = values[1 + c] / n;
        double spread = values[1 + channels + c] / n - middle * middle;
        mean[c] = (float)middle;
        variance[c] = (float)(spread > 0 || isnan(spread) ? spread : 0);
    }
    return LS_OK;
}

/* Means and variances of the channels, from sums about the first row: values may lie far from 0. */
static ls_status statistics(ls_device *device, struct batch_norm_arguments *g, double *joint,
                            float *mean, float *variance) {
    double n = (double)g->shape.rows;
    g->centre = g->x;
    ls__cpu_parallel(device, chunk_count(&g->shape), 2 * CHUNK_FLOATS, forward_sums_body, g);
    if (g->shape.sum)
        return joint_statistics(g, joint, mean, variance);
    for (size_t c = 0; c < g->shape.channels; c++) {
        double sum, squares;
        total(g, c, &sum, &squares);
        double distance = sum / n, spread = squares / n - distance * distance;
        mean[c] = (float)((double)g->x[c] + distance);
        variance[c] = (float)(spread > 0 || isnan(spread) ? spread : 0);
    }
    return LS_OK;
}

/* Floats of scratch: `vectors` of a channel's numbers, the chunks' sums, and what goes to other parts. */
static ls_status get_scratch(ls_device *device, const ls__batch_norm *shape, size_t vectors,
                             float **memory, double **joint) {
    size_t floats = (2 * chunk_count(shape) + vectors) * shape->channels;
    size_t doubles = shape->sum ? 1 + 2 * shape->channels : 0;
    void *taken;
    LS_TRY(ls__cpu_scratch(device, doubles * sizeof(double) + floats * sizeof(float), &taken));
    *joint = taken;
    *memory = (float *)(void *)(*joint + doubles);
    return LS_OK;
}

ls_status ls__cpu_batch_norm_forward(ls_device *device, ls_dtype dtype, const ls__batch_norm *shape,
                                     bool training, const void *x, const void *weight,
                                     const void *bias, const void *residual, void *y, float *mean,
                                     float *variance, float *rstd) {
    LS_TRY(ls__cpu_require_f32(dtype, "batch_norm"));
    size_t channels = shape->channels;
    float *scale;
    double *joint;
    LS_TRY(get_scratch(device, shape, 1, &scale, &joint));
    struct batch_norm_arguments g = {.shape = *shape,
                                     .chunk = chunk_rows(shape),
                                     .x = x,
                                     .residual = residual,
                                     .y = y,
                                     .sums = scale + channels,
                                     .scale = scale,
                                     .shift = bias};
    if (training)
        LS_TRY(statistics(device, &g, joint, mean, variance));
    for (size_t c = 0; c < channels; c++) {
        rstd[c] = 1.0F / sqrtf(variance[c] + shape->epsilon);
        scale[c] = rstd[c] * ((const float *)weight)[c];
    }
    g.centre = mean;
    ls__cpu_parallel(device, shape->rows, 3 * channels, normalise_body, &g);
    return LS_OK;
}

LS_KERNEL(backward_body) {
    const struct batch_norm_arguments *g = arguments;
    size_t channels = g->shape.channels;
    const float *mean = g->centre, *scale = g->scale, *offset = g->offset, *slope = g->slope;
    for (size_t row = begin; row < end; row++) {
        for (size_t c = 0; c < channels; c += LS__CPU_PIECE) {
            float piece[LS__CPU_PIECE], result[LS__CPU_PIECE];
            size_t count = ls__min_size(LS__CPU_PIECE, channels - c), at = row * channels + c;
            const float *x = g->x + at, *dy = g->dy + at;
            ls__cpu_ask_ahead(x, count);
            ls__cpu_ask_ahead(dy, count);
            if (g->seen) {
                const float *seen = g->seen + at;
                ls__cpu_ask_ahead(seen, count);
                for (size_t j = 0; j < count; j++)
                    piece[j] = seen[j] <= 0 ? 0 : dy[j];
                dy = piece;
            }
            if (g->dresidual)
                ls__cpu_store(g->dresidual + at, dy, count, g->accumulate_dresidual);
            if (!g->dx)
                continue;
            for (size_t j = 0; j < count; j++)
                result[j] =
                    scale[c + j] * (dy[j] - offset[c + j] - (x[j] - mean[c + j]) * slope[c + j]);
            ls__cpu_store(g->dx + at, result, count, g->accumulate_dx);
        }
    }
}

/* What the gradient of x takes from the sums, where those are over all parts; values: (2 channels). */
static ls_status joint_slopes(const struct batch_norm_arguments *g, double *values,
                              const float *rstd, float *offset, float *slope) {
    size_t channels = g->shape.channels;
    double n = *g->shape.all_rows;
    for (size_t c = 0; c < channels; c++)
        total(g, c, &values[c], &values[channels + c]);
    LS_TRY(g->shape.sum(g->shape.sum_context, values, 2 * channels));
    for (size_t c = 0; c < channels; c++) {
        offset[c] = (float)(values[c] / n);
        slope[c] = (float)(values[channels + c] * (double)rstd[c] * (double)rstd[c] / n);
    }
    return LS_OK;
}

/* With n = (x - mean) * rstd and dy already behind relu: dbias = sum(dy), dweight = sum(dy * n), and in
 * training dx = weight * rstd * (dy - dbias / N - n * dweight / N), else dx = weight * rstd * dy. */
ls_status ls__cpu_batch_norm_backward(ls_device *device, ls_dtype dtype,
                                      const ls__batch_norm *shape, bool training, const void *x,
                                      const void *weight, const float *mean, const float *rstd,
                                      const void *y, const void *dy, void *dx, bool accumulate_dx,
                                      void *dresidual, bool accumulate_dresidual, void *dweight,
                                      bool accumulate_dweight, void *dbias, bool accumulate_dbias) {
    LS_TRY(ls__cpu_require_f32(dtype, "batch_norm"));
    size_t channels = shape->channels;
    float *scale;
    double *joint;
    LS_TRY(get_scratch(device, shape, 3, &scale, &joint));
    float *offset = scale + channels, *slope = offset + channels;
    struct batch_norm_arguments g = {.shape = *shape,
                                     .chunk = chunk_rows(shape),
                                     .x = x,
                                     .dy = dy,
                                     .seen = shape->relu ? y : NULL,
                                     .dx = dx,
                                     .dresidual = dresidual,
                                     .accumulate_dx = accumulate_dx,
                                     .accumulate_dresidual = accumulate_dresidual,
                                     .centre = mean,
                                     .sums = slope + channels,
                                     .scale = scale,
                                     .offset = offset,
                                     .slope = slope};
    ls__cpu_parallel(device, chunk_count(shape), 2 * CHUNK_FLOATS, backward_sums_body, &g);
    for (size_t c = 0; c < channels; c++) {
        double sum, products, n = (double)shape->rows, r = (double)rstd[c];
        total(&g, c, &sum, &products);
        float to_bias = (float)sum, to_weight = (float)(products * r);
        if (dbias)
            ls__cpu_store((float *)dbias + c, &to_bias, 1, accumulate_dbias);
        if (dweight)
            ls__cpu_store((float *)dweight + c, &to_weight, 1, accumulate_dweight);
        scale[c] = ((const float *)weight)[c] * rstd[c];
        offset[c] = training ? (float)(sum / n) : 0;
        slope[c] = training ? (float)(products * r * r / n) : 0;
    }
    if (training && shape->sum)
        LS_TRY(joint_slopes(&g, joint, rstd, offset, slope));
    if (dx || dresidual)
        ls__cpu_parallel(device, shape->rows, 4 * channels, backward_body, &g);
    return LS_OK;
}
