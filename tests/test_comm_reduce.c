/* ls__reduce without any rank: aliasing, block edges, wrapping, NaN, averages. */
#include "base/half.h"
#include "comm/reduce.h"

#include <lockstep/random.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N = 1300, SOURCES = 9 }; /* more than two blocks */

static float tree(float values[SOURCES][N], int first, int n, size_t i) {
    int m = 1;
    if (n == 1)
        return values[first][i];
    while (m * 2 < n)
        m *= 2;
    return tree(values, first, m, i) + tree(values, first + m, n - m, i);
}

static void fill(float values[SOURCES][N]) {
    for (int s = 0; s < SOURCES; s++)
        for (size_t i = 0; i < N; i++) {
            float out[4];
            ls_random_normal4(3, (uint64_t)s, i, out);
            values[s][i] = out[0] * out[1] * 100;
        }
}

/* The result may stand in any of the sources; a part may be reduced alone. */
static void test_tree_and_aliases(void **state) {
    (void)state;
    static float values[SOURCES][N], expected[N];
    for (int n = 1; n <= SOURCES; n++)
        for (int into = 0; into < n; into++) {
            fill(values);
            const void *source[SOURCES];
            for (int s = 0; s < n; s++)
                source[s] = values[s] + 1;
            for (size_t i = 0; i < N; i++)
                expected[i] = tree(values, 0, n, i) * 0.3f;
            ls__reduce(values[into] + 1, source, n, N - 1, LS_F32, LS_SUM, (double)0.3f);
            assert_memory_equal(values[into] + 1, expected + 1, (N - 1) * sizeof(float));
        }
}

/* Walking the same tree pair by pair gives the same bits. */
static void test_pairs(void **state) {
    (void)state;
    static float a[SOURCES][N], b[SOURCES][N];
    fill(a);
    memcpy(b, a, sizeof a);
    const void *source[4] = {a[0], a[1], a[2], a[3]};
    ls__reduce(a[0], source, 4, N, LS_F32, LS_SUM, 1);
    ls__reduce_pair(b[0], b[1], N, LS_F32, LS_SUM);
    ls__reduce_pair(b[2], b[3], N, LS_F32, LS_SUM);
    ls__reduce_pair(b[0], b[2], N, LS_F32, LS_SUM);
    assert_memory_equal(a[0], b[0], sizeof a[0]);
}

static void test_integers_wrap(void **state) {
    (void)state;
    int32_t a[1] = {INT32_MAX}, b[1] = {2}, sum[1];
    int64_t c[1] = {INT64_MIN}, d[1] = {-1}, product[1];
    int8_t e[1] = {100}, f[1] = {100}, small[1];
    const void *ab[] = {a, b}, *cd[] = {c, d}, *ef[] = {e, f};
    ls__reduce(sum, ab, 2, 1, LS_I32, LS_SUM, 1);
    assert_true(sum[0] == INT32_MIN + 1);
    ls__reduce(product, cd, 2, 1, LS_I64, LS_PRODUCT, 1);
    assert_true(product[0] == INT64_MIN);
    ls__reduce(small, ef, 2, 1, LS_I8, LS_SUM, 1);
    assert_int_equal(small[0], -56);
}

static void test_averages(void **state) {
    (void)state;
    int32_t a[2] = {-7, 7}, b[2] = {0, 0}, average[2];
    const void *ab[] = {a, b};
    ls__reduce(average, ab, 2, 2, LS_I32, LS_AVG, ls__reduce_scale(LS_AVG, 2, false, 0));
    assert_int_equal(average[0], -3); /* towards zero */
    assert_int_equal(average[1], 3);
    double c[1] = {1}, d[1] = {1}, e[1] = {2}, mean[1];
    const void *cde[] = {c, d, e};
    ls__reduce(mean, cde, 3, 1, LS_F64, LS_AVG, ls__reduce_scale(LS_AVG, 3, false, 0));
    assert_true(fabs(mean[0] - 4.0 / 3) < 1e-15); /* no detour over f32 */
}

