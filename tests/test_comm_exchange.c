/* gather, scatter, all_to_all, sendrecv and the uneven forms: every dtype, size and kind of memory, in and out of
 * place, in worlds of 1 to 8. */
#include "comm_grid.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* --- blocks, even and uneven ----------------------------------------------------------------------- */

/* Block r of the larger buffer. Uneven: some twice as long as others, some empty. */
typedef struct layout {
    int size;
    size_t count[RANKS_MAX], first[RANKS_MAX + 1];
} layout;

static layout layout_of(int size, size_t count, bool uneven) {
    layout l = {.size = size};
    for (int r = 0; r < size; r++) {
        l.count[r] = !uneven ? count : r % 3 == 1 ? 0 : r % 3 == 2 ? count : count / 2 + count % 2;
        l.first[r + 1] = l.first[r] + l.count[r];
    }
    return l;
}

typedef struct blocks {
    buffers b;
    layout l;
    ls_dtype dtype;
    bool uneven;
    int root;
} blocks;

static size_t bytes_of(const blocks *k, size_t count) {
    return count * ls_dtype_size(k->dtype);
}

/* The pattern of rank r's block, as it leaves that rank or is meant for it. */
static void fill_block(const blocks *k, char *at, int r) {
    fill(at, (size_t)r, k->l.count[r], r, k->l.size, k->dtype, LS_SUM);
}

static void fill_all(const blocks *k, char *larger) {
    for (int r = 0; r < k->l.size; r++)
        fill_block(k, larger + bytes_of(k, k->l.first[r]), r);
}

static bool untouched(const char *buffer, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (buffer[i] != 0x5a)
            return false;
    return true;
}

static ls_status call_gather(const blocks *k, const void *send, void *recv) {
    return k->uneven ? ls_gather_v(k->b.world, send, recv, k->l.count, k->dtype, k->root)
                     : ls_gather(k->b.world, send, recv, k->l.count[0], k->dtype, k->root);
}

static void gather_case(blocks *k) {
    const int rank = k->b.rank;
    const size_t all = bytes_of(k, k->l.first[k->l.size]), mine = bytes_of(k, k->l.count[rank]);
    fill_all(k, k->b.expected);
    for (int variant = 0; variant < variants(all / (size_t)k->l.size); variant++) {
        char *recv = buffer_of(&k->b, variant / 2, 0), *other = buffer_of(&k->b, variant / 2, 1);
        char *send = variant % 2 ? recv + bytes_of(k, k->l.first[rank]) : other;
        memset(recv, 0x5a, all + 8);
        fill_block(k, send, rank);
        bool none = rank != k->root && variant % 2;
        CHECK_OK(call_gather(k, send, none ? NULL : recv));
        CHECK(untouched(recv + all, 8));
        if (rank == k->root)
            CHECK(memcmp(recv, k->b.expected, all) == 0);
        else if (!none)
            CHECK(untouched(recv, all));
        fill_block(k, k->b.third, rank);
        CHECK(memcmp(send, k->b.third, mine) == 0);
    }
}

static ls_status call_scatter(const blocks *k, const void *send, void *recv) {
    return k->uneven ? ls_scatter_v(k->b.world, send, recv, k->l.count, k->dtype, k->root)
                     : ls_scatter(k->b.world, send, recv, k->l.count[0], k->dtype, k->root);
}

static void scatter_case(blocks *k) {
    const int rank = k->b.rank;
    const size_t all = bytes_of(k, k->l.first[k->l.size]), mine = bytes_of(k, k->l.count[rank]);
    fill_block(k, k->b.expected, rank);
    for (int variant = 0; variant < variants(all / (size_t)k->l.size); variant++) {
        char *send = buffer_of(&k->b, variant / 2, 0), *other = buffer_of(&k->b, variant / 2, 1);
        char *recv = variant % 2 ? send + bytes_of(k, k->l.first[rank]) : other;
        memset(send, 0x5a, all);
        memset(other, 0x5a, mine + 8);
        if (rank == k->root)
            fill_all(k, send);
        CHECK_OK(call_scatter(k, rank == k->root || variant % 2 == 0 ? send : NULL, recv));
        CHECK(memcmp(recv, k->b.expected, mine) == 0);
        CHECK(variant % 2 || untouched(recv + mine, 8));
        fill_all(k, k->b.third);
        if (rank == k->root)
            CHECK(memcmp(send, k->b.third, all) == 0);
    }
}

