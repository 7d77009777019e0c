/* Ranks that die, hang, leave or never come: the others get an error that names them, in bounded time. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { VICTIM = 2, SIZE = 4 };

/* Reduces until it fails; notes the error. */
static void reduce_forever(int rank, ls_job *job, void *context) {
    (void)rank;
    size_t count = context ? *(size_t *)context : 1;
    ls_group *world = ls_job_world(job);
    float *values = calloc(count, sizeof *values);
    CHECK(values);
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK; i++) {
        if (i == 20)
            my_report->reached = true;
        status = ls_all_reduce(world, values, values, count, LS_F32, LS_SUM);
    }
    ranks_note(status);
    free(values);
}

/* Waits until the survivors have noted their errors, without reaping anyone. */
static bool survivors_noted(ranks *r, double limit_s) {
    uint64_t deadline = ls__deadline_ns(limit_s);
    while (ls__now_ns() < deadline) {
        int noted = 0;
        for (int i = 0; i < r->size; i++)
            noted += i != VICTIM && ((volatile ranks_report *)r->report)[i].at_ns != 0;
        if (noted == r->size - 1)
            return true;
        usleep(1000);
    }
    return false;
}

static void expect_named(const ranks *r, ls_status status, const char *what) {
    char victim[32];
    snprintf(victim, sizeof victim, "rank %d", VICTIM);
    for (int i = 0; i < r->size; i++) {
        if (i == VICTIM)
            continue;
        const ranks_report *report = &r->report[i];
        if (report->status != status || !strstr(report->text, victim) ||
            !strstr(report->text, what))
            fail_msg("rank %d: %s: %s", i, ls_status_name(report->status), report->text);
    }
}

static void kill_one(bool watch, size_t count, const char *what) {
    ranks r = {.size = SIZE,
               .transport = ranks_transport(),
               .body = reduce_forever,
               .watch = watch,
               .context = &count};
    ranks_start(&r);
    assert_true(ranks_await(&r, VICTIM));
    kill(r.pid[VICTIM], SIGKILL);
    uint64_t at = ls__now_ns();
    /* without a launcher nobody reaps: the dead rank stays a zombie */
    if (!watch)
        assert_true(survivors_noted(&r, 10));
    assert_int_equal(ranks_wait(&r), 1);
    expect_named(&r, LS_ERR_PEER, what);
    for (int i = 0; i < SIZE; i++)
        if (i != VICTIM)
            assert_true(r.report[i].at_ns < at + 2000000000u);
    ranks_free(&r);
}

static void test_killed(void **state) {
    (void)state;
    kill_one(true, 1, "killed by signal 9");
    kill_one(true, 100000, "killed by signal 9");
}

static void test_killed_without_launcher(void **state) {
    (void)state;
    kill_one(false, 1, "ended without leaving");
    kill_one(false, 100000, "ended without leaving");
}

/* All others wait for a rank that is stopped: they time out and name it. */
static void test_stopped(void **state) {
    (void)state;
    ranks r = {
        .size = SIZE, .transport = ranks_transport(), .body = reduce_forever, .timeout = "1"};
    ranks_start(&r);
    assert_true(ranks_await(&r, VICTIM));
    kill(r.pid[VICTIM], SIGSTOP);
    uint64_t at = ls__now_ns();
    bool noted = survivors_noted(&r, 10);
    kill(r.pid[VICTIM], SIGKILL);
    kill(r.pid[VICTIM], SIGCONT);
    assert_true(noted);
    assert_int_equal(ranks_wait(&r), 1);
    /* one times out; those who look a moment later may hear it from the first */
    int timed_out = 0;
    for (int i = 0; i < SIZE; i++) {
        if (i == VICTIM)
            continue;
        timed_out += r.report[i].status == LS_ERR_TIMEOUT;
        assert_non_null(strstr(r.report[i].text, "still waiting for rank 2"));
        assert_true(r.report[i].at_ns < at + 3000000000u);
    }
    assert_true(timed_out >= 1);
    ranks_free(&r);
}

