/* Layer normalisation over the last dimension: y = (x - mean) * rstd * weight + bias; and the sum of a
 * residual branch that comes before it in a transformer, in the same pass. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

struct layer_norm_arguments {
    size_t rows, columns;
    float epsilon;
    const float *x, *weight, *bias, *dy;
    const float *branch, *branch_bias; /* x + (branch + branch_bias) goes to sum */
    float *sum, *y;
    float *mean, *rstd;                   /* forward writes */
    const float *saved_mean, *saved_rstd; /* backward reads */
    float *dx;
    float *partials; /* (blocks, 3, columns): of the blocks of rows, dweight, dbias and dx_sums */
    bool accumulate_dx, want_dx_sums;
};

LS_INLINE void normalise_row(const struct layer_norm_arguments *g, size_t row, const float *x) {
    size_t columns = g->columns;
    const float *weight = g->weight, *bias = g->bias;
    float *y = g->y + row * columns;
    float mean = ls__sum_values(x, x, 0, columns) / (float)columns;
    float variance = ls__sum_squares_about(x, x, mean, columns) / (float)columns;
    float rstd = 1.0F / sqrtf(variance + g->epsilon);
    g->mean[row] = mean;
    g->rstd[row] = rstd;
    for (size_t j = 0; j < columns; j++)
        y[j] = (x[j] - mean) * rstd * weight[j] + bias[j];
}

LS_KERNEL(forward_body) {
    const struct layer_norm_arguments *g = arguments;
    for (size_t row = begin; row < end; row++) {
        ls__cpu_ask_ahead(g->x + row * g->columns, g->columns);
        normalise_row(g, row, g->x + row * g->columns);
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

LS_INLINE void sum_row(const struct layer_norm_arguments *g, size_t row) {
    const float *x = g->x + row * g->columns, *branch = g->branch + row * g->columns;
    const float *bias = g->branch_bias;
    float *sum = g->sum + row * g->columns;
    ls__cpu_ask_ahead(x, g->columns);
    ls__cpu_ask_ahead(branch, g->columns);
    if (bias) {
        for (size_t j = 0; j < g->columns; j++)
            sum[j] = x[j] + (branch[j] + bias[j]);
    } else {
        for (size_t j = 0; j < g->columns; j++)
            sum[j] = x[j] + branch[j];
    }
}

LS_KERNEL(residual_sum_body) {
    for (size_t row = begin; row < end; row++)
        sum_row(arguments, row);
}

ls_status ls__cpu_residual_sum(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                               const void *x, const void *branch, const void *bias, void *sum) {
    LS_TRY(ls__cpu_require_f32(dtype, "residual_sum"));
    struct layer_norm_arguments g = {.rows = rows,
                                     .columns = columns,
                                     .x = x,
                                     .branch = branch,
                                     .branch_bias = bias,
                                     .sum = sum};
    ls__cpu_parallel(device, rows, columns, residual_sum_body, &g);
    return LS_OK;
}

LS_KERNEL(residual_norm_body) {
    const struct layer_norm_arguments *g = arguments;
    for (size_t row = begin; row < end; row++) {
        sum_row(g, row);
        normalise_row(g, row, g->sum + row * g->columns);
    }
}

ls_status ls__cpu_residual_norm_forward(ls_device *device, ls_dtype dtype, size_t rows,
                                        size_t columns, const void *x, const void *branch,
                                        const void *branch_bias, const void *weight,
                                        const void *bias, float epsilon, void *sum, void *y,
                                        float *mean, float *rstd) {
    LS_TRY(ls__cpu_require_f32(dtype, "residual_norm"));
    struct layer_norm_arguments g = {.rows = rows,
                                     .columns = columns,
                                     .epsilon = epsilon,
                                     .x = x,
                                     .branch = branch,
                                     .branch_bias = branch_bias,
                                     .weight = weight,
                                     .bias = bias,
                                     .sum = sum,
                                     .y = y,
                                     .mean = mean,
                                     .rstd = rstd};
    ls__cpu_parallel(device, rows, 4 * columns, residual_norm_body, &g);
    return LS_OK;
}

/* dweight and dbias of a row are added to `sums`, (2, columns), on the way to the two means of dx. With
 * g = dy * weight and n = (x - mean) * rstd: dx = rstd * (g - mean(g) - n * mean(g * n)). */
LS_INLINE void parameters_row(const struct layer_norm_arguments *g, size_t row, float *sums,
                              float *mean_g, float *mean_gn) {
    size_t columns = g->columns;
    const float *x = g->x + row * columns, *dy = g->dy + row * columns, *weight = g->weight;
    float *dweight = sums, *dbias = sums + columns;
    float mean = g->saved_mean[row], rstd = g->saved_rstd[row], sum = 0, sum_n = 0;
    float scaled[LS__CPU_PIECE], normal[LS__CPU_PIECE];
    for (size_t first = 0; first < columns; first += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, columns - first);
        ls__cpu_ask_ahead(x + first, count);
        ls__cpu_ask_ahead(dy + first, count);
        for (size_t j = 0; j < count; j++) {
            normal[j] = (x[first + j] - mean) * rstd;
            scaled[j] = dy[first + j] * weight[first + j];
            dweight[first + j] += dy[first + j] * normal[j];
            dbias[first + j] += dy[first + j];
        }
        sum += ls__sum_values(scaled, scaled, 0, count);
        sum_n += ls__sum_products(scaled, normal, 0, count);
    }
    *mean_g = sum / (float)columns;
    *mean_gn = sum_n / (float)columns;
}

LS_INLINE void dx_row(const struct layer_norm_arguments *g, size_t row, float mean_g, float mean_gn,
                      float *dx_sums) {
    size_t columns = g->columns;
    const float *x = g->x + row * columns, *dy = g->dy + row * columns, *weight = g->weight;
    float *dx = g->dx + row * columns;
    float mean = g->saved_mean[row], rstd = g->saved_rstd[row], piece[LS__CPU_PIECE];
    for (size_t first = 0; first < columns; first += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, columns - first);
        for (size_t j = 0; j < count; j++) {
            float n = (x[first + j] - mean) * rstd;
            piece[j] = rstd * (dy[first + j] * weight[first + j] - mean_g - n * mean_gn);
        }
        ls__cpu_store(dx + first, piece, count, g->accumulate_dx);
        if (g->want_dx_sums)
            ls__cpu_store(dx_sums + first, dx + first, count, true);
    }
}

