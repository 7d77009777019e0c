/* The order of samples: a permutation, different by epoch and seed, without bias, and fixed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <lockstep/dataset.h>

static void is_a_permutation(void **state) {
    (void)state;
    static const uint64_t counts[] = {1,   2,   3,    4,    5,    7,    8,     15,
                                      16,  17,  63,   64,   65,   99,   100,   255,
                                      256, 257, 1000, 4095, 4096, 4097, 60000, 65537};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        uint64_t count = counts[c];
        for (uint64_t seed = 0; seed < (count < 300 ? 20 : 2); seed++) {
            unsigned char *seen = calloc(count, 1);
            assert_non_null(seen);
            for (uint64_t i = 0; i < count; i++) {
                uint64_t sample = ls_order_sample(seed, seed * 3, i, count);
                assert_true(sample < count);
                assert_int_equal(seen[sample]++, 0);
            }
            free(seen);
        }
    }
}

static void works_up_to_2_62(void **state) {
    (void)state;
    static const uint64_t counts[] = {((uint64_t)1 << 32) + 1, ((uint64_t)1 << 61) - 1,
                                      ((uint64_t)1 << 61) + 1, (uint64_t)1 << 62};
    for (size_t c = 0; c < 4; c++) {
        uint64_t seen[200];
        for (uint64_t i = 0; i < 200; i++) {
            uint64_t position = i < 100 ? i : counts[c] - 1 - i;
            seen[i] = ls_order_sample(1, 2, position, counts[c]);
            assert_true(seen[i] < counts[c]);
            for (uint64_t j = 0; j < i; j++)
                assert_int_not_equal(seen[i], seen[j]);
        }
    }
}

static size_t equal_positions(uint64_t seed_a, uint64_t epoch_a, uint64_t seed_b,
                              uint64_t epoch_b) {
    size_t equal = 0;
    for (uint64_t i = 0; i < 1000; i++)
        equal +=
            ls_order_sample(seed_a, epoch_a, i, 1000) == ls_order_sample(seed_b, epoch_b, i, 1000);
    return equal;
}

/* Of 1000 positions two independent permutations share one on average (Poisson). */
static void differs_by_epoch_and_seed(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 10; i++) {
        assert_true(equal_positions(0, i, 0, i + 1) < 10);
        assert_true(equal_positions(i, 0, i + 1, 0) < 10);
        assert_true(equal_positions(i, i + 1, i + 1, i) < 10);
    }
    assert_int_equal(equal_positions(5, 6, 5, 6), 1000);
}

/* Chi-square of (position, sample) over many seeds. With (n - 1)^2 degrees of freedom f the value is
 * about f, with deviation sqrt(2 f); twelve deviations are never reached by chance. */
static void has_no_position_bias(void **state) {
    (void)state;
    static const uint64_t counts[] = {2, 3, 4, 5, 10, 16, 17};
    enum { SEEDS = 20000 };
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        uint64_t n = counts[c];
        static uint32_t cell[17][17];
        memset(cell, 0, sizeof cell);
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            for (uint64_t i = 0; i < n; i++)
                cell[i][ls_order_sample(seed, seed % 7, i, n)]++;
        double want = (double)SEEDS / (double)n, chi = 0;
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t j = 0; j < n; j++)
                chi += ((double)cell[i][j] - want) * ((double)cell[i][j] - want) / want;
        double f = (double)((n - 1) * (n - 1));
        /* f + 12 sqrt(2 f), without the library's sqrt: squares compared */
        double over = chi - f;
        if (over > 0 && over * over > 144 * 2 * f)
            fail_msg("count %d: chi-square %g for %g degrees of freedom", (int)n, chi, f);
    }
}

/* All 24 orders of four samples, and about equally often: positions are independent too. */
static void reaches_every_permutation(void **state) {
    (void)state;
    enum { SEEDS = 24000 };
    uint32_t seen[256] = {0};
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        unsigned code = 0;
        for (uint64_t i = 0; i < 4; i++)
            code = code << 2 | (unsigned)ls_order_sample(seed, 0, i, 4);
        seen[code]++;
    }
    size_t kinds = 0;
    for (int i = 0; i < 256; i++)
        if (seen[i]) {
            kinds++;
            assert_in_range(seen[i], 850, 1150); /* 1000 expected, deviation 31 */
        }
    assert_int_equal(kinds, 24);
}

/* Neighbours in the order are no neighbours in the file more often than by chance. */
static void scatters_neighbours(void **state) {
    (void)state;
    enum { COUNT = 60000 };
    size_t near = 0;
    uint64_t last = ls_order_sample(3, 1, 0, COUNT);
    for (uint64_t i = 1; i < COUNT; i++) {
        uint64_t now = ls_order_sample(3, 1, i, COUNT);
        near += now - last + 10 <= 20;
        last = now;
    }
    assert_in_range(near, 5, 50); /* 20 expected */
}

/* A run started with an older release must see the same samples: these never change. */
static void stays_as_it_was(void **state) {
    (void)state;
    static const uint64_t ten[10] = {3, 7, 8, 2, 1, 9, 6, 5, 4, 0};
    static const uint64_t many[4] = {57561, 58930, 55049, 31060};
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(ls_order_sample(42, 3, i, 10), ten[i]);
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(ls_order_sample(1337, i, 12345, 60000), many[i]);
    assert_int_equal(ls_order_sample(7, 1, 99, (uint64_t)1 << 62), 2530899723940032311u);
}

static void refuses_what_is_out_of_range(void **state) {
    (void)state;
    assert_true(ls_order_sample(0, 0, 10, 10) == UINT64_MAX);
    assert_true(ls_order_sample(0, 0, 0, 0) == UINT64_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_a_permutation),          cmocka_unit_test(works_up_to_2_62),
        cmocka_unit_test(differs_by_epoch_and_seed), cmocka_unit_test(has_no_position_bias),
        cmocka_unit_test(reaches_every_permutation), cmocka_unit_test(scatters_neighbours),
        cmocka_unit_test(stays_as_it_was),           cmocka_unit_test(refuses_what_is_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
