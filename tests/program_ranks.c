/* A rank for the test scripts that start ranks with something else than a fork of the test: mpirun, or by
 * hand on several hosts. `program_ranks WHAT`:
 *
 *   grid      every collective that reduces or copies, over dtypes and sizes, against exact results
 *   rest      the operations with a root, exchanges, uneven forms
 *   bits      prints the hash of sums that depend on their order, and the transport
 *   point     send and recv among all pairs, small and large
 *   mismatch  the last rank calls another operation: all ranks must hear of it
 *   split     groups by parity, by halves, and of those again; operations of several at a time
 *   late      rank 1 comes late to some: prints the operation and whom its times name as the last
 *   leave     the last rank leaves, the others go on: LS_ERR_PEER
 *   loop      all_reduce until something happens; prints the error and how long after --mark it came
 *   meeting, operation: the same; idle: with a pause of 0.3 s after each
 *
 * With LOCKSTEP_TEST_EXIT set, it ends with that code in its fifth round.
 *
 * Exits 0 when all was as it must be; else says why on stderr. */
#include "base/clock.h"
#include "base/half.h"

#include <lockstep/group.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %d: %s is false; last error: %s\n", __FILE__, __LINE__,   \
                    my_rank, #condition, ls_error_text());                                         \
            exit(99);                                                                              \
        }                                                                                          \
    } while (0)
#define CHECK_OK(call) CHECK((call) == LS_OK)

static int my_rank = -1;
enum { LARGEST = 300 * 1000 };

/* --- values whose sums are exact in any order --- */

static double value_of(int rank, size_t i) {
    return (double)((size_t)(rank * 7) + i * 3) - (double)(((size_t)(rank * 7) + i * 3) / 11 * 11);
}

static void encode(void *buffer, size_t i, ls_dtype dtype, double value) {
    const float narrow = (float)value;
    if (dtype == LS_F32)
        ((float *)buffer)[i] = narrow;
    else if (dtype == LS_F64)
        ((double *)buffer)[i] = value;
    else if (dtype == LS_F16)
        ls__f32_to_f16((uint16_t *)buffer + i, &narrow, 1);
    else if (dtype == LS_BF16)
        ls__f32_to_bf16((uint16_t *)buffer + i, &narrow, 1);
    else if (dtype == LS_I64)
        ((int64_t *)buffer)[i] = (int64_t)value;
    else if (dtype == LS_I32)
        ((int32_t *)buffer)[i] = (int32_t)value;
    else
        ((uint8_t *)buffer)[i] = (uint8_t)(int)value;
}

static double expected(int size, size_t i, ls_op op, ls_dtype dtype) {
    double result = value_of(0, i);
    for (int rank = 1; rank < size; rank++) {
        double value = value_of(rank, i);
        if (op == LS_MAX)
            result = value > result ? value : result;
        else
            result += value;
    }
    if (op != LS_AVG)
        return result;
    if (dtype == LS_F64)
        return result * (1.0 / size);
    if (dtype == LS_F32 || dtype == LS_F16 || dtype == LS_BF16)
        return (double)((float)result * (float)(1.0 / size));
    return (double)((int64_t)result / size);
}

typedef struct fixture {
    ls_group *world;
    int rank, size;
    char *send, *recv, *want;
} fixture;

static void check_all_reduce(fixture *f, size_t count, ls_dtype dtype, ls_op op) {
    const size_t element = ls_dtype_size(dtype);
    for (size_t i = 0; i < count; i++) {
        encode(f->send, i, dtype, value_of(f->rank, i));
        encode(f->want, i, dtype, expected(f->size, i, op, dtype));
    }
    CHECK_OK(ls_all_reduce(f->world, f->send, f->recv, count, dtype, op));
    CHECK(memcmp(f->recv, f->want, count * element) == 0);
    CHECK_OK(ls_all_reduce(f->world, f->send, f->send, count, dtype, op));
    CHECK(memcmp(f->send, f->want, count * element) == 0);
}

