/* A rank dies or stops inside each operation, at any moment of it, small and large, in memory of the group or
 * not, and between operations: the others get an error that names it, the dead within a second. */
#include "operations.h"
#include "ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { SIZE = 3 };

/* Sanitizers slow everything down, the bounds too. On a machine that is busy with other things a survivor may get no
 * core for a second: what was late once is tried again, and a promise that does not hold is late every time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const double PATIENCE = 4;
#else
static const double PATIENCE = 1;
#endif
enum { ATTEMPTS = 4 };

typedef struct scene {
    const char *operation;
    size_t count;
    bool registered;
    int exit_code;   /* the victim ends itself so; -1: the parent kills it */
    int victim;      /* which */
    useconds_t idle; /* between operations */
} scene;

static void go_on(int rank, ls_job *job, void *context) {
    const scene *s = context;
    ls_group *world = ls_job_world(job);
    void *memory = NULL;
    ls_status status = LS_OK;
    if (s->registered)
        CHECK_OK(ls_group_alloc(world, OPERATIONS_COUNT * sizeof(float), &memory));
    else
        CHECK((memory = calloc(OPERATIONS_COUNT, sizeof(float))));
    for (int i = 0; status == LS_OK; i++) {
        if (i == 3)
            my_report->reached = true;
        if (i == 5 && rank == s->victim && s->exit_code >= 0)
            _exit(s->exit_code);
        if (s->idle)
            usleep(s->idle);
        status = operations_run(world, s->operation, memory, s->count);
    }
    ranks_note(status);
    /* later calls, too, with the same words */
    CHECK(ls_barrier(world) == status);
    CHECK(strcmp(ls_error_text(), my_report->text) == 0);
    if (!s->registered)
        free(memory);
}

/* Whether all of them knew within `seconds`; what they say must be right in any case. */
static bool expect_named(const ranks *r, const scene *s, uint64_t at, double seconds) {
    char name[32];
    bool in_time = true;
    snprintf(name, sizeof name, "rank %d (", s->victim);
    for (int rank = 0; rank < r->size; rank++) {
        const ranks_report *report = &r->report[rank];
        if (rank == s->victim)
            continue;
        double took = (double)(int64_t)(report->at_ns - at) * 1e-9;
        if (report->status != LS_ERR_PEER || !strstr(report->text, name) ||
            !strstr(report->text, "of group world"))
            fail_msg("%s of %zu: rank %d of victim %d: %s after %.2f s: %s", s->operation, s->count,
                     rank, s->victim, ls_status_name(report->status), took, report->text);
        in_time = in_time && took < PATIENCE * seconds;
    }
    return in_time;
}

static bool kill_once(scene s, useconds_t when) {
    ranks r = {.size = SIZE, .transport = ranks_transport(), .body = go_on, .context = &s};
    ranks_start(&r);
    if (!ranks_await(&r, s.victim))
        fail_msg("%s did not start", s.operation);
    usleep(when);
    uint64_t at = ls__now_ns();
    if (s.exit_code < 0)
        kill(r.pid[s.victim], SIGKILL);
    assert_int_equal(ranks_wait(&r), s.exit_code == 0 ? 0 : 1);
    /* who looks only between operations hears of it at the next one */
    bool in_time = expect_named(&r, &s, at, 1 + 2e-6 * (double)s.idle);
    ranks_free(&r);
    return in_time;
}

static void kill_in(scene s, useconds_t when) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        if (kill_once(s, when))
            return;
    }
    fail_msg("%s of %zu: victim %d: not known in time, %d times in a row", s.operation, s.count,
             s.victim, ATTEMPTS);
}

static unsigned next_random(void) {
    static unsigned x = 12345;
    x = x * 1664525 + 1013904223;
    return x >> 16;
}

static void test_killed_in_each_operation(void **state) {
    (void)state;
    for (int i = 0; i < OPERATIONS; i++) {
        for (int large = 0; large < 2; large++) {
            scene s = {.operation = operations[i],
                       .count = large ? OPERATIONS_LARGE : OPERATIONS_SMALL,
                       .registered = large && i % 2,
                       .exit_code = -1,
                       .victim = (i + large) % SIZE};
            kill_in(s, next_random() % 3000);
        }
    }
}

static void test_ends_itself(void **state) {
    (void)state;
    for (int i = 0; i < OPERATIONS; i += 2) {
        scene s = {.operation = operations[i], .count = OPERATIONS_SMALL, .victim = i / 2 % SIZE};
        s.exit_code = 0; /* without a word: too early */
        kill_in(s, 0);
        s.exit_code = 7;
        kill_in(s, 0);
    }
}

static void test_killed_while_others_compute(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        scene s = {.operation = operations[i],
                   .count = OPERATIONS_SMALL,
                   .exit_code = -1,
                   .victim = i,
                   .idle = 100000};
        kill_in(s, 30000);
    }
}

/* --- in the middle --------------------------------------------------------------------------------------- */