/* Items are blocks of rows: one pass over x, dy and dx, whose rows stay in the nearest cache. */
LS_KERNEL(backward_body) {
    const struct layer_norm_arguments *g = arguments;
    size_t columns = g->columns;
    for (size_t block = begin; block < end; block++) {
        float *sums = g->partials + block * 3 * columns;
        size_t last = ls__min_size((block + 1) * LS__CPU_ROW_BLOCK, g->rows);
        for (size_t j = 0; j < 3 * columns; j++)
            sums[j] = 0;
        for (size_t row = block * LS__CPU_ROW_BLOCK; row < last; row++) {
            float mean_g, mean_gn;
            parameters_row(g, row, sums, &mean_g, &mean_gn);
            if (g->dx)
                dx_row(g, row, mean_g, mean_gn, sums + 2 * columns);
        }
    }
}

ls_status ls__cpu_layer_norm_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                      size_t columns, const void *x, const void *weight,
                                      const float *mean, const float *rstd, const void *dy,
                                      void *dx, bool accumulate_dx, void *dweight,
                                      bool accumulate_dweight, void *dbias, bool accumulate_dbias,
                                      void *dx_sums, bool accumulate_dx_sums) {
    LS_TRY(ls__cpu_require_f32(dtype, "layer_norm"));
    size_t blocks = ls__cpu_row_blocks(rows), stride = 3 * columns;
    void *memory;
    LS_TRY(ls__cpu_scratch(device, blocks * stride * sizeof(float), &memory));
    struct layer_norm_arguments g = {.rows = rows,
                                     .columns = columns,
                                     .x = x,
                                     .weight = weight,
                                     .dy = dy,
                                     .saved_mean = mean,
                                     .saved_rstd = rstd,
                                     .dx = dx,
                                     .partials = memory,
                                     .accumulate_dx = accumulate_dx,
                                     .want_dx_sums = dx && dx_sums};
    ls__cpu_parallel(device, blocks, 6 * LS__CPU_ROW_BLOCK * columns, backward_body, &g);
    const struct {
        float *y;
        bool accumulate;
    } results[] = {
        {dweight, accumulate_dweight}, {dbias, accumulate_dbias}, {dx_sums, accumulate_dx_sums}};
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].y)
            ls__cpu_add_blocks(device, g.partials + i * columns, blocks, stride, columns,
                               results[i].y, results[i].accumulate);
    return LS_OK;
}
