/* unary, binary and affine kernels. */
#include <math.h>

#include "device/cpu/cpu.h"
#include "device/cpu/gelu.h"

/* --- unary --- */

struct unary_arguments {
    ls__unary op;
    const float *x, *y, *dy;
    float *out;
    bool accumulate;
};

LS_KERNEL(unary_forward_body) {
    const struct unary_arguments *a = arguments;
    const float *x = a->x;
    float *y = a->out;
    switch (a->op) {
    case LS__RELU: /* written so that NaN stays */
        for (size_t i = begin; i < end; i++)
            y[i] = x[i] <= 0 ? 0 : x[i];
        break;
    case LS__GELU:
        for (size_t i = begin; i < end; i++)
            y[i] = x[i] * ls__gelu_cdf(x[i]);
        break;
    case LS__GELU_TANH:
        for (size_t i = begin; i < end; i++)
            y[i] = ls__gelu_tanh(x[i]);
        break;
    case LS__TANH:
        for (size_t i = begin; i < end; i++)
            y[i] = ls__tanh(x[i]);
        break;
    case LS__SIGMOID:
        for (size_t i = begin; i < end; i++)
            y[i] = ls__sigmoid(x[i]);
        break;
    case LS__EXP:
        for (size_t i = begin; i < end; i++)
            y[i] = ls__exp(x[i]);
        break;
    case LS__LOG: /* in double: rounded once, so that libm's choice of code cannot be seen */
        for (size_t i = begin; i < end; i++)
            y[i] = (float)log((double)x[i]);
        break;
    case LS__SQRT:
        for (size_t i = begin; i < end; i++)
            y[i] = sqrtf(x[i]);
        break;
    }
}

ls_status ls__cpu_unary_forward(ls_device *device, ls_dtype dtype, ls__unary op, size_t count,
                                const void *x, void *y) {
    LS_TRY(ls__cpu_require_f32(dtype, "unary"));
    struct unary_arguments a = {.op = op, .x = x, .out = y};
    ls__cpu_parallel(device, count, op == LS__RELU || op == LS__SQRT ? 1 : 8, unary_forward_body,
                     &a);
    return LS_OK;
}

/* d[i] = dy[first + i] * op', from x or from y, whichever is cheaper; the other may be NULL */
LS_INLINE void unary_slopes(ls__unary op, size_t first, size_t count, const float *x,
                            const float *y, const float *dy, float *d) {
    switch (op) {
    case LS__RELU: /* NaN in y lets dy through */
        for (size_t i = 0; i < count; i++)
            d[i] = y[first + i] <= 0 ? 0 : dy[first + i];
        break;
    case LS__GELU:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[first + i] * ls__gelu_slope(x[first + i]);
        break;
    case LS__GELU_TANH:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[first + i] * ls__gelu_tanh_slope(x[first + i]);
        break;
    case LS__TANH:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[first + i] * (1.0F - y[first + i] * y[first + i]);
        break;
    case LS__SIGMOID:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[first + i] * (y[first + i] * (1.0F - y[first + i]));
        break;
    case LS__EXP:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[first + i] * y[first + i];
        break;
    case LS__LOG:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[first + i] / x[first + i];
        break;
    case LS__SQRT:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[first + i] / (2.0F * y[first + i]);
        break;
    }
}

LS_KERNEL(unary_backward_body) {
    const struct unary_arguments *a = arguments;
    float piece[LS__CPU_PIECE];
    for (size_t i = begin; i < end; i += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, end - i);
        ls__cpu_ask_ahead((a->y ? a->y : a->x) + i, count);
        ls__cpu_ask_ahead(a->dy + i, count);
        unary_slopes(a->op, i, count, a->x, a->y, a->dy, piece);
        ls__cpu_store(a->out + i, piece, count, a->accumulate);
    }
}

