/* LOCKSTEP_CPU: what is chosen, what is refused. That all levels of a kernel give the same bits is tested
 * by every test of one: see device_support.h. */
#include "device_support.h"

#include "device/cpu/cpu.h"

static void expect_error(const char *value, const char *part) {
    ls_device *device = (ls_device *)1;
    setenv("LOCKSTEP_CPU", value, 1);
    assert_int_equal(ls_device_cpu(&device, 1), LS_ERR_ARGUMENT);
    assert_null(device);
    if (!strstr(ls_error_text(), "LOCKSTEP_CPU") || !strstr(ls_error_text(), value) ||
        !strstr(ls_error_text(), part))
        fail_msg("%s: %s", value, ls_error_text());
    unsetenv("LOCKSTEP_CPU");
}

static ls__cpu_level level_of(const char *value) {
    ls_device *device;
    if (value)
        setenv("LOCKSTEP_CPU", value, 1);
    assert_int_equal(ls_device_cpu(&device, 1), LS_OK);
    ls__cpu_level level = ((ls__cpu *)device)->level;
    ls_device_destroy(device);
    unsetenv("LOCKSTEP_CPU");
    return level;
}

static void test_choice(void **state) {
    (void)state;
    ls__cpu_level best = ls__cpu_level_best();
    unsetenv("LOCKSTEP_CPU");
    assert_int_equal(level_of(NULL), best);
    assert_int_equal(level_of(""), best);
    for (int i = 0; i <= (int)best; i++)
        assert_int_equal(level_of(ls__cpu_level_name((ls__cpu_level)i)), i);
}

static void test_refused(void **state) {
    (void)state;
    expect_error("avx3", "want baseline, avx2 or avx512");
    expect_error("AVX2", "want baseline, avx2 or avx512");
    for (int i = (int)ls__cpu_level_best() + 1; i < LS__CPU_LEVELS; i++)
        expect_error(ls__cpu_level_name((ls__cpu_level)i), "no more than");
}

/* A kernel that tells which of its copies ran. */
static void copy_0(const void *arguments, size_t begin, size_t end) {
    (void)begin;
    (void)end;
    **(int *const *)arguments = 0;
}
static void copy_1(const void *arguments, size_t begin, size_t end) {
    (void)begin;
    (void)end;
    **(int *const *)arguments = 1;
}
static void copy_2(const void *arguments, size_t begin, size_t end) {
    (void)begin;
    (void)end;
    **(int *const *)arguments = 2;
}

static void test_copy_that_runs(void **state) {
    fixture *f = *state;
    static ls__cpu_body *const kernel[LS__CPU_LEVELS] = {copy_0, copy_1, copy_2};
    int ran = -1, *arguments = &ran;
    ls__cpu_parallel(f->one, 1, 1, kernel, &arguments);
    assert_int_equal(ran, ls__cpu_level_best());
    ls__cpu_parallel(f->two, 1, 1, kernel, &arguments);
    assert_int_equal(ran, LS__CPU_BASELINE);
}

int main(void) {
    unsetenv("LOCKSTEP_CPU");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_refused),
        kernel_test(test_copy_that_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
