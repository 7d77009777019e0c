/* Reductions of x (outer, n, inner) over n, and their reverses. With inner > 1, items are stripes
 * of STRIPE columns of one outer index; with inner = 1 they are outer indices. Sums are made of
 * blocks in a fixed order, so no cut into threads shows in the bits. */
#include "device/cpu/cpu.h"
#include "device/cpu/vector.h"

/* A stripe's partial sums stay in the nearest cache, and its rows are long enough to be fetched ahead. */
enum { STRIPE = 256, ROW_BLOCK = LS__CPU_ROW_BLOCK, RUN_BLOCK = 4096 };

struct reduce_arguments {
    size_t outer, n, inner;
    float scale;
    const float *x;
    float *y;
    int32_t *where;
    const int32_t *chosen;
    bool accumulate;
};

static size_t stripes_of(size_t inner) {
    return (inner + STRIPE - 1) / STRIPE;
}

LS_KERNEL(sum_runs_body) {
    const struct reduce_arguments *g = arguments;
    for (size_t o = begin; o < end; o++) {
        const float *x = g->x + o * g->n;
        double sum = 0;
        for (size_t i = 0; i < g->n; i += RUN_BLOCK)
            sum += (double)ls__sum_values(x + i, x + i, 0, ls__min_size(RUN_BLOCK, g->n - i));
        float value = (float)(sum * (double)g->scale);
        ls__cpu_store(g->y + o, &value, 1, g->accumulate);
    }
}

LS_KERNEL(sum_stripes_body) {
    const struct reduce_arguments *g = arguments;
    size_t stripes = stripes_of(g->inner);
    for (size_t item = begin; item < end; item++) {
        size_t first = item % stripes * STRIPE, width = ls__min_size(STRIPE, g->inner - first);
        const float *x = g->x + item / stripes * g->n * g->inner + first;
        float total[STRIPE] = {0};
        for (size_t row = 0; row < g->n;) {
            float block[STRIPE] = {0};
            size_t last = ls__min_size(row + ROW_BLOCK, g->n);
            for (; row < last; row++) {
                ls__cpu_ask_ahead(x + row * g->inner, width);
                for (size_t j = 0; j < width; j++)
                    block[j] += x[row * g->inner + j];
            }
            for (size_t j = 0; j < width; j++)
                total[j] += block[j];
        }
        for (size_t j = 0; j < width; j++)
            total[j] *= g->scale;
        ls__cpu_store(g->y + item / stripes * g->inner + first, total, width, g->accumulate);
    }
}

ls_status ls__cpu_sum(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                      float scale, const void *x, void *y, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "sum"));
    struct reduce_arguments g = {.outer = outer,
                                 .n = n,
                                 .inner = inner,
                                 .scale = scale,
                                 .x = x,
                                 .y = y,
                                 .accumulate = accumulate};
    if (inner == 1)
        ls__cpu_parallel(device, outer, n, sum_runs_body, &g);
    else
        ls__cpu_parallel(device, outer * stripes_of(inner), n * ls__min_size(inner, STRIPE),
                         sum_stripes_body, &g);
    return LS_OK;
}

size_t ls__cpu_row_blocks(size_t rows) {
    return (rows + LS__CPU_ROW_BLOCK - 1) / LS__CPU_ROW_BLOCK;
}

struct blocks_arguments {
    const float *partials;
    size_t blocks, stride, columns;
    float *y;
    bool accumulate;
};

/* Items are stripes of columns. */
LS_KERNEL(add_blocks_body) {
    const struct blocks_arguments *g = arguments;
    for (size_t stripe = begin; stripe < end; stripe++) {
        size_t first = stripe * STRIPE, width = ls__min_size(STRIPE, g->columns - first);
        float total[STRIPE] = {0};
        for (size_t block = 0; block < g->blocks; block++)
            ls__cpu_store(total, g->partials + block * g->stride + first, width, true);
        ls__cpu_store(g->y + first, total, width, g->accumulate);
    }
}

