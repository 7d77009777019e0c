/* What goes into a collective under measurement, and what must come out.
 *
 * Element i of rank r is a small whole number that depends on r and i mod 251: 251 is prime, so blocks
 * of any usual size start at different places of the pattern. All sums, products and extremes are
 * exact in every dtype (integers may wrap, as they do in the library), so bits can be compared. */
#include "base/half.h"
#include "cli/bench_comm.h"

#include <string.h>

enum { PERIOD = 251, PATTERN_BYTES = PERIOD * 8 };

/* --- one value ----------------------------------------------------------------------------------- */

static int64_t value_of(ls_op op, int rank, int ranks, size_t i) {
    if (op == LS_PRODUCT) /* one rank's 2, one rank's 3: the product stays small with any number */
        return (rank == (int)(i % (size_t)ranks) ? 2 : 1) *
               (rank == (int)(i / 7 % (size_t)ranks) ? 3 : 1);
    if (op == LS_MIN || op == LS_MAX)
        return (int64_t)((i * 5 + (size_t)rank * 11) % 17);
    return (int64_t)((i + (size_t)rank * 3) % 5);
}

static int64_t reduced_value(ls_op op, int ranks, size_t i) {
    int64_t all = value_of(op, 0, ranks, i);
    for (int r = 1; r < ranks; r++) {
        int64_t next = value_of(op, r, ranks, i);
        if (op == LS_PRODUCT)
            all *= next;
        else if (op == LS_MIN)
            all = next < all ? next : all;
        else if (op == LS_MAX)
            all = next > all ? next : all;
        else
            all += next;
    }
    return all;
}

/* --- patterns of one dtype ------------------------------------------------------------------------- */

/* `divisor` is 1 unless the result is an average: floats are multiplied by its inverse (f32 but for
 * F64), integers divided after they have wrapped around. */
static void store(void *pattern, size_t i, ls_dtype dtype, int64_t value, int divisor) {
    float scaled = (float)value * (float)(1.0 / divisor);
    switch (dtype) {
    case LS_F64:
        ((double *)pattern)[i] = (double)value * (1.0 / divisor);
        break;
    case LS_F16:
        ls__f32_to_f16((uint16_t *)pattern + i, &scaled, 1);
        break;
    case LS_BF16:
        ls__f32_to_bf16((uint16_t *)pattern + i, &scaled, 1);
        break;
    case LS_I8:
        ((int8_t *)pattern)[i] = (int8_t)((int8_t)value / divisor);
        break;
    case LS_U8:
        ((uint8_t *)pattern)[i] = (uint8_t)((uint8_t)value / divisor);
        break;
    case LS_I32:
        ((int32_t *)pattern)[i] = (int32_t)value / divisor;
        break;
    case LS_I64:
        ((int64_t *)pattern)[i] = value / divisor;
        break;
    default:
        ((float *)pattern)[i] = scaled;
    }
}

static void pattern_of_rank(void *pattern, ls_dtype dtype, ls_op op, int rank, int ranks) {
    for (size_t i = 0; i < PERIOD; i++)
        store(pattern, i, dtype, value_of(op, rank, ranks, i), 1);
}

static void pattern_of_all(void *pattern, ls_dtype dtype, ls_op op, int ranks, int divisor) {
    for (size_t i = 0; i < PERIOD; i++)
        store(pattern, i, dtype, reduced_value(op, ranks, i), divisor);
}

/* --- whole buffers ------------------------------------------------------------------------------------ */

void ls__bench_fill(void *buffer, size_t elements, ls_dtype dtype, ls_op op, int rank, int ranks) {
    _Alignas(8) char pattern[PATTERN_BYTES];
    size_t element = ls_dtype_size(dtype);
    pattern_of_rank(pattern, dtype, op, rank, ranks);
    for (size_t i = 0; i < elements; i += PERIOD) {
        size_t n = elements - i < PERIOD ? elements - i : PERIOD;
        memcpy((char *)buffer + i * element, pattern, n * element);
    }
}

/* Whether `n` elements are those of the pattern from element `first` of the whole buffer on. */
static bool matches(const char *buffer, size_t n, size_t element, const char *pattern, size_t first,
                    size_t *wrong) {
    for (size_t i = 0; i < n;) {
        size_t at = (first + i) % PERIOD, run = PERIOD - at < n - i ? PERIOD - at : n - i;
        if (memcmp(buffer + i * element, pattern + at * element, run * element) != 0) {
            while (memcmp(buffer + i * element, pattern + at * element, element) == 0)
                i++, at++;
            *wrong = i;
            return false;
        }
        i += run;
    }
    return true;
}

bool ls__bench_verify(const ls__bench_operation *operation, const ls__bench_call *call,
                      size_t *wrong) {
    int rank = ls_group_rank(call->group), ranks = ls_group_size(call->group);
    size_t element = ls_dtype_size(call->dtype),
           blocks = operation->recv_blocks ? (size_t)ranks : 1;
    int divisor = operation->weighted || call->op == LS_AVG ? ranks : 1;
    for (size_t b = 0; b < blocks; b++) {
        _Alignas(8) char pattern[PATTERN_BYTES];
        ls__bench_origin origin = operation->origin(rank, ranks, call->root, b);
        if (origin.rank == LS__BENCH_NOTHING)
            return true;
        if (origin.rank == LS__BENCH_REDUCED)
            pattern_of_all(pattern, call->dtype, call->op, ranks, divisor);
        else
            pattern_of_rank(pattern, call->dtype, call->op, origin.rank, ranks);
        const char *block = (const char *)call->recv + b * call->count * element;
        if (!matches(block, call->count, element, pattern, origin.block * call->count, wrong)) {
            *wrong += b * call->count;
            return false;
        }
    }
    return true;
}