ls_status ls__cpu_unary_backward(ls_device *device, ls_dtype dtype, ls__unary op, size_t count,
                                 const void *x, const void *y, const void *dy, void *dx,
                                 bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "unary"));
    struct unary_arguments a = {
        .op = op, .x = x, .y = y, .dy = dy, .out = dx, .accumulate = accumulate};
    ls__cpu_parallel(device, count, op == LS__GELU || op == LS__GELU_TANH ? 8 : 1,
                     unary_backward_body, &a);
    return LS_OK;
}

/* --- binary: items are rows when b is repeated, elements otherwise --- */

struct binary_arguments {
    ls__binary op;
    size_t columns; /* 1 where b is not repeated */
    const float *a, *b, *dy;
    float *out;
    bool repeat, accumulate;
};

LS_INLINE void binary_run(ls__binary op, size_t count, const float *a, const float *b, float *y) {
    switch (op) {
    case LS__ADD:
        for (size_t i = 0; i < count; i++)
            y[i] = a[i] + b[i];
        break;
    case LS__SUB:
        for (size_t i = 0; i < count; i++)
            y[i] = a[i] - b[i];
        break;
    case LS__MUL:
        for (size_t i = 0; i < count; i++)
            y[i] = a[i] * b[i];
        break;
    case LS__DIV:
        for (size_t i = 0; i < count; i++)
            y[i] = a[i] / b[i];
        break;
    }
}

LS_KERNEL(binary_forward_body) {
    const struct binary_arguments *g = arguments;
    if (!g->repeat) {
        binary_run(g->op, end - begin, g->a + begin, g->b + begin, g->out + begin);
        return;
    }
    for (size_t row = begin; row < end; row++)
        binary_run(g->op, g->columns, g->a + row * g->columns, g->b, g->out + row * g->columns);
}

ls_status ls__cpu_binary_forward(ls_device *device, ls_dtype dtype, ls__binary op, size_t rows,
                                 size_t columns, const void *a, const void *b, bool repeat_b,
                                 void *y) {
    LS_TRY(ls__cpu_require_f32(dtype, "binary"));
    struct binary_arguments g = {
        .op = op, .columns = columns, .a = a, .b = b, .out = y, .repeat = repeat_b};
    if (repeat_b)
        ls__cpu_parallel(device, rows, columns, binary_forward_body, &g);
    else
        ls__cpu_parallel(device, rows * columns, 1, binary_forward_body, &g);
    return LS_OK;
}

/* d = dy times the derivative for a; b may be NULL where it is not read */
LS_INLINE void binary_da(ls__binary op, size_t count, const float *b, size_t b_at, const float *dy,
                         float *d) {
    switch (op) {
    case LS__ADD:
    case LS__SUB:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[i];
        break;
    case LS__MUL:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[i] * b[b_at + i];
        break;
    case LS__DIV:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[i] / b[b_at + i];
        break;
    }
}

/* d = dy times the derivative for b; a and b may be NULL where they are not read */
LS_INLINE void binary_db(ls__binary op, size_t count, const float *a, size_t at, const float *b,
                         size_t b_at, const float *dy, float *d) {
    switch (op) {
    case LS__ADD:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[i];
        break;
    case LS__SUB:
        for (size_t i = 0; i < count; i++)
            d[i] = -dy[i];
        break;
    case LS__MUL:
        for (size_t i = 0; i < count; i++)
            d[i] = dy[i] * a[at + i];
        break;
    case LS__DIV:
        for (size_t i = 0; i < count; i++)
            d[i] = -dy[i] * a[at + i] / (b[b_at + i] * b[b_at + i]);
        break;
    }
}

/* Elements [begin, end) of a row, whose b starts at b_at. */
LS_INLINE void binary_da_run(const struct binary_arguments *g, size_t begin, size_t end,
                             size_t b_at) {
    float piece[LS__CPU_PIECE];
    for (size_t i = begin; i < end; i += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, end - i);
        binary_da(g->op, count, g->b, b_at + (i - begin), g->dy + i, piece);
        ls__cpu_store(g->out + i, piece, count, g->accumulate);
    }
}