static void check_slices(fixture *f, size_t count, ls_dtype dtype) {
    const size_t element = ls_dtype_size(dtype), size = (size_t)f->size;
    const size_t mine = (size_t)f->rank * count;
    for (size_t i = 0; i < size * count; i++) {
        encode(f->send, i, dtype, value_of(f->rank, i));
        encode(f->want, i, dtype, expected(f->size, i, LS_SUM, dtype));
    }
    CHECK_OK(ls_reduce_scatter(f->world, f->send, f->recv, count, dtype, LS_SUM));
    CHECK(memcmp(f->recv, f->want + mine * element, count * element) == 0);
    memcpy(f->send + mine * element, f->recv, count * element);
    CHECK_OK(ls_all_gather(f->world, f->send + mine * element, f->send, count, dtype));
    CHECK(memcmp(f->send, f->want, size * count * element) == 0);
    for (int root = 0; root < f->size; root++) {
        for (size_t i = 0; i < count; i++) {
            encode(f->send, i, dtype, value_of(f->rank, i));
            encode(f->want, i, dtype, value_of(root, i));
        }
        CHECK_OK(ls_broadcast(f->world, f->send, count, dtype, root));
        CHECK(memcmp(f->send, f->want, count * element) == 0);
    }
}

static void check_weighted(fixture *f, size_t count) {
    float *send = (float *)(void *)f->send;
    double total = -1;
    for (size_t i = 0; i < count; i++)
        send[i] = (float)value_of(f->rank, i);
    CHECK_OK(ls_all_reduce_weighted(f->world, send, f->recv, count, LS_F32, f->rank, &total));
    CHECK(total == (double)(f->size * (f->size - 1)) / 2);
    for (size_t i = 0; i < count; i++) {
        float sum = (float)expected(f->size, i, LS_SUM, LS_F32);
        CHECK(((float *)(void *)f->recv)[i] == (total > 0 ? sum * (float)(1 / total) : 0));
    }
}

/* Uneven blocks: rank r has count + r elements. */
static void check_uneven(fixture *f, size_t count) {
    size_t counts[16], first = 0, all = 0;
    for (int r = 0; r < f->size; r++) {
        first += r < f->rank ? count + (size_t)r : 0;
        counts[r] = count + (size_t)r;
        all += counts[r];
    }
    int32_t *send = (int32_t *)(void *)f->send, *recv = (int32_t *)(void *)f->recv;
    for (size_t i = 0; i < all; i++)
        send[i] = (int32_t)value_of(f->rank, i);
    CHECK_OK(ls_reduce_scatter_v(f->world, send, recv, counts, LS_I32, LS_SUM));
    for (size_t i = 0; i < counts[f->rank]; i++)
        CHECK(recv[i] == (int32_t)expected(f->size, first + i, LS_SUM, LS_I32));
    memmove(send, recv, counts[f->rank] * sizeof *send);
    CHECK_OK(ls_all_gather_v(f->world, send, recv, counts, LS_I32));
    for (size_t i = 0; i < all; i++)
        CHECK(recv[i] == (int32_t)expected(f->size, i, LS_SUM, LS_I32));
}

static void check_rooted(fixture *f, size_t count, int root) {
    const size_t size = (size_t)f->size;
    float *send = (float *)(void *)f->send, *recv = (float *)(void *)f->recv;
    for (size_t i = 0; i < count * size; i++)
        send[i] = (float)value_of(f->rank, i);
    CHECK_OK(ls_reduce(f->world, send, recv, count, LS_F32, LS_MAX, root));
    for (size_t i = 0; i < count && f->rank == root; i++)
        CHECK(recv[i] == (float)expected(f->size, i, LS_MAX, LS_F32));
    CHECK_OK(ls_gather(f->world, send, recv, count, LS_F32, root));
    for (size_t i = 0; i < count * size && f->rank == root; i++)
        CHECK(recv[i] == (float)value_of((int)(i / count), i % count));
    CHECK_OK(ls_scatter(f->world, send, recv, count, LS_F32, root));
    for (size_t i = 0; i < count; i++)
        CHECK(recv[i] == (float)value_of(root, (size_t)f->rank * count + i));
    CHECK_OK(ls_all_to_all(f->world, send, recv, count, LS_F32));
    for (size_t i = 0; i < count * size; i++)
        CHECK(recv[i] == (float)value_of((int)(i / count), (size_t)f->rank * count + i % count));
    const int next = (f->rank + 1) % f->size, last = (f->rank + f->size - 1) % f->size;
    CHECK_OK(ls_sendrecv(f->world, send, count, next, recv, count, last, LS_F32));
    for (size_t i = 0; i < count; i++)
        CHECK(recv[i] == (float)value_of(last, i));
}