static ls_status call_all_gather(const blocks *k, const void *send, void *recv) {
    return ls_all_gather_v(k->b.world, send, recv, k->l.count, k->dtype);
}

static void all_gather_v_case(blocks *k) {
    const int rank = k->b.rank;
    const size_t all = bytes_of(k, k->l.first[k->l.size]);
    fill_all(k, k->b.expected);
    for (int variant = 0; variant < variants(all / (size_t)k->l.size); variant++) {
        char *recv = buffer_of(&k->b, variant / 2, 0), *other = buffer_of(&k->b, variant / 2, 1);
        char *send = variant % 2 ? recv + bytes_of(k, k->l.first[rank]) : other;
        memset(recv, 0x5a, all + 8);
        fill_block(k, send, rank);
        CHECK_OK(call_all_gather(k, send, recv));
        CHECK(memcmp(recv, k->b.expected, all) == 0 && untouched(recv + all, 8));
    }
}

static void reduce_scatter_v_case(blocks *k, ls_op op) {
    const int rank = k->b.rank, size = k->l.size;
    const size_t all = k->l.first[size], mine = bytes_of(k, k->l.count[rank]);
    fill(k->b.expected, k->l.first[rank], k->l.count[rank], -1, size, k->dtype, op);
    for (int variant = 0; variant < variants(bytes_of(k, all)); variant++) {
        char *send = buffer_of(&k->b, variant / 2, 0), *other = buffer_of(&k->b, variant / 2, 1);
        char *recv = variant % 2 ? send + bytes_of(k, k->l.first[rank]) : other;
        memset(other, 0x5a, mine + 8);
        fill(send, 0, all, rank, size, k->dtype, op);
        CHECK_OK(ls_reduce_scatter_v(k->b.world, send, recv, k->l.count, k->dtype, op));
        CHECK(memcmp(recv, k->b.expected, mine) == 0);
        CHECK(variant % 2 || untouched(recv + mine, 8));
    }
}

/* Every case for one dtype and size; the larger buffer holds a block for each rank. */
static void one_size(blocks *k, size_t count, int i) {
    for (int uneven = 0; uneven < 2; uneven++) {
        k->uneven = uneven;
        k->l = layout_of(k->b.size, count, uneven);
        k->root = (i + uneven) % k->b.size;
        gather_case(k);
        scatter_case(k);
        if (!uneven)
            continue;
        all_gather_v_case(k);
        for (int op = 0; op < LS_OP_COUNT; op++)
            if (worth_it(i, k->dtype, op))
                reduce_scatter_v_case(k, op);
    }
}

static void all_blocks(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    blocks k = {0};
    buffers_make(&k.b, job);
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++)
        for (int i = 0; i < COUNTS; i++) {
            size_t count = count_at(i, ls_dtype_size(dtype));
            k.dtype = dtype;
            if (i > 4)
                count /= (size_t)k.b.size;
            if (worth_it(i, dtype, LS_SUM))
                one_size(&k, count, i);
        }
    buffers_free(&k.b);
}

/* --- all_to_all ------------------------------------------------------------------------------------- */

static void all_to_all_case(buffers *b, size_t count, ls_dtype dtype) {
    const size_t block = count * ls_dtype_size(dtype), all = block * (size_t)b->size;
    for (int r = 0; r < b->size; r++)
        fill(b->expected + (size_t)r * block, (size_t)b->rank, count, r, b->size, dtype, LS_SUM);
    for (int variant = 0; variant < variants(all); variant++) {
        char *send = buffer_of(b, variant / 2, 0);
        char *recv = variant % 2 ? send : buffer_of(b, variant / 2, 1);
        memset(recv, 0x5a, all + 8);
        for (int r = 0; r < b->size; r++)
            fill(send + (size_t)r * block, (size_t)r, count, b->rank, b->size, dtype, LS_SUM);
        CHECK_OK(ls_all_to_all(b->world, send, recv, count, dtype));
        CHECK(memcmp(recv, b->expected, all) == 0 && untouched(recv + all, 8));
    }
}