static void exit_early(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == VICTIM)
        _exit(0);
    ranks_note(ls_barrier(ls_job_world(job)));
}

static void test_early_exit(void **state) {
    (void)state;
    ranks r = {.size = SIZE, .transport = ranks_transport(), .body = exit_early};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    expect_named(&r, LS_ERR_PEER, "ended without leaving");
    ranks_free(&r);
}

static void leave_early(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank != VICTIM)
        ranks_note(ls_barrier(ls_job_world(job)));
}

static void test_leaves(void **state) {
    (void)state;
    ranks r = {.size = SIZE, .transport = ranks_transport(), .body = leave_early};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    expect_named(&r, LS_ERR_PEER, "left the job");
    ranks_free(&r);
}

/* Leaving right after the last operation harms nobody who is still inside of it. */
static void reduce_once(int rank, ls_job *job, void *context) {
    (void)context;
    float value = (float)rank;
    CHECK_OK(ls_all_reduce(ls_job_world(job), &value, &value, 1, LS_F32, LS_SUM));
}

static void test_leave_after_last(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++)
        assert_int_equal(ranks_run(5, ranks_transport(), reduce_once, NULL), 0);
}

static void never_join(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == VICTIM) {
        while (!survivors_noted(context, 10))
            ;
        return;
    }
    ranks_note(ls_job_init(&job, NULL));
    CHECK(job == NULL);
}

static void test_never_joins(void **state) {
    (void)state;
    ranks r = {.size = SIZE,
               .transport = ranks_transport(),
               .body = never_join,
               .no_job = true,
               .timeout = "0.5",
               .context = &r};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    int timed_out = 0;
    for (int i = 0; i < SIZE; i++)
        if (i != VICTIM) {
            timed_out += r.report[i].status == LS_ERR_TIMEOUT;
            assert_non_null(strstr(r.report[i].text, "rank 2"));
        }
    assert_true(timed_out >= 1);
    ranks_free(&r);
}

/* A receiver whose sender is gone, and a sender whose receiver is. */
static void wait_for_dead(int rank, ls_job *job, void *context) {
    (void)context;
    static char large[1000000];
    ls_group *world = ls_job_world(job);
    if (rank == VICTIM)
        _exit(0);
    if (rank == 0)
        ranks_note(ls_recv(world, large, 10, LS_U8, VICTIM));
    else
        ranks_note(ls_send(world, large, sizeof large, LS_U8, VICTIM));
}

static void test_peer_of_message_dies(void **state) {
    (void)state;
    ranks r = {.size = 3, .transport = ranks_transport(), .body = wait_for_dead};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    expect_named(&r, LS_ERR_PEER, "ended without leaving");
    ranks_free(&r);
}

/* Started operations end too, and the waiting thread gets the words. */
static void started_then_death(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    float value[8];
    ls_work *work[8];
    if (rank == VICTIM)
        _exit(0);
    for (int i = 0; i < 8; i++) {
        value[i] = 1;
        if (ls_all_reduce_start(world, &value[i], &value[i], 1, LS_F32, LS_SUM, &work[i]) != LS_OK)
            work[i] = NULL; /* broken already */
    }
    for (int i = 0; i < 8; i++)
        if (work[i]) {
            CHECK(ls_work_wait(work[i], NULL) == LS_ERR_PEER);
            CHECK(strstr(ls_error_text(), "rank 2"));
        }
    CHECK(ls_barrier(world) == LS_ERR_PEER);
    ranks_note(LS_ERR_PEER);
}

static void test_started_operations_end(void **state) {
    (void)state;
    ranks r = {.size = 3, .transport = ranks_transport(), .body = started_then_death};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    expect_named(&r, LS_ERR_PEER, "ended without leaving");
    ranks_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_killed_without_launcher),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_early_exit),
        cmocka_unit_test(test_leaves),
        cmocka_unit_test(test_leave_after_last),
        cmocka_unit_test(test_never_joins),
        cmocka_unit_test(test_peer_of_message_dies),
        cmocka_unit_test(test_started_operations_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
