/* Ranks that die, stop, leave or give up in the middle of tcp operations: the others end in bounded
 * time with an error that names the rank. */
#include "ranks.h"

#include "comm/transport.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { COUNT = 400000 };

static ls_status operate(ls_group *world, float *buffer, const char *what) {
    if (strcmp(what, "barrier") == 0)
        return ls_barrier(world);
    if (strcmp(what, "all_gather") == 0)
        return ls_all_gather(world, buffer, buffer + COUNT, COUNT / 8, LS_F32);
    if (strcmp(what, "one-shot") == 0)
        return ls_all_reduce(world, buffer, buffer, 10, LS_F32, LS_SUM);
    return ls_all_reduce(world, buffer, buffer, COUNT, LS_F32, LS_SUM);
}

/* Until it fails: the parent sees to that. */
static void go_on(int rank, ls_job *job, void *context) {
    (void)rank;
    float *buffer = calloc(2 * COUNT, sizeof *buffer);
    ls_status status = LS_OK;
    CHECK(buffer);
    for (int i = 0; status == LS_OK; i++) {
        status = operate(ls_job_world(job), buffer, context);
        my_report->reached = i > 10;
    }
    ranks_note(status);
    free(buffer);
}

static void kill_one(const char *what, int size, int victim) {
    ranks r = {.size = size, .transport = "tcp", .body = go_on, .context = (void *)what};
    char name[32], pid[32];
    ranks_start(&r);
    assert_true(ranks_await(&r, victim));
    uint64_t killed = ls__now_ns();
    kill(r.pid[victim], SIGKILL);
    assert_int_equal(ranks_wait(&r), 1);
    snprintf(name, sizeof name, "rank %d (host ", victim);
    snprintf(pid, sizeof pid, "pid %d)", (int)r.pid[victim]);
    for (int rank = 0; rank < size; rank++) {
        if (rank == victim)
            continue;
        assert_int_equal(r.report[rank].status, LS_ERR_PEER);
        assert_non_null(strstr(r.report[rank].text, name));
        assert_non_null(strstr(r.report[rank].text, pid));
        assert_true(r.report[rank].at_ns - killed < 5000000000u); /* test_comm_kill.c is stricter */
    }
    ranks_free(&r);
}

static void test_killed(void **state) {
    (void)state;
    kill_one("all_reduce", 4, 2);
    kill_one("all_reduce", 2, 0);
    kill_one("one-shot", 3, 1);
    kill_one("barrier", 5, 0);
    kill_one("all_gather", 3, 2);
}

static void test_stopped(void **state) {
    (void)state;
    ranks r = {.size = 3, .transport = "tcp", .body = go_on, .context = "all_reduce"};
    r.timeout = "3";
    ranks_start(&r);
    assert_true(ranks_await(&r, 1));
    uint64_t stopped = ls__now_ns();
    kill(r.pid[1], SIGSTOP);
    while ((r.report[0].at_ns == 0 || r.report[2].at_ns == 0) &&
           ls__now_ns() - stopped < 20000000000u)
        usleep(1000);
    kill(r.pid[1], SIGKILL);
    assert_int_equal(ranks_wait(&r), 1);
    int timeouts = 0;
    for (int rank = 0; rank < 3; rank += 2) {
        /* Whoever gives up first tells the other. */
        assert_true(r.report[rank].status == LS_ERR_TIMEOUT ||
                    r.report[rank].status == LS_ERR_PEER);
        timeouts += r.report[rank].status == LS_ERR_TIMEOUT;
        assert_non_null(strstr(r.report[rank].text, "timed out"));
        /* One of the two may be further in the operation and wait for both: then it names both. */
        assert_non_null(strstr(r.report[rank].text, "waiting for rank"));
        assert_non_null(strstr(r.report[rank].text, "rank 1 (host "));
        assert_true(r.report[rank].at_ns - stopped < 9000000000u);
    }
    assert_true(timeouts > 0);
    ranks_free(&r);
}

/* All that do not arrive are named. */
static void some_stay_away(int rank, ls_job *job, void *context) {
    (void)context;
    if (rank == 1 || rank == 3) {
        usleep(3500000);
        return;
    }
    ls_status status = ls_barrier(ls_job_world(job));
    CHECK(status == LS_ERR_TIMEOUT || status == LS_ERR_PEER);
    CHECK(strstr(ls_error_text(), "waiting for ranks 1, 3:"));
    CHECK(strstr(ls_error_text(), "did not arrive"));
}