/* Elements from rank `from` to rank `to`. */
static size_t pair_count(int from, int to, size_t count) {
    return (from * 3 + to) % 4 == 0 ? 0 : count / (size_t)(1 + (from + to) % 3) + (size_t)(to % 2);
}

static void all_to_all_v_case(buffers *b, size_t count, ls_dtype dtype) {
    const size_t element = ls_dtype_size(dtype);
    size_t sends[RANKS_MAX], recvs[RANKS_MAX];
    for (int kind = 0; kind < MEMORIES; kind++) {
        char *send = buffer_of(b, kind, 0), *recv = buffer_of(b, kind, 1);
        size_t out = 0, in = 0;
        for (int r = 0; r < b->size; r++) {
            sends[r] = pair_count(b->rank, r, count);
            recvs[r] = pair_count(r, b->rank, count);
            fill(send + out, (size_t)r, sends[r], b->rank, b->size, dtype, LS_SUM);
            fill(b->expected + in, (size_t)b->rank, recvs[r], r, b->size, dtype, LS_SUM);
            out += sends[r] * element;
            in += recvs[r] * element;
        }
        memset(recv, 0x5a, in + 8);
        CHECK_OK(ls_all_to_all_v(b->world, send, sends, recv, recvs, dtype));
        CHECK(memcmp(recv, b->expected, in) == 0 && untouched(recv + in, 8));
    }
}

static void all_to_all(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    buffers b;
    buffers_make(&b, job);
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++)
        for (int i = 0; i < COUNTS; i++) {
            size_t count = count_at(i, ls_dtype_size(dtype));
            if (i > 4)
                count /= (size_t)b.size;
            if (!worth_it(i, dtype, LS_SUM))
                continue;
            all_to_all_case(&b, count, dtype);
            all_to_all_v_case(&b, count, dtype);
        }
    buffers_free(&b);
}

/* --- sendrecv --------------------------------------------------------------------------------------- */

/* Around the ring by every distance, the peer in the middle and this rank itself included. */
static void shift(int rank, ls_job *job, void *context) {
    (void)context;
    buffers b;
    buffers_make(&b, job);
    for (int i = 0; i < COUNTS; i++)
        for (int distance = 0; distance < b.size; distance++) {
            const int to = (rank + distance) % b.size, from = (rank + b.size - distance) % b.size;
            const size_t count = count_at(i, 2);
            const int kind = (i + distance) % MEMORIES;
            char *send = buffer_of(&b, kind, 0), *recv = buffer_of(&b, kind, 1);
            fill(send, 0, count, rank, b.size, LS_BF16, LS_SUM);
            fill(b.expected, 0, count, from, b.size, LS_BF16, LS_SUM);
            memset(recv, 0x5a, count * 2 + 8);
            CHECK_OK(ls_sendrecv(b.world, send, count, to, recv, count, from, LS_BF16));
            CHECK(memcmp(recv, b.expected, count * 2) == 0 && untouched(recv + count * 2, 8));
        }
    buffers_free(&b);
}

/* Different counts both ways, small beside large; one side of a pair may take turns instead. */
static void pairs(int rank, ls_job *job, void *context) {
    (void)context;
    buffers b;
    buffers_make(&b, job);
    const int peer = rank ^ 1;
    for (int i = 0; i < COUNTS && peer < b.size; i++)
        for (int k = 0; k < COUNTS; k++) {
            const size_t up = count_at(i, 4),
                         down = count_at(k, 4); /* from the even to the odd rank */
            const size_t out = rank % 2 ? down : up, in = rank % 2 ? up : down;
            char *send = b.plain[0], *recv = b.plain[1];
            fill(send, 1, out, rank, b.size, LS_I32, LS_SUM);
            fill(b.expected, 1, in, peer, b.size, LS_I32, LS_SUM);
            if (rank % 2 == 0 || k % 3 == 0) {
                CHECK_OK(ls_sendrecv(b.world, send, out, peer, recv, in, peer, LS_I32));
            } else if (k % 3 == 1) {
                CHECK_OK(ls_send(b.world, send, out, LS_I32, peer));
                CHECK_OK(ls_recv(b.world, recv, in, LS_I32, peer));
            } else {
                CHECK_OK(ls_recv(b.world, recv, in, LS_I32, peer));
                CHECK_OK(ls_send(b.world, send, out, LS_I32, peer));
            }
            CHECK(memcmp(recv, b.expected, in * 4) == 0);
        }
    buffers_free(&b);
}

