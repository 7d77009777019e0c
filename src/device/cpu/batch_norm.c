/* Batch normalisation of x (outer, channels, inner). Items are channels: each adds its runs of
 * `inner` elements in order, their sums in double. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

struct batch_norm_arguments {
    ls__batch_norm shape;
    bool training;
    const float *x, *weight, *bias, *dy;
    float *y;
    float *mean, *variance, *rstd;
    const float *saved_mean, *saved_rstd;
    float *dx, *dweight, *dbias;
    bool accumulate_dx, accumulate_dweight, accumulate_dbias;
};

LS_INLINE double elements(const ls__batch_norm *s) {
    return (double)s->outer * (double)s->inner;
}

LS_INLINE void statistics(const struct batch_norm_arguments *g, size_t channel) {
    const ls__batch_norm *s = &g->shape;
    double sum = 0, squares = 0;
    for (size_t o = 0; o < s->outer; o++) {
        const float *x = g->x + (o * s->channels + channel) * s->inner;
        sum += (double)ls__sum_values(x, x, 0, s->inner);
    }
    float mean = (float)(sum / elements(s));
    for (size_t o = 0; o < s->outer; o++) {
        const float *x = g->x + (o * s->channels + channel) * s->inner;
        squares += (double)ls__sum_squares_about(x, x, mean, s->inner);
    }
    g->mean[channel] = mean;
    g->variance[channel] = (float)(squares / elements(s));
}

LS_KERNEL static void forward_body(const void *arguments, size_t begin, size_t end) {
    const struct batch_norm_arguments *g = arguments;
    const ls__batch_norm *s = &g->shape;
    for (size_t channel = begin; channel < end; channel++) {
        if (g->training)
            statistics(g, channel);
        float mean = g->mean[channel];
        float rstd = 1.0F / sqrtf(g->variance[channel] + s->epsilon);
        g->rstd[channel] = rstd;
        float weight = g->weight[channel], bias = g->bias[channel];
        for (size_t o = 0; o < s->outer; o++) {
            const float *x = g->x + (o * s->channels + channel) * s->inner;
            float *y = g->y + (o * s->channels + channel) * s->inner;
            for (size_t i = 0; i < s->inner; i++)
                y[i] = (x[i] - mean) * rstd * weight + bias;
        }
    }
}

ls_status ls__cpu_batch_norm_forward(ls_device *device, ls_dtype dtype, const ls__batch_norm *shape,
                                     bool training, const void *x, const void *weight,
                                     const void *bias, void *y, float *mean, float *variance,
                                     float *rstd) {
    LS_TRY(ls__cpu_require_f32(dtype, "batch_norm"));
    struct batch_norm_arguments g = {.shape = *shape,
                                     .training = training,
                                     .x = x,
                                     .weight = weight,
                                     .bias = bias,
                                     .y = y,
                                     .mean = mean,
                                     .variance = variance,
                                     .rstd = rstd};
    ls__cpu_parallel(device, shape->channels, 3 * shape->outer * shape->inner, forward_body, &g);
    return LS_OK;
}

/* Sum of dy * (x - mean) */
LS__DEFINE_SUM(sum_centred_products, (p - c) * q)

/* With n = (x - mean) * rstd: dbias = sum(dy), dweight = sum(dy * n), and in training
 * dx = weight * rstd * (dy - dbias / N - n * dweight / N), else dx = weight * rstd * dy. */
LS_KERNEL static void backward_body(const void *arguments, size_t begin, size_t end) {
    const struct batch_norm_arguments *g = arguments;
    const ls__batch_norm *s = &g->shape;
    for (size_t channel = begin; channel < end; channel++) {
        float mean = g->saved_mean[channel], rstd = g->saved_rstd[channel];
        double sum = 0, products = 0;
        for (size_t o = 0; o < s->outer; o++) {
            size_t at = (o * s->channels + channel) * s->inner;
            sum += (double)ls__sum_values(g->dy + at, g->dy + at, 0, s->inner);
            products += (double)sum_centred_products(g->x + at, g->dy + at, mean, s->inner);
        }
        float dbias = (float)sum, dweight = (float)(products * (double)rstd);
        if (g->dbias)
            ls__cpu_store(g->dbias + channel, &dbias, 1, g->accumulate_dbias);
        if (g->dweight)
            ls__cpu_store(g->dweight + channel, &dweight, 1, g->accumulate_dweight);
        if (!g->dx)
            continue;
        float scale = g->weight[channel] * rstd;
        float offset = g->training ? (float)(sum / elements(s)) : 0;
        float slope =
            g->training ? (float)(products * (double)rstd * (double)rstd / elements(s)) : 0;
        for (size_t o = 0; o < s->outer; o++) {
            float piece[LS__CPU_PIECE];
            for (size_t i = 0; i < s->inner; i += LS__CPU_PIECE) {
                size_t at = (o * s->channels + channel) * s->inner + i;
                size_t count = ls__min_size(LS__CPU_PIECE, s->inner - i);
                const float *x = g->x + at, *dy = g->dy + at;
                for (size_t j = 0; j < count; j++)
                    piece[j] = scale * (dy[j] - offset - (x[j] - mean) * slope);
                ls__cpu_store(g->dx + at, piece, count, g->accumulate_dx);
            }
        }
    }
}

ls_status ls__cpu_batch_norm_backward(ls_device *device, ls_dtype dtype,
                                      const ls__batch_norm *shape, bool training, const void *x,
                                      const void *weight, const float *mean, const float *rstd,
                                      const void *dy, void *dx, bool accumulate_dx, void *dweight,
                                      bool accumulate_dweight, void *dbias, bool accumulate_dbias) {
    LS_TRY(ls__cpu_require_f32(dtype, "batch_norm"));
    struct batch_norm_arguments g = {.shape = *shape,
                                     .training = training,
                                     .x = x,
                                     .weight = weight,
                                     .dy = dy,
                                     .saved_mean = mean,
                                     .saved_rstd = rstd,
                                     .dx = dx,
                                     .dweight = dweight,
                                     .dbias = dbias,
                                     .accumulate_dx = accumulate_dx,
                                     .accumulate_dweight = accumulate_dweight,
                                     .accumulate_dbias = accumulate_dbias};
    ls__cpu_parallel(device, shape->channels, 4 * shape->outer * shape->inner, backward_body, &g);
    return LS_OK;
}
