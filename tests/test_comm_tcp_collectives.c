/* Every collective over tcp: all operations, dtypes and worlds, sizes around every boundary, in and out
 * of place, on inputs whose results are exact; float sums bit by bit against the tree order and against
 * shared memory. */
#include "ranks.h"

#include "comm/reduce.h"
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const int worlds[] = {1, 2, 3, 4, 5, 7, 8};
enum { WORLDS = sizeof worlds / sizeof worlds[0] };

/* Element i of rank r as a small integer: sums and products of 8 ranks stay exact, also in 16 bits. */
static int small(int rank, size_t i, ls_op op) {
    if (op == LS_PRODUCT)
        return rank % 3 == 0 ? 2 - (int)(i % 2) : 1;
    return (int)((i * 7 + (size_t)rank * 3) % 5);
}

static int expected(int size, size_t i, ls_op op) {
    int value = small(0, i, op);
    for (int rank = 1; rank < size; rank++) {
        int x = small(rank, i, op);
        value = op == LS_PRODUCT ? value * x
                : op == LS_MIN   ? (x < value ? x : value)
                : op == LS_MAX   ? (x > value ? x : value)
                                 : value + x;
    }
    return value;
}

static uint16_t to_half(int value) { /* 0 <= value < 2048 */
    if (value == 0)
        return 0;
    int exponent = 31 - __builtin_clz((unsigned)value);
    return (uint16_t)((exponent + 15) << 10 | ((value << 10 >> exponent) & 0x3ff));
}

static uint16_t to_bf16(int value) {
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)(bits >> 16);
}

static void put(void *buffer, size_t i, ls_dtype dtype, int value) {
    switch (dtype) {
    case LS_F32:
        ((float *)buffer)[i] = (float)value;
        break;
    case LS_F64:
        ((double *)buffer)[i] = value;
        break;
    case LS_F16:
        ((uint16_t *)buffer)[i] = to_half(value);
        break;
    case LS_BF16:
        ((uint16_t *)buffer)[i] = to_bf16(value);
        break;
    case LS_I8:
        ((int8_t *)buffer)[i] = (int8_t)value;
        break;
    case LS_U8:
        ((uint8_t *)buffer)[i] = (uint8_t)value;
        break;
    case LS_I32:
        ((int32_t *)buffer)[i] = value;
        break;
    default:
        ((int64_t *)buffer)[i] = value;
    }
}

static bool holds(const void *buffer, size_t i, ls_dtype dtype, int value) {
    size_t element = ls_dtype_size(dtype);
    char want[8];
    put(want, 0, dtype, value);
    return memcmp((const char *)buffer + i * element, want, element) == 0;
}

/* The next element to look at: all of a small buffer, a part of a large one that meets every chunk. */
static size_t next(size_t i, size_t count) {
    return count <= 2000 ? i + 1 : i + 61 < count || i + 1 == count ? i + 61 : count - 1;
}

static void all_reduce_case(ls_group *world, char *a, char *b, size_t count, ls_dtype dtype,
                            ls_op op, bool in_place) {
    int rank = ls_group_rank(world), size = ls_group_size(world);
    size_t bytes = count * ls_dtype_size(dtype);
    char *recv = in_place ? a : b;
    for (size_t i = 0; i < count; i++)
        put(a, i, dtype, small(rank, i, op));
    memset(recv + bytes, 0x5a, 16);
    CHECK_OK(ls_all_reduce(world, a, recv, count, dtype, op));
    for (size_t i = 0; i < count; i = next(i, count))
        CHECK(holds(recv, i, dtype, expected(size, i, op)));
    for (size_t i = 0; i < 16; i++)
        CHECK(recv[bytes + i] == 0x5a);
    for (size_t i = 0; i < count && !in_place; i = next(i, count))
        CHECK(holds(a, i, dtype, small(rank, i, op)));
}

