/* The loader: the global order whatever the ranks, any start, a prompt end. */
#include "data_files.h"

#include "data/dataset.h"
#include <lockstep/dataset.h>
#include <pthread.h>
#include <signal.h>

/* A data set that is computed: sample i is one row of the number i, target i, weight 1. Reading
 * fails from sample `bad` on. */
static uint64_t bad = UINT64_MAX;

static ls_status numbers_read(const ls_dataset *dataset, ls_split split, const uint64_t *samples,
                              size_t count, void *input, int32_t *target, double *weight) {
    (void)dataset, (void)split;
    for (size_t i = 0; i < count; i++) {
        if (samples[i] >= bad)
            return LS_ERR_IO;
        ((float *)input)[i] = (float)samples[i];
        target[i] = (int32_t)samples[i];
    }
    *weight += (double)count;
    return LS_OK;
}

static const ls__dataset_kind numbers = {numbers_read, NULL};

static ls_dataset numbers_of(size_t count) {
    return (ls_dataset){.functions = &numbers,
                        .kind = LS_IMAGES,
                        .count = {count, 0},
                        .dims = 3,
                        .shape = {1, 1, 1}};
}

static ls_loader *create(const ls_dataset *dataset, ls_loader_options options) {
    ls_loader *loader;
    assert_int_equal(ls_loader_create(&loader, dataset, &options), LS_OK);
    return loader;
}

/* Every rank's shards, put side by side, are the global order; batch for batch, over three epochs. */
static void check_union(size_t count, size_t batch, size_t shards, size_t ranks, size_t ahead) {
    ls_dataset dataset = numbers_of(count);
    ls_loader *loaders[8];
    for (size_t r = 0; r < ranks; r++) {
        size_t first = shards * r / ranks, end = shards * (r + 1) / ranks;
        loaders[r] = create(&dataset, (ls_loader_options){.seed = 5,
                                                          .batch_size = batch,
                                                          .shards = shards,
                                                          .first_shard = first,
                                                          .shard_count = end - first,
                                                          .ahead = ahead});
    }
    uint64_t per_epoch = ls_loader_batches_per_epoch(loaders[0]);
    assert_int_equal(per_epoch, (count + batch - 1) / batch);
    uint64_t position = 0, epoch = 0;
    for (uint64_t step = 0; step < 3 * per_epoch; step++) {
        size_t shard = 0, start = position;
        for (size_t r = 0; r < ranks; r++) {
            const ls_batch *b;
            assert_int_equal(ls_loader_next(loaders[r], &b), LS_OK);
            assert_int_equal(b->step, step);
            assert_int_equal(b->epoch, epoch);
            assert_int_equal(b->size, count - start < batch ? count - start : batch);
            assert_int_equal(b->last_of_epoch, start + b->size == count);
            double weight = 0;
            for (size_t s = 0; s < shards * (r + 1) / ranks - shards * r / ranks; s++, shard++) {
                const ls_shard *part = &b->shards[s];
                assert_int_equal(position, start + shard * b->size / shards);
                assert_int_equal(part->count,
                                 (shard + 1) * b->size / shards - shard * b->size / shards);
                for (size_t i = 0; i < part->count; i++, position++) {
                    uint64_t want = ls_order_sample(5, epoch, position, count);
                    assert_int_equal(part->samples[i], epoch * count + position);
                    assert_int_equal(part->target[i], want);
                    assert_true(((float *)part->input)[i] == (float)want);
                }
                assert_true(part->weight == (double)part->count);
                weight += part->weight;
            }
            assert_true(b->weight == weight);
        }
        if (position == count) {
            position = 0;
            epoch++;
        }
    }
    for (size_t r = 0; r < ranks; r++)
        ls_loader_destroy(loaders[r]);
}

static void union_is_the_global_order(void **state) {
    (void)state;
    check_union(100, 10, 1, 1, 0);
    check_union(103, 10, 4, 1, 0);
    check_union(103, 10, 4, 2, 1);
    check_union(103, 10, 4, 4, 3);
    check_union(103, 10, 7, 3, 5);
    check_union(33, 16, 8, 8, 0); /* last batch of 1 in 8 shards: seven have nothing */
    check_union(5, 100, 4, 2, 0); /* batch larger than the set */
    check_union(1, 1, 1, 1, 0);
}

static void first_step_skips(void **state) {
    (void)state;
    ls_dataset dataset = numbers_of(57);
    ls_loader_options options = {.seed = 9, .batch_size = 8, .shards = 2, .shard_count = 2};
    ls_loader *all = create(&dataset, options);
    for (uint64_t first = 0; first < 20; first += 3) {
        options.first_step = first;
        ls_loader *late = create(&dataset, options);
        const ls_batch *a, *b;
        do
            assert_int_equal(ls_loader_next(all, &a), LS_OK);
        while (a->step < first);
        assert_int_equal(ls_loader_next(late, &b), LS_OK);
        assert_int_equal(b->step, a->step);
        assert_int_equal(b->epoch, a->epoch);
        assert_int_equal(b->size, a->size);
        for (size_t s = 0; s < 2; s++) {
            assert_int_equal(a->shards[s].count, b->shards[s].count);
            assert_memory_equal(a->shards[s].samples, b->shards[s].samples,
                                a->shards[s].count * sizeof(uint64_t));
            assert_memory_equal(a->shards[s].target, b->shards[s].target,
                                a->shards[s].count * sizeof(int32_t));
        }
        ls_loader_destroy(late);
    }
    ls_loader_destroy(all);
}

