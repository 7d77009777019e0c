/* Every reduction, dtype, size and kind of memory, in worlds of 1 to 8; all_gather, broadcast, send and recv
 * with them. The other operations: test_comm_exchange.c. */
#include "comm_grid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void all_reduce_case(buffers *b, size_t count, ls_dtype dtype, ls_op op) {
    size_t bytes = count * ls_dtype_size(dtype);
    fill(b->expected, 0, count, -1, b->size, dtype, op);
    for (int variant = 0; variant < variants(bytes); variant++) {
        char *send = buffer_of(b, variant / 2, 0);
        char *recv = variant % 2 ? send : buffer_of(b, variant / 2, 1);
        memset(recv, 0x5a, bytes + 8);
        fill(send, 0, count, b->rank, b->size, dtype, op);
        CHECK_OK(ls_all_reduce(b->world, send, recv, count, dtype, op));
        CHECK(memcmp(recv, b->expected, bytes) == 0);
        CHECK(memcmp(recv + bytes, "ZZZZZZZZ", 8) == 0);
    }
}

static void all_reduce(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    buffers b;
    buffers_make(&b, job);
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++)
        for (int op = 0; op < LS_OP_COUNT; op++)
            for (int i = 0; i < COUNTS; i++)
                if (worth_it(i, dtype, op))
                    all_reduce_case(&b, count_at(i, ls_dtype_size(dtype)), dtype, op);
    buffers_free(&b);
}

/* Only the root's recv is written; the others may have none. */
static void reduce_case(buffers *b, size_t count, ls_dtype dtype, ls_op op, int root) {
    size_t bytes = count * ls_dtype_size(dtype);
    fill(b->expected, 0, count, -1, b->size, dtype, op);
    for (int variant = 0; variant < variants(bytes); variant++) {
        char *send = buffer_of(b, variant / 2, 0);
        char *recv = variant % 2 ? send : buffer_of(b, variant / 2, 1);
        memset(recv, 0x5a, bytes + 8);
        fill(send, 0, count, b->rank, b->size, dtype, op);
        bool none = b->rank != root && variant % 2;
        CHECK_OK(ls_reduce(b->world, send, none ? NULL : recv, count, dtype, op, root));
        CHECK(memcmp(recv + bytes, "ZZZZZZZZ", 8) == 0);
        if (b->rank == root)
            CHECK(memcmp(recv, b->expected, bytes) == 0);
        fill(b->third, 0, count, b->rank, b->size, dtype, op);
        if (b->rank != root || recv != send)
            CHECK(memcmp(send, b->third, bytes) == 0);
        for (size_t i = 0; i < bytes && b->rank != root && recv != send; i++)
            CHECK(recv[i] == 0x5a);
    }
}

static void reduce(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    buffers b;
    buffers_make(&b, job);
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++)
        for (int op = 0; op < LS_OP_COUNT; op++)
            for (int i = 0; i < COUNTS; i++)
                if (worth_it(i, dtype, op))
                    reduce_case(&b, count_at(i, ls_dtype_size(dtype)), dtype, op,
                                (i + op) % b.size);
    buffers_free(&b);
}

static void reduce_scatter_case(buffers *b, size_t count, ls_dtype dtype, ls_op op) {
    size_t block = count * ls_dtype_size(dtype), mine = (size_t)b->rank * block;
    fill(b->expected, (size_t)b->rank * count, count, -1, b->size, dtype, op);
    for (int variant = 0; variant < variants(block * (size_t)b->size); variant++) {
        char *send = buffer_of(b, variant / 2, 0);
        char *recv = variant % 2 ? send + mine : buffer_of(b, variant / 2, 1);
        memset(recv, 0x5a, block);
        fill(send, 0, count * (size_t)b->size, b->rank, b->size, dtype, op);
        CHECK_OK(ls_reduce_scatter(b->world, send, recv, count, dtype, op));
        CHECK(memcmp(recv, b->expected, block) == 0);
    }
}

static void all_gather_case(buffers *b, size_t count, ls_dtype dtype) {
    size_t block = count * ls_dtype_size(dtype);
    for (int r = 0; r < b->size; r++)
        fill(b->expected + (size_t)r * block, 0, count, r, b->size, dtype, LS_SUM);
    for (int variant = 0; variant < variants(block); variant++) {
        char *recv = buffer_of(b, variant / 2, 0);
        char *send = variant % 2 ? recv + (size_t)b->rank * block : buffer_of(b, variant / 2, 1);
        memset(recv, 0x5a, block * (size_t)b->size);
        fill(send, 0, count, b->rank, b->size, dtype, LS_SUM);
        CHECK_OK(ls_all_gather(b->world, send, recv, count, dtype));
        CHECK(memcmp(recv, b->expected, block * (size_t)b->size) == 0);
    }
}