LS_KERNEL(binary_da_body) {
    const struct binary_arguments *g = arguments;
    if (!g->repeat) {
        binary_da_run(g, begin, end, begin);
        return;
    }
    for (size_t row = begin; row < end; row++)
        binary_da_run(g, row * g->columns, (row + 1) * g->columns, 0);
}

LS_KERNEL(binary_db_body) {
    const struct binary_arguments *g = arguments;
    float piece[LS__CPU_PIECE];
    for (size_t i = begin; i < end; i += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, end - i);
        binary_db(g->op, count, g->a, i, g->b, i, g->dy + i, piece);
        ls__cpu_store(g->out + i, piece, count, g->accumulate);
    }
}

/* db of a repeated b: sums over the rows. Items are stripes of columns; each column adds its rows
 * in order, in blocks of ROW_BLOCK so that the error grows with the number of blocks only. */
enum { STRIPE = 64, ROW_BLOCK = 128 };

struct repeated_arguments {
    struct binary_arguments g;
    size_t rows;
};

LS_KERNEL(repeated_db_body) {
    const struct repeated_arguments *r = arguments;
    const struct binary_arguments *g = &r->g;
    for (size_t stripe = begin; stripe < end; stripe++) {
        size_t first = stripe * STRIPE, width = ls__min_size(STRIPE, g->columns - first);
        float total[STRIPE] = {0};
        for (size_t row = 0; row < r->rows;) {
            float block[STRIPE] = {0}, piece[STRIPE];
            size_t last = ls__min_size(row + ROW_BLOCK, r->rows);
            for (; row < last; row++) {
                size_t at = row * g->columns + first;
                binary_db(g->op, width, g->a, at, g->b, first, g->dy + at, piece);
                for (size_t j = 0; j < width; j++)
                    block[j] += piece[j];
            }
            for (size_t j = 0; j < width; j++)
                total[j] += block[j];
        }
        ls__cpu_store(g->out + first, total, width, g->accumulate);
    }
}

ls_status ls__cpu_binary_backward(ls_device *device, ls_dtype dtype, ls__binary op, size_t rows,
                                  size_t columns, const void *a, const void *b, bool repeat_b,
                                  const void *dy, void *da, bool accumulate_da, void *db,
                                  bool accumulate_db) {
    LS_TRY(ls__cpu_require_f32(dtype, "binary"));
    struct binary_arguments g = {
        .op = op, .columns = columns, .a = a, .b = b, .dy = dy, .repeat = repeat_b};
    size_t items = repeat_b ? rows : rows * columns, cost = repeat_b ? columns : 1;
    if (da) {
        g.out = da;
        g.accumulate = accumulate_da;
        ls__cpu_parallel(device, items, cost, binary_da_body, &g);
    }
    if (!db)
        return LS_OK;
    g.out = db;
    g.accumulate = accumulate_db;
    if (!repeat_b) {
        ls__cpu_parallel(device, items, 1, binary_db_body, &g);
        return LS_OK;
    }
    struct repeated_arguments r = {.g = g, .rows = rows};
    ls__cpu_parallel(device, (columns + STRIPE - 1) / STRIPE, rows * STRIPE, repeated_db_body, &r);
    return LS_OK;
}

/* --- affine --- */

struct affine_arguments {
    float factor, term;
    const float *x;
    float *y;
    bool accumulate;
};

LS_KERNEL(affine_body) {
    const struct affine_arguments *a = arguments;
    const float *x = a->x;
    float *y = a->y, factor = a->factor, term = a->term;
    if (a->accumulate) {
        for (size_t i = begin; i < end; i++)
            y[i] += factor * x[i] + term;
    } else {
        for (size_t i = begin; i < end; i++)
            y[i] = factor * x[i] + term;
    }
}

ls_status ls__cpu_affine(ls_device *device, ls_dtype dtype, size_t count, float factor, float term,
                         const void *x, void *y, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "affine"));
    struct affine_arguments a = {factor, term, x, y, accumulate};
    ls__cpu_parallel(device, count, 1, affine_body, &a);
    return LS_OK;
}
