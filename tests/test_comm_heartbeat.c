/* Ranks that have stopped are told from ranks that are slow; deadlines, and phases that move them. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void go_on(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    float value = 1;
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK; i++) {
        status = ls_all_reduce(ls_job_world(job), &value, &value, 1, LS_F32, LS_MAX);
        if (i == 20)
            my_report->reached = true;
    }
    ranks_note(status);
    CHECK(ls_barrier(ls_job_world(job)) == status); /* later calls too */
    CHECK(strcmp(ls_error_text(), my_report->text) == 0);
}

static bool noted(const ranks *r, int but) {
    for (int rank = 0; rank < r->size; rank++) {
        if (rank != but && ((volatile ranks_report *)r->report)[rank].at_ns == 0)
            return false;
    }
    return true;
}

/* The deadline is far away; the heartbeat is not. */
static void stop_one(int victim) {
    ranks r = {.size = 4,
               .transport = ranks_transport(),
               .body = go_on,
               .timeout = "50",
               .heartbeat = "1.5"};
    char name[40];
    ranks_start(&r);
    assert_true(ranks_await(&r, victim));
    usleep(600000); /* every rank has beaten */
    kill(r.pid[victim], SIGSTOP);
    uint64_t at = ls__now_ns();
    while (!noted(&r, victim) && ls__now_ns() - at < 20000000000u)
        usleep(1000);
    kill(r.pid[victim], SIGKILL);
    assert_int_equal(ranks_wait(&r), 1);
    snprintf(name, sizeof name, "rank %d (host ", victim);
    for (int rank = 0; rank < r.size; rank++) {
        if (rank == victim)
            continue;
        const char *text = r.report[rank].text;
        if (r.report[rank].status != LS_ERR_PEER || !strstr(text, name) ||
            !strstr(text, "has stopped: no heartbeat for ") || !strstr(text, "of group world") ||
            !strstr(text, "; not arrived yet: rank"))
            fail_msg("rank %d: %s", rank, text);
        assert_true(r.report[rank].at_ns - at < 8000000000u);
    }
    ranks_free(&r);
}

static void test_stopped(void **state) {
    (void)state;
    stop_one(2);
    stop_one(0); /* the centre of tcp's star: nobody else is blamed */
}

/* Beats do not depend on what a rank does; whoever was stopped itself blames nobody. */
static void be_slow(int rank, ls_job *job, void *context) {
    (void)context;
    CHECK_OK(ls_barrier(ls_job_world(job)));
    my_report->reached = true;
    if (rank == 0)
        sleep(4);
    CHECK_OK(ls_barrier(ls_job_world(job)));
}

