/* The environment: what each variable means, and the words for what it must not be. */
#include "comm/shm/segment.h"

#include <fcntl.h>
#include <lockstep/group.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const names[] = {
    "RANK",        "WORLD_SIZE",      "LOCAL_RANK",         "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "LOCKSTEP_SHM_FD", "LOCKSTEP_TRANSPORT", "LOCKSTEP_TIMEOUT", "LOCKSTEP_TOKEN"};

static int clear(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    return 0;
}

/* Fails with these two things in the message; leaves no job. */
static void expect_failure(ls_status status, const char *name, const char *value) {
    ls_job *job = (ls_job *)&job;
    ls_status got = ls_job_init(&job, NULL);
    if (got != status || !strstr(ls_error_text(), name) || !strstr(ls_error_text(), value))
        fail_msg("%s: %s", ls_status_name(got), ls_error_text());
    assert_null(job);
}

static void test_bad_values(void **state) {
    static const struct {
        const char *name, *value;
    } bad[] = {
        {"RANK", "one"},
        {"RANK", "2"},
        {"RANK", "-1"},
        {"RANK", "1x"},
        {"WORLD_SIZE", "0"},
        {"WORLD_SIZE", "99999999999999999999"},
        {"LOCAL_RANK", "7"},
        {"LOCAL_WORLD_SIZE", "3"},
        {"MASTER_PORT", "0"},
        {"MASTER_PORT", "65536"},
        {"MASTER_PORT", "http"},
        {"LOCKSTEP_TRANSPORT", "pigeon"},
        {"LOCKSTEP_TIMEOUT", "0"},
        {"LOCKSTEP_TIMEOUT", "soon"},
        {"LOCKSTEP_TIMEOUT", "-3"},
        {"LOCKSTEP_TIMEOUT", "nan"},
        {"LOCKSTEP_SHM_FD", "x"},
        {"LOCKSTEP_SHM_FD", "-1"},
        {"LOCKSTEP_SHM_FD", "999999"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        clear(state);
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "2", 1);
        setenv("LOCAL_RANK", "1", 1);
        setenv("LOCAL_WORLD_SIZE", "2", 1);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        setenv("MASTER_PORT", "1", 1);
        setenv(bad[i].name, bad[i].value, 1);
        expect_failure(LS_ERR_ARGUMENT, bad[i].name, bad[i].value);
    }
}

static void test_missing(void **state) {
    (void)state;
    setenv("RANK", "0", 1);
    expect_failure(LS_ERR_ARGUMENT, "WORLD_SIZE", "not set");
    setenv("WORLD_SIZE", "2", 1);
    expect_failure(LS_ERR_ARGUMENT, "MASTER_ADDR", "not set");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    expect_failure(LS_ERR_ARGUMENT, "MASTER_PORT", "not set");
    setenv("LOCKSTEP_TRANSPORT", "shm", 1);
    expect_failure(LS_ERR_ARGUMENT, "LOCKSTEP_SHM_FD", "not set");
}

/* A world of one needs nobody to listen. */
static void test_one_rank_needs_no_address(void **state) {
    (void)state;
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    ls_job *job;
    assert_int_equal(ls_job_init(&job, NULL), LS_OK);
    assert_string_equal(ls_job_transport(job), "self");
    ls_job_finish(job);
}

static void set_fd(int fd) {
    char text[16];
    snprintf(text, sizeof text, "%d", fd);
    setenv("LOCKSTEP_SHM_FD", text, 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
}

static void test_segment_of_another_kind(void **state) {
    (void)state;
    int pipe_fd[2], small = memfd_create("small", 0), other = memfd_create("other", 0);
    assert_int_equal(pipe(pipe_fd), 0);
    assert_int_equal(ftruncate(small, 10), 0);
    assert_int_equal(ftruncate(other, 1 << 22), 0);
    int fds[] = {pipe_fd[0], small, other};
    for (int i = 0; i < 3; i++) {
        set_fd(fds[i]);
        expect_failure(LS_ERR_ARGUMENT, "LOCKSTEP_SHM_FD", "");
    }
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    close(small);
    close(other);
}

static void test_segment_of_another_size(void **state) {
    (void)state;
    int fd;
    assert_int_equal(ls__segment_create(&fd, 2), LS_OK);
    set_fd(fd);
    expect_failure(LS_ERR_ARGUMENT, "WORLD_SIZE is 1", "2 ranks");
    close(fd);
}

/* One process a rank: a second one, or the same again, would write over the first. */
static void test_rank_taken(void **state) {
    (void)state;
    int fd;
    ls_job *job;
    assert_int_equal(ls__segment_create(&fd, 1), LS_OK);
    set_fd(fd);
    assert_int_equal(ls_job_init(&job, NULL), LS_OK);
    assert_string_equal(ls_job_transport(job), "shm");
    expect_failure(LS_ERR_STATE, "rank 0", "already taken");
    ls_job_finish(job);
    close(fd);
}

static void test_segment_limits(void **state) {
    (void)state;
    int fd;
    assert_int_equal(ls__segment_create(&fd, 0), LS_ERR_ARGUMENT);
    assert_int_equal(ls__segment_create(&fd, 1000000), LS_ERR_ARGUMENT);
    assert_int_equal(fd, -1);
    assert_int_equal(ls__segment_create(&fd, 256), LS_OK);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(ls__segment_abort(fd, 256, "x"), LS_ERR_ARGUMENT);
    close(fd);
    assert_int_equal(ls__segment_abort(fd, 0, "x"), LS_ERR_ARGUMENT);
}

static void test_options(void **state) {
    (void)state;
    ls_job *job;
    ls_job_options options = {.timeout_s = -1};
    assert_int_equal(ls_job_init(NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_job_init(&job, &options), LS_ERR_ARGUMENT);
    assert_non_null(strstr(ls_error_text(), "timeout_s"));
    options.timeout_s = 5;
    assert_int_equal(ls_job_init(&job, &options), LS_OK);
    ls_job_finish(job);
    ls_job_finish(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_bad_values, clear),
        cmocka_unit_test_setup(test_missing, clear),
        cmocka_unit_test_setup(test_one_rank_needs_no_address, clear),
        cmocka_unit_test_setup(test_segment_of_another_kind, clear),
        cmocka_unit_test_setup(test_segment_of_another_size, clear),
        cmocka_unit_test_setup(test_rank_taken, clear),
        cmocka_unit_test_setup(test_segment_limits, clear),
        cmocka_unit_test_setup(test_options, clear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