static void all_reduces(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    ls_group *world = ls_job_world(job);
    static const size_t counts[] = {0, 1, 2, 7, 511, 1025};
    char *a = malloc(1 << 16), *b = malloc(1 << 16);
    CHECK(a && b);
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++)
        for (int op = LS_SUM; op <= LS_MAX; op++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                all_reduce_case(world, a, b, counts[c], dtype, op, (c + (size_t)op) % 2);
    free(a);
    free(b);
}

/* Around the one-shot limit, the frame and the chunk, and several rounds. */
static void large(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    ls_group *world = ls_job_world(job);
    size_t size = (size_t)ls_group_size(world), chunk = 65536;
    const size_t counts[] = {
        1024, 1025, 32768 * size, chunk * size - 1, chunk * size + 1, 3 * chunk * size + 5};
    char *a = malloc(8 << 20), *b = malloc(8 << 20);
    CHECK(a && b);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        all_reduce_case(world, a, b, counts[c], LS_F32, LS_SUM, c % 2);
        if (c < 3)
            all_reduce_case(world, a, b, counts[c], LS_BF16, LS_SUM, (c + 1) % 2);
    }
    free(a);
    free(b);
}

static void reduce_scatter_case(ls_group *world, size_t count, ls_dtype dtype, ls_op op,
                                bool in_place) {
    int rank = ls_group_rank(world), size = ls_group_size(world);
    size_t all = count * (size_t)size, mine = count * (size_t)rank, element = ls_dtype_size(dtype);
    char *send = malloc(all * element + 16), *out = malloc(count * element + 16);
    CHECK(send && out);
    for (size_t i = 0; i < all; i++)
        put(send, i, dtype, small(rank, i, op));
    char *recv = in_place ? send + mine * element : out;
    CHECK_OK(ls_reduce_scatter(world, send, recv, count, dtype, op));
    for (size_t i = 0; i < count; i = next(i, count))
        CHECK(holds(recv, i, dtype, expected(size, mine + i, op)));
    for (size_t i = 0; i < all; i = next(i, all))
        CHECK((in_place && i >= mine && i < mine + count) ||
              holds(send, i, dtype, small(rank, i, op)));
    free(send);
    free(out);
}

static void all_gather_case(ls_group *world, size_t count, ls_dtype dtype, bool in_place) {
    int rank = ls_group_rank(world), size = ls_group_size(world);
    size_t element = ls_dtype_size(dtype), bytes = count * element;
    char *recv = malloc(bytes * (size_t)size + 16), *own = malloc(bytes + 16);
    CHECK(recv && own);
    char *send = in_place ? recv + bytes * (size_t)rank : own;
    for (size_t i = 0; i < count; i++)
        put(send, i, dtype, small(rank, i, LS_SUM));
    CHECK_OK(ls_all_gather(world, send, recv, count, dtype));
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < count; i = next(i, count))
            CHECK(holds(recv + (size_t)r * bytes, i, dtype, small(r, i, LS_SUM)));
    free(recv);
    free(own);
}

static void broadcast_case(ls_group *world, size_t count, ls_dtype dtype, int root) {
    int rank = ls_group_rank(world);
    char *buffer = malloc(count * ls_dtype_size(dtype) + 16);
    CHECK(buffer);
    for (size_t i = 0; i < count; i++)
        put(buffer, i, dtype, rank == root ? (int)(i % 100) : 101);
    CHECK_OK(ls_broadcast(world, buffer, count, dtype, root));
    for (size_t i = 0; i < count; i = next(i, count))
        CHECK(holds(buffer, i, dtype, (int)(i % 100)));
    free(buffer);
}

static void others(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    ls_group *world = ls_job_world(job);
    static const size_t counts[] = {0, 1, 3, 1000, 65537, 100001};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
            if (counts[c] > 40000 && dtype != LS_F32)
                continue;
            reduce_scatter_case(world, counts[c], dtype, (ls_op)(dtype % LS_AVG), c % 2);
            all_gather_case(world, counts[c], dtype, (c + (size_t)dtype) % 2);
            broadcast_case(world, counts[c], dtype, (int)(c % (size_t)ls_group_size(world)));
        }
        CHECK_OK(ls_barrier(world));
    }
}

