/* Ranks that call different things: an error on all ranks that names both sides, not a hang. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

typedef ls_status (*call)(ls_group *world, float *buffer);

static ls_status sum_5(ls_group *world, float *buffer) {
    return ls_all_reduce(world, buffer, buffer, 5, LS_F32, LS_SUM);
}

static ls_status sum_6(ls_group *world, float *buffer) {
    return ls_all_reduce(world, buffer, buffer, 6, LS_F32, LS_SUM);
}

static ls_status sum_5000(ls_group *world, float *buffer) {
    return ls_all_reduce(world, buffer, buffer, 5000, LS_F32, LS_SUM);
}

static ls_status max_5(ls_group *world, float *buffer) {
    return ls_all_reduce(world, buffer, buffer, 5, LS_F32, LS_MAX);
}

static ls_status sum_5_bf16(ls_group *world, float *buffer) {
    return ls_all_reduce(world, buffer, buffer, 5, LS_BF16, LS_SUM);
}

static ls_status weighted_5(ls_group *world, float *buffer) {
    return ls_all_reduce_weighted(world, buffer, buffer, 5, LS_F32, 1, NULL);
}

static ls_status broadcast_5(ls_group *world, float *buffer) {
    return ls_broadcast(world, buffer, 5, LS_F32, 0);
}

static ls_status broadcast_5_from_1(ls_group *world, float *buffer) {
    return ls_broadcast(world, buffer, 5, LS_F32, 1);
}

/* The receiving half of the buffer. */
enum { HALF = 2500 };

static ls_status reduce_5(ls_group *world, float *buffer) {
    return ls_reduce(world, buffer, buffer + HALF, 5, LS_F32, LS_SUM, 0);
}

static ls_status reduce_6(ls_group *world, float *buffer) {
    return ls_reduce(world, buffer, buffer + HALF, 6, LS_F32, LS_SUM, 0);
}

static ls_status reduce_5_min(ls_group *world, float *buffer) {
    return ls_reduce(world, buffer, buffer + HALF, 5, LS_F32, LS_MIN, 0);
}

static ls_status reduce_5_to_1(ls_group *world, float *buffer) {
    return ls_reduce(world, buffer, buffer + HALF, 5, LS_F32, LS_SUM, 1);
}

static ls_status gather_600(ls_group *world, float *buffer) {
    return ls_gather(world, buffer, buffer + HALF, 600, LS_F32, 0);
}

static ls_status gather_601(ls_group *world, float *buffer) {
    return ls_gather(world, buffer, buffer + HALF, 601, LS_F32, 0);
}

static ls_status gather_600_i32(ls_group *world, float *buffer) {
    return ls_gather(world, buffer, buffer + HALF, 600, LS_I32, 0);
}

static ls_status gather_600_to_1(ls_group *world, float *buffer) {
    return ls_gather(world, buffer, buffer + HALF, 600, LS_F32, 1);
}

static ls_status scatter_600(ls_group *world, float *buffer) {
    return ls_scatter(world, buffer, buffer + HALF, 600, LS_F32, 0);
}

static ls_status scatter_601(ls_group *world, float *buffer) {
    return ls_scatter(world, buffer, buffer + HALF, 601, LS_F32, 0);
}

static ls_status scatter_600_from_1(ls_group *world, float *buffer) {
    return ls_scatter(world, buffer, buffer + HALF, 600, LS_F32, 1);
}

static ls_status exchange_600(ls_group *world, float *buffer) {
    return ls_all_to_all(world, buffer, buffer + HALF, 600, LS_F32);
}

static ls_status exchange_7(ls_group *world, float *buffer) {
    return ls_all_to_all(world, buffer, buffer + HALF, 7, LS_F32);
}

static ls_status exchange_7_i64(ls_group *world, float *buffer) {
    return ls_all_to_all(world, buffer, buffer + HALF, 7, LS_I64);
}

/* Rank r's block has first + r elements, but `last` more for the last rank. */
static const size_t *counts_of(const ls_group *world, size_t first, size_t last) {
    static size_t counts[RANKS_MAX];
    for (int r = 0; r < ls_group_size(world); r++)
        counts[r] = first + (size_t)r;
    counts[ls_group_size(world) - 1] += last;
    return counts;
}

static ls_status all_gather_v(ls_group *world, float *buffer) {
    return ls_all_gather_v(world, buffer, buffer + HALF, counts_of(world, 3, 0), LS_F32);
}

static ls_status all_gather_v_sum(ls_group *world, float *buffer) {
    return ls_all_gather_v(world, buffer, buffer + HALF, counts_of(world, 3, 2), LS_F32);
}

