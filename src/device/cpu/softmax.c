/* softmax and log-softmax over rows. Every row is shifted by its maximum, so nothing overflows. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/math.h"
#include "device/cpu/vector.h"

struct softmax_arguments {
    bool logarithm, accumulate;
    size_t columns;
    const float *x, *y, *dy;
    float *out;
};

LS_KERNEL(forward_body) {
    const struct softmax_arguments *g = arguments;
    size_t columns = g->columns;
    for (size_t row = begin; row < end; row++) {
        const float *x = g->x + row * columns;
        float *y = g->out + row * columns;
        float most = ls__largest(x, columns);
        if (g->logarithm) {
            float piece[LS__CPU_PIECE];
            double sum = 0;
            for (size_t i = 0; i < columns; i += LS__CPU_PIECE) {
                size_t count = ls__min_size(LS__CPU_PIECE, columns - i);
                for (size_t j = 0; j < count; j++)
                    piece[j] = ls__exp(x[i + j] - most);
                sum += (double)ls__sum_values(piece, piece, 0, count);
            }
            /* cppcheck-suppress invalidFunctionArg ; columns is at least 1, and one term is exp(0) */
            float shift = (float)log(sum);
            for (size_t j = 0; j < columns; j++)
                y[j] = (x[j] - most) - shift;
        } else {
            for (size_t j = 0; j < columns; j++)
                y[j] = ls__exp(x[j] - most);
            float scale = 1.0F / ls__sum_values(y, y, 0, columns);
            for (size_t j = 0; j < columns; j++)
                y[j] *= scale;
        }
    }
}

ls_status ls__cpu_softmax_forward(ls_device *device, ls_dtype dtype, bool logarithm, size_t rows,
                                  size_t columns, const void *x, void *y) {
    LS_TRY(ls__cpu_require_f32(dtype, "softmax"));
    if (columns == 0)
        return LS_OK;
    struct softmax_arguments g = {.logarithm = logarithm, .columns = columns, .x = x, .out = y};
    ls__cpu_parallel(device, rows, 8 * columns, forward_body, &g);
    return LS_OK;
}

/* softmax: dx = y * (dy - sum(dy * y)); log-softmax: dx = dy - exp(y) * sum(dy) */
LS_KERNEL(backward_body) {
    const struct softmax_arguments *g = arguments;
    float piece[LS__CPU_PIECE];
    for (size_t row = begin; row < end; row++) {
        const float *y = g->y + row * g->columns, *dy = g->dy + row * g->columns;
        float *dx = g->out + row * g->columns;
        float sum = g->logarithm ? ls__sum_values(dy, dy, 0, g->columns)
                                 : ls__sum_products(dy, y, 0, g->columns);
        for (size_t i = 0; i < g->columns; i += LS__CPU_PIECE) {
            size_t count = ls__min_size(LS__CPU_PIECE, g->columns - i);
            if (g->logarithm)
                for (size_t j = 0; j < count; j++)
                    piece[j] = dy[i + j] - ls__exp(y[i + j]) * sum;
            else
                for (size_t j = 0; j < count; j++)
                    piece[j] = y[i + j] * (dy[i + j] - sum);
            ls__cpu_store(dx + i, piece, count, g->accumulate);
        }
    }
}

ls_status ls__cpu_softmax_backward(ls_device *device, ls_dtype dtype, bool logarithm, size_t rows,
                                   size_t columns, const void *y, const void *dy, void *dx,
                                   bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "softmax"));
    struct softmax_arguments g = {.logarithm = logarithm,
                                  .accumulate = accumulate,
                                  .columns = columns,
                                  .y = y,
                                  .dy = dy,
                                  .out = dx};
    ls__cpu_parallel(device, rows, (logarithm ? 8 : 2) * columns, backward_body, &g);
    return LS_OK;
}
