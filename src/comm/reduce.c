/* Sources are walked in blocks small enough for the first-level cache. Within a block the tree is
 * walked recursively: out = T(left half) stays where it is, T(right half) goes to a buffer on the
 * stack, then one plain loop adds the two. So memory is read once and written once. */
#include "comm/reduce.h"

#include "base/half.h"
#include <string.h>

enum { BLOCK_ELEMENTS = 512, BLOCK_BYTES = BLOCK_ELEMENTS * 8 };

#define LOOP(expression)                                                                           \
    for (size_t i = 0; i < n; i++)                                                                 \
        a[i] = (expression);                                                                       \
    break

/* Minimum and maximum of floats: a NaN on either side wins, wherever it stands in the tree. */
#define FLOAT_PAIR()                                                                               \
    switch (op) {                                                                                  \
    case LS_PRODUCT:                                                                               \
        LOOP(a[i] * b[i]);                                                                         \
    case LS_MIN:                                                                                   \
        LOOP(a[i] < b[i] || a[i] != a[i] ? a[i] : b[i]);                                           \
    case LS_MAX:                                                                                   \
        LOOP(a[i] > b[i] || a[i] != a[i] ? a[i] : b[i]);                                           \
    default:                                                                                       \
        LOOP(a[i] + b[i]);                                                                         \
    }

/* Integers wrap: computed without sign, where overflow is defined. */
#define INTEGER_PAIR(type, unsigned_type)                                                          \
    switch (op) {                                                                                  \
    case LS_PRODUCT:                                                                               \
        LOOP((type)((unsigned_type)a[i] * (unsigned_type)b[i]));                                   \
    case LS_MIN:                                                                                   \
        LOOP(a[i] < b[i] ? a[i] : b[i]);                                                           \
    case LS_MAX:                                                                                   \
        LOOP(a[i] > b[i] ? a[i] : b[i]);                                                           \
    default:                                                                                       \
        LOOP((type)((unsigned_type)a[i] + (unsigned_type)b[i]));                                   \
    }

static void pair_f32(float *restrict a, const float *restrict b, size_t n, ls_op op) {
    FLOAT_PAIR()
}

static void pair_f64(double *restrict a, const double *restrict b, size_t n, ls_op op) {
    FLOAT_PAIR()
}

static void pair_i8(int8_t *restrict a, const int8_t *restrict b, size_t n, ls_op op) {
    INTEGER_PAIR(int8_t, uint32_t)
}

static void pair_u8(uint8_t *restrict a, const uint8_t *restrict b, size_t n, ls_op op) {
    INTEGER_PAIR(uint8_t, uint32_t)
}

static void pair_i32(int32_t *restrict a, const int32_t *restrict b, size_t n, ls_op op) {
    INTEGER_PAIR(int32_t, uint32_t)
}

static void pair_i64(int64_t *restrict a, const int64_t *restrict b, size_t n, ls_op op) {
    INTEGER_PAIR(int64_t, uint64_t)
}

/* a op= b in the type the sum is made in: f32 for 16-bit floats. */
static void pair(void *a, const void *b, size_t n, ls_dtype dtype, ls_op op) {
    switch (dtype) {
    case LS_F64:
        pair_f64(a, b, n, op);
        break;
    case LS_I8:
        pair_i8(a, b, n, op);
        break;
    case LS_U8:
        pair_u8(a, b, n, op);
        break;
    case LS_I32:
        pair_i32(a, b, n, op);
        break;
    case LS_I64:
        pair_i64(a, b, n, op);
        break;
    default:
        pair_f32(a, b, n, op);
    }
}

/* One block of the sources. */
typedef struct block {
    const void *const *source;
    size_t offset; /* bytes into each source */
    size_t n;      /* elements, at most BLOCK_ELEMENTS */
    ls_dtype dtype;
    ls_op op;
} block;

