/* send and recv over tcp, and operations that do not fit together: a difference in any field of the
 * header is an error on both ranks, at once, with both values. */
#include "ranks.h"

#include "base/error.h"
#include "comm/transport.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* --- send, recv -------------------------------------------------------------------------------- */

static void fill(unsigned char *buffer, size_t bytes, size_t seed) {
    for (size_t i = 0; i < bytes; i++)
        buffer[i] = (unsigned char)(i * 31 + seed + (i >> 9));
}

static bool is_filled(const unsigned char *buffer, size_t bytes, size_t seed) {
    for (size_t i = 0; i < bytes; i++)
        if (buffer[i] != (unsigned char)(i * 31 + seed + (i >> 9)))
            return false;
    return true;
}

static const size_t sizes[] = {0, 1, 17, 8191, 65535, 65536, 65537, 131073, 3000001};
enum { SIZES = sizeof sizes / sizeof sizes[0], BIGGEST = 3000001 };

/* Every ordered pair, every size, in order. */
static void pairs(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    unsigned char *buffer = malloc(BIGGEST);
    CHECK(buffer);
    for (int from = 0; from < ls_group_size(world); from++)
        for (int to = 0; to < ls_group_size(world); to++)
            for (size_t s = 0; s < SIZES; s++) {
                size_t seed = (size_t)from * 5 + (size_t)to + s;
                if (from == to)
                    continue;
                if (rank == from) {
                    fill(buffer, sizes[s], seed);
                    CHECK_OK(ls_send(world, buffer, sizes[s], LS_U8, to));
                } else if (rank == to) {
                    memset(buffer, 0, sizes[s]);
                    CHECK_OK(ls_recv(world, buffer, sizes[s], LS_U8, from));
                    CHECK(is_filled(buffer, sizes[s], seed));
                }
            }
    free(buffer);
}

/* Rank 0 sends ahead while its peers are first in collectives that need it; all recvs come later, from
 * the inbox. Everybody also sends to everybody before anybody receives. */
static void crossing(int rank, ls_job *job, void *context) {
    (void)context;
    enum { N = 40 };
    ls_group *world = ls_job_world(job);
    int size = ls_group_size(world);
    static unsigned char buffer[60000];
    static float sums[50000];
    for (size_t i = 0; i < N; i++) {
        for (int to = 0; to < size; to++) {
            if (to == rank)
                continue;
            fill(buffer, 1000 + i * 1400, i + (size_t)rank);
            CHECK_OK(ls_send(world, buffer, 1000 + i * 1400, LS_U8, to));
        }
        if (i % 8 != 0)
            continue;
        for (size_t k = 0; k < 50000; k++)
            sums[k] = (float)rank;
        CHECK_OK(ls_all_reduce(world, sums, sums, 50000, LS_F32, LS_SUM));
        CHECK(sums[49999] == (float)(size * (size - 1) / 2));
        CHECK_OK(ls_barrier(world));
    }
    for (size_t i = 0; i < N; i++)
        for (int from = size - 1; from >= 0; from--) {
            if (from == rank)
                continue;
            CHECK_OK(ls_recv(world, buffer, 1000 + i * 1400, LS_U8, from));
            CHECK(is_filled(buffer, 1000 + i * 1400, i + (size_t)from));
        }
    CHECK_OK(ls_barrier(world));
}

/* A small send returns although its peer is not there yet. */
static void send_returns(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    float x[3] = {1, 2, 3};
    if (rank == 0) {
        CHECK_OK(ls_send(world, x, 3, LS_F32, 1));
        CHECK_OK(ls_recv(world, x, 3, LS_F32, 1));
        CHECK(x[0] == 5);
    } else {
        usleep(50000);
        x[0] = 5;
        CHECK_OK(ls_send(world, x, 3, LS_F32, 0));
        CHECK_OK(ls_recv(world, x, 3, LS_F32, 0));
        CHECK(x[0] == 1);
    }
}

/* More than the receiver keeps: an error, not endless memory. */
static void too_far_ahead(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    static unsigned char buffer[65536];
    ls_status status = LS_OK;
    for (int i = 0; rank == 0 && i < 300 && status == LS_OK; i++)
        status = ls_send(world, buffer, sizeof buffer, LS_U8, 1);
    for (int i = 0; i < 2 && status == LS_OK; i++) /* the first may still succeed on rank 0 */
        status = ls_barrier(world);
    if (rank == 1)
        CHECK(status == LS_ERR_RANGE && strstr(ls_error_text(), "16 MiB"));
    else
        CHECK(status == LS_ERR_PEER && strstr(ls_error_text(), "rank 1"));
}

/* --- what does not fit together ---------------------------------------------------------------- */

typedef struct difference {
    size_t at, bytes; /* the field of the header */
    uint64_t value;   /* rank 1's */
    const char *says; /* both messages hold it */
} difference;

static const difference differences[] = {
    {offsetof(ls__header, kind), 2, LS__BROADCAST, "broadcast"},
    {offsetof(ls__header, dtype), 1, LS_I64, "I64"},
    {offsetof(ls__header, op), 1, LS_MAX, "max"},
    {offsetof(ls__header, group), 8, 9, "group"},
    {offsetof(ls__header, sequence), 8, 41, "41"},
    {offsetof(ls__header, count), 8, 11, "11"},
    {offsetof(ls__header, root), 4, 1, "disagree"},
};

