/* Status names and texts; the error text of a thread. */
#include "base/error.h"

#include <errno.h>
#include <lockstep/dtype.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_names(void **state) {
    (void)state;
    assert_string_equal(ls_status_name(LS_OK), "LS_OK");
    assert_string_equal(ls_status_name(LS_ERR_TIMEOUT), "LS_ERR_TIMEOUT");
    assert_string_equal(ls_status_text(LS_ERR_TIMEOUT), "timed out");
    assert_non_null(ls_status_name((ls_status)-1));
    assert_non_null(ls_status_text((ls_status)1000));
    assert_int_equal(ls_dtype_size(LS_BF16), 2);
    assert_int_equal(ls_dtype_size((ls_dtype)-1), 0);
    assert_string_equal(ls_dtype_name(LS_DTYPE_COUNT), "?");
}

static void test_text(void **state) {
    (void)state;
    assert_int_equal(ls__fail(LS_ERR_RANGE, "%s is %d", "x", 5), LS_ERR_RANGE);
    assert_string_equal(ls_error_text(), "x is 5");
    ls__fail_context(LS_ERR_RANGE, "file %s", "f");
    assert_string_equal(ls_error_text(), "file f: x is 5");
    ls__fail_errno(LS_ERR_IO, ENOENT, "open %s", "g");
    assert_string_equal(ls_error_text(), "open g: No such file or directory");
}

static void test_one_line(void **state) {
    (void)state;
    ls__fail(LS_ERR_FORMAT, "a\nb\tc\x1b[0m");
    assert_string_equal(ls_error_text(), "a\\x0ab\\x09c\\x1b[0m");
    ls__fail(LS_ERR_FORMAT, "\x7f \xc2\x9b \xc2\xa0 \xc3\x9f");
    assert_string_equal(ls_error_text(), "\\x7f \\xc2\\x9b \xc2\xa0 \xc3\x9f");
    char large[5000];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    ls__fail(LS_ERR_FORMAT, "%s", large);
    assert_int_equal(strlen(ls_error_text()), 1023);
    ls__fail_context(LS_ERR_FORMAT, "%s", large);
    assert_int_equal(strlen(ls_error_text()), 1023);
    ls__fail_errno(LS_ERR_FORMAT, ENOENT, "%s", large);
    assert_int_equal(strlen(ls_error_text()), 1023);
}

static void *fail_elsewhere(void *unused) {
    (void)unused;
    ls__fail(LS_ERR_RANGE, "elsewhere");
    return NULL;
}

static void test_text_is_of_the_thread(void **state) {
    (void)state;
    pthread_t thread;
    ls__fail(LS_ERR_RANGE, "here");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(ls_error_text(), "here");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_one_line),
        cmocka_unit_test(test_text_is_of_the_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