/* A NaN on any rank is seen on all, whatever the operation. */
static void test_nan(void **state) {
    (void)state;
    for (int op = 0; op < LS_OP_COUNT; op++)
        for (int where = 0; where < 3; where++) {
            float values[3] = {1, 2, 3}, result;
            double wide[3] = {1, 2, 3}, wide_result;
            values[where] = NAN;
            wide[where] = NAN;
            const void *source[] = {&values[0], &values[1], &values[2]};
            const void *wide_source[] = {&wide[0], &wide[1], &wide[2]};
            ls__reduce(&result, source, 3, 1, LS_F32, op, 1);
            ls__reduce(&wide_result, wide_source, 3, 1, LS_F64, op, 1);
            assert_true(isnan(result) && isnan(wide_result));
        }
}

/* 16-bit floats are rounded once, at the end: 256 + 1 + 1 + ... is not stuck at 256. */
static void test_half_rounds_once(void **state) {
    (void)state;
    uint16_t values[SOURCES], result;
    const void *source[SOURCES];
    for (int s = 0; s < SOURCES; s++) {
        float value = s == 0 ? 256 : 1;
        ls__f32_to_bf16(&values[s], &value, 1);
        source[s] = &values[s];
    }
    float sum;
    ls__reduce(&result, source, SOURCES, 1, LS_BF16, LS_SUM, 1);
    ls__bf16_to_f32(&sum, &result, 1);
    assert_true(sum == 264);
}

/* What one case of ls__reduce_to is made of. */
typedef struct place {
    int sources, dsts;
    size_t elements, shift; /* elements that all buffers begin after a cache line */
    bool in_place, around;
    double scale;
} place;

/* Against ls__reduce, to the bit, and nothing beside the result is touched. */
static void expect_same(ls__cpu_level level, const place *p, ls_dtype dtype, ls_op op) {
    static _Alignas(64) char in[SOURCES][N * 8], out[SOURCES][N * 8], want[N * 8], untouched[N * 8];
    size_t element = ls_dtype_size(dtype), skip = p->shift * element, bytes = p->elements * element;
    const void *source[SOURCES];
    void *dst[SOURCES];
    for (int s = 0; s < p->sources; s++) {
        for (size_t i = 0; i < sizeof in[0]; i++)
            in[s][i] = (char)((i * 7 + (size_t)s * 13 + i / 251) & 0xbf); /* no NaN or infinity */
        memset(out[s], 0x55, sizeof out[s]);
        source[s] = in[s] + skip;
        dst[s] = (p->in_place ? in[s] : out[s]) + skip;
    }
    memset(untouched, 0x55, sizeof untouched);
    ls__reduce(want, source, p->sources, p->elements, dtype, op, p->scale);
    ls__reduce_to(level, dst, p->dsts, source, p->sources, p->elements, dtype, op, p->scale,
                  p->around);
    for (int d = 0; d < p->dsts; d++)
        assert_memory_equal(dst[d], want, bytes);
    for (int d = 0; d < p->dsts && !p->in_place; d++) {
        assert_memory_equal(out[d], untouched, skip);
        assert_memory_equal(out[d] + skip + bytes, untouched, sizeof out[d] - skip - bytes);
    }
}

static void test_to_many(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 15, 16, 17, 100, N - 20};
    for (int level = 0; level <= (int)ls__cpu_level_best(); level++)
        for (int sources = 1; sources <= SOURCES; sources++)
            for (size_t e = 0; e < sizeof sizes / sizeof sizes[0]; e++)
                for (int form = 0; form < 32; form++) {
                    place p = {.sources = sources,
                               .dsts = form & 1 ? sources : 1,
                               .elements = sizes[e],
                               .shift = form & 2 ? 3 : 0,
                               .in_place = form & 4,
                               .around = form & 8,
                               .scale = form & 16 ? 0.3 : 1};
                    expect_same((ls__cpu_level)level, &p, LS_F32, LS_SUM);
                    expect_same((ls__cpu_level)level, &p, LS_BF16, LS_SUM);
                    expect_same((ls__cpu_level)level, &p, LS_F32, LS_MAX);
                    expect_same((ls__cpu_level)level, &p, LS_I32, LS_AVG);
                }
}

static void test_weights(void **state) {
    (void)state;
    double weight[] = {0.1, 0.2, 0.3, 0.4, 0.5};
    assert_true(ls__reduce_weights(weight, 5) == ((0.1 + 0.2) + (0.3 + 0.4)) + 0.5);
    assert_true(ls__reduce_weights(weight, 1) == 0.1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_and_aliases),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_integers_wrap),
        cmocka_unit_test(test_averages),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_half_rounds_once),
        cmocka_unit_test(test_to_many),
        cmocka_unit_test(test_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
