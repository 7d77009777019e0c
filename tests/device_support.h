/* What the tests of kernels share: arrays of random numbers that are freed after each test, two devices
 * that must give the same bits, comparison with an f64 reference. */
#ifndef LS_TESTS_DEVICE_SUPPORT_H
#define LS_TESTS_DEVICE_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <lockstep/random.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

enum { MOST_ARRAYS = 65536 };

typedef struct fixture {
    /* one thread and the instruction set of LOCKSTEP_CPU (the best there is); two threads and the
     * baseline: where their results are compared, both promises are tested at once */
    ls_device *one, *two;
    void *arrays[MOST_ARRAYS];
    size_t count;
    uint64_t stream; /* of random numbers, a new one for each array */
} fixture;

static inline int fixture_setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    const char *level = getenv("LOCKSTEP_CPU");
    if (!f || ls_device_cpu(&f->one, 1) != LS_OK)
        return -1;
    char *before = level ? strdup(level) : NULL;
    setenv("LOCKSTEP_CPU", "baseline", 1);
    ls_status status = ls_device_cpu(&f->two, 2);
    if (before)
        setenv("LOCKSTEP_CPU", before, 1);
    else
        unsetenv("LOCKSTEP_CPU");
    free(before);
    if (status != LS_OK)
        return -1;
    *state = f;
    return 0;
}

static inline int fixture_teardown(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < f->count; i++)
        free(f->arrays[i]);
    ls_device_destroy(f->one);
    ls_device_destroy(f->two);
    free(f);
    return 0;
}

#define kernel_test(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

static inline void *array(fixture *f, size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(memory);
    assert_true(f->count < MOST_ARRAYS);
    f->arrays[f->count++] = memory;
    return memory;
}

/* `count` floats, uniform in [low, high) */
static inline float *uniform(fixture *f, size_t count, float low, float high) {
    float *values = array(f, count * sizeof *values);
    uint64_t stream = f->stream++;
    for (size_t i = 0; i < count; i += 4) {
        float four[4];
        ls_random_uniform4(7, stream, i / 4, four);
        for (size_t j = 0; j < 4 && i + j < count; j++)
            values[i + j] = low + four[j] * (high - low);
    }
    return values;
}

static inline float *filled(fixture *f, size_t count, float value) {
    float *values = array(f, count * sizeof *values);
    for (size_t i = 0; i < count; i++)
        values[i] = value;
    return values;
}

/* A destination: NaN where it must not be read, numbers where it is added to. */
static inline float *destination(fixture *f, size_t count, bool accumulate) {
    return accumulate ? uniform(f, count, -1, 1) : filled(f, count, NAN);
}

static inline float *copy_of(fixture *f, const float *values, size_t count) {
    float *copy = array(f, count * sizeof *copy);
    memcpy(copy, values, count * sizeof *copy);
    return copy;
}

/* What an f64 reference starts from: the destination where it is added to, else zeros. */
static inline double *reference(fixture *f, const float *values, size_t count, bool accumulate) {
    double *start = array(f, count * sizeof *start);
    for (size_t i = 0; i < count; i++)
        start[i] = accumulate ? (double)values[i] : 0;
    return start;
}

/* |got - want| <= tolerance * (1 + |want|), and NaN where NaN is wanted. */
static inline void expect_close(const float *got, const double *want, size_t count,
                                double tolerance, const char *what) {
    for (size_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - want[i]);
        bool both_nan = isnan(got[i]) && isnan(want[i]);
        bool equal = (double)got[i] == want[i]; /* infinities */
        if (!both_nan && !equal && !(error <= tolerance * (1 + fabs(want[i]))))
            fail_msg("%s: element %zu of %zu is %.9g, want %.9g", what, i, count, (double)got[i],
                     want[i]);
    }
}

static inline void expect_equal_bits(const void *a, const void *b, size_t bytes, const char *what) {
    if (memcmp(a, b, bytes) != 0)
        fail_msg("%s: the bits differ", what);
}

#endif