void ls__cpu_add_blocks(ls_device *device, const float *partials, size_t blocks, size_t stride,
                        size_t columns, float *y, bool accumulate) {
    struct blocks_arguments g = {.partials = partials,
                                 .blocks = blocks,
                                 .stride = stride,
                                 .columns = columns,
                                 .y = y,
                                 .accumulate = accumulate};
    ls__cpu_parallel(device, stripes_of(columns), blocks * STRIPE, add_blocks_body, &g);
}

/* Items are (outer, n) rows. */
LS_KERNEL(repeat_body) {
    const struct reduce_arguments *g = arguments;
    float scale = g->scale;
    for (size_t row = begin; row < end; row++) {
        const float *from = g->x + row / g->n * g->inner;
        float *to = g->y + row * g->inner;
        if (g->accumulate)
            for (size_t j = 0; j < g->inner; j++)
                to[j] += scale * from[j];
        else
            for (size_t j = 0; j < g->inner; j++)
                to[j] = scale * from[j];
    }
}

ls_status ls__cpu_repeat(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                         float scale, const void *dy, void *dx, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "repeat"));
    struct reduce_arguments g = {
        .n = n, .inner = inner, .scale = scale, .x = dy, .y = dx, .accumulate = accumulate};
    ls__cpu_parallel(device, outer * n, inner, repeat_body, &g);
    return LS_OK;
}

/* The first of equals wins, and the first NaN over everything. */
LS_KERNEL(max_body) {
    const struct reduce_arguments *g = arguments;
    size_t stripes = stripes_of(g->inner);
    for (size_t item = begin; item < end; item++) {
        size_t o = item / stripes, first = item % stripes * STRIPE;
        size_t width = ls__min_size(STRIPE, g->inner - first);
        const float *x = g->x + o * g->n * g->inner + first;
        float *best = g->y + o * g->inner + first;
        int32_t *where = g->where + o * g->inner + first;
        for (size_t j = 0; j < width; j++) {
            best[j] = x[j];
            where[j] = 0;
        }
        for (size_t row = 1; row < g->n; row++) {
            for (size_t j = 0; j < width; j++) {
                float value = x[row * g->inner + j], old = best[j];
                bool better = !(value <= old) && old == old;
                best[j] = better ? value : old;
                where[j] = better ? (int32_t)row : where[j];
            }
        }
    }
}

ls_status ls__cpu_max(ls_device *device, ls_dtype dtype, size_t outer, size_t n, size_t inner,
                      const void *x, void *y, int32_t *where) {
    LS_TRY(ls__cpu_require_f32(dtype, "max"));
    if (n == 0)
        return ls__fail(LS_ERR_ARGUMENT, "max: the dimension has no elements, want at least 1");
    struct reduce_arguments g = {.n = n, .inner = inner, .x = x, .y = y, .where = where};
    ls__cpu_parallel(device, outer * stripes_of(inner), n * ls__min_size(inner, STRIPE), max_body,
                     &g);
    return LS_OK;
}

/* Items are outer indices. */
LS_KERNEL(max_backward_body) {
    const struct reduce_arguments *g = arguments;
    for (size_t o = begin; o < end; o++) {
        float *dx = g->y + o * g->n * g->inner;
        if (!g->accumulate)
            for (size_t i = 0; i < g->n * g->inner; i++)
                dx[i] = 0;
        for (size_t j = 0; j < g->inner; j++)
            dx[(size_t)g->chosen[o * g->inner + j] * g->inner + j] += g->x[o * g->inner + j];
    }
}

ls_status ls__cpu_max_backward(ls_device *device, ls_dtype dtype, size_t outer, size_t n,
                               size_t inner, const int32_t *where, const void *dy, void *dx,
                               bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "max"));
    struct reduce_arguments g = {
        .n = n, .inner = inner, .x = dy, .y = dx, .chosen = where, .accumulate = accumulate};
    ls__cpu_parallel(device, outer, n * inner, max_backward_body, &g);
    return LS_OK;
}
