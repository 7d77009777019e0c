/* Layer normalisation over the last dimension: y = (x - mean) * rstd * weight + bias. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

struct layer_norm_arguments {
    size_t rows, columns;
    float epsilon;
    const float *x, *weight, *bias, *dy;
    float *y;
    float *mean, *rstd;                   /* forward writes */
    const float *saved_mean, *saved_rstd; /* backward reads */
    float *dx, *dweight, *dbias;
    bool accumulate_dx, accumulate_dweight, accumulate_dbias;
};

LS_KERNEL(forward_body) {
    const struct layer_norm_arguments *g = arguments;
    size_t columns = g->columns;
    const float *weight = g->weight, *bias = g->bias;
    for (size_t row = begin; row < end; row++) {
        const float *x = g->x + row * columns;
        float *y = g->y + row * columns;
        float mean = ls__sum_values(x, x, 0, columns) / (float)columns;
        float variance = ls__sum_squares_about(x, x, mean, columns) / (float)columns;
        float rstd = 1.0F / sqrtf(variance + g->epsilon);
        g->mean[row] = mean;
        g->rstd[row] = rstd;
        for (size_t j = 0; j < columns; j++)
            y[j] = (x[j] - mean) * rstd * weight[j] + bias[j];
    }
}

ls_status ls__cpu_layer_norm_forward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                     const void *x, const void *weight, const void *bias,
                                     float epsilon, void *y, float *mean, float *rstd) {
    LS_TRY(ls__cpu_require_f32(dtype, "layer_norm"));
    struct layer_norm_arguments g = {.rows = rows,
                                     .columns = columns,
                                     .epsilon = epsilon,
                                     .x = x,
                                     .weight = weight,
                                     .bias = bias,
                                     .y = y,
                                     .mean = mean,
                                     .rstd = rstd};
    ls__cpu_parallel(device, rows, 3 * columns, forward_body, &g);
    return LS_OK;
}

/* With g = dy * weight and n = (x - mean) * rstd: dx = rstd * (g - mean(g) - n * mean(g * n)). */
LS_KERNEL(dx_body) {
    const struct layer_norm_arguments *g = arguments;
    size_t columns = g->columns;
    const float *weight = g->weight;
    for (size_t row = begin; row < end; row++) {
        const float *x = g->x + row * columns, *dy = g->dy + row * columns;
        float *dx = g->dx + row * columns;
        float mean = g->saved_mean[row], rstd = g->saved_rstd[row];
        float sum = 0, sum_n = 0;
        float scaled[LS__CPU_PIECE], normal[LS__CPU_PIECE];
        for (size_t first = 0; first < columns; first += LS__CPU_PIECE) {
            size_t count = ls__min_size(LS__CPU_PIECE, columns - first);
            for (size_t j = 0; j < count; j++) {
                scaled[j] = dy[first + j] * weight[first + j];
                normal[j] = (x[first + j] - mean) * rstd;
            }
            sum += ls__sum_values(scaled, scaled, 0, count);
            sum_n += ls__sum_products(scaled, normal, 0, count);
        }
        float mean_g = sum / (float)columns, mean_gn = sum_n / (float)columns;
        for (size_t first = 0; first < columns; first += LS__CPU_PIECE) {
            size_t count = ls__min_size(LS__CPU_PIECE, columns - first);
            for (size_t j = 0; j < count; j++) {
                float n = (x[first + j] - mean) * rstd;
                scaled[j] = rstd * (dy[first + j] * weight[first + j] - mean_g - n * mean_gn);
            }
            ls__cpu_store(dx + first, scaled, count, g->accumulate_dx);
        }
    }
}

/* Items are stripes of columns. Rows are added in order, in blocks, whatever the thread count. */
enum { STRIPE = 64, ROW_BLOCK = 128 };

LS_KERNEL(parameters_body) {
    const struct layer_norm_arguments *g = arguments;
    for (size_t stripe = begin; stripe < end; stripe++) {
        size_t first = stripe * STRIPE, width = ls__min_size(STRIPE, g->columns - first);
        float dweight[STRIPE] = {0}, dbias[STRIPE] = {0};
        for (size_t row = 0; row < g->rows;) {
            float block_w[STRIPE] = {0}, block_b[STRIPE] = {0};
            size_t last = ls__min_size(row + ROW_BLOCK, g->rows);
            for (; row < last; row++) {
                const float *x = g->x + row * g->columns + first;
                const float *dy = g->dy + row * g->columns + first;
                float mean = g->saved_mean[row], rstd = g->saved_rstd[row];
                for (size_t j = 0; j < width; j++) {
                    block_w[j] += dy[j] * ((x[j] - mean) * rstd);
                    block_b[j] += dy[j];
                }
            }
            for (size_t j = 0; j < width; j++) {
                dweight[j] += block_w[j];
                dbias[j] += block_b[j];
            }
        }
        if (g->dweight)
            ls__cpu_store(g->dweight + first, dweight, width, g->accumulate_dweight);
        if (g->dbias)
            ls__cpu_store(g->dbias + first, dbias, width, g->accumulate_dbias);
    }
}

ls_status ls__cpu_layer_norm_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                      size_t columns, const void *x, const void *weight,
                                      const float *mean, const float *rstd, const void *dy,
                                      void *dx, bool accumulate_dx, void *dweight,
                                      bool accumulate_dweight, void *dbias, bool accumulate_dbias) {
    LS_TRY(ls__cpu_require_f32(dtype, "layer_norm"));
    struct layer_norm_arguments g = {.rows = rows,
                                     .columns = columns,
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
    if (dx)
        ls__cpu_parallel(device, rows, 4 * columns, dx_body, &g);
    if (dweight || dbias)
        ls__cpu_parallel(device, (columns + STRIPE - 1) / STRIPE, 2 * rows * STRIPE,
                         parameters_body, &g);
    return LS_OK;
}