/* --- started forms ---------------------------------------------------------------------------------- */

static void started(int rank, ls_job *job, void *context) {
    (void)context;
    enum { N = 3, WORKS = 10 };
    ls_group *world = ls_job_world(job);
    const int size = ls_group_size(world), last = size - 1;
    int all[WORKS][RANKS_MAX * N], one[WORKS][RANKS_MAX * N];
    size_t counts[RANKS_MAX];
    ls_work *work[WORKS];
    for (int i = 0; i < RANKS_MAX * N; i++)
        for (int w = 0; w < WORKS; w++) {
            all[w][i] = rank + i;
            one[w][i] = -1;
        }
    for (int r = 0; r < size; r++)
        counts[r] = N;
    CHECK_OK(ls_reduce_start(world, all[0], one[0], N, LS_I32, LS_SUM, last, &work[0]));
    CHECK_OK(ls_gather_start(world, all[1], one[1], N, LS_I32, last, &work[1]));
    CHECK_OK(ls_scatter_start(world, all[2], one[2], N, LS_I32, last, &work[2]));
    CHECK_OK(ls_all_to_all_start(world, all[3], one[3], N, LS_I32, &work[3]));
    CHECK_OK(ls_reduce_scatter_v_start(world, all[4], one[4], counts, LS_I32, LS_MAX, &work[4]));
    CHECK_OK(ls_all_gather_v_start(world, all[5], one[5], counts, LS_I32, &work[5]));
    CHECK_OK(ls_gather_v_start(world, all[6], one[6], counts, LS_I32, last, &work[6]));
    CHECK_OK(ls_scatter_v_start(world, all[7], one[7], counts, LS_I32, last, &work[7]));
    CHECK_OK(ls_all_to_all_v_start(world, all[8], counts, one[8], counts, LS_I32, &work[8]));
    CHECK_OK(ls_sendrecv_start(world, all[9], N, (rank + 1) % size, one[9], N,
                               (rank + size - 1) % size, LS_I32, &work[9]));
    for (int w = 0; w < WORKS; w++)
        CHECK_OK(ls_work_wait(work[w], NULL));
    for (int i = 0; i < N; i++) {
        const int own = rank * N + i;
        CHECK(one[0][i] == (rank == last ? size * i + size * (size - 1) / 2 : -1));
        CHECK(one[2][i] == last + own && one[7][i] == last + own && one[4][i] == last + own);
        CHECK(one[9][i] == (rank + size - 1) % size + i);
        for (int r = 0; r < size; r++) {
            CHECK(one[1][r * N + i] == (rank == last ? r + i : -1));
            CHECK(one[6][r * N + i] == (rank == last ? r + i : -1));
            CHECK(one[3][r * N + i] == r + own && one[8][r * N + i] == r + own);
            CHECK(one[5][r * N + i] == r + i);
        }
    }
}

/* --- arguments -------------------------------------------------------------------------------------- */

