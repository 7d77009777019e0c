/* ls_group_split, ls_group_create_subset and ls_group_destroy: parts work side by side, one inside of another, and
 * fail apart from each other. */
#include "ranks.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

/* --- what every part must do ------------------------------------------------------------------------ */

/* Sums of rank numbers of the world over a part whose members are `first`, `first + step`, ... */
static void check_sum(ls_group *part, int world_rank, int expected, size_t count) {
    int *values = calloc(count, sizeof *values);
    CHECK(values);
    for (size_t i = 0; i < count; i++)
        values[i] = world_rank + (int)(i % 7);
    CHECK_OK(ls_all_reduce(part, values, values, count, LS_I32, LS_SUM));
    for (size_t i = 0; i < count; i++)
        CHECK(values[i] == expected + (int)(i % 7) * ls_group_size(part));
    free(values);
}

/* --- rows and columns of a mesh, at once -------------------------------------------------------------- */

enum { ROWS = 2, COLUMNS = 3, ROUNDS = 60 };

typedef struct axis {
    ls_group *group;
    int world_rank, expected;
    float *mapped; /* of ls_group_alloc */
} axis;

static void *walk(void *argument) {
    const axis *a = argument;
    static const size_t counts[] = {1, 100, 5000, 70000};
    for (int i = 0; i < ROUNDS; i++) {
        ls_work *work;
        check_sum(a->group, a->world_rank, a->expected, counts[i % 4]);
        for (int k = 0; k < 3000; k++)
            a->mapped[k] = (float)a->world_rank;
        CHECK_OK(ls_all_reduce_start(a->group, a->mapped, a->mapped, 3000, LS_F32, LS_SUM, &work));
        CHECK_OK(ls_barrier(a->group));
        CHECK_OK(ls_work_wait(work, NULL));
        CHECK(a->mapped[0] == (float)a->expected && a->mapped[2999] == (float)a->expected);
    }
    return NULL;
}

static void mesh(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    const int row = rank / COLUMNS, column = rank % COLUMNS;
    axis a[2] = {{.world_rank = rank, .expected = 3 * (row * COLUMNS) + 3},
                 {.world_rank = rank, .expected = 2 * column + COLUMNS}};
    CHECK_OK(ls_group_split(world, row, column, &a[0].group));
    CHECK_OK(ls_group_split(world, column, row, &a[1].group));
    CHECK(ls_group_size(a[0].group) == COLUMNS && ls_group_rank(a[0].group) == column);
    CHECK(ls_group_size(a[1].group) == ROWS && ls_group_rank(a[1].group) == row);
    CHECK(strcmp(ls_group_name(a[0].group),
                 row ? "world.split1[color 1]" : "world.split1[color 0]") == 0);
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(ls_group_alloc(a[i].group, 3000 * sizeof(float), (void **)&a[i].mapped));
        CHECK(pthread_create(&thread[i], NULL, walk, &a[i]) == 0);
    }
    for (int i = 0; i < ROUNDS; i++)
        check_sum(world, rank, ROWS * COLUMNS * (ROWS * COLUMNS - 1) / 2, 50);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    CHECK_OK(ls_group_free(a[0].group, a[0].mapped));
    ls_group_destroy(a[0].group); /* the other is left to ls_job_finish */
}

/* --- membership ---------------------------------------------------------------------------------------- */