/* The same sum, spread in another way. */
static ls_status all_gather_v_spread(ls_group *world, float *buffer) {
    size_t *counts = (size_t *)counts_of(world, 3, 0);
    counts[0]--;
    counts[1]++;
    return ls_all_gather_v(world, buffer, buffer + HALF, counts, LS_F32);
}

static ls_status all_gather_5(ls_group *world, float *buffer) {
    return ls_all_gather(world, buffer, buffer + HALF, 5, LS_F32);
}

static ls_status reduce_scatter_v(ls_group *world, float *buffer) {
    return ls_reduce_scatter_v(world, buffer, buffer + HALF, counts_of(world, 400, 0), LS_F32,
                               LS_SUM);
}

static ls_status reduce_scatter_v_sum(ls_group *world, float *buffer) {
    return ls_reduce_scatter_v(world, buffer, buffer + HALF, counts_of(world, 400, 1), LS_F32,
                               LS_SUM);
}

static ls_status reduce_scatter_v_op(ls_group *world, float *buffer) {
    return ls_reduce_scatter_v(world, buffer, buffer + HALF, counts_of(world, 400, 0), LS_F32,
                               LS_PRODUCT);
}

static ls_status gather_v(ls_group *world, float *buffer) {
    return ls_gather_v(world, buffer, buffer + HALF, counts_of(world, 3, 0), LS_F32, 0);
}

static ls_status scatter_v(ls_group *world, float *buffer) {
    return ls_scatter_v(world, buffer, buffer + HALF, counts_of(world, 3, 0), LS_F32, 0);
}

static ls_status scatter_v_sum(ls_group *world, float *buffer) {
    return ls_scatter_v(world, buffer, buffer + HALF, counts_of(world, 3, 1), LS_F32, 0);
}

static ls_status exchange_v(ls_group *world, float *buffer) {
    size_t counts[RANKS_MAX];
    for (int r = 0; r < ls_group_size(world); r++)
        counts[r] = 11;
    return ls_all_to_all_v(world, buffer, counts, buffer + HALF, counts, LS_F32);
}

/* One rank has 12 elements for rank 0, which expects 11. */
static ls_status exchange_v_more(ls_group *world, float *buffer) {
    size_t counts[RANKS_MAX], more[RANKS_MAX];
    for (int r = 0; r < ls_group_size(world); r++)
        counts[r] = more[r] = 11;
    more[0]++;
    return ls_all_to_all_v(world, buffer, more, buffer + HALF, counts, LS_F32);
}

static ls_status barrier(ls_group *world, float *buffer) {
    (void)buffer;
    return ls_barrier(world);
}

static ls_status alloc_4096(ls_group *world, float *buffer) {
    (void)buffer;
    void *memory;
    return ls_group_alloc(world, 4096, &memory);
}

static ls_status alloc_8192(ls_group *world, float *buffer) {
    (void)buffer;
    void *memory;
    return ls_group_alloc(world, 8192, &memory);
}

/* The last rank makes the other call. */
typedef struct mismatch {
    call most, last;
    const char *most_value, *last_value; /* words in the message */
} mismatch;

static void differ(int rank, ls_job *job, void *context) {
    const mismatch *m = context;
    ls_group *world = ls_job_world(job);
    static float buffer[5000];
    bool last = rank == ls_group_size(world) - 1;
    for (int i = 0; i < 5000; i++)
        buffer[i] = (float)rank + 0.5F;
    CHECK_OK(ls_barrier(world));
    ranks_note((last ? m->last : m->most)(world, buffer));
    CHECK(my_report->status == LS_ERR_MISMATCH);
    for (int i = 0; i < 5000; i++) /* nobody's data were touched */
        CHECK(buffer[i] == (float)rank + 0.5F);
    /* broken: the next call returns the first error */
    CHECK(sum_5(world, buffer) == my_report->status);
    CHECK(strcmp(ls_error_text(), my_report->text) == 0);
}

static void expect_mismatch(const mismatch *m, int size) {
    ranks r = {.size = size, .transport = ranks_transport(), .body = differ, .context = (void *)m};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    char last_rank[32];
    snprintf(last_rank, sizeof last_rank, "rank %d", size - 1);
    int seen = 0;
    for (int i = 0; i < size; i++) {
        const char *text = r.report[i].text;
        seen += r.report[i].status == LS_ERR_MISMATCH;
        if (!strstr(text, m->most_value) || !strstr(text, m->last_value) || !strstr(text, "#2") ||
            !strstr(text, last_rank))
            fail_msg("rank %d says: %s", i, text);
    }
    assert_true(seen > 0);
    ranks_free(&r);
}