/* Rank 1 has arrived, and cannot write the result. */
static void fault_in_the_middle(int rank, ls_job *job, void *context) {
    (void)context;
    const size_t count = OPERATIONS_LARGE, bytes = count * sizeof(float);
    float *send = calloc(count, sizeof *send);
    int protection = rank == 1 ? PROT_READ : PROT_READ | PROT_WRITE;
    float *recv = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(send && recv != MAP_FAILED);
    signal(SIGSEGV, SIG_DFL);
    CHECK_OK(ls_barrier(ls_job_world(job)));
    ranks_note(ls_all_reduce(ls_job_world(job), send, recv, count, LS_F32, LS_SUM));
    munmap(recv, bytes);
    free(send);
}

/* The message does not say of a rank that had arrived that it had not; the report would say the opposite. */
static void test_dies_in_the_middle(void **state) {
    (void)state;
    ranks r = {
        .size = SIZE, .transport = ranks_transport(), .body = fault_in_the_middle, .watch = true};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 1);
    for (int rank = 0; rank < SIZE; rank += 2) {
        const ranks_report *report = &r.report[rank];
        if (report->status != LS_ERR_PEER || !strstr(report->text, "rank 1 (") ||
            strstr(report->text, "not arrived yet: rank 1"))
            fail_msg("rank %d: %s: %s", rank, ls_status_name(report->status), report->text);
    }
    ranks_free(&r);
}

/* --- stopped ---------------------------------------------------------------------------------------------- */

static bool noted(const ranks *r, int but) {
    for (int rank = 0; rank < r->size; rank++) {
        if (rank != but && ((volatile ranks_report *)r->report)[rank].at_ns == 0)
            return false;
    }
    return true;
}

/* Several jobs at once: each takes as long as the heartbeat's limit. */
static void stop_in_some(int first, int count) {
    ranks r[OPERATIONS];
    scene s[OPERATIONS];
    for (int i = first; i < first + count; i++) {
        s[i] = (scene){.operation = operations[i],
                       .count = i % 2 ? OPERATIONS_LARGE : OPERATIONS_SMALL,
                       .exit_code = -1,
                       .victim = i % SIZE};
        r[i] = (ranks){.size = SIZE,
                       .transport = ranks_transport(),
                       .body = go_on,
                       .context = &s[i],
                       .timeout = "50",
                       .heartbeat = "2"};
        ranks_start(&r[i]);
    }
    for (int i = first; i < first + count; i++)
        assert_true(ranks_await(&r[i], s[i].victim));
    usleep(600000); /* every rank has beaten */
    uint64_t at = ls__now_ns();
    for (int i = first; i < first + count; i++)
        kill(r[i].pid[s[i].victim], SIGSTOP);
    for (int i = first; i < first + count; i++) {
        while (!noted(&r[i], s[i].victim) && ls__now_ns() - at < 20000000000u)
            usleep(1000);
        kill(r[i].pid[s[i].victim], SIGKILL);
        assert_int_equal(ranks_wait(&r[i]), 1);
        /* The limit is 2 s; the default of 10 s, or a deadline, would be later than this. */
        if (!expect_named(&r[i], &s[i], at, 9.5))
            fail_msg("%s: known late", s[i].operation);
        ranks_free(&r[i]);
    }
}

static void test_stopped_in_each_operation(void **state) {
    (void)state;
    for (int i = 0; i < OPERATIONS; i += 5)
        stop_in_some(i, OPERATIONS - i < 5 ? OPERATIONS - i : 5);
}

/* --- before the job stands ----------------------------------------------------------------------------------- */

static void join(int rank, ls_job *job, void *context) {
    const scene *s = context;
    if (rank == s->victim) {
        my_report->reached = true;
        usleep(150000); /* the others wait in the rendezvous by then */
        _exit(3);
    }
    ls_status status = ls_job_init(&job, NULL);
    ranks_note(status);
    CHECK(status != LS_OK && job == NULL);
}

/* A rank that ends before it joins: with no launcher to tell, the start's own deadline. */
static void test_never_joins(void **state) {
    (void)state;
    scene s = {.victim = 1};
    ranks r = {.size = SIZE,
               .transport = ranks_transport(),
               .body = join,
               .context = &s,
               .no_job = true,
               .watch = true,
               .timeout = "1"};
    ranks_start(&r);
    uint64_t at = ls__now_ns();
    assert_int_equal(ranks_wait(&r), 1);
    for (int rank = 0; rank < SIZE; rank += 2) {
        assert_true(r.report[rank].status != LS_OK);
        assert_true(r.report[rank].at_ns - at < 5000000000u);
        if (!strstr(r.report[rank].text, "1"))
            fail_msg("rank %d: %s", rank, r.report[rank].text);
    }
    ranks_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_in_each_operation),
        cmocka_unit_test(test_ends_itself),
        cmocka_unit_test(test_killed_while_others_compute),
        cmocka_unit_test(test_dies_in_the_middle),
        cmocka_unit_test(test_stopped_in_each_operation),
        cmocka_unit_test(test_never_joins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