static void test_slow_is_not_stopped(void **state) {
    (void)state;
    ranks r = {.size = 3, .transport = ranks_transport(), .body = be_slow, .heartbeat = "1"};
    ranks_start(&r);
    assert_true(ranks_await(&r, 1));
    kill(r.pid[1], SIGSTOP);
    usleep(2500000); /* rank 2 waits for rank 0 alone, rank 1 had arrived */
    kill(r.pid[1], SIGCONT);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

/* --- deadlines ---------------------------------------------------------------------------------------- */

static void miss_deadline(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    CHECK(ls_group_timeout(world) == 20);
    CHECK(ls_group_set_timeout(world, 0) == LS_ERR_ARGUMENT);
    CHECK(ls_group_set_timeout(NULL, 1) == LS_ERR_ARGUMENT);
    CHECK_OK(ls_group_set_timeout(world, 0.5));
    CHECK_OK(ls_barrier(world));
    CHECK_OK(ls_job_set_phase(job, rank == 1 ? "counting sheep" : NULL, 0));
    if (rank == 1) {
        usleep(4000000);
        return;
    }
    uint64_t begin = ls__now_ns();
    ls_status status = ls_barrier(world);
    CHECK(status == LS_ERR_TIMEOUT || status == LS_ERR_PEER);
    CHECK(strstr(ls_error_text(), "rank 1"));
    CHECK(ls__now_ns() - begin < 3000000000u);
    ranks_note(status);
}

static void test_timeout_of_a_group(void **state) {
    (void)state;
    ranks r = {.size = 3, .transport = ranks_transport(), .body = miss_deadline};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

/* Its name is in the message of whoever waits. */
static void name_phase(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    if (rank == 1) {
        CHECK_OK(ls_job_set_phase(job, "counting sheep", 0));
        usleep(4000000);
        return;
    }
    CHECK_OK(ls_group_set_timeout(world, 2));
    CHECK(ls_barrier(world) == LS_ERR_TIMEOUT);
    CHECK(strstr(ls_error_text(), "in phase 'counting sheep'"));
}

static void test_phase_is_named(void **state) {
    (void)state;
    ranks r = {.size = 2, .transport = ranks_transport(), .body = name_phase};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

/* Rank 0 waits for rank 1, which waits for rank 2, which saves: the deadlines of both stand still. */
static void save(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    float value = 0;
    if (rank == 2) {
        CHECK_OK(ls_job_set_phase(job, "saving checkpoint", 30));
        usleep(5000000);
        CHECK_OK(ls_job_set_phase(job, NULL, 0));
        CHECK_OK(ls_send(world, &value, 1, LS_F32, 1));
    }
    if (rank == 1)
        CHECK_OK(ls_recv(world, &value, 1, LS_F32, 2));
    CHECK_OK(ls_barrier(world));
}

static void test_phase_extends_deadlines(void **state) {
    (void)state;
    ranks r = {.size = 3, .transport = ranks_transport(), .body = save, .timeout = "2.5"};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

/* But not for longer than was said. */
static void save_too_long(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == 1) {
        CHECK_OK(ls_job_set_phase(job, "saving checkpoint", 1.5));
        usleep(9000000);
        return;
    }
    uint64_t begin = ls__now_ns();
    CHECK(ls_barrier(ls_job_world(job)) == LS_ERR_TIMEOUT);
    CHECK(ls__now_ns() - begin < 7000000000u);
    CHECK(strstr(ls_error_text(), "saving checkpoint"));
}

static void test_phase_is_bounded(void **state) {
    (void)state;
    ranks r = {.size = 2, .transport = ranks_transport(), .body = save_too_long, .timeout = "2.5"};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

/* --- arguments ------------------------------------------------------------------------------------------- */

static void test_arguments(void **state) {
    (void)state;
    static const char *const bad[] = {"0", "-1", "x", "1x", "inf", "nan", "on"};
    ls_job *job;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("LOCKSTEP_HEARTBEAT", bad[i], 1);
        assert_int_equal(ls_job_init(&job, NULL), LS_ERR_ARGUMENT);
        assert_non_null(strstr(ls_error_text(), "LOCKSTEP_HEARTBEAT"));
    }
    ls_job_options options = {.heartbeat_s = -1};
    setenv("LOCKSTEP_HEARTBEAT", "off", 1);
    assert_int_equal(ls_job_init(&job, &options), LS_ERR_ARGUMENT);
    assert_int_equal(ls_job_init(&job, NULL), LS_OK);
    assert_int_equal(ls_job_set_phase(job, "alone", 1), LS_OK);
    assert_int_equal(ls_job_set_phase(job, NULL, 0), LS_OK);
    assert_int_equal(ls_job_set_phase(job, "", 0), LS_ERR_ARGUMENT);
    assert_int_equal(ls_job_set_phase(job, "back in time", -1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_job_set_phase(NULL, "nowhere", 0), LS_ERR_ARGUMENT);
    ls_job_finish(job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_slow_is_not_stopped),
        cmocka_unit_test(test_timeout_of_a_group),
        cmocka_unit_test(test_phase_is_named),
        cmocka_unit_test(test_phase_extends_deadlines),
        cmocka_unit_test(test_phase_is_bounded),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