static void rest(fixture *f) {
    static const size_t counts[] = {0, 1, 7, 3000, 30000};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        check_uneven(f, counts[c]);
        for (int root = 0; root < f->size; root++)
            check_rooted(f, counts[c], root);
    }
}

static void grid(fixture *f) {
    static const size_t counts[] = {0, 1, 7, 1000, 33333, LARGEST};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++)
            for (int op = 0; op < LS_OP_COUNT; op++)
                if (ls_dtype_size((ls_dtype)dtype) > 0 && op != LS_PRODUCT && op != LS_MIN)
                    check_all_reduce(f, counts[c], (ls_dtype)dtype, (ls_op)op);
        check_slices(f, counts[c] / 8, LS_F32);
        check_slices(f, counts[c] / 8, LS_BF16);
        check_weighted(f, counts[c]);
        CHECK_OK(ls_barrier(f->world));
    }
    void *memory[2];
    CHECK_OK(ls_group_alloc(f->world, LARGEST * 8, &memory[0]));
    CHECK_OK(ls_group_alloc(f->world, LARGEST * 8, &memory[1]));
    fixture mapped = *f;
    mapped.send = memory[0];
    mapped.recv = memory[1];
    check_all_reduce(&mapped, LARGEST, LS_F32, LS_SUM);
    check_slices(&mapped, LARGEST / 8, LS_F64);
    CHECK_OK(ls_group_free(f->world, memory[0]));
    CHECK_OK(ls_group_free(f->world, memory[1]));
}

/* --- sums that depend on their order --- */

static uint64_t fnv(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void bits(fixture *f, const char *transport) {
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_F16, LS_BF16};
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t d = 0; d < 4; d++) {
        for (size_t count = 5; count < 200000; count = count * 7 + 1) {
            const size_t blocks = count / (size_t)f->size;
            for (size_t i = 0; i < count; i++)
                encode(f->send, i, dtypes[d],
                       1.0 / (1 + (double)((i * 31 + (size_t)f->rank * 17) % 1009)));
            CHECK_OK(ls_all_reduce(f->world, f->send, f->recv, count, dtypes[d], LS_AVG));
            hash = fnv(hash, f->recv, count * ls_dtype_size(dtypes[d]));
            CHECK_OK(ls_all_reduce_weighted(f->world, f->send, f->recv, count, dtypes[d],
                                            0.3 + f->rank, NULL));
            hash = fnv(hash, f->recv, count * ls_dtype_size(dtypes[d]));
            CHECK_OK(ls_reduce_scatter(f->world, f->send, f->recv, blocks, dtypes[d], LS_SUM));
            CHECK_OK(ls_all_gather(f->world, f->recv, f->want, blocks, dtypes[d]));
            hash = fnv(hash, f->want, blocks * (size_t)f->size * ls_dtype_size(dtypes[d]));
        }
    }
    printf("rank %d bits %016llx transport %s\n", f->rank, (unsigned long long)hash, transport);
}

/* --- point to point --- */

