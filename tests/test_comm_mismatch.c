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
    CHECK_OK(ls_barrier(world));
    ranks_note((last ? m->last : m->most)(world, buffer));
    /* Over shared memory every rank compares with every other before it hears of anyone's failure;
     * over sockets the news may come first, with the same words. */
    bool heard = my_report->status == LS_ERR_PEER && strcmp(ls_job_transport(job), "tcp") == 0;
    CHECK(my_report->status == LS_ERR_MISMATCH || heard);
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

static void test_recv(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, ranks_transport(), receive_other, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kind),  cmocka_unit_test(test_count),
        cmocka_unit_test(test_dtype), cmocka_unit_test(test_op),
        cmocka_unit_test(test_root),  cmocka_unit_test(test_alloc_bytes),
        cmocka_unit_test(test_recv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