/* Numbers whose float sums depend on the order. */
static float rough(int rank, size_t i) {
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return ldexpf((float)(x & 0xffffff) - 8388608.0f, (int)(x >> 24) % 30 - 40);
}

static float tree(int first, int n, size_t i) {
    if (n == 1)
        return rough(first, i);
    int half = 1;
    while (half * 2 < n)
        half *= 2;
    float a = tree(first, half, i), b = tree(first + half, n - half, i);
    return a + b;
}

static uint64_t hash(uint64_t h, const float *x, size_t count) {
    uint32_t bits;
    for (size_t i = 0; i < count; i++) {
        memcpy(&bits, &x[i], sizeof bits);
        h = (h ^ bits) * 1099511628211u;
    }
    return h;
}

static void check_tree(ls_group *world, float *x, size_t count) {
    int rank = ls_group_rank(world), size = ls_group_size(world);
    for (size_t i = 0; i < count; i++)
        x[i] = rough(rank, i);
    CHECK_OK(ls_all_reduce(world, x, x, count, LS_F32, LS_SUM));
    for (size_t i = 0; i < count; i = next(i, count)) {
        float want = tree(0, size, i);
        CHECK(memcmp(&x[i], &want, sizeof want) == 0);
    }
}

/* The other reductions make the same sums: to a root, and scattered unevenly. */
static void check_others(ls_group *world, float *x, size_t count) {
    int rank = ls_group_rank(world), size = ls_group_size(world), root = (int)count % size;
    size_t counts[RANKS_MAX] = {0}, first = 0;
    for (size_t i = 0; i < count; i++)
        x[i] = rough(rank, i);
    CHECK_OK(ls_reduce(world, x, x, count, LS_F32, LS_SUM, root));
    for (size_t i = 0; i < count && rank == root; i = next(i, count)) {
        float want = tree(0, size, i);
        CHECK(memcmp(&x[i], &want, sizeof want) == 0);
    }
    for (size_t i = 0; i < count; i++)
        x[i] = rough(rank, i);
    for (int r = 0; r < size; r++)
        counts[r] = count / 3 / (size_t)(1 + r);
    counts[size / 2] = 0;
    for (int r = 0; r < rank; r++)
        first += counts[r];
    CHECK_OK(ls_reduce_scatter_v(world, x, x + first, counts, LS_F32, LS_SUM));
    for (size_t i = 0; i < counts[rank]; i = next(i, counts[rank])) {
        float want = tree(0, size, first + i);
        CHECK(memcmp(&x[first + i], &want, sizeof want) == 0);
    }
}

static void check_weighted(ls_group *world, float *x, size_t count) {
    int rank = ls_group_rank(world), size = ls_group_size(world);
    double total = -1, want_total = 0;
    for (int r = 0; r < size; r++)
        want_total += r % 3 * 1.5;
    for (size_t i = 0; i < count; i++)
        x[i] = rough(rank, i);
    CHECK_OK(ls_all_reduce_weighted(world, x, x, count, LS_F32, rank % 3 * 1.5, &total));
    CHECK(total == want_total);
    for (size_t i = 0; i < count; i = next(i, count)) {
        float want = total == 0 ? 0 : tree(0, size, i) * (float)(1 / total);
        CHECK(memcmp(&x[i], &want, sizeof want) == 0);
    }
}

static void floats(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    static const size_t counts[] = {1, 3, 1000, 1025, 70001, 300011};
    float *x = malloc(300011 * sizeof *x);
    uint64_t h = 14695981039346656037u;
    double total = -1;
    CHECK(x);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        check_tree(world, x, counts[c]);
        h = hash(h, x, counts[c]);
        check_others(world, x, counts[c]);
        check_weighted(world, x, counts[c]);
        h = hash(h, x, counts[c]);
        for (size_t i = 0; i < counts[c]; i++)
            x[i] = rough(rank, i);
        CHECK_OK(ls_all_reduce(world, x, x, counts[c], LS_F32, LS_AVG));
        h = hash(h, x, counts[c]);
    }
    for (size_t i = 0; i < 2000; i++)
        x[i] = i % 2 ? NAN : 1;
    CHECK_OK(ls_all_reduce_weighted(world, x, x, 2000, LS_F32, 0, &total));
    for (size_t i = 0; i < 2000; i++)
        CHECK(x[i] == 0);
    CHECK(total == 0);
    free(x);
    my_report->value = h;
}

