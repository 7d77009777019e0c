/* ls_group_alloc and ls_group_free. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void check_zero(const char *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        CHECK(memory[i] == 0);
}

/* Blocks of changing sizes, freed out of order: each is zeroed, whole, and apart from the others. */
static void loops(int rank, ls_job *job, void *context) {
    (void)context;
    enum { LIVE = 6 };
    ls_group *world = ls_job_world(job);
    char *block[LIVE] = {0};
    size_t bytes[LIVE] = {0};
    for (int i = 0; i < 60; i++) {
        int k = i * 7 % LIVE;
        for (size_t b = 0; b < bytes[k]; b++)
            CHECK(block[k][b] == (char)(rank * 16 + k));
        CHECK_OK(ls_group_free(world, block[k])); /* NULL at first */
        bytes[k] = (size_t)(1 + i * 1237 % 20000);
        CHECK_OK(ls_group_alloc(world, bytes[k], (void **)&block[k]));
        CHECK((uintptr_t)block[k] % 4096 == 0);
        check_zero(block[k], bytes[k]);
        memset(block[k], rank * 16 + k, bytes[k]);
    }
    for (int k = 0; k < LIVE; k += 2)
        CHECK_OK(ls_group_free(world, block[k]));
    /* the rest is left to ls_job_finish */
}

static void reuse(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    enum { COUNT = 100000 };
    for (int i = 0; i < 10; i++) {
        float *a, *b;
        CHECK_OK(ls_group_alloc(world, COUNT * 4, (void **)&a));
        CHECK_OK(ls_group_alloc(world, COUNT * 4, (void **)&b));
        for (int k = 0; k < COUNT; k++)
            a[k] = (float)(rank + i);
        CHECK_OK(ls_all_reduce(world, a, b, COUNT, LS_F32, LS_MAX));
        CHECK(b[0] == (float)(ls_group_size(world) - 1 + i) && b[COUNT - 1] == b[0]);
        CHECK_OK(ls_group_free(world, i % 2 ? a : b));
        CHECK_OK(ls_group_free(world, i % 2 ? b : a));
    }
    void *nothing;
    CHECK_OK(ls_group_alloc(world, 0, &nothing));
    CHECK(nothing != NULL);
    CHECK_OK(ls_group_free(world, nothing));
}

/* More than there is: an error on all ranks, nothing killed. */
static void too_large(int rank, ls_job *job, void *context) {
    (void)rank;
    size_t bytes = *(const size_t *)context;
    void *memory = &bytes;
    ls_status status = ls_group_alloc(ls_job_world(job), bytes, &memory);
    ranks_note(status);
    CHECK(status == LS_ERR_MEMORY && memory == NULL);
}

static void free_other(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    void *a, *b;
    CHECK_OK(ls_group_alloc(world, 100, &a));
    CHECK_OK(ls_group_alloc(world, 100, &b));
    CHECK(ls_group_free(world, rank == 0 ? a : b) != LS_OK);
    ranks_note(LS_ERR_MISMATCH);
}

static void free_foreign(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    int here;
    CHECK(ls_group_free(ls_job_world(job), &here) == LS_ERR_ARGUMENT);
    CHECK_OK(ls_barrier(ls_job_world(job)));
}

static void on_worlds(ranks_body body, void *context) {
    static const int sizes[] = {1, 2, 3, 5};
    for (int i = 0; i < 4; i++)
        assert_int_equal(ranks_run(sizes[i], ranks_transport(), body, context), 0);
}

static void test_loops(void **state) {
    (void)state;
    on_worlds(loops, NULL);
}

static void test_reuse(void **state) {
    (void)state;
    on_worlds(reuse, NULL);
}

static void test_too_large(void **state) {
    (void)state;
    size_t sizes[] = {(size_t)1 << 46, SIZE_MAX - 100, SIZE_MAX / 2};
    for (int i = 0; i < 3; i++)
        on_worlds(too_large, &sizes[i]);
}

static void test_free_other(void **state) {
    (void)state;
    if (strcmp(ranks_transport(), "shm") != 0)
        skip(); /* elsewhere blocks are private: there is nothing to disagree on */
    assert_int_equal(ranks_run(3, ranks_transport(), free_other, NULL), 0);
}

static void test_free_foreign(void **state) {
    (void)state;
    on_worlds(free_foreign, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loops),        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_too_large),    cmocka_unit_test(test_free_other),
        cmocka_unit_test(test_free_foreign),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