static void members(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job), *part, *subset;
    const int size = ls_group_size(world);
    CHECK_OK(ls_group_split(world, rank, 0, &part)); /* singles */
    CHECK(ls_group_size(part) == 1 && ls_group_rank(part) == 0);
    check_sum(part, rank, rank, 5000);
    CHECK_OK(ls_barrier(part));
    ls_group_destroy(part);

    CHECK_OK(ls_group_split(world, 7, -rank, &part)); /* all, in the other order */
    CHECK(ls_group_size(part) == size && ls_group_rank(part) == size - 1 - rank);
    int value = rank;
    CHECK_OK(ls_broadcast(part, &value, 1, LS_I32, 0));
    CHECK(value == size - 1);

    CHECK_OK(ls_group_split(part, rank % 2 ? LS_GROUP_NONE : 0, 0, &subset)); /* a part of a part */
    CHECK((subset == NULL) == (rank % 2 == 1));
    ls_group_destroy(part); /* which outlives it */
    if (subset) {
        const int count = (size + 1) / 2;
        CHECK(ls_group_size(subset) == count && ls_group_rank(subset) == count - 1 - rank / 2);
        check_sum(subset, rank, count * (count - 1), 40000);
    }
    ls_group_destroy(subset);
    ls_group_destroy(NULL);
    ls_group_destroy(world);
    check_sum(world, rank, size * (size - 1) / 2, 3);

    const int list[] = {size - 1, 0};
    CHECK_OK(ls_group_create_subset(world, list, size > 1 ? 2 : 1, &subset));
    CHECK((subset != NULL) == (rank == 0 || rank == size - 1));
    if (subset && size > 1) {
        int other = rank;
        CHECK(ls_group_rank(subset) == (rank == 0));
        CHECK_OK(ls_sendrecv(subset, &rank, 1, rank != 0, &other, 1, rank != 0, LS_I32));
        CHECK(other == size - 1 - rank);
    }
}

static void arguments(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job), *part = world;
    const int twice[] = {0, 0}, beyond[] = {ls_group_size(world)};
    CHECK(ls_group_split(NULL, 0, 0, &part) == LS_ERR_ARGUMENT && part == world);
    CHECK(ls_group_split(world, 0, 0, NULL) == LS_ERR_ARGUMENT);
    CHECK(ls_group_split(world, -2, 0, &part) == LS_ERR_ARGUMENT && part == NULL);
    CHECK(strstr(ls_error_text(), "color is -2"));
    CHECK(ls_group_create_subset(world, NULL, 1, &part) == LS_ERR_ARGUMENT);
    CHECK(ls_group_create_subset(world, twice, 0, &part) == LS_ERR_ARGUMENT);
    CHECK(ls_group_create_subset(world, twice, 2, &part) == LS_ERR_ARGUMENT);
    CHECK(ls_group_create_subset(world, beyond, 1, &part) == LS_ERR_ARGUMENT);
    CHECK_OK(ls_group_split(world, LS_GROUP_NONE, 0, &part));
    CHECK(part == NULL);
    check_sum(world, rank, ls_group_size(world) * (ls_group_size(world) - 1) / 2, 1);
}

/* --- bits ------------------------------------------------------------------------------------------------ */

static float rough(int rank, size_t i) {
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u;
    x = (x ^ x >> 15) * 2246822519u;
    x ^= x >> 13;
    return ldexpf((float)(x & 0xffffff) - 8388608.0f, (int)(x >> 24) % 30 - 40);
}

static void bits(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job), *part;
    static const size_t counts[] = {3, 700, 5000, 100001};
    float *a = malloc(100001 * sizeof *a), *b = malloc(100001 * sizeof *b);
    CHECK(a && b);
    CHECK_OK(ls_group_split(world, 0, 0, &part));
    for (int c = 0; c < 4; c++) {
        for (size_t i = 0; i < counts[c]; i++)
            a[i] = rough(rank, i);
        CHECK_OK(ls_all_reduce(world, a, b, counts[c], LS_F32, LS_SUM));
        CHECK_OK(ls_all_reduce(part, a, a, counts[c], LS_F32, LS_SUM));
        CHECK(memcmp(a, b, counts[c] * sizeof *a) == 0);
    }
    free(a);
    free(b);
}

/* --- nothing grows --------------------------------------------------------------------------------------- */

typedef struct usage {
    long descriptors, mappings, segment_blocks;
} usage;

static long count_lines(const char *path) {
    FILE *file = fopen(path, "re");
    long lines = 0;
    CHECK(file);
    for (int c; (c = getc(file)) != EOF;)
        lines += c == '\n';
    fclose(file);
    return lines;
}