/* The batch in the caller's hand stays as it is while the thread works ahead. */
static void batch_is_stable_until_next(void **state) {
    (void)state;
    ls_dataset dataset = numbers_of(1000);
    ls_loader *loader = create(
        &dataset, (ls_loader_options){.batch_size = 10, .shards = 1, .shard_count = 1, .ahead = 1});
    for (int i = 0; i < 20; i++) {
        const ls_batch *batch;
        assert_int_equal(ls_loader_next(loader, &batch), LS_OK);
        int32_t before[10];
        memcpy(before, batch->shards[0].target, sizeof before);
        usleep(2000);
        assert_memory_equal(before, batch->shards[0].target, sizeof before);
    }
    ls_loader_destroy(loader);
}

static void destroy_at_any_time(void **state) {
    (void)state;
    ls_dataset dataset = numbers_of(1000);
    for (int i = 0; i < 60; i++) {
        ls_loader *loader =
            create(&dataset,
                   (ls_loader_options){
                       .batch_size = 100, .shards = 2, .shard_count = 2, .ahead = (size_t)(i % 4)});
        const ls_batch *batch;
        for (int j = 0; j < i % 6; j++)
            assert_int_equal(ls_loader_next(loader, &batch), LS_OK);
        if (i % 3 == 0)
            usleep((useconds_t)(i * 10));
        ls_loader_destroy(loader);
    }
    ls_loader_destroy(NULL);
}

/* Batches before the failure come; then the error, each time. */
static void errors_of_the_thread_surface(void **state) {
    (void)state;
    ls_dataset dataset = numbers_of(100);
    size_t good = 0; /* batches before the first that holds sample 99 */
    for (uint64_t i = 0; ls_order_sample(0, 0, i, 100) != 99; i++)
        good = (i + 1) / 5;
    bad = 99;
    ls_loader *loader =
        create(&dataset, (ls_loader_options){.batch_size = 5, .shards = 1, .shard_count = 1});
    const ls_batch *batch;
    for (size_t i = 0; i < good; i++)
        assert_int_equal(ls_loader_next(loader, &batch), LS_OK);
    assert_int_equal(ls_loader_next(loader, &batch), LS_ERR_IO);
    assert_int_equal(ls_loader_next(loader, &batch), LS_ERR_IO);
    assert_message("loader");
    ls_loader_destroy(loader);
    bad = UINT64_MAX;
}

static volatile sig_atomic_t signals_seen;

static void count_signal(int number) {
    (void)number;
    signals_seen++;
}

/* With the program's thread not taking a signal, the loader's must not take it in its place. */
static void thread_takes_no_signals(void **state) {
    (void)state;
    ls_dataset dataset = numbers_of(100);
    ls_loader *loader =
        create(&dataset, (ls_loader_options){.batch_size = 5, .shards = 1, .shard_count = 1});
    signal(SIGUSR1, count_signal);
    sigset_t usr1, pending;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &usr1, NULL), 0);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    usleep(20000);
    assert_int_equal(signals_seen, 0);
    assert_int_equal(sigpending(&pending), 0);
    assert_true(sigismember(&pending, SIGUSR1));
    assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &usr1, NULL), 0);
    assert_int_equal(signals_seen, 1);
    ls_loader_destroy(loader);
    signal(SIGUSR1, SIG_DFL);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    ls_dataset dataset = numbers_of(10);
    static const struct {
        ls_loader_options options;
        const char *message;
    } cases[] = {
        {{.batch_size = 0, .shards = 1, .shard_count = 1}, "batch_size is 0"},
        {{.batch_size = 1, .shards = 0, .shard_count = 1}, "shards is 0"},
        {{.batch_size = 1, .shards = 1, .shard_count = 0}, "shard_count is 0"},
        {{.batch_size = 1, .shards = 4, .first_shard = 3, .shard_count = 2},
         "2 shards from shard 3"},
        {{.batch_size = 1, .shards = 4, .first_shard = SIZE_MAX, .shard_count = 2}, "there are 4"},
        {{.batch_size = SIZE_MAX, .shards = SIZE_MAX, .shard_count = SIZE_MAX}, "memory"},
        {{.batch_size = 1, .shards = 1, .shard_count = 1, .ahead = SIZE_MAX}, "ahead"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ls_loader *loader;
        assert_int_equal(ls_loader_create(&loader, &dataset, &cases[i].options), LS_ERR_ARGUMENT);
        assert_null(loader);
        assert_message(cases[i].message);
    }
    ls_loader *loader;
    ls_dataset empty = numbers_of(0);
    assert_int_equal(
        ls_loader_create(&loader, &empty,
                         &(ls_loader_options){.batch_size = 1, .shards = 1, .shard_count = 1}),
        LS_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(union_is_the_global_order),    cmocka_unit_test(first_step_skips),
        cmocka_unit_test(batch_is_stable_until_next),   cmocka_unit_test(destroy_at_any_time),
        cmocka_unit_test(errors_of_the_thread_surface), cmocka_unit_test(thread_takes_no_signals),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
