/* Losses: sums over rows in double, in an order that does not depend on the threads. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/math.h"
#include "device/cpu/vector.h"

struct loss_arguments {
    size_t rows, columns, count;
    const float *x, *b, *probs;
    const int32_t *targets;
    double *parts; /* a row's loss, a block's sum */
    float *out;    /* probs or dx; may be NULL */
    float dloss;
    bool accumulate;
};

static ls_status check_targets(size_t rows, size_t columns, const int32_t *targets,
                               const char *kernel) {
    for (size_t row = 0; row < rows; row++)
        if (!ls__cpu_is_padding(targets[row]) &&
            (targets[row] < 0 || (size_t)targets[row] >= columns))
            return ls__fail(LS_ERR_RANGE,
                            "%s: target %d in row %zu, want 0 to %zu, or -1 or -100 for padding",
                            kernel, targets[row], row, columns - 1);
    return LS_OK;
}

/* exp(x - most), written to `exps` where it is not NULL; returns their sum */
LS_INLINE double sum_of_exps(const float *x, float most, size_t columns, float *exps) {
    float piece[LS__CPU_PIECE];
    double sum = 0;
    for (size_t i = 0; i < columns; i += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, columns - i);
        /* cppcheck-suppress legacyUninitvar ; it takes the array's address, the loop below fills it */
        float *to = exps ? exps + i : piece;
        for (size_t j = 0; j < count; j++)
            to[j] = ls__exp(x[i + j] - most);
        sum += (double)ls__sum_values(to, to, 0, count);
    }
    return sum;
}

LS_KERNEL(cross_entropy_body) {
    const struct loss_arguments *g = arguments;
    for (size_t row = begin; row < end; row++) {
        const float *x = g->x + row * g->columns;
        float *probs = g->out ? g->out + row * g->columns : NULL;
        float most = ls__largest(x, g->columns);
        double sum = sum_of_exps(x, most, g->columns, probs);
        int32_t target = g->targets[row];
        g->parts[row] = target < 0 ? 0 : log(sum) + (double)most - (double)x[target];
        if (!probs)
            continue;
        float scale = (float)(1.0 / sum);
        for (size_t j = 0; j < g->columns; j++)
            probs[j] *= scale;
    }
}

static double add_parts(const double *parts, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += parts[i];
    return sum;
}

ls_status ls__cpu_cross_entropy_forward(ls_device *device, ls_dtype dtype, size_t rows,
                                        size_t columns, const void *x, const int32_t *targets,
                                        float *loss, void *probs) {
    LS_TRY(ls__cpu_require_f32(dtype, "cross_entropy"));
    LS_TRY(check_targets(rows, columns, targets, "cross_entropy"));
    void *parts;
    LS_TRY(ls__cpu_scratch(device, rows * sizeof(double), &parts));
    struct loss_arguments g = {
        .columns = columns, .x = x, .targets = targets, .parts = parts, .out = probs};
    if (columns > 0)
        ls__cpu_parallel(device, rows, 8 * columns, cross_entropy_body, &g);
    *loss = (float)(columns > 0 ? add_parts(parts, rows) : 0);
    return LS_OK;
}

LS_KERNEL(cross_entropy_backward_body) {
    const struct loss_arguments *g = arguments;
    float dloss = g->dloss;
    for (size_t row = begin; row < end; row++) {
        const float *probs = g->probs + row * g->columns;
        float *dx = g->out + row * g->columns;
        int32_t target = g->targets[row];
        if (target < 0) {
            for (size_t j = 0; j < g->columns && !g->accumulate; j++)
                dx[j] = 0;
            continue;
        }
        float before = g->accumulate ? dx[target] : 0;
        if (g->accumulate)
            for (size_t j = 0; j < g->columns; j++)
                dx[j] += dloss * probs[j];
        else
            for (size_t j = 0; j < g->columns; j++)
                dx[j] = dloss * probs[j];
        dx[target] = before + dloss * (probs[target] - 1.0F);
    }
}

ls_status ls__cpu_cross_entropy_backward(ls_device *device, ls_dtype dtype, size_t rows,
                                         size_t columns, const void *probs, const int32_t *targets,
                                         float dloss, void *dx, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "cross_entropy"));
    struct loss_arguments g = {.columns = columns,
                               .probs = probs,
                               .targets = targets,
                               .out = dx,
                               .dloss = dloss,
                               .accumulate = accumulate};
    ls__cpu_parallel(device, rows, columns, cross_entropy_backward_body, &g);
    return LS_OK;
}

/* --- squared error: items are blocks of BLOCK elements, eight partial sums each --- */

enum { BLOCK = 4096, PARTIALS = 8 };
typedef float four_floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef double four_doubles __attribute__((vector_size(32), aligned(8), may_alias));

/* Sum of (a - b)^2 in double. Elements i = j mod 8 go to partial sum j. */
LS_INLINE double block_squares(const float *a, const float *b, size_t count) {
    double partial[PARTIALS];
    four_doubles low = {0}, high = {0};
    size_t i = 0;
    for (; i + PARTIALS <= count; i += PARTIALS) {
        four_doubles p = __builtin_convertvector(*(const four_floats *)(a + i), four_doubles);
        four_doubles q = __builtin_convertvector(*(const four_floats *)(a + i + 4), four_doubles);
        p -= __builtin_convertvector(*(const four_floats *)(b + i), four_doubles);
        q -= __builtin_convertvector(*(const four_floats *)(b + i + 4), four_doubles);
        low += p * p;
        high += q * q;
    }
    *(four_doubles *)partial = low;
    *(four_doubles *)(partial + 4) = high;
    for (size_t j = 0; i + j < count; j++) {
        double value = (double)a[i + j] - (double)b[i + j];
        partial[j] += value * value;
    }
    return ((partial[0] + partial[4]) + (partial[2] + partial[6])) +
           ((partial[1] + partial[5]) + (partial[3] + partial[7]));
}

LS_KERNEL(squares_body) {
    const struct loss_arguments *g = arguments;
    for (size_t block = begin; block < end; block++) {
        size_t first = block * BLOCK, count = ls__min_size(BLOCK, g->count - first);
        g->parts[block] = block_squares(g->x + first, g->b + first, count);
    }
}

ls_status ls__cpu_squared_error(ls_device *device, ls_dtype dtype, size_t count, const void *a,
                                const void *b, float *loss) {
    LS_TRY(ls__cpu_require_f32(dtype, "squared_error"));
    size_t blocks = count / BLOCK + (count % BLOCK != 0);
    void *parts;
    LS_TRY(ls__cpu_scratch(device, blocks * sizeof(double), &parts));
    struct loss_arguments g = {.count = count, .x = a, .b = b, .parts = parts};
    ls__cpu_parallel(device, blocks, BLOCK, squares_body, &g);
    *loss = (float)add_parts(parts, blocks);
    return LS_OK;
}

/* --- accuracy --- */

ls_status ls__cpu_count_correct(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                                const void *x, const int32_t *targets, size_t *correct) {
    (void)device;
    LS_TRY(ls__cpu_require_f32(dtype, "count_correct"));
    LS_TRY(check_targets(rows, columns, targets, "count_correct"));
    size_t count = 0;
    for (size_t row = 0; row < rows; row++) {
        const float *values = (const float *)x + row * columns;
        size_t best = 0;
        for (size_t j = 1; j < columns; j++)
            if (values[j] > values[best])
                best = j;
        count += targets[row] >= 0 && (size_t)targets[row] == best;
    }
    *correct = count;
    return LS_OK;
}
