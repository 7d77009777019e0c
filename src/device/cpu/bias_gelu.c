/* y = gelu(x + bias), in GPT-2's tanh form: what follows a layer's product in one pass each way. */
#include "device/cpu/cpu.h"
#include "device/cpu/gelu.h"

struct bias_gelu_arguments {
    size_t rows, columns;
    const float *x, *bias, *dy;
    float *out;      /* y or dx; NULL: dx is not wanted */
    float *partials; /* (blocks, columns): sums of dx over the rows of a block; NULL: not wanted */
    bool accumulate;
};

LS_KERNEL(forward_body) {
    const struct bias_gelu_arguments *g = arguments;
    const float *bias = g->bias;
    for (size_t row = begin; row < end; row++) {
        const float *x = g->x + row * g->columns;
        float *y = g->out + row * g->columns;
        for (size_t first = 0; first < g->columns; first += LS__CPU_PIECE) {
            size_t end_of_piece = ls__min_size(first + LS__CPU_PIECE, g->columns);
            ls__cpu_ask_ahead(x + first, end_of_piece - first);
            for (size_t j = first; j < end_of_piece; j++)
                y[j] = ls__gelu_tanh(x[j] + bias[j]);
        }
    }
}

ls_status ls__cpu_bias_gelu_forward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                    const void *x, const void *bias, void *y) {
    LS_TRY(ls__cpu_require_f32(dtype, "bias_gelu"));
    struct bias_gelu_arguments g = {
        .rows = rows, .columns = columns, .x = x, .bias = bias, .out = y};
    ls__cpu_parallel(device, rows, 8 * columns, forward_body, &g);
    return LS_OK;
}

/* Items are blocks of rows. dx may lie on dy: each piece is read before it is written. */
LS_KERNEL(backward_body) {
    const struct bias_gelu_arguments *g = arguments;
    size_t columns = g->columns;
    for (size_t block = begin; block < end; block++) {
        float *sums = g->partials ? g->partials + block * columns : NULL;
        size_t last = ls__min_size((block + 1) * LS__CPU_ROW_BLOCK, g->rows);
        for (size_t j = 0; sums && j < columns; j++)
            sums[j] = 0;
        for (size_t row = block * LS__CPU_ROW_BLOCK; row < last; row++) {
            float d[LS__CPU_PIECE];
            for (size_t first = 0; first < columns; first += LS__CPU_PIECE) {
                size_t count = ls__min_size(LS__CPU_PIECE, columns - first);
                size_t at = row * columns + first;
                ls__cpu_ask_ahead(g->x + at, count);
                ls__cpu_ask_ahead(g->dy + at, count);
                for (size_t j = 0; j < count; j++)
                    d[j] = g->dy[at + j] * ls__gelu_tanh_slope(g->x[at + j] + g->bias[first + j]);
                if (g->out)
                    ls__cpu_store(g->out + at, d, count, g->accumulate);
                if (sums)
                    ls__cpu_store(sums + first, d, count, true);
            }
        }
    }
}

ls_status ls__cpu_bias_gelu_backward(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                     const void *x, const void *bias, const void *dy, void *dx,
                                     bool accumulate_dx, void *dbias, bool accumulate_dbias) {
    LS_TRY(ls__cpu_require_f32(dtype, "bias_gelu"));
    struct bias_gelu_arguments g = {.rows = rows,
                                    .columns = columns,
                                    .x = x,
                                    .bias = bias,
                                    .dy = dy,
                                    .out = dx,
                                    .accumulate = accumulate_dx};
    size_t blocks = ls__cpu_row_blocks(rows);
    if (dbias) {
        void *memory;
        LS_TRY(ls__cpu_scratch(device, blocks * columns * sizeof(float), &memory));
        g.partials = memory;
    }
    ls__cpu_parallel(device, blocks, 8 * LS__CPU_ROW_BLOCK * columns, backward_body, &g);
    if (dbias)
        ls__cpu_add_blocks(device, g.partials, blocks, columns, columns, dbias, accumulate_dbias);
    return LS_OK;
}
