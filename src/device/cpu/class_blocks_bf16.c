/* Softmax and cross-entropy over blocks of classes where backward is in bf16: what forward leaves of a block
 * is exp(logit - most) in BF16, most being the row's largest logit up to that block. It is computed for
 * the loss anyway; backward scales it to the gradient, which products take as it is, and no logit is
 * kept. Items are rows. */
#include <math.h>

#include "device/cpu/bf16.h"
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

struct powers_arguments {
    size_t columns, first;
    const float *x;
    const int32_t *targets;
    ls__class_row *rows; /* NULL: most is known */
    float *most;         /* (rows) */
    uint16_t *powers;    /* NULL: not kept */
    float dloss;
};

/* powers = exp(x - most), and their sum before rounding */
LS_INLINE double fill_powers(const float *x, float most, size_t columns, uint16_t *powers) {
    float piece[LS__CPU_PIECE];
    double sum = 0;
    for (size_t i = 0; i < columns; i += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, columns - i);
        for (size_t j = 0; j < count; j++)
            piece[j] = ls__exp(x[i + j] - most);
        sum += (double)ls__sum_values(piece, piece, 0, count);
        for (size_t j = 0; powers && j < count; j++)
            powers[i + j] = ls__bf16_of(piece[j]);
    }
    return sum;
}

/* The row's state with the largest of this block, before its sum. */
LS_INLINE ls__class_row meet_block(const ls__class_row *before, const float *x, size_t first,
                                   size_t columns) {
    ls__class_row row = {.most = -INFINITY};
    if (first > 0)
        row = *before;
    float most = ls__largest(x, columns);
    if (first == 0 || most > row.most) {
        size_t best = 0;
        while (best + 1 < columns && x[best] != most)
            best++;
        row.best = (int32_t)(first + best);
        row.sum = first == 0 ? 0 : row.sum * exp((double)row.most - (double)most);
        row.most = most;
    }
    return row;
}

LS_KERNEL(powers_body) {
    const struct powers_arguments *g = arguments;
    for (size_t i = begin; i < end; i++) {
        const float *x = g->x + i * g->columns;
        uint16_t *powers = g->powers ? g->powers + i * g->columns : NULL;
        if (!g->rows) {
            fill_powers(x, g->most[i], g->columns, powers);
            continue;
        }
        ls__class_row row = meet_block(&g->rows[i], x, g->first, g->columns);
        row.sum += fill_powers(x, row.most, g->columns, powers);
        int32_t target = g->targets[i];
        if (target >= 0 && (size_t)target >= g->first && (size_t)target < g->first + g->columns)
            row.target = x[(size_t)target - g->first];
        g->rows[i] = row;
        g->most[i] = row.most;
    }
}

ls_status ls__cpu_class_powers(ls_device *device, size_t rows, size_t columns, size_t first,
                               const float *x, const int32_t *targets, ls__class_row *state,
                               float *most, void *powers) {
    struct powers_arguments g = {.columns = columns,
                                 .first = first,
                                 .x = x,
                                 .targets = targets,
                                 .rows = state,
                                 .most = most,
                                 .powers = powers};
    ls__cpu_parallel(device, rows, 8 * columns, powers_body, &g);
    return LS_OK;
}

/* d = dloss * power * exp(most so far - most of all) / sum. The target's p - 1 is made of its logit, in
 * f32: of a rounded p near 1 not much would be left. */
LS_KERNEL(powers_backward_body) {
    const struct powers_arguments *g = arguments;
    for (size_t i = begin; i < end; i++) {
        uint16_t *d = g->powers + i * g->columns;
        const ls__class_row *row = &g->rows[i];
        int32_t target = g->targets[i];
        double share = (double)g->dloss / row->sum;
        float scale = (float)(share * exp((double)g->most[i] - (double)row->most));
        if (target < 0) {
            memset(d, 0, g->columns * sizeof *d);
            continue;
        }
        for (size_t j = 0; j < g->columns; j++)
            d[j] = ls__bf16_of(ls__float_of_bf16(d[j]) * scale);
        if ((size_t)target >= g->first && (size_t)target < g->first + g->columns)
            d[(size_t)target - g->first] = ls__bf16_of(
                (float)(share * exp((double)row->target - (double)row->most) - (double)g->dloss));
    }
}

ls_status ls__cpu_class_powers_backward(ls_device *device, size_t rows, size_t columns,
                                        size_t first, const int32_t *targets,
                                        const ls__class_row *state, const float *most, float dloss,
                                        void *powers) {
    struct powers_arguments g = {.columns = columns,
                                 .first = first,
                                 .targets = targets,
                                 .rows = (ls__class_row *)state,
                                 .most = (float *)most,
                                 .powers = powers,
                                 .dloss = dloss};
    ls__cpu_parallel(device, rows, 2 * columns, powers_backward_body, &g);
    return LS_OK;
}
