/* The cost model: what its formulas choose, that a setting decides before them, and the file of costs. */
#include "comm/cost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHUNK = 512 * 1024 };

/* 1 Gbit/s: a step takes 100 us, 12500 bytes as long. */
static const ls__cost slow = {.sync_s = 100e-6, .bytes_per_s = 0.125e9, .add_per_s = 10e9};

static void test_small_in_one_step_large_by_slices(void **state) {
    (void)state;
    for (int ranks = 3; ranks <= 16; ranks++) {
        int changes = 0;
        ls__algorithm before = LS__ONE_SHOT;
        for (size_t bytes = 4; bytes <= (size_t)64 << 20; bytes *= 2) {
            ls__algorithm now = ls__cost_choose(&slow, LS__BY_COST, ranks, bytes, CHUNK);
            changes += now != before;
            before = now;
        }
        assert_int_equal(changes, 1);
        assert_int_equal(before, LS__PAIRWISE);
    }
    /* p = 3: (p - 1) - 2 (p - 1) / p = 2/3 of the bytes more; 12500 / (2/3) = 18750, and adding: a little less */
    assert_int_equal(ls__cost_choose(&slow, LS__BY_COST, 3, 18000, CHUNK), LS__ONE_SHOT);
    assert_int_equal(ls__cost_choose(&slow, LS__BY_COST, 3, 19000, CHUNK), LS__PAIRWISE);
}

/* Two ranks send the same bytes either way; one step less is worth adding all on both. */
static void test_two_ranks(void **state) {
    (void)state;
    assert_int_equal(ls__cost_choose(&slow, LS__BY_COST, 2, CHUNK, CHUNK), LS__ONE_SHOT);
    const ls__cost quick = {.sync_s = 5e-6, .bytes_per_s = 10e9, .add_per_s = 10e9};
    assert_int_equal(ls__cost_choose(&quick, LS__BY_COST, 2, CHUNK, CHUNK), LS__PAIRWISE);
}

static void test_prediction(void **state) {
    (void)state;
    /* 1 MB over 4 ranks, pairwise: 2 steps, 1.5 MB out and in, 1 MB read */
    const double seconds = ls__cost_of(&slow, LS__PAIRWISE, 4, 1000000, CHUNK);
    assert_true(seconds > 0.0122999 && seconds < 0.0123001);
    /* one-shot: 2 steps, as a step holds 512 KiB; 3 MB; 4 MB read */
    const double all = ls__cost_of(&slow, LS__ONE_SHOT, 4, 1000000, CHUNK);
    assert_true(all > 0.0245999 && all < 0.0246001);
}

static void test_setting_decides(void **state) {
    (void)state;
    for (size_t bytes = 4; bytes <= (size_t)1 << 26; bytes *= 64) {
        assert_int_equal(ls__cost_choose(&slow, LS__ONE_SHOT, 8, bytes, CHUNK), LS__ONE_SHOT);
        assert_int_equal(ls__cost_choose(&slow, LS__PAIRWISE, 8, bytes, CHUNK), LS__PAIRWISE);
        assert_int_equal(ls__cost_choose(&slow, LS__FLAT, 8, bytes, CHUNK),
                         ls__cost_choose(&slow, LS__BY_COST, 8, bytes, CHUNK));
    }
    const ls__cost unknown = {0};
    assert_int_equal(ls__cost_choose(&unknown, LS__BY_COST, 8, 4096, CHUNK), LS__ONE_SHOT);
    assert_int_equal(ls__cost_choose(&unknown, LS__BY_COST, 8, 4097, CHUNK), LS__PAIRWISE);
}

static void test_names(void **state) {
    (void)state;
    ls__algorithm found;
    for (int i = 0; i < LS__ALGORITHMS; i++) {
        assert_true(ls__algorithm_find(ls__algorithm_name((ls__algorithm)i), &found));
        assert_int_equal(found, i);
    }
    assert_false(ls__algorithm_find("ring", &found));
    assert_false(ls__algorithm_find("", &found));
}

/* --- the file --- */

static char path[] = "/tmp/lockstep-cost-XXXXXX";

static void put(const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void test_table(void **state) {
    (void)state;
    const ls__costs costs = {.inside = {1.5e-6, 10e9, 20e9, false}, .between = slow};
    ls__costs read;
    assert_int_equal(ls__cost_table_write(path, &costs), LS_OK);
    assert_int_equal(ls__cost_table_read(path, &read), LS_OK);
    assert_true(read.inside.stored && ls__cost_is_known(&read.inside));
    assert_true(read.between.bytes_per_s > 0.1249e9 && read.between.bytes_per_s < 0.1251e9);
    assert_true(read.between.sync_s > 99e-6 && read.between.sync_s < 101e-6);
    put("# nothing\n\n  between 3 4 5 # well\n");
    assert_int_equal(ls__cost_table_read(path, &read), LS_OK);
    assert_false(ls__cost_is_known(&read.inside));
    assert_true(read.between.add_per_s > 4.99e9 && read.between.add_per_s < 5.01e9);
}

static void test_bad_tables(void **state) {
    (void)state;
    static const char *const bad[] = {"beside 1 2 3",    "between 1 2",     "between 1 2 3 4",
                                      "between 1 -2 3",  "between 0 2 3",   "between nan 2 3",
                                      "between 1 inf 3", "between one 2 3", "inside"};
    ls__costs read;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "inside 1 2 3\n%s\n", bad[i]);
        put(text);
        assert_int_equal(ls__cost_table_read(path, &read), LS_ERR_FORMAT);
        assert_non_null(strstr(ls_error_text(), "line 2"));
        assert_non_null(strstr(ls_error_text(), bad[i]));
    }
    assert_int_equal(ls__cost_table_read("/nowhere/table", &read), LS_ERR_IO);
    assert_non_null(strstr(ls_error_text(), "/nowhere/table"));
    assert_int_equal(ls__cost_table_write("/nowhere/table", &read), LS_ERR_IO);
}

static int make_file(void **state) {
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int remove_file(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_in_one_step_large_by_slices),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_prediction),
        cmocka_unit_test(test_setting_decides),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_bad_tables),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
