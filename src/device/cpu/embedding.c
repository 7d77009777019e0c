/* Rows of a table by index. */
#include "device/cpu/cpu.h"

struct embedding_arguments {
    size_t table_rows, columns, count;
    const float *from;
    const int32_t *indices;
    float *to;
    bool accumulate;
};

static ls_status check_indices(size_t table_rows, const int32_t *indices, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (indices[i] < 0 || (size_t)indices[i] >= table_rows)
            return ls__fail(LS_ERR_RANGE, "embedding: index %d at position %zu, want 0 to %zu",
                            indices[i], i, table_rows - 1);
    return LS_OK;
}

LS_KERNEL(forward_body) {
    const struct embedding_arguments *g = arguments;
    for (size_t i = begin; i < end; i++)
        ls__cpu_store(g->to + i * g->columns, g->from + (size_t)g->indices[i] * g->columns,
                      g->columns, false);
}

ls_status ls__cpu_embedding_forward(ls_device *device, ls_dtype dtype, size_t table_rows,
                                    size_t columns, const void *table, const int32_t *indices,
                                    size_t count, void *y) {
    LS_TRY(ls__cpu_require_f32(dtype, "embedding"));
    LS_TRY(check_indices(table_rows, indices, count));
    struct embedding_arguments g = {.columns = columns, .from = table, .indices = indices, .to = y};
    ls__cpu_parallel(device, count, columns, forward_body, &g);
    return LS_OK;
}

/* Items are stripes of columns: every element adds its rows in the order of the indices. */
enum { STRIPE = 64 };

LS_KERNEL(backward_body) {
    const struct embedding_arguments *g = arguments;
    size_t first = begin * STRIPE, width = ls__min_size(end * STRIPE, g->columns) - first;
    if (!g->accumulate)
        for (size_t row = 0; row < g->table_rows; row++)
            for (size_t j = 0; j < width; j++)
                g->to[row * g->columns + first + j] = 0;
    for (size_t i = 0; i < g->count; i++)
        ls__cpu_store(g->to + (size_t)g->indices[i] * g->columns + first,
                      g->from + i * g->columns + first, width, true);
}

ls_status ls__cpu_embedding_backward(ls_device *device, ls_dtype dtype, size_t table_rows,
                                     size_t columns, const int32_t *indices, size_t count,
                                     const void *dy, void *dtable, bool accumulate) {
    LS_TRY(ls__cpu_require_f32(dtype, "embedding"));
    LS_TRY(check_indices(table_rows, indices, count));
    struct embedding_arguments g = {.table_rows = table_rows,
                                    .columns = columns,
                                    .count = count,
                                    .from = dy,
                                    .indices = indices,
                                    .to = dtable,
                                    .accumulate = accumulate};
    size_t rows = count + (accumulate ? 0 : table_rows);
    ls__cpu_parallel(device, (columns + STRIPE - 1) / STRIPE, rows * STRIPE, backward_body, &g);
    return LS_OK;
}