static usage measure(void) {
    usage u = {.mappings = count_lines("/proc/self/maps")};
    for (int fd = 0; fd < 1024; fd++) {
        struct stat about;
        u.descriptors += fstat(fd, &about) == 0;
    }
    const char *segment = getenv("LOCKSTEP_SHM_FD");
    struct stat about;
    if (segment && fstat(atoi(segment), &about) == 0)
        u.segment_blocks = about.st_blocks;
    return u;
}

static void again(int rank, ls_job *job, void *context) {
    const int rounds = *(const int *)context;
    ls_group *world = ls_job_world(job);
    usage before = {0};
    for (int i = 0; i < rounds; i++) {
        ls_group *part;
        void *memory;
        if (i == 10) {
            CHECK_OK(ls_barrier(world)); /* so that nobody's part is still being taken down */
            before = measure();
        }
        CHECK_OK(ls_group_split(world, rank == 0, 0, &part));
        CHECK_OK(ls_group_alloc(part, 100000, &memory));
        memset(memory, rank, 100000);
        check_sum(part, rank, rank == 0 ? 0 : 3, 3000);
        ls_group_destroy(part);
    }
    CHECK_OK(ls_barrier(world));
    const usage after = measure();
    CHECK_OK(ls_barrier(world)); /* a rank that leaves takes its connections with it */
    CHECK(after.descriptors == before.descriptors);
#if !defined(__SANITIZE_ADDRESS__)                /* which keeps what was freed */
    CHECK(after.mappings <= before.mappings + 4); /* arenas of malloc come and go */
#endif
    CHECK(after.segment_blocks == before.segment_blocks);
}

/* --- failures -------------------------------------------------------------------------------------------- */

enum { SIZE = 4, VICTIM = 3 };

/* Ranks 0 and 1 go on whatever happens to the others; rank 2 learns who died. */
static void lose_one(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job), *part;
    CHECK_OK(ls_group_split(world, rank / 2, 0, &part));
    check_sum(part, rank, rank / 2 ? 5 : 1, 100);
    if (rank == VICTIM)
        raise(SIGKILL);
    if (rank == 2) {
        int value = 0;
        const uint64_t start = ls__now_ns();
        ranks_note(ls_all_reduce(part, &value, &value, 1, LS_I32, LS_SUM));
        CHECK(my_report->at_ns < start + 2000000000u);
        return;
    }
    const uint64_t until = ls__now_ns() + 700000000u;
    for (int more = 1; more;) { /* both see the same last round */
        check_sum(part, rank, 1, 2000);
        more = ls__now_ns() < until;
        CHECK_OK(ls_all_reduce(part, &more, &more, 1, LS_I32, LS_MIN));
    }
}

static void kill_one(bool watch) {
    ranks r = {.size = SIZE, .transport = ranks_transport(), .body = lose_one, .watch = watch};
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 1);
    const ranks_report *report = &r.report[2];
    if (report->status != LS_ERR_PEER || !strstr(report->text, "rank 3") ||
        !strstr(report->text, "world.split1[color 1]"))
        fail_msg("rank 2: %s: %s", ls_status_name(report->status), report->text);
    ranks_free(&r);
}

/* A mismatch in one group breaks that one. Its message names the group, and ranks by their numbers in the
 * world. */
static void break_one(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job), *part, *other;
    CHECK_OK(ls_group_split(world, rank / 2, 0, &part));
    CHECK_OK(ls_group_split(world, rank % 2, 0, &other));
    int values[2] = {rank, rank};
    if (rank / 2 == 1) {
        CHECK(ls_all_reduce(part, values, values, rank == 2 ? 1 : 2, LS_I32, LS_SUM) ==
              LS_ERR_MISMATCH);
        CHECK(strstr(ls_error_text(), "world.split1[color 1]"));
        CHECK(strstr(ls_error_text(), "1 on rank 2") && strstr(ls_error_text(), "2 on rank 3"));
        CHECK(ls_barrier(part) == LS_ERR_MISMATCH);
    } else {
        check_sum(part, rank, 1, 10);
    }
    check_sum(other, rank, rank % 2 ? 4 : 2, 10);
    check_sum(world, rank, 6, 10);
}

