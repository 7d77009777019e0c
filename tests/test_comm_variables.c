/* Settings in the environment: what cannot be is refused by name and value, also by a job that would not use it, and
 * what is empty counts as not set. */
#include <lockstep/group.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct row {
    const char *name, *good, *bad[5];
} row;

static const row rows[] = {
    {"LOCKSTEP_ALGORITHM", "one-shot", {"ring", "one", "auto|flat", "AUTO"}},
    {"LOCKSTEP_STREAMS", "8", {"0", "9", "2x", "-1"}},
    {"LOCKSTEP_TIMEOUT", "0.5", {"0", "-1", "1s", "inf", "nan"}},
    {"LOCKSTEP_HEARTBEAT", "off", {"0", "of", "on"}},
    {"LOCKSTEP_CPU", "baseline", {"avx", "sse2"}},
    {"LOCKSTEP_TRANSPORT", NULL, {"tpc", "self", "shm|tcp"}},
    {"LOCKSTEP_MPI", NULL, {"intel", "open"}},
};

/* A world of one, which uses hardly any of them. */
static ls_status init(const ls_job_options *options) {
    ls_job *job = NULL;
    ls_status status = ls_job_init(&job, options);
    ls_job_finish(job);
    return status;
}

static void test_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const row *r = &rows[i];
        for (size_t b = 0; b < 5 && r->bad[b]; b++) {
            setenv(r->name, r->bad[b], 1);
            assert_int_equal(init(NULL), LS_ERR_ARGUMENT);
            assert_non_null(strstr(ls_error_text(), r->name));
            assert_non_null(strstr(ls_error_text(), r->bad[b]));
        }
        setenv(r->name, r->good ? r->good : "", 1);
        assert_int_equal(init(NULL), LS_OK);
        setenv(r->name, "", 1);
        assert_int_equal(init(NULL), LS_OK);
    }
}

/* The text names all that would be right. */
static void test_wanted(void **state) {
    static const char *const wanted[][2] = {
        {"LOCKSTEP_HEARTBEAT", "want seconds above 0 or off"},
        {"LOCKSTEP_TIMEOUT", "want seconds above 0"},
        {"LOCKSTEP_TRANSPORT", "want shm, tcp or mpi"},
        {"LOCKSTEP_ALGORITHM", "want auto, one-shot, pairwise or flat"},
        {"LOCKSTEP_MPI", "want openmpi or mpich"},
        {"LOCKSTEP_STREAMS", "want a whole number from 1 to 8"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        setenv(wanted[i][0], "of", 1);
        assert_int_equal(init(NULL), LS_ERR_ARGUMENT);
        const char *text = strstr(ls_error_text(), "want ");
        assert_non_null(text);
        assert_string_equal(text, wanted[i][1]);
        unsetenv(wanted[i][0]);
    }
}

/* An option comes before its variable, but does not hide that this one is wrong. */
static void test_options(void **state) {
    (void)state;
    const ls_job_options options = {.timeout_s = 5, .heartbeat_s = 5};
    assert_int_equal(init(&options), LS_OK);
    setenv("LOCKSTEP_TIMEOUT", "soon", 1);
    assert_int_equal(init(&options), LS_ERR_ARGUMENT);
    setenv("LOCKSTEP_TIMEOUT", "7", 1);
    assert_int_equal(init(&options), LS_OK);
}

/* Who says which rank this is has to say a number: another one's 0 is not the same. */
static void test_ranks(void **state) {
    (void)state;
    setenv("RANK", "first", 1);
    setenv("WORLD_SIZE", "2", 1);
    assert_int_equal(init(NULL), LS_ERR_ARGUMENT);
    assert_non_null(strstr(ls_error_text(), "RANK is 'first'"));
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    assert_int_equal(init(NULL), LS_ERR_ARGUMENT);
    assert_non_null(strstr(ls_error_text(), "RANK=first WORLD_SIZE=2 | OMPI_COMM_WORLD_RANK=0"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_wanted),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
