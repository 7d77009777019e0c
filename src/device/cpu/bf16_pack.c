/* From f32 to bf16: rows as they lie, and the second factor of products in oneDNN's order.
 *
 * Packed b (k, n) is what oneDNN calls BA16a64b2a, and asks for by itself with every shape tried: blocks
 * of 32 x 64, those of one group of 64 columns one after the other; inside, two neighbours in k lie
 * together, as the processor's bf16 dot product takes them:
 *
 *   packed[j / 64][i / 32][(i % 32) / 2][j % 64][i % 2] = b[i][j], zeros beyond k and n.
 *
 * oneDNN's own reorder from f32 takes 1.3 to 2.5 times as long. */
#include "device/cpu/bf16.h"
#include "device/cpu/vector.h"

enum { BLOCK_K = 32, BLOCK_N = 64, BLOCK = BLOCK_K * BLOCK_N };

static size_t blocks_of(size_t extent, size_t block) {
    return (extent + block - 1) / block;
}

size_t ls__cpu_packed_bytes(ls_device *device, const ls__packing *packing) {
    (void)device;
    if (packing->dtype != LS_BF16)
        return 0;
    return blocks_of(packing->k, BLOCK_K) * blocks_of(packing->n, BLOCK_N) * BLOCK *
           sizeof(uint16_t);
}

struct pack_arguments {
    ls__packing packing;
    const float *b;
    uint16_t *packed;
};

/* One block from b stored as (k, n); rows and columns are what there is of it. */
LS_INLINE void pack_plain(const float *b, size_t stride, size_t rows, size_t columns,
                          uint16_t *to) {
    for (size_t i = 0; i < rows; i += 2) {
        const float *even = b + i * stride, *odd = even + (i + 1 < rows ? stride : 0);
        uint32_t *pairs = (uint32_t *)(void *)(to + i * BLOCK_N);
        uint32_t keep = i + 1 < rows ? 0xffff0000U : 0;
        for (size_t j = 0; j < columns; j++)
            pairs[j] = ls__bf16_of(even[j]) | ((uint32_t)ls__bf16_of(odd[j]) << 16 & keep);
    }
}

/* One block from b stored as (n, k). */
LS_INLINE void pack_transposed(const float *b, size_t stride, size_t rows, size_t columns,
                               uint16_t *to) {
    uint16_t row[BLOCK_K];
    for (size_t j = 0; j < columns; j++) {
        const float *from = b + j * stride;
        uint32_t pair;
        for (size_t i = 0; i < rows; i++)
            row[i] = ls__bf16_of(from[i]);
        for (size_t i = rows; i < BLOCK_K; i++)
            row[i] = 0;
        for (size_t i = 0; i < BLOCK_K; i += 2) {
            memcpy(&pair, row + i, sizeof pair);
            memcpy(to + i * BLOCK_N + 2 * j, &pair, sizeof pair);
        }
    }
}

/* Items are groups of 64 columns. */
LS_KERNEL(pack_body) {
    const struct pack_arguments *g = arguments;
    size_t k = g->packing.k, n = g->packing.n, deep = blocks_of(k, BLOCK_K);
    for (size_t group = begin; group < end; group++) {
        size_t column = group * BLOCK_N, columns = ls__min_size(BLOCK_N, n - column);
        for (size_t block = 0; block < deep; block++) {
            size_t row = block * BLOCK_K, rows = ls__min_size(BLOCK_K, k - row);
            uint16_t *to = g->packed + (group * deep + block) * BLOCK;
            if (rows < BLOCK_K || columns < BLOCK_N)
                memset(to, 0, BLOCK * sizeof *to);
            if (g->packing.transposed)
                pack_transposed(g->b + column * k + row, k, rows, columns, to);
            else
                pack_plain(g->b + row * n + column, n, rows, columns, to);
        }
    }
}

static ls_status require_bf16(ls_dtype dtype, const char *kernel) {
    if (dtype == LS_BF16)
        return LS_OK;
    return ls__fail(LS_ERR_UNSUPPORTED, "%s: the cpu device has it for BF16, not for %s", kernel,
                    ls_dtype_name(dtype));
}

ls_status ls__cpu_pack(ls_device *device, const ls__packing *packing, const float *b,
                       void *packed) {
    LS_TRY(require_bf16(packing->dtype, "pack"));
    struct pack_arguments g = {.packing = *packing, .b = b, .packed = packed};
    ls__cpu_parallel(device, blocks_of(packing->n, BLOCK_N), BLOCK_N * packing->k, pack_body, &g);
    return LS_OK;
}

/* --- rows as they lie --- */

struct narrow_arguments {
    size_t rows, columns;
    const float *x;
    uint16_t *y;
    float *sums; /* (columns), or NULL */
    bool accumulate;
};

/* Without sums all is one row. */
LS_KERNEL(narrow_body) {
    const struct narrow_arguments *g = arguments;
    for (size_t i = begin; i < end; i++)
        g->y[i] = ls__bf16_of(g->x[i]);
}

/* Items are columns: each is added up from the first row to the last, whatever the cut. */
LS_KERNEL(narrow_sum_body) {
    const struct narrow_arguments *g = arguments;
    float sums[LS__CPU_PIECE];
    for (size_t first = begin; first < end; first += LS__CPU_PIECE) {
        size_t count = ls__min_size(LS__CPU_PIECE, end - first);
        for (size_t j = 0; j < count; j++)
            sums[j] = 0;
        for (size_t row = 0; row < g->rows; row++) {
            const float *x = g->x + row * g->columns + first;
            uint16_t *y = g->y + row * g->columns + first;
            for (size_t j = 0; j < count; j++) {
                y[j] = ls__bf16_of(x[j]);
                sums[j] += x[j];
            }
        }
        ls__cpu_store(g->sums + first, sums, count, g->accumulate);
    }
}

ls_status ls__cpu_narrow(ls_device *device, ls_dtype dtype, size_t rows, size_t columns,
                         const float *x, void *y, float *sums, bool accumulate) {
    LS_TRY(require_bf16(dtype, "narrow"));
    struct narrow_arguments g = {rows, columns, x, y, sums, accumulate};
    if (sums)
        ls__cpu_parallel(device, columns, rows, narrow_sum_body, &g);
    else
        ls__cpu_parallel(device, rows * columns, 1, narrow_body, &g);
    return LS_OK;
}