static ls_status open_alone(ls__transport **transport, int rank, int size, ls__job_place *place) {
    *place = (ls__job_place){.rank = rank, .world_size = size, .timeout_s = 10};
    return ls__tcp_open(transport, place, "127.0.0.1", atoi(getenv("MASTER_PORT")), NULL);
}

static void differ(int rank, ls_job *job, void *context) {
    (void)job;
    const difference *d = context;
    ls__transport *transport;
    ls__job_place place;
    char data[12] = "", text[1024];
    CHECK_OK(open_alone(&transport, rank, 2, &place));
    ls__operation operation = {.send = data, .recv = data, .count = 12, .dtype = LS_I8};
    operation.header = (ls__header){.magic = LS__HEADER_MAGIC,
                                    .kind = LS__ALL_REDUCE,
                                    .dtype = LS_I8,
                                    .group = 1,
                                    .sequence = 40,
                                    .count = 12};
    operation.deadline = ls__deadline_ns(10);
    if (rank == 1)
        memcpy((char *)&operation.header + d->at, &d->value, d->bytes);
    uint64_t begin = ls__now_ns();
    CHECK(transport->table->run(transport, &operation) == LS_ERR_MISMATCH);
    CHECK(ls__now_ns() - begin < 5000000000u);
    snprintf(text, sizeof text, "%s", ls_error_text());
    CHECK(strstr(text, "rank 0") && strstr(text, "rank 1"));
    CHECK(strstr(text, d->says)); /* each side names both values */
    transport->table->close(transport);
}

/* Which operations the two ranks are in; all pairs can never meet. */
typedef struct meeting {
    const char *a, *b; /* of rank 0 and rank 1 */
    const char *says;
} meeting;

static const meeting meetings[] = {
    {"small send", "recv other", "count"}, {"large send", "recv", "count"},
    {"recv", "barrier", "barrier"},        {"large send", "barrier", "barrier"},
    {"barrier", "recv", "recv"},           {"large send", "large send", "ls_recv first"},
    {"barrier", "broadcast", "broadcast"},
};

static ls_status act(ls_group *world, const char *what, int peer) {
    static char buffer[200000];
    if (strcmp(what, "small send") == 0) {
        LS_TRY(ls_send(world, buffer, 100, LS_U8, peer));
        return ls_barrier(world); /* where the sender hears that its send was refused */
    }
    if (strcmp(what, "large send") == 0)
        return ls_send(world, buffer, sizeof buffer, LS_U8, peer);
    if (strcmp(what, "recv") == 0)
        return ls_recv(world, buffer, 100, LS_U8, peer);
    if (strcmp(what, "recv other") == 0)
        return ls_recv(world, buffer, 101, LS_U8, peer);
    if (strcmp(what, "broadcast") == 0)
        return ls_broadcast(world, buffer, 100, LS_U8, 0);
    return ls_barrier(world);
}

static void meet(int rank, ls_job *job, void *context) {
    const meeting *m = context;
    uint64_t begin = ls__now_ns();
    ls_status status = act(ls_job_world(job), rank == 0 ? m->a : m->b, 1 - rank);
    ranks_note(status);
    CHECK(status == LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_text(), m->says));
    CHECK(strstr(ls_error_text(), "rank 0") && strstr(ls_error_text(), "rank 1"));
    CHECK(ls__now_ns() - begin < 5000000000u);
    /* The group stays broken, with the first error. */
    CHECK(ls_barrier(ls_job_world(job)) == LS_ERR_MISMATCH);
}

/* One of several ranks has another count. */
static void one_of_four(int rank, ls_job *job, void *context) {
    (void)context;
    char x[20] = "";
    ls_status status = ls_all_reduce(ls_job_world(job), x, x, rank == 2 ? 19 : 20, LS_I8, LS_SUM);
    CHECK(status == LS_ERR_MISMATCH); /* also where another rank saw it first */
    CHECK(strstr(ls_error_text(), "19") && strstr(ls_error_text(), "rank 2"));
}

/* --- tests ------------------------------------------------------------------------------------- */

static void test_pairs(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "tcp", pairs, NULL), 0);
    assert_int_equal(ranks_run(4, "tcp", pairs, NULL), 0);
}

static void test_crossing(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "tcp", crossing, NULL), 0);
    assert_int_equal(ranks_run(5, "tcp", crossing, NULL), 0);
}

static void test_send_returns(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "tcp", send_returns, NULL), 0);
}

static void test_too_far_ahead(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "tcp", too_far_ahead, NULL), 0);
}

static void test_every_field(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        ranks r = {.size = 2, .transport = "tcp", .body = differ, .no_job = true};
        r.context = (void *)&differences[i];
        ranks_start(&r);
        assert_int_equal(ranks_wait(&r), 0);
        ranks_free(&r);
    }
}

static void test_meetings(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof meetings / sizeof meetings[0]; i++)
        assert_int_equal(ranks_run(2, "tcp", meet, (void *)&meetings[i]), 0);
}

static void test_one_of_four(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++)
        assert_int_equal(ranks_run(4, "tcp", one_of_four, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),        cmocka_unit_test(test_crossing),
        cmocka_unit_test(test_send_returns), cmocka_unit_test(test_too_far_ahead),
        cmocka_unit_test(test_every_field),  cmocka_unit_test(test_meetings),
        cmocka_unit_test(test_one_of_four),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
