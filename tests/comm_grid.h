/* Values, buffers and sizes for the tests of collectives: small whole numbers, whose results are exact in any
 * order, so the comparison is for equal bytes; memory of every kind; sizes at the edges between the ways
 * data travels. */
#ifndef TESTS_COMM_GRID_H
#define TESTS_COMM_GRID_H

#include "base/half.h"
#include "ranks.h"

enum {
    PERIOD = 33,              /* the values repeat: elements i and i + 33 are equal */
    LARGE_BYTES = 560 * 1024, /* more than four staging chunks, which take turns in two halves */
    BUFFER_BYTES = LARGE_BYTES + 4096,
};

/* --- values ---------------------------------------------------------------------------------------- */

static inline int64_t value_of(int rank, size_t i, ls_dtype dtype, ls_op op) {
    if (op == LS_PRODUCT)
        return 1 + ((size_t)rank + i) % 3 / 2;
    int64_t value = (int64_t)(((size_t)rank * 7 + i * 3) % 11);
    return dtype == LS_U8 ? value : value - 5;
}

static inline void encode(void *buffer, size_t i, ls_dtype dtype, double value) {
    float narrow = (float)value;
    switch (dtype) {
    case LS_F32:
        ((float *)buffer)[i] = narrow;
        break;
    case LS_F64:
        ((double *)buffer)[i] = value;
        break;
    case LS_F16:
        ls__f32_to_f16((uint16_t *)buffer + i, &narrow, 1);
        break;
    case LS_BF16:
        ls__f32_to_bf16((uint16_t *)buffer + i, &narrow, 1);
        break;
    case LS_I8:
    case LS_U8:
        ((uint8_t *)buffer)[i] = (uint8_t)(int64_t)value;
        break;
    case LS_I32:
        ((int32_t *)buffer)[i] = (int32_t)value;
        break;
    default:
        ((int64_t *)buffer)[i] = (int64_t)value;
    }
}

static inline bool is_float(ls_dtype dtype) {
    return dtype == LS_F32 || dtype == LS_F64 || dtype == LS_F16 || dtype == LS_BF16;
}

static inline double average(int64_t sum, int size, ls_dtype dtype) {
    int64_t whole = sum / size; /* towards zero */
    if (!is_float(dtype))
        return (double)whole;
    if (dtype == LS_F64)
        return (double)sum * (1.0 / size);
    return (double)((float)sum * (float)(1.0 / size));
}

static inline double reduced(size_t i, int size, ls_dtype dtype, ls_op op) {
    int64_t result = value_of(0, i, dtype, op);
    for (int r = 1; r < size; r++) {
        int64_t value = value_of(r, i, dtype, op);
        if (op == LS_PRODUCT)
            result *= value;
        else if (op == LS_MIN)
            result = value < result ? value : result;
        else if (op == LS_MAX)
            result = value > result ? value : result;
        else
            result += value;
    }
    return op == LS_AVG ? average(result, size, dtype) : (double)result;
}

/* Fills `count` elements with a pattern that starts at element `first` of it. rank -1: the result. */
static inline void fill(void *buffer, size_t first, size_t count, int rank, int size,
                        ls_dtype dtype, ls_op op) {
    size_t element = ls_dtype_size(dtype), n = count < PERIOD ? count : PERIOD;
    for (size_t i = 0; i < n; i++)
        encode(buffer, i, dtype,
               rank < 0 ? reduced(first + i, size, dtype, op)
                        : (double)value_of(rank, first + i, dtype, op));
    for (size_t done = n; done < count; done += n) {
        n = count - done < done ? count - done : done / PERIOD * PERIOD;
        memcpy((char *)buffer + done * element, buffer, n * element);
    }
}

/* --- memory ---------------------------------------------------------------------------------------- */

typedef enum memory { PLAIN, MAPPED, MIXED, MEMORIES } memory;

typedef struct buffers {
    int rank, size;
    ls_group *world;
    char *plain[2], *mapped[2];
    char *expected, *third;
} buffers;

static inline char *buffer_of(const buffers *b, memory kind, int which) {
    bool mapped = kind == MAPPED || (kind == MIXED && b->rank % 2 == 1);
    return mapped ? b->mapped[which] : b->plain[which];
}

static inline void buffers_make(buffers *b, ls_job *job) {
    b->world = ls_job_world(job);
    b->rank = ls_job_rank(job);
    b->size = ls_job_world_size(job);
    for (int i = 0; i < 2; i++) {
        b->plain[i] = malloc(BUFFER_BYTES);
        CHECK(b->plain[i]);
        CHECK_OK(ls_group_alloc(b->world, BUFFER_BYTES, (void **)&b->mapped[i]));
    }
    b->expected = malloc(BUFFER_BYTES);
    b->third = malloc(BUFFER_BYTES);
    CHECK(b->expected && b->third);
}

static inline void buffers_free(buffers *b) {
    for (int i = 0; i < 2; i++) {
        free(b->plain[i]);
        CHECK_OK(ls_group_free(b->world, b->mapped[i]));
    }
    free(b->expected);
    free(b->third);
}

/* In and out of place; where the value travels with the arrival, the kind of memory plays no part. */
static inline int variants(size_t bytes) {
    return bytes <= 2048 ? 2 : 2 * MEMORIES;
}

/* --- cases ----------------------------------------------------------------------------------------- */

/* Large buffers differ from small ones in the way they travel, not in the arithmetic: three element
 * sizes and two reductions are enough there. */
static inline bool worth_it(int i, ls_dtype dtype, ls_op op) {
    return i < 6 || ((op == LS_SUM || op == LS_AVG) &&
                     (dtype == LS_F32 || dtype == LS_BF16 || dtype == LS_I8));
}

/* Elements; at the edges between the ways data travels. */
static inline size_t count_at(int i, size_t element) {
    const size_t bytes[] = {2048, 2048 + element, 128 * 1024, 128 * 1024 + element};
    if (i < 4)
        return (const size_t[]){0, 1, 3, 101}[i];
    return i < 8 ? bytes[i - 4] / element : LARGE_BYTES / element - 1;
}

enum { COUNTS = 9 };

#endif
