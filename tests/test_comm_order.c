/* The order of summation: equal to the bit with a reference written here, on every way data travels. */
#include "base/half.h"
#include "ranks.h"

#include <lockstep/random.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { COUNT = 33001 }; /* more than one staging chunk of F32, more than two of F64 */

/* Element i of rank r: about 2^-20 to 2^20 in size, so that the order shows in most sums. */
static float value_of(int rank, size_t i) {
    uint32_t word[4];
    ls_random_u32x4(11, (uint64_t)rank, i, word);
    float value = ((float)(word[0] >> 8) * 0x1p-23f - 1) * (float)(1u << word[1] % 20);
    return word[2] & 1 ? value : value * 0x1p-20f;
}

static float tree_f32(const float *value, int n) {
    int m = 1;
    if (n == 1)
        return value[0];
    while (m * 2 < n)
        m *= 2;
    return tree_f32(value, m) + tree_f32(value + m, n - m);
}

static double tree_f64(const double *value, int n) {
    int m = 1;
    if (n == 1)
        return value[0];
    while (m * 2 < n)
        m *= 2;
    return tree_f64(value, m) + tree_f64(value + m, n - m);
}

/* One element in each dtype, as group.h describes it. `scale` 1 for a plain sum. */
static void expect(void *to, size_t i, int size, ls_dtype dtype, double scale) {
    float narrow[RANKS_MAX];
    double wide[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        uint16_t half;
        narrow[r] = value_of(r, i);
        wide[r] = (double)narrow[r] * 1.1;
        if (dtype == LS_F16) {
            ls__f32_to_f16(&half, &narrow[r], 1);
            ls__f16_to_f32(&narrow[r], &half, 1);
        } else if (dtype == LS_BF16) {
            ls__f32_to_bf16(&half, &narrow[r], 1);
            ls__bf16_to_f32(&narrow[r], &half, 1);
        }
    }
    float sum = tree_f32(narrow, size);
    if (scale != 1)
        sum *= (float)scale;
    if (dtype == LS_F32)
        ((float *)to)[i] = sum;
    else if (dtype == LS_F64)
        ((double *)to)[i] = tree_f64(wide, size) * scale;
    else if (dtype == LS_F16)
        ls__f32_to_f16((uint16_t *)to + i, &sum, 1);
    else
        ls__f32_to_bf16((uint16_t *)to + i, &sum, 1);
}

static void fill(void *to, int rank, ls_dtype dtype) {
    for (size_t i = 0; i < COUNT; i++) {
        float value = value_of(rank, i);
        if (dtype == LS_F32)
            ((float *)to)[i] = value;
        else if (dtype == LS_F64)
            ((double *)to)[i] = (double)value * 1.1;
        else if (dtype == LS_F16)
            ls__f32_to_f16((uint16_t *)to + i, &value, 1);
        else
            ls__f32_to_bf16((uint16_t *)to + i, &value, 1);
    }
}

static const ls_dtype floats[] = {LS_F32, LS_F64, LS_F16, LS_BF16};

/* Results for each dtype, computed once before the ranks are forked. */
static double expected[4][COUNT];

static void expect_all(int size, double scale) {
    for (int d = 0; d < 4; d++)
        for (size_t i = 0; i < COUNT; i++)
            expect(expected[d], i, size, floats[d], scale);
}

/* tiny, staged and mapped give the reference's bits. */
static void plain_sums(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    int size = ls_group_size(world);
    static double send[COUNT], recv[COUNT];
    char *mapped;
    CHECK_OK(ls_group_alloc(world, sizeof send, (void **)&mapped));
    for (int d = 0; d < 4; d++) {
        size_t element = ls_dtype_size(floats[d]);
        fill(send, rank, floats[d]);
        CHECK_OK(ls_all_reduce(world, send, recv, COUNT, floats[d], LS_SUM));
        CHECK(memcmp(recv, expected[d], COUNT * element) == 0);
        memcpy(mapped, send, COUNT * element);
        CHECK_OK(ls_all_reduce(world, mapped, mapped, COUNT, floats[d], LS_SUM));
        CHECK(memcmp(mapped, expected[d], COUNT * element) == 0);
        CHECK_OK(ls_all_reduce(world, send, recv, 200, floats[d], LS_SUM));
        CHECK(memcmp(recv, expected[d], 200 * element) == 0);
        size_t block = COUNT / (size_t)size;
        CHECK_OK(ls_reduce_scatter(world, send, recv, block, floats[d], LS_SUM));
        CHECK(memcmp(recv, (char *)expected[d] + (size_t)rank * block * element, block * element) ==
              0);
    }
    CHECK_OK(ls_group_free(world, mapped));
}

/* Rank 1 has no data. */
static double total_weight(double *weights, int size) {
    for (int r = 0; r < size; r++)
        weights[r] = r == 1 ? 0 : 3 + 0.1 * r;
    return tree_f64(weights, size);
}

/* One multiplication by 1 / total, rounded once. */
static void weighted_sums(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    int size = ls_group_size(world);
    static double send[COUNT], recv[COUNT];
    double weights[RANKS_MAX], total = -1, want = total_weight(weights, size);
    for (int d = 0; d < 4; d++) {
        size_t element = ls_dtype_size(floats[d]);
        fill(send, rank, floats[d]);
        for (size_t count = 100; count <= COUNT; count += COUNT - 100) {
            CHECK_OK(
                ls_all_reduce_weighted(world, send, recv, count, floats[d], weights[rank], &total));
            CHECK(total == want);
            CHECK(memcmp(recv, expected[d], count * element) == 0);
        }
    }
}

/* Nobody has data: zeros, whatever stood in the buffers. */
static void no_weight(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    static float values[5000];
    for (size_t count = 10; count <= 5000; count += 4990) {
        double total = -1;
        for (size_t i = 0; i < 5000; i++)
            values[i] = rank % 2 ? 1.0f / 0.0f : 5.0f;
        CHECK_OK(ls_all_reduce_weighted(world, values, values, count, LS_F32, 0, &total));
        CHECK(total == 0);
        for (size_t i = 0; i < count; i++)
            CHECK(values[i] == 0);
    }
}

static void test_plain_sums(void **state) {
    (void)state;
    for (int i = 0; i < RANKS_WORLDS; i++) {
        expect_all(ranks_worlds[i], 1);
        assert_int_equal(ranks_run(ranks_worlds[i], ranks_transport(), plain_sums, NULL), 0);
    }
}

static void test_weighted_sums(void **state) {
    (void)state;
    double weights[RANKS_MAX];
    for (int i = 0; i < RANKS_WORLDS; i++) {
        expect_all(ranks_worlds[i], 1 / total_weight(weights, ranks_worlds[i]));
        assert_int_equal(ranks_run(ranks_worlds[i], ranks_transport(), weighted_sums, NULL), 0);
    }
}

static void test_no_weight(void **state) {
    (void)state;
    for (int i = 0; i < RANKS_WORLDS; i++)
        assert_int_equal(ranks_run(ranks_worlds[i], ranks_transport(), no_weight, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_sums),
        cmocka_unit_test(test_weighted_sums),
        cmocka_unit_test(test_no_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