static void point(fixture *f) {
    static const size_t counts[] = {0, 1, 10000, LARGEST};
    for (size_t c = 0; c < 4; c++)
        for (int from = 0; from < f->size; from++)
            for (int to = 0; to < f->size; to++) {
                const size_t bytes = counts[c] * sizeof(float);
                memset(f->send, from * 16 + to, bytes);
                if (from == to)
                    continue;
                if (f->rank == from)
                    CHECK_OK(ls_send(f->world, f->send, counts[c], LS_F32, to));
                if (f->rank == to)
                    CHECK_OK(ls_recv(f->world, f->recv, counts[c], LS_F32, from));
                CHECK(f->rank != to || memcmp(f->send, f->recv, bytes) == 0);
            }
    /* small sends come before their recvs, also across a collective */
    const int next = (f->rank + 1) % f->size, last = (f->rank + f->size - 1) % f->size;
    for (int i = 0; i < 3; i++)
        CHECK_OK(ls_send(f->world, &f->rank, 1, LS_I32, next));
    CHECK_OK(ls_barrier(f->world));
    for (int i = 0, got = -1; i < 3; i++) {
        CHECK_OK(ls_recv(f->world, &got, 1, LS_I32, last));
        CHECK(got == last);
    }
}

/* --- what goes wrong --- */

static void mismatch(fixture *f) {
    float value = 1;
    ls_status status = f->rank == f->size - 1
                           ? ls_broadcast(f->world, &value, 1, LS_F32, 0)
                           : ls_all_reduce(f->world, &value, &value, 1, LS_F32, LS_SUM);
    for (int i = 0; status == LS_OK && i < 3; i++)
        status = ls_barrier(f->world);
    CHECK(status == LS_ERR_MISMATCH);
    printf("rank %d: %s\n", f->rank, ls_error_text());
}

static void print_last(const char *name, ls_work *work) {
    ls_work_times times;
    CHECK_OK(ls_work_wait(work, &times));
    CHECK(times.begin_ns <= times.ready_ns && times.ready_ns <= times.end_ns);
    printf("last of %s: %d\n", name, times.last_rank);
}

/* All at once, but rank 1. */
static void come(fixture *f) {
    CHECK_OK(ls_barrier(f->world));
    if (f->rank == 1)
        nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
}

static void late(fixture *f) {
    ls_work *work;
    const size_t counts[] = {1, LARGEST};
    for (size_t i = 0; i < 2; i++) {
        come(f);
        CHECK_OK(ls_all_reduce_start(f->world, f->send, f->recv, counts[i], LS_F32, LS_SUM, &work));
        print_last("all_reduce", work);
    }
    come(f); /* integers are not divided machine by machine */
    CHECK_OK(ls_all_reduce_start(f->world, f->send, f->recv, 64, LS_I32, LS_AVG, &work));
    print_last("flat all_reduce", work);
    come(f);
    CHECK_OK(ls_all_gather_start(f->world, f->send, f->recv, 1000, LS_F32, &work));
    print_last("all_gather", work);
    come(f);
    CHECK_OK(ls_reduce_scatter_start(f->world, f->send, f->recv, 1000, LS_F32, LS_SUM, &work));
    print_last("reduce_scatter", work);
    come(f);
    CHECK_OK(ls_barrier_start(f->world, &work));
    print_last("barrier", work);
}

static void leave(fixture *f, ls_job *job) {
    float value = 1;
    CHECK_OK(ls_barrier(f->world));
    if (f->rank == f->size - 1) {
        ls_job_finish(job);
        exit(0);
    }
    ls_status status = ls_all_reduce(f->world, &value, &value, 1, LS_F32, LS_SUM);
    CHECK(status == LS_ERR_PEER);
    printf("rank %d: %s\n", f->rank, ls_error_text());
}

/* Started sums in two groups at a time, over memory of both kinds. */
static void check_part(ls_group *part, ls_group *other, int rank, double sum, double other_sum) {
    enum { COUNT = 50000 };
    double *mine = calloc(COUNT, sizeof *mine), *mapped;
    ls_work *work[2];
    CHECK(mine != NULL);
    CHECK_OK(ls_group_alloc(other, COUNT * sizeof *mapped, (void **)&mapped));
    for (int i = 0; i < COUNT; i++)
        mine[i] = mapped[i] = rank;
    CHECK_OK(ls_all_reduce_start(other, mapped, mapped, COUNT, LS_F64, LS_SUM, &work[0]));
    CHECK_OK(ls_all_reduce_start(part, mine, mine, COUNT, LS_F64, LS_SUM, &work[1]));
    CHECK_OK(ls_work_wait(work[1], NULL));
    CHECK_OK(ls_work_wait(work[0], NULL));
    CHECK(mine[0] == sum && mine[COUNT - 1] == sum);
    CHECK(mapped[0] == other_sum && mapped[COUNT - 1] == other_sum);
    free(mine);
}