static void expect_mismatch_everywhere(call most, call last, const char *most_value,
                                       const char *last_value) {
    mismatch m = {most, last, most_value, last_value};
    expect_mismatch(&m, 2);
    expect_mismatch(&m, 4);
}

static void test_kind(void **state) {
    (void)state;
    expect_mismatch_everywhere(sum_5, barrier, "all_reduce", "barrier");
    expect_mismatch_everywhere(broadcast_5, sum_5, "broadcast", "all_reduce");
}

static void test_count(void **state) {
    (void)state;
    expect_mismatch_everywhere(sum_5, sum_6, "5 on rank", "6 on rank");
    expect_mismatch_everywhere(sum_5000, sum_6, "5000 on rank", "6 on rank");
    expect_mismatch_everywhere(sum_6, sum_5000, "6 on rank", "5000 on rank");
}

static void test_dtype(void **state) {
    (void)state;
    expect_mismatch_everywhere(sum_5, sum_5_bf16, "F32", "BF16");
}

static void test_op(void **state) {
    (void)state;
    expect_mismatch_everywhere(sum_5, max_5, "sum", "max");
    expect_mismatch_everywhere(sum_5, weighted_5, "sum on", "weighted sum");
}

static void test_root(void **state) {
    (void)state;
    expect_mismatch_everywhere(broadcast_5, broadcast_5_from_1, "0 on rank", "1 on rank");
}

static void test_reduce(void **state) {
    (void)state;
    expect_mismatch_everywhere(reduce_5, sum_5, "reduce", "all_reduce");
    expect_mismatch_everywhere(reduce_5, reduce_6, "5 on rank", "6 on rank");
    expect_mismatch_everywhere(reduce_5, reduce_5_min, "sum on", "min on");
    expect_mismatch_everywhere(reduce_5, reduce_5_to_1, "0 on rank", "1 on rank");
}

static void test_gather_scatter(void **state) {
    (void)state;
    expect_mismatch_everywhere(gather_600, scatter_600, "gather", "scatter");
    expect_mismatch_everywhere(gather_600, gather_601, "600 on rank", "601 on rank");
    expect_mismatch_everywhere(gather_600, gather_600_i32, "F32", "I32");
    expect_mismatch_everywhere(gather_600, gather_600_to_1, "0 on rank", "1 on rank");
    expect_mismatch_everywhere(scatter_600, scatter_601, "600 on rank", "601 on rank");
    expect_mismatch_everywhere(scatter_600, scatter_600_from_1, "0 on rank", "1 on rank");
    expect_mismatch_everywhere(scatter_600, broadcast_5, "scatter", "broadcast");
}

static void test_all_to_all(void **state) {
    (void)state;
    expect_mismatch_everywhere(exchange_600, gather_600, "all_to_all", "gather");
    expect_mismatch_everywhere(exchange_600, exchange_7, "600 on rank", "7 on rank");
    expect_mismatch_everywhere(exchange_7, exchange_600, "7 on rank", "600 on rank");
    expect_mismatch_everywhere(exchange_7, exchange_7_i64, "F32", "I64");
    expect_mismatch_everywhere(exchange_v, exchange_7, "all_to_all_v", "all_to_all");
    expect_mismatch_everywhere(exchange_v, exchange_v_more, "11 on rank 0", "12 on rank");
}

static void test_counts(void **state) {
    (void)state;
    expect_mismatch_everywhere(all_gather_v, all_gather_5, "a count for each rank",
                               "one count for all");
    expect_mismatch_everywhere(all_gather_v, all_gather_v_sum, "sum of counts", "on rank");
    expect_mismatch_everywhere(all_gather_v, all_gather_v_spread, "hash of the counts", "on rank");
    expect_mismatch_everywhere(reduce_scatter_v, reduce_scatter_v_sum, "sum of counts", "on rank");
    expect_mismatch_everywhere(reduce_scatter_v, reduce_scatter_v_op, "sum on", "product on");
    expect_mismatch_everywhere(gather_v, scatter_v, "gather on", "scatter on");
    expect_mismatch_everywhere(gather_v, gather_600, "a count for each rank", "one count for all");
    expect_mismatch_everywhere(scatter_v, scatter_v_sum, "sum of counts", "on rank");
}

static void test_alloc_bytes(void **state) {
    (void)state;
    expect_mismatch_everywhere(alloc_4096, alloc_8192, "4096", "8192");
}