static void arguments(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    const int size = ls_group_size(world);
    float a[64] = {0}, c[64] = {0};
    size_t counts[RANKS_MAX], huge[RANKS_MAX];
    ls_work *work = (ls_work *)(void *)a;
    for (int r = 0; r < size; r++) {
        counts[r] = 2;
        huge[r] = SIZE_MAX / 2 + 1;
    }
    CHECK(ls_reduce(NULL, a, c, 1, LS_F32, LS_SUM, 0) == LS_ERR_ARGUMENT);
    CHECK(ls_reduce(world, a, c, 1, LS_F32, LS_SUM, size) == LS_ERR_ARGUMENT);
    CHECK(ls_reduce(world, a, a + 1, 2, LS_F32, LS_SUM, rank) == LS_ERR_ARGUMENT);
    CHECK(ls_reduce(world, a, NULL, 2, LS_F32, LS_SUM, rank) == LS_ERR_ARGUMENT);
    CHECK(ls_gather(world, a, c, 1, LS_F32, -1) == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_text(), "root is -1"));
    CHECK(ls_gather(NULL, a, c, 1, LS_F32, 0) == LS_ERR_ARGUMENT);
    CHECK(ls_gather(world, a, NULL, 1, LS_F32, rank) == LS_ERR_ARGUMENT);
    CHECK(ls_gather(world, a + rank * 2 + 1, a, 2, LS_F32, rank) == LS_ERR_ARGUMENT);
    CHECK(ls_gather_v(world, a, c, NULL, LS_F32, 0) == LS_ERR_ARGUMENT);
    CHECK(ls_gather_v(NULL, a, c, counts, LS_F32, 0) == LS_ERR_ARGUMENT);
    CHECK(ls_scatter(world, NULL, c, 1, LS_F32, rank) == LS_ERR_ARGUMENT);
    CHECK(ls_scatter(world, a, NULL, 1, LS_F32, rank) == LS_ERR_ARGUMENT);
    CHECK(ls_scatter_v(world, a, c, huge, LS_F32, 0) == LS_ERR_ARGUMENT);
    CHECK(ls_all_gather_v(world, a, c, huge, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_reduce_scatter_v(world, a, c, counts, LS_F32, LS_OP_COUNT) == LS_ERR_ARGUMENT);
    CHECK(ls_all_to_all(world, a, a + 1, 2, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_all_to_all(world, a, NULL, 2, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_all_to_all(world, a, c, SIZE_MAX / 4, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_all_to_all_v(world, a, counts, a, counts, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_all_to_all_v(world, a, counts, c, NULL, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_sendrecv(world, a, 1, size, c, 1, 0, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_sendrecv(world, a, 1, 0, c, 1, -1, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_sendrecv(world, a, 1, rank, c, 2, rank, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_sendrecv(world, a, 2, 0, a + 1, 2, 0, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(size == 1 ||
          ls_sendrecv(world, a, 1, rank, c, 1, (rank + 1) % size, LS_F32) == LS_ERR_ARGUMENT);
    CHECK(ls_gather_start(world, a, c, 1, LS_F32, 0, NULL) == LS_ERR_ARGUMENT);
    CHECK(ls_scatter_v_start(world, a, c, NULL, LS_F32, 0, &work) == LS_ERR_ARGUMENT && !work);
    /* none of these broke the group, or took a number on one rank only; nothing of nothing is fine */
    for (int r = 0; r < size; r++)
        counts[r] = 0;
    CHECK_OK(ls_all_gather_v(world, NULL, NULL, counts, LS_F32));
    CHECK_OK(ls_all_to_all_v(world, NULL, counts, NULL, counts, LS_F32));
    CHECK_OK(ls_gather(world, NULL, NULL, 0, LS_F32, 0));
    CHECK_OK(ls_barrier(world));
}

/* --- tests ------------------------------------------------------------------------------------------ */

static void on_all_worlds(ranks_body body) {
    for (int i = 0; i < RANKS_WORLDS; i++)
        assert_int_equal(ranks_run(ranks_worlds[i], ranks_transport(), body, NULL), 0);
}

static void test_blocks(void **state) {
    (void)state;
    on_all_worlds(all_blocks);
}

static void test_all_to_all(void **state) {
    (void)state;
    on_all_worlds(all_to_all);
}

static void test_shift(void **state) {
    (void)state;
    on_all_worlds(shift);
}

static void test_pairs(void **state) {
    (void)state;
    on_all_worlds(pairs);
}

static void test_started(void **state) {
    (void)state;
    on_all_worlds(started);
}

static void test_arguments(void **state) {
    (void)state;
    on_all_worlds(arguments);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),  cmocka_unit_test(test_all_to_all),
        cmocka_unit_test(test_shift),   cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_started), cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