static void test_all_missing_are_named(void **state) {
    (void)state;
    ranks r = {.size = 4, .transport = "tcp", .body = some_stay_away, .timeout = "2"};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

static void leave(int rank, ls_job *job, void *context) {
    (void)context;
    CHECK_OK(ls_barrier(ls_job_world(job)));
    if (rank == 1)
        return;
    ls_status status = ls_barrier(ls_job_world(job));
    CHECK(status == LS_ERR_PEER);
    CHECK(strstr(ls_error_text(), "rank 1 (host "));
    CHECK(strstr(ls_error_text(), "left the job"));
}

/* A rank that has all it needs may go while the others still finish. */
static void leave_in_peace(int rank, ls_job *job, void *context) {
    (void)context;
    static char buffer[3000000];
    if (rank == 2)
        usleep(50000);
    buffer[2999999] = (char)(rank + 1);
    CHECK_OK(ls_broadcast(ls_job_world(job), buffer, sizeof buffer, LS_I8, 0));
    CHECK(buffer[2999999] == 1);
}

static void test_leaving(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "tcp", leave, NULL), 0);
    assert_int_equal(ranks_run(4, "tcp", leave, NULL), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(ranks_run(4, "tcp", leave_in_peace, NULL), 0);
}

/* --- words that get stuck ------------------------------------------------------------------------- */

/* Rank 0 reads no data of rank 2 before rank 1 arrives, so what rank 2 has to say when its patience ends cannot reach
 * rank 0 behind them; and then rank 2's process is gone, and its connections are reset. */
static void stuck(int rank, ls_job *job, void *context) {
    const bool finishes = context != NULL;
    const size_t count = 4000000;
    float *buffer = calloc(2 * 3 * count, sizeof *buffer);
    CHECK(buffer);
    CHECK_OK(ls_barrier(ls_job_world(job)));
    if (rank == 1)
        usleep(2500000);
    if (rank == 2)
        CHECK_OK(ls_group_set_timeout(ls_job_world(job), 0.5));
    ls_status status = ls_all_to_all(ls_job_world(job), buffer, buffer + 3 * count, count, LS_F32);
    ranks_note(status);
    free(buffer);
    if (rank == 2 && !finishes)
        _exit(0);
}

static void test_stuck_words(void **state) {
    (void)state;
    for (int finishes = 0; finishes < 2; finishes++) {
        ranks r = {.size = 3, .transport = "tcp", .body = stuck};
        r.context = finishes ? &r : NULL;
        ranks_start(&r);
        assert_int_equal(ranks_wait(&r), 0);
        const ranks_report *report = r.report;
        assert_int_equal(report[2].status, LS_ERR_TIMEOUT);
        assert_int_equal(report[0].status, LS_ERR_PEER);
        /* By its goodbye "rank 2 (host H, pid P) gave up", over the heartbeat "rank 2 gave up": whichever is first. */
        if (!strstr(report[0].text, "on rank 0: rank 2 ") ||
            !strstr(report[0].text, " gave up: ") || !strstr(report[0].text, "timed out") ||
            !strstr(report[0].text, "rank 1 (host "))
            fail_msg("%s", report[0].text);
        ranks_free(&r);
    }
}

/* --- abort ------------------------------------------------------------------------------------- */

static void *abort_later(void *argument) {
    ls__transport *transport = argument;
    usleep(100000);
    transport->table->abort(transport, LS_ERR_PEER, "disk is full");
    return NULL;
}

static ls_status barrier(ls__transport *transport, uint64_t sequence) {
    ls__operation operation = {.deadline = ls__deadline_ns(10)};
    operation.header = (ls__header){
        .magic = LS__HEADER_MAGIC, .kind = LS__BARRIER, .group = 1, .sequence = sequence};
    return transport->table->run(transport, &operation);
}

/* Rank 1 gives up from another thread while its own operation waits for rank 2, which sleeps. */
static void give_up(int rank, ls_job *job, void *context) {
    (void)job;
    (void)context;
    ls__job_place place = {.rank = rank, .world_size = 3, .timeout_s = 10};
    ls__transport *transport;
    pthread_t thread;
    CHECK_OK(ls__tcp_open(&transport, &place, "127.0.0.1", atoi(getenv("MASTER_PORT")), NULL));
    CHECK_OK(barrier(transport, 1));
    uint64_t begin = ls__now_ns();
    if (rank == 2)
        usleep(2000000);
    if (rank == 1)
        CHECK(pthread_create(&thread, NULL, abort_later, transport) == 0);
    ls_status status = barrier(transport, 2);
    if (rank == 2 && status == LS_OK) /* all had arrived at that one */
        status = barrier(transport, 3);
    CHECK(status == (rank == 1 ? LS_ERR_STATE : LS_ERR_PEER));
    CHECK(strstr(ls_error_text(), "disk is full"));
    CHECK(rank == 1 || strstr(ls_error_text(), "gave up"));
    CHECK(rank == 2 || ls__now_ns() - begin < 1500000000u);
    if (rank == 1)
        pthread_join(thread, NULL);
    transport->table->close(transport);
}

static void test_abort(void **state) {
    (void)state;
    ranks r = {.size = 3, .transport = "tcp", .body = give_up, .no_job = true};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_all_missing_are_named),
        cmocka_unit_test(test_leaving),
        cmocka_unit_test(test_stuck_words),
        cmocka_unit_test(test_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