static void memory(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    char *a, *b;
    CHECK_OK(ls_group_alloc(world, 100001, (void **)&a));
    CHECK_OK(ls_group_alloc(world, 0, (void **)&b));
    CHECK((uintptr_t)a % 4096 == 0 && (uintptr_t)b % 4096 == 0);
    for (size_t i = 0; i < 100001; i++)
        CHECK(a[i] == 0);
    a[100000] = (char)rank;
    CHECK_OK(ls_group_free(world, a));
    CHECK_OK(ls_group_free(world, NULL));
    CHECK(ls_group_free(world, &rank) == LS_ERR_ARGUMENT);
    CHECK_OK(ls_barrier(world)); /* b is freed with the job */
}

static void too_much_memory(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    void *a = NULL;
    CHECK(ls_group_alloc(ls_job_world(job), (size_t)1 << 46, &a) == LS_ERR_MEMORY);
    CHECK(a == NULL);
}

/* Descriptors after the job are those before it, and all of its own are close-on-exec. */
static int count_fds(int flag) {
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        count += flags != -1 && (flags & FD_CLOEXEC) == flag;
    }
    return count;
}

static void descriptors(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    int plain = count_fds(0), closing = count_fds(FD_CLOEXEC);
    CHECK_OK(ls_job_init(&job, NULL));
    CHECK(count_fds(0) == plain && count_fds(FD_CLOEXEC) > closing);
    CHECK_OK(ls_barrier(ls_job_world(job)));
    ls_job_finish(job);
    CHECK(count_fds(0) == plain && count_fds(FD_CLOEXEC) == closing);
}

static void test_all_reduce(void **state) {
    (void)state;
    for (int w = 0; w < WORLDS; w++)
        assert_int_equal(ranks_run(worlds[w], "tcp", all_reduces, NULL), 0);
}

static void test_large(void **state) {
    (void)state;
    for (int w = 0; w < WORLDS; w++)
        assert_int_equal(ranks_run(worlds[w], "tcp", large, NULL), 0);
}

static void test_others(void **state) {
    (void)state;
    for (int w = 0; w < WORLDS; w++)
        assert_int_equal(ranks_run(worlds[w], "tcp", others, NULL), 0);
}

static void test_floats_as_on_shm(void **state) {
    (void)state;
    for (int w = 0; w < WORLDS; w++) {
        ranks a = {.size = worlds[w], .transport = "tcp", .body = floats};
        ranks b = {.size = worlds[w], .transport = "shm", .body = floats};
        ranks_start(&a);
        assert_int_equal(ranks_wait(&a), 0);
        ranks_start(&b);
        assert_int_equal(ranks_wait(&b), 0);
        for (int rank = 0; rank < worlds[w]; rank++) {
            assert_true(a.report[rank].value != 0);
            assert_true(a.report[rank].value == a.report[0].value);
            assert_true(a.report[rank].value == b.report[rank].value);
        }
        ranks_free(&a);
        ranks_free(&b);
    }
}

static void test_memory(void **state) {
    (void)state;
    assert_int_equal(ranks_run(1, "tcp", memory, NULL), 0);
    assert_int_equal(ranks_run(3, "tcp", memory, NULL), 0);
    assert_int_equal(ranks_run(3, "tcp", too_much_memory, NULL), 0);
}

static void test_descriptors(void **state) {
    (void)state;
    ranks r = {.size = 4, .transport = "tcp", .body = descriptors, .no_job = true};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_reduce), cmocka_unit_test(test_large),
        cmocka_unit_test(test_others),     cmocka_unit_test(test_floats_as_on_shm),
        cmocka_unit_test(test_memory),     cmocka_unit_test(test_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