static void split(fixture *f) {
    ls_group *parity, *half, *one;
    const int size = f->size, middle = (size + 1) / 2;
    double sums[2] = {0, 0}, halves[2] = {0, 0};
    for (int rank = 0; rank < size; rank++) {
        sums[rank % 2] += rank;
        halves[rank >= middle] += rank;
    }
    for (int round = 0; round < 3; round++) {
        CHECK_OK(ls_group_split(f->world, f->rank % 2, f->rank, &parity));
        CHECK_OK(ls_group_split(f->world, f->rank >= middle, -f->rank, &half));
        check_part(parity, half, f->rank, sums[f->rank % 2], halves[f->rank >= middle]);
        CHECK_OK(ls_group_split(half, ls_group_rank(half), 0, &one));
        check_part(one, f->world, f->rank, f->rank, sums[0] + sums[1]);
        CHECK_OK(ls_barrier(half));
        ls_group_destroy(half);
        if (round > 0)
            ls_group_destroy(parity); /* one is left to ls_job_finish */
        ls_group_destroy(one);
    }
}

static int loop(fixture *f, const char *mark, bool idle) {
    const struct timespec pause = {.tv_nsec = 300 * 1000 * 1000};
    const char *code = getenv("LOCKSTEP_TEST_EXIT");
    float *value = (float *)(void *)f->send;
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK; i++) {
        if (idle)
            nanosleep(&pause, NULL);
        if (i == 5 && code)
            _exit(atoi(code));
        status = ls_all_reduce(f->world, value, value, LARGEST, LS_F32, LS_MAX);
        if (i == 3 && f->rank == 0 && mark) {
            FILE *file = fopen(mark, "w");
            CHECK(file != NULL);
            fclose(file);
        }
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    printf("rank %d at %lld ms: status %d: %s\n", f->rank,
           (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000, (int)status, ls_error_text());
    return 4;
}

static void print_line(void *context, ls_log_level level, const char *line) {
    (void)context;
    (void)level;
    fprintf(stderr, "%s\n", line);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "grid";
    const ls_job_options options = {.log = print_line};
    ls_job *job;
    setvbuf(stdout, NULL, _IOLBF, 0);
    ls_status status = ls_job_init(&job, &options);
    if (status != LS_OK && strcmp(what, "meeting") == 0) {
        printf("status %d: %s\n", (int)status, ls_error_text());
        return 4;
    }
    CHECK(status == LS_OK);
    fixture f = {.world = ls_job_world(job), .rank = ls_job_rank(job)};
    f.size = ls_job_world_size(job);
    my_rank = f.rank;
    f.send = calloc(LARGEST + 64, 8);
    f.recv = calloc(LARGEST + 64, 8);
    f.want = calloc(LARGEST + 64, 8);
    CHECK(f.send && f.recv && f.want);
    int code = 0;
    if (strcmp(what, "grid") == 0)
        grid(&f);
    else if (strcmp(what, "bits") == 0)
        bits(&f, ls_job_transport(job));
    else if (strcmp(what, "rest") == 0)
        rest(&f);
    else if (strcmp(what, "point") == 0)
        point(&f);
    else if (strcmp(what, "mismatch") == 0)
        mismatch(&f);
    else if (strcmp(what, "split") == 0)
        split(&f);
    else if (strcmp(what, "late") == 0)
        late(&f);
    else if (strcmp(what, "leave") == 0)
        leave(&f, job);
    else
        code = loop(&f, count > 2 ? words[2] : NULL, strcmp(what, "idle") == 0);
    ls_job_finish(job);
    free(f.send);
    free(f.recv);
    free(f.want);
    return code;
}
