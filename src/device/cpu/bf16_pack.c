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
    uint32_t *packed; /* pairs */
};

/* Two neighbours in k as they lie in memory: the first in the lower half. */
LS_INLINE uint32_t pair_of(float even, float odd) {
    return ls__bf16_high(even) >> 16 | (ls__bf16_high(odd) & 0xffff0000U);
}

/* One block from b stored as (k, n); rows and columns are what there is of it. */
LS_INLINE void pack_plain(const float *b, size_t stride, size_t rows, size_t columns,
                          uint32_t *pairs) {
    for (size_t i = 0; i + 1 < rows; i += 2)
        for (size_t j = 0; j < columns; j++)
            pairs[i / 2 * BLOCK_N + j] = pair_of(b[i * stride + j], b[(i + 1) * stride + j]);
    for (size_t j = 0; rows % 2 && j < columns; j++)
        pairs[rows / 2 * BLOCK_N + j] = pair_of(b[(rows - 1) * stride + j], 0);
}

/* Rows become columns, in four rounds: blocks of 8 x 8 change places, then of 4 x 4 inside of them, ... */
enum { SIDE = BLOCK_K / 2 };
typedef uint32_t square_row __attribute__((vector_size(4 * SIDE)));
#define EXCHANGE(size, low, high)                                                                  \
    _Pragma("GCC unroll 16") for (int i = 0; i < SIDE; i++) if (!(i & (size))) {                   \
        square_row a = rows[i], b = rows[i + (size)];                                              \
        rows[i] = __builtin_shufflevector(a, b, low);                                              \
        rows[i + (size)] = __builtin_shufflevector(a, b, high);                                    \
    }
#define LOW_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define LOW_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
LS_INLINE void transpose(square_row *rows){EXCHANGE(8, LOW_8, HIGH_8) EXCHANGE(4, LOW_4, HIGH_4)
                                               EXCHANGE(2, LOW_2, HIGH_2)
                                                   EXCHANGE(1, LOW_1, HIGH_1)}

/* 32 numbers that are neighbours in k, as pairs. */
LS_INLINE void pair_row(const float *b, square_row *row) {
    uint32_t high[BLOCK_K], pairs[SIDE];
    uint64_t two[SIDE];
    for (size_t i = 0; i < BLOCK_K; i++)
        high[i] = ls__bf16_high(b[i]);
    memcpy(two, high, sizeof two);
    for (size_t i = 0; i < SIDE; i++)
        pairs[i] = (uint32_t)(two[i] >> 16 & 0xffffU) | (uint32_t)(two[i] >> 32 & 0xffff0000U);
    memcpy(row, pairs, sizeof *row);
}

/* One block from b stored as (n, k), 16 columns of it at a time. */
LS_INLINE void pack_transposed(const float *b, size_t stride, size_t columns, uint32_t *pairs) {
    size_t j = 0;
    for (; j + SIDE <= columns; j += SIDE) {
        square_row square[SIDE];
        for (size_t c = 0; c < SIDE; c++)
            pair_row(b + (j + c) * stride, &square[c]);
        transpose(square);
        for (size_t i = 0; i < SIDE; i++)
            memcpy(pairs + i * BLOCK_N + j, &square[i], sizeof square[i]);
    }
    for (; j < columns; j++)
        for (size_t i = 0; i < SIDE; i++)
            pairs[i * BLOCK_N + j] = pair_of(b[j * stride + 2 * i], b[j * stride + 2 * i + 1]);
}

/* The same where k ends inside of the block. */
LS_INLINE void pack_transposed_end(const float *b, size_t stride, size_t rows, size_t columns,
                                   uint32_t *pairs) {
    for (size_t j = 0; j < columns; j++)
        for (size_t i = 0; i < rows; i += 2)
            pairs[i / 2 * BLOCK_N + j] =
                pair_of(b[j * stride + i], i + 1 < rows ? b[j * stride + i + 1] : 0);
}

/* Blocks are narrow and their rows far apart, so the processor's own prefetching is of little help. Asks for the block that
 * lies AHEAD elements further along `rows` rows of b. */
enum { AHEAD = 2 * BLOCK_N };
LS_INLINE void ask_for_block(const float *b, size_t stride, size_t rows, size_t columns) {
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < columns; j += 16)
            __builtin_prefetch((const char *)b + (r * stride + j + AHEAD) * sizeof *b);
}

LS_INLINE void pack_block(const struct pack_arguments *g, size_t row, size_t column,
                          uint32_t *pairs) {
    size_t k = g->packing.k, n = g->packing.n;
    size_t rows = ls__min_size(BLOCK_K, k - row), columns = ls__min_size(BLOCK_N, n - column);
    if (g->packing.transposed)
        ask_for_block(g->b + column * k + row, k, columns, rows);
    else
        ask_for_block(g->b + row * n + column, n, rows, columns);
    if (rows < BLOCK_K || columns < BLOCK_N)
        memset(pairs, 0, BLOCK / 2 * sizeof *pairs);
    if (!g->packing.transposed)
        pack_plain(g->b + row * n + column, n, rows, columns, pairs);
    else if (rows == BLOCK_K)
        pack_transposed(g->b + column * k + row, k, columns, pairs);
    else
        pack_transposed_end(g->b + column * k + row, k, rows, columns, pairs);
}

/* Items are rows of blocks of b as stored, so that memory is read in its order. */
LS_KERNEL(pack_body) {
    const struct pack_arguments *g = arguments;
    size_t deep = blocks_of(g->packing.k, BLOCK_K), wide = blocks_of(g->packing.n, BLOCK_N);
    size_t across = g->packing.transposed ? deep : wide;
    for (size_t item = begin; item < end; item++)
        for (size_t i = 0; i < across; i++) {
            size_t block = g->packing.transposed ? i : item,
                   group = g->packing.transposed ? item : i;
            pack_block(g, block * BLOCK_K, group * BLOCK_N,
                       g->packed + (group * deep + block) * (BLOCK / 2));
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
    if (packing->transposed)
        ls__cpu_parallel(device, blocks_of(packing->n, BLOCK_N), BLOCK_N * packing->k, pack_body,
                         &g);
    else
        ls__cpu_parallel(device, blocks_of(packing->k, BLOCK_K), BLOCK_K * packing->n, pack_body,
                         &g);
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
    for (size_t first = begin; first < end; first += LS__CPU_PIECE) {
        const size_t last = ls__min_size(first + LS__CPU_PIECE, end);
        ls__cpu_ask_ahead(g->x + first, last - first);
        for (size_t i = first; i < last; i++)
            g->y[i] = ls__bf16_of(g->x[i]);
    }
}

/* Items are columns: each is added up from the first row to the last, whatever the cut. */
LS_KERNEL(narrow_sum_body) {
    const struct narrow_arguments *g = arguments;
    for (size_t j = begin; j < end && !g->accumulate; j++)
        g->sums[j] = 0;
    for (size_t row = 0; row < g->rows; row++) {
        const float *x = g->x + row * g->columns;
        uint16_t *y = g->y + row * g->columns;
        ls__cpu_ask_ahead(x + begin, end - begin);
        for (size_t j = begin; j < end; j++) {
            y[j] = ls__bf16_of(x[j]);
            g->sums[j] += x[j];
        }
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
