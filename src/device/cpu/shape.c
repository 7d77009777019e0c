/* Copies that change the order of elements. */
#include "device/cpu/cpu.h"

/* --- permute ---
 * Dimensions of one element are dropped and those that stay neighbours are merged. What is left is
 * walked as tiles of the two dimensions that are innermost in y and in x, so that both sides use
 * whole cache lines. */

enum { TILE = 16 };

struct permute_arguments {
    size_t dims;                   /* of y, after merging; at least 1 */
    size_t extents[LS_MAX_DIMS];   /* of y */
    size_t x_strides[LS_MAX_DIMS]; /* of y's dimensions in x */
    size_t y_strides[LS_MAX_DIMS];
    size_t other; /* dimension of y that is innermost in x; dims - 1: rows can be copied */
    size_t item_dims[LS_MAX_DIMS]; /* the dimensions an item fixes */
    size_t item_dim_count;
    const float *x;
    float *y;
    bool accumulate;
};

static void plan_permute(struct permute_arguments *g, size_t dims, const size_t *shape,
                         const size_t *permutation) {
    size_t strides[LS_MAX_DIMS], stride = 1;
    for (size_t d = dims; d-- > 0;) {
        strides[d] = stride;
        stride *= shape[d];
    }
    for (size_t d = 0; d < dims; d++) {
        size_t from = permutation[d];
        if (shape[from] == 1)
            continue;
        if (g->dims > 0 && g->x_strides[g->dims - 1] == strides[from] * shape[from]) {
            g->extents[g->dims - 1] *= shape[from];
            g->x_strides[g->dims - 1] = strides[from];
            continue;
        }
        g->extents[g->dims] = shape[from];
        g->x_strides[g->dims++] = strides[from];
    }
    if (g->dims == 0) {
        g->extents[0] = 1;
        g->x_strides[0] = 1;
        g->dims = 1;
    }
    stride = 1;
    for (size_t d = g->dims; d-- > 0;) {
        g->y_strides[d] = stride;
        stride *= g->extents[d];
        if (g->x_strides[d] == 1)
            g->other = d;
    }
    for (size_t d = 0; d + 1 < g->dims; d++)
        if (d != g->other)
            g->item_dims[g->item_dim_count++] = d;
}

LS_INLINE void permute_tile(size_t rows, size_t columns, const float *x, size_t x_stride, float *y,
                            size_t y_stride, bool accumulate) {
    if (accumulate) {
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < columns; j++)
                y[i * y_stride + j] += x[j * x_stride + i];
    } else {
        for (size_t i = 0; i < rows; i++)
            for (size_t j = 0; j < columns; j++)
                y[i * y_stride + j] = x[j * x_stride + i];
    }
}

/* Items are all indices of item_dims. */
LS_KERNEL(permute_body) {
    const struct permute_arguments *g = arguments;
    size_t inner = g->dims - 1, columns = g->extents[inner];
    for (size_t item = begin; item < end; item++) {
        const float *x = g->x;
        float *y = g->y;
        for (size_t k = g->item_dim_count, rest = item; k-- > 0;) {
            size_t d = g->item_dims[k], index = rest % g->extents[d];
            rest /= g->extents[d];
            x += index * g->x_strides[d];
            y += index * g->y_strides[d];
        }
        if (g->other == inner) {
            ls__cpu_store(y, x, columns, g->accumulate);
            continue;
        }
        size_t rows = g->extents[g->other], y_stride = g->y_strides[g->other];
        size_t x_stride = g->x_strides[inner];
        for (size_t i = 0; i < rows; i += TILE)
            for (size_t j = 0; j < columns; j += TILE)
                permute_tile(ls__min_size(TILE, rows - i), ls__min_size(TILE, columns - j),
                             x + j * x_stride + i, x_stride, y + i * y_stride + j, y_stride,
                             g->accumulate);
    }
}

ls_status ls__cpu_permute(ls_device *device, ls_dtype dtype, size_t dims, const size_t *shape,
                          const size_t *permutation, const void *x, void *y, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "permute"));
    struct permute_arguments g = {.x = x, .y = y, .accumulate = accumulate};
    for (size_t d = 0; d < dims; d++)
        if (shape[d] == 0)
            return LS_OK;
    plan_permute(&g, dims, shape, permutation);
    size_t items = 1, cost = g.extents[g.dims - 1];
    for (size_t k = 0; k < g.item_dim_count; k++)
        items *= g.extents[g.item_dims[k]];
    if (g.other != g.dims - 1)
        cost *= g.extents[g.other];
    ls__cpu_parallel(device, items, 2 * cost, permute_body, &g);
    return LS_OK;
}

/* --- copy_rows --- */

struct rows_arguments {
    size_t columns, x_stride, y_stride;
    const float *x;
    float *y;
    bool accumulate;
};

LS_KERNEL(copy_rows_body) {
    const struct rows_arguments *g = arguments;
    for (size_t row = begin; row < end; row++)
        ls__cpu_store(g->y + row * g->y_stride, g->x + row * g->x_stride, g->columns,
                      g->accumulate);
}

ls_status ls__cpu_copy_rows(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                            const void *x, size_t x_stride, void *y, size_t y_stride,
                            bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "copy_rows"));
    struct rows_arguments g = {columns, x_stride, y_stride, x, y, accumulate};
    ls__cpu_parallel(device, rows, columns, copy_rows_body, &g);
    return LS_OK;
}