/* Who leaves a group is missed there, and only there. */
static void leave_one(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job), *part;
    CHECK_OK(ls_group_split(world, 0, 0, &part));
    if (rank == VICTIM) {
        ls_group_destroy(part);
    } else {
        CHECK(ls_barrier(part) == LS_ERR_PEER);
        CHECK(strstr(ls_error_text(), "rank 3") || strstr(ls_error_text(), "gave up"));
        ls_group_destroy(part);
    }
    check_sum(world, rank, 6, 10);
}

/* Each group has its own timeout, the parent's at first; messages between two ranks name both by their numbers in
 * the world. */
static void wait_in_one(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job), *part;
    CHECK_OK(ls_group_set_timeout(world, 15));
    CHECK_OK(ls_group_split(world, rank / 2, 0, &part));
    CHECK(ls_group_timeout(part) == 15);
    CHECK_OK(ls_group_set_timeout(part, 0.5));
    if (rank == 2) {
        int value;
        CHECK(ls_recv(part, &value, 1, LS_I32, 1) == LS_ERR_TIMEOUT);
        CHECK(strstr(ls_error_text(), "recv #1 from rank 3 of group world.split1[color 1]"));
        CHECK(strstr(ls_error_text(), "on rank 2 (rank 0 of 2 in it)"));
    }
    check_sum(world, rank, 6, 10);
}

/* One rank splits before, the others after a sum. */
static void split_early(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job), *part;
    int value = 0;
    ls_status status = rank == VICTIM ? ls_group_split(world, 0, 0, &part)
                                      : ls_all_reduce(world, &value, &value, 1, LS_I32, LS_SUM);
    ranks_note(status);
    CHECK(status == LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_text(), "group_split") && strstr(ls_error_text(), "all_reduce"));
}

static void other_lists(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *part;
    const int list[] = {0, rank == VICTIM ? 2 : 1};
    CHECK(ls_group_create_subset(ls_job_world(job), list, 2, &part) == LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_text(), "another list"));
}

/* --- tests ----------------------------------------------------------------------------------------------- */

static void run(int size, ranks_body body, void *context) {
    assert_int_equal(ranks_run(size, ranks_transport(), body, context), 0);
}

static void test_mesh(void **state) {
    (void)state;
    run(ROWS * COLUMNS, mesh, NULL);
}

static void on_all_worlds(ranks_body body) {
    for (int i = 0; i < RANKS_WORLDS; i++)
        run(ranks_worlds[i], body, NULL);
}

static void test_members(void **state) {
    (void)state;
    on_all_worlds(members);
}

static void test_arguments(void **state) {
    (void)state;
    on_all_worlds(arguments);
}

static void test_bits(void **state) {
    (void)state;
    on_all_worlds(bits);
}

static void test_again(void **state) {
    (void)state;
    int rounds = 200;
    run(3, again, &rounds);
}

static void test_killed(void **state) {
    (void)state;
    kill_one(false);
    kill_one(true);
}

static void test_broken(void **state) {
    (void)state;
    run(SIZE, break_one, NULL);
}

static void test_timeout(void **state) {
    (void)state;
    run(SIZE, wait_in_one, NULL);
}

static void test_left(void **state) {
    (void)state;
    run(SIZE, leave_one, NULL);
}

static void test_mismatch(void **state) {
    (void)state;
    run(SIZE, split_early, NULL);
    run(SIZE, other_lists, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh),      cmocka_unit_test(test_members),
        cmocka_unit_test(test_arguments), cmocka_unit_test(test_bits),
        cmocka_unit_test(test_again),     cmocka_unit_test(test_killed),
        cmocka_unit_test(test_broken),    cmocka_unit_test(test_left),
        cmocka_unit_test(test_mismatch),  cmocka_unit_test(test_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