static void load(const block *b, int i, void *out) {
    const void *from = (const char *)b->source[i] + b->offset;
    if (b->dtype == LS_F16)
        ls__f16_to_f32(out, from, b->n);
    else if (b->dtype == LS_BF16)
        ls__bf16_to_f32(out, from, b->n);
    else
        memcpy(out, from, b->n * ls_dtype_size(b->dtype));
}

/* out = T(first, n) */
static void tree(const block *b, int first, int n, void *out) {
    if (n == 1) {
        load(b, first, out);
        return;
    }
    int left = 1;
    while (left * 2 < n)
        left *= 2;
    tree(b, first, left, out);
    if (n - left == 1 && b->dtype != LS_F16 && b->dtype != LS_BF16) {
        const void *right = (const char *)b->source[first + left] + b->offset;
        pair(out, right, b->n, b->dtype, b->op);
        return;
    }
    _Alignas(64) char right[BLOCK_BYTES];
    tree(b, first + left, n - left, right);
    pair(out, right, b->n, b->dtype, b->op);
}

#define DIVIDE(type)                                                                               \
    for (size_t i = 0; i < n; i++)                                                                 \
    ((type *)values)[i] = (type)(((type *)values)[i] / divisor)

static void divide_integers(void *values, size_t n, ls_dtype dtype, int divisor) {
    switch (dtype) {
    case LS_I8:
        DIVIDE(int8_t);
        break;
    case LS_U8:
        DIVIDE(uint8_t);
        break;
    case LS_I32:
        DIVIDE(int32_t);
        break;
    case LS_I64:
        DIVIDE(int64_t);
        break;
    default:
        break;
    }
}

static void multiply(void *values, size_t n, ls_dtype dtype, double scale) {
    if (dtype == LS_F64) {
        double *value = values;
        for (size_t i = 0; i < n; i++)
            value[i] *= scale;
    } else {
        float *value = values, factor = (float)scale;
        for (size_t i = 0; i < n; i++)
            value[i] *= factor;
    }
}

static bool is_float(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64 || dtype == LS_F16 || dtype == LS_BF16;
}

/* Rounds to the element type where the sum was made in another. */
static void store(void *to, const void *values, size_t n, ls_dtype dtype) {
    if (dtype == LS_F16)
        ls__f32_to_f16(to, values, n);
    else if (dtype == LS_BF16)
        ls__f32_to_bf16(to, values, n);
    else
        memcpy(to, values, n * ls_dtype_size(dtype));
}

void ls__reduce(void *dst, const void *const *source, int sources, size_t elements, ls_dtype dtype,
                ls_op op, double scale) {
    size_t element = ls_dtype_size(dtype);
    _Alignas(64) char sum[BLOCK_BYTES];
    for (size_t i = 0; i < elements; i += BLOCK_ELEMENTS) {
        size_t n = elements - i < BLOCK_ELEMENTS ? elements - i : BLOCK_ELEMENTS;
        block b = {.source = source, .offset = i * element, .n = n, .dtype = dtype, .op = op};
        tree(&b, 0, sources, sum);
        if (is_float(dtype)) {
            if (scale != 1)
                multiply(sum, n, dtype, scale);
        } else if (op == LS_AVG) {
            divide_integers(sum, n, dtype, sources);
        }
        store((char *)dst + i * element, sum, n, dtype);
    }
}

void ls__reduce_pair(void *a, const void *b, size_t elements, ls_dtype dtype, ls_op op) {
    if (dtype == LS_F16 || dtype == LS_BF16) {
        const void *both[2] = {a, b};
        ls__reduce(a, both, 2, elements, dtype, op, 1);
    } else {
        pair(a, b, elements, dtype, op);
    }
}

double ls__reduce_scale(ls_op op, int size, bool weighted, double total) {
    if (weighted)
        return 1 / total;
    return op == LS_AVG ? 1.0 / size : 1;
}

double ls__reduce_weights(const double *weight, int size) {
    if (size == 1)
        return weight[0];
    int left = 1;
    while (left * 2 < size)
        left *= 2;
    return ls__reduce_weights(weight, left) + ls__reduce_weights(weight + left, size - left);
}