/* The receiver sees it; the sender, whose message was buffered, hears of it at its next call. */
static void receive_other(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    int values[4] = {0};
    if (rank == 0) {
        CHECK_OK(ls_send(world, values, 4, LS_I32, 1));
        CHECK(ls_barrier(world) == LS_ERR_MISMATCH);
    } else {
        CHECK(ls_recv(world, values, 3, LS_I32, 0) == LS_ERR_MISMATCH);
    }
    CHECK(strstr(ls_error_text(), "3 on rank 1") && strstr(ls_error_text(), "4 on rank 0"));
}

/* Either half of a sendrecv is compared with what it meets. */
static void exchange_other(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    int send[4] = {1, 2, 3, 4}, recv[4] = {5, 5, 5, 5};
    ls_status status;
    if (rank == 0)
        status = ls_sendrecv(world, send, 4, 1, recv, 2, 1, LS_I32);
    else
        status = ls_sendrecv(world, send, 2, 0, recv, 3, 0, LS_I32);
    if (status == LS_OK) /* its own half was in order */
        status = ls_barrier(world);
    ranks_note(status);
    CHECK(status == LS_ERR_MISMATCH);
    CHECK(recv[2] == 5 && recv[3] == 5);
}

static void test_sendrecv(void **state) {
    (void)state;
    ranks r = {.size = 2, .transport = ranks_transport(), .body = exchange_other};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    for (int i = 0; i < 2; i++)
        if (!strstr(r.report[i].text, "3 on rank 1") || !strstr(r.report[i].text, "4 on rank 0"))
            fail_msg("rank %d says: %s", i, r.report[i].text);
    ranks_free(&r);
}

static void test_recv(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, ranks_transport(), receive_other, NULL), 0);
}

/* Rank 0 does what no peer can answer: both wait for each other, and are told so long before the deadline. */
enum { MUCH = 1 << 18 };
static float much[MUCH];

typedef struct standoff {
    void (*first)(ls_group *world, ls_status *status),
        (*second)(ls_group *world, ls_status *status);
} standoff;

static void meets(ls_group *world, ls_status *status) {
    *status = ls_barrier(world);
}

static void takes(ls_group *world, ls_status *status) {
    *status = ls_recv(world, much, MUCH, LS_F32, 1 - ls_group_rank(world));
}

static void gives(ls_group *world, ls_status *status) {
    *status = ls_send(world, much, MUCH, LS_F32, 1 - ls_group_rank(world));
}

static void stand_off(int rank, ls_job *job, void *context) {
    const standoff *both = context;
    ls_status status = LS_OK;
    (rank == 0 ? both->first : both->second)(ls_job_world(job), &status);
    ranks_note(status);
    CHECK(status == LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_text(), "disagree on the operation") ||
          strstr(ls_error_text(), "sends to this rank, which sends to it"));
}

static void test_standoff(void **state) {
    (void)state;
    standoff all[] = {{meets, takes}, {meets, gives}, {gives, gives}, {takes, takes}};
    size_t count = sizeof all / sizeof *all;
    if (strcmp(ranks_transport(), "tcp") == 0)
        count--; /* a recv says nothing over a connection: the deadline finds that both wait */
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ranks_run(2, ranks_transport(), stand_off, &all[i]), 0);
}

/* Pairs that take turns, more ranks than cores, with messages that fill a mailbox or part of it: whoever looks at its
 * peer in the middle of an exchange must not see two that wait for each other. */
static void take_turns(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    const size_t sizes[] = {1, 1024, 4 * (8192 - 128) / sizeof(float), 16384};
    for (int round = 0; round < 1500; round++) {
        size_t count = sizes[round % 4];
        for (int half = 0; half < 2; half++) {
            if ((rank + half) % 2 == 0)
                CHECK_OK(ls_send(world, much, count, LS_F32, rank ^ 1));
            else
                CHECK_OK(ls_recv(world, much, count, LS_F32, rank ^ 1));
        }
        if (round % 50 == 49)
            CHECK_OK(ls_barrier(world));
    }
}

static void test_turns(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, ranks_transport(), take_turns, NULL), 0);
    assert_int_equal(ranks_run(6, ranks_transport(), take_turns, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kind),           cmocka_unit_test(test_count),
        cmocka_unit_test(test_dtype),          cmocka_unit_test(test_op),
        cmocka_unit_test(test_root),           cmocka_unit_test(test_alloc_bytes),
        cmocka_unit_test(test_recv),           cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_gather_scatter), cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_counts),         cmocka_unit_test(test_sendrecv),
        cmocka_unit_test(test_standoff),       cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