static void blocks(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    buffers b;
    buffers_make(&b, job);
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++)
        for (int i = 0; i < COUNTS; i++) {
            size_t count = count_at(i, ls_dtype_size(dtype));
            if (i > 4)
                count /= (size_t)b.size; /* the larger buffer holds a block for each rank */
            if (worth_it(i, dtype, LS_SUM))
                all_gather_case(&b, count, dtype);
            for (int op = 0; op < LS_OP_COUNT; op++)
                if (worth_it(i, dtype, op))
                    reduce_scatter_case(&b, count, dtype, op);
        }
    /* more than two chunks of each rank's own block */
    free(b.plain[0]);
    free(b.expected);
    b.plain[0] = malloc((size_t)b.size * BUFFER_BYTES);
    b.expected = malloc((size_t)b.size * BUFFER_BYTES);
    CHECK(b.plain[0] && b.expected);
    size_t count = LARGE_BYTES / 4 - 3, block = count * 4;
    for (int r = 0; r < b.size; r++)
        fill(b.expected + (size_t)r * block, 0, count, r, b.size, LS_F32, LS_SUM);
    fill(b.plain[1], 0, count, b.rank, b.size, LS_F32, LS_SUM);
    CHECK_OK(ls_all_gather(b.world, b.plain[1], b.plain[0], count, LS_F32));
    CHECK(memcmp(b.plain[0], b.expected, block * (size_t)b.size) == 0);
    buffers_free(&b);
}

static void broadcast(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    buffers b;
    buffers_make(&b, job);
    for (int i = 0; i < COUNTS; i++)
        for (int kind = 0; kind < MEMORIES; kind++)
            for (int root = i % 2; root < b.size; root += 2) {
                size_t count = count_at(i, 4);
                char *buffer = buffer_of(&b, kind, 0);
                fill(b.expected, (size_t)i, count, root, b.size, LS_I32, LS_SUM);
                fill(buffer, (size_t)i + 1, count, b.rank, b.size, LS_I32, LS_SUM);
                if (b.rank == root)
                    memcpy(buffer, b.expected, count * 4);
                CHECK_OK(ls_broadcast(b.world, buffer, count, LS_I32, root));
                CHECK(memcmp(buffer, b.expected, count * 4) == 0);
            }
    buffers_free(&b);
}

/* Around the ring: even ranks send first, so that large messages have a receiver. */
static void point_to_point(int rank, ls_job *job, void *context) {
    (void)context;
    buffers b;
    buffers_make(&b, job);
    int next = (rank + 1) % b.size, before = (rank + b.size - 1) % b.size;
    for (int i = 0; i < COUNTS && b.size > 1; i++)
        for (int kind = 0; kind < MEMORIES; kind++) {
            size_t count = count_at(i, 4);
            char *send = buffer_of(&b, kind, 0), *recv = buffer_of(&b, kind, 1);
            fill(send, 0, count, rank, b.size, LS_F32, LS_SUM);
            fill(b.expected, 0, count, before, b.size, LS_F32, LS_SUM);
            if (rank % 2 == 0)
                CHECK_OK(ls_send(b.world, send, count, LS_F32, next));
            CHECK_OK(ls_recv(b.world, recv, count, LS_F32, before));
            if (rank % 2 == 1)
                CHECK_OK(ls_send(b.world, send, count, LS_F32, next));
            CHECK(memcmp(recv, b.expected, count * 4) == 0);
        }
    buffers_free(&b);
}

/* Small messages are buffered: everyone may send before anyone receives. */
static void small_sends(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    int size = ls_group_size(world);
    for (int round = 0; round < 200; round++) {
        for (int to = 0; to < size; to++) {
            int value = rank * 1000 + to + round;
            if (to != rank)
                CHECK_OK(ls_send(world, &value, 1, LS_I32, to));
        }
        for (int from = 0; from < size; from++) {
            int value = 0;
            if (from == rank)
                continue;
            CHECK_OK(ls_recv(world, &value, 1, LS_I32, from));
            CHECK(value == from * 1000 + rank + round);
        }
    }
}

/* --- tests ----------------------------------------------------------------------------------------- */

static void on_all_worlds(ranks_body body) {
    for (int i = 0; i < RANKS_WORLDS; i++)
        assert_int_equal(ranks_run(ranks_worlds[i], ranks_transport(), body, NULL), 0);
}

static void test_all_reduce(void **state) {
    (void)state;
    on_all_worlds(all_reduce);
}

static void test_reduce(void **state) {
    (void)state;
    on_all_worlds(reduce);
}

static void test_blocks(void **state) {
    (void)state;
    on_all_worlds(blocks);
}

static void test_broadcast(void **state) {
    (void)state;
    on_all_worlds(broadcast);
}

static void test_point_to_point(void **state) {
    (void)state;
    on_all_worlds(point_to_point);
}

static void test_small_sends(void **state) {
    (void)state;
    on_all_worlds(small_sends);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce),     cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_blocks),         cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_point_to_point), cmocka_unit_test(test_small_sends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
