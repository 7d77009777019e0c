/* Softmax and cross-entropy over the classes in blocks: what a row needs to know about the blocks
 * before is its largest logit and the sum of exponentials below it (Milakov, Gimelshein 2018). Items
 * are rows; the sums are in double and in the order of the blocks. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/math.h"
#include "device/cpu/vector.h"

struct block_arguments {
    size_t columns, first;
    const float *x;
    const int32_t *targets;
    ls__class_row *rows;
    float *dx; /* over x */
    float dloss;
};

LS_INLINE double sum_of_exps(const float *x, float most, size_t columns) {
    float piece[LS__CPU_PIECE];
    double sum = 0;
    for (size_t i = 0; i < columns; i += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, columns - i);
        for (size_t j = 0; j < count; j++)
            piece[j] = ls__exp(x[i + j] - most);
        sum += (double)ls__sum_values(piece, piece, 0, count);
    }
    return sum;
}

LS_KERNEL(block_body) {
    const struct block_arguments *g = arguments;
    for (size_t i = begin; i < end; i++) {
        const float *x = g->x + i * g->columns;
        ls__class_row row = {.most = -INFINITY};
        if (g->first > 0)
            row = g->rows[i];
        float most = ls__largest(x, g->columns);
        if (g->first == 0 || most > row.most) {
            size_t best = 0;
            while (best + 1 < g->columns && x[best] != most)
                best++;
            row.best = (int32_t)(g->first + best);
            row.sum = g->first == 0 ? 0 : row.sum * exp((double)row.most - (double)most);
            row.most = most;
        }
        row.sum += sum_of_exps(x, row.most, g->columns);
        int32_t target = g->targets[i];
        if (target >= 0 && (size_t)target >= g->first && (size_t)target < g->first + g->columns)
            row.target = x[(size_t)target - g->first];
        g->rows[i] = row;
    }
}

ls_status ls__cpu_class_block(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                              size_t first, const void *x, const int32_t *targets,
                              ls__class_row *state) {
    LS_TRY(ls__cpu_require_f32(dtype, "cross_entropy"));
    struct block_arguments g = {
        .columns = columns, .first = first, .x = x, .targets = targets, .rows = state};
    ls__cpu_parallel(device, rows, 8 * columns, block_body, &g);
    return LS_OK;
}

ls_status ls__cpu_class_blocks_end(ls_device *device, size_t rows, size_t classes,
                                   const int32_t *targets, const ls__class_row *state, float *loss,
                                   size_t *correct) {
    (void)device;
    double sum = 0;
    size_t hits = 0;
    for (size_t i = 0; i < rows; i++) {
        if (ls__cpu_is_padding(targets[i]))
            continue;
        if (targets[i] < 0 || (size_t)targets[i] >= classes)
            return ls__fail(
                LS_ERR_RANGE,
                "cross_entropy: target %d in row %zu, want 0 to %zu, or -1 or -100 for padding",
                targets[i], i, classes - 1);
        sum += log(state[i].sum) + (double)state[i].most - (double)state[i].target;
        hits += state[i].best == targets[i];
    }
    *loss = (float)sum;
    *correct = hits;
    return LS_OK;
}

LS_KERNEL(backward_body) {
    const struct block_arguments *g = arguments;
    for (size_t i = begin; i < end; i++) {
        float *x = g->dx + i * g->columns;
        const ls__class_row *row = &g->rows[i];
        int32_t target = g->targets[i];
        float most = row->most, scale = (float)((double)g->dloss / row->sum);
        if (target < 0) {
            for (size_t j = 0; j < g->columns; j++)
                x[j] = 0;
            continue;
        }
        for (size_t j = 0; j < g->columns; j++)
            x[j] = ls__exp(x[j] - most) * scale;
        if ((size_t)target >= g->first && (size_t)target < g->first + g->columns)
            x[(size_t)target - g->first] -= g->dloss;
    }
}

ls_status ls__cpu_class_block_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                       size_t columns, size_t first, const int32_t *targets,
                                       const ls__class_row *state, float dloss, void *x) {
    LS_TRY(ls__cpu_require_f32(dtype, "cross_entropy"));
    struct block_arguments g = {.columns = columns,
                                .first = first,
                                .targets = targets,
                                .rows = (ls__class_row *)state,
                                .dloss = dloss,
                                .dx = x};
    ls__cpu_parallel(device, rows, 8 * columns, backward_body, &g);
    return LS_OK;
}
