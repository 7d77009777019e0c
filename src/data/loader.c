/* The loader: one thread fills a ring of batches ahead of the step.
 *
 * The ring has `ahead` + 1 slots: `ahead` prepared ones and the one the caller holds. `filled` and
 * `taken` count batches since the start; slot k % slots holds batch k. The thread fills batch k
 * once k < taken + ahead, where taken counts the one the caller holds: its slot is the last to come
 * round again. All memory is allocated at creation. */
#include "base/error.h"
#include "data/dataset.h"
#include "data/order.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64, AHEAD_DEFAULT = 2, AHEAD_MAX = 4096 };

typedef struct ring_slot {
    ls_batch batch;
    ls_shard *shards;  /* shard_count */
    uint64_t *samples; /* shard_count rows of shard_room */
    char *memory;      /* inputs, targets: shard_count rows each */
} ring_slot;

struct ls_loader {
    const ls_dataset *dataset;
    ls_loader_options options;
    uint64_t count; /* training samples */
    uint64_t batches_per_epoch;
    size_t shard_room;                  /* samples of the largest shard */
    size_t input_stride, target_stride; /* bytes between shards */
    uint64_t *scratch;                  /* sample numbers of one shard; of the thread */
    ls__order order;                    /* of epoch order_epoch; of the thread */
    uint64_t order_epoch;

    size_t slot_count;
    ring_slot *slots;
    pthread_t thread;
    bool thread_runs;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    uint64_t filled, taken;
    bool stop;
    ls_status status; /* of the thread; text says why */
    char text[512];
};

/* --- filling, on the loader's thread ------------------------------------------------------------ */

/* Positions of shard `s` in a batch of n samples. No overflow: n * shards was checked. */
static void shard_range(const ls_loader *loader, size_t s, size_t n, size_t *begin, size_t *end) {
    *begin = s * n / loader->options.shards;
    *end = (s + 1) * n / loader->options.shards;
}

static ls_status fill_shard(ls_loader *loader, ring_slot *slot, size_t i, uint64_t first_position) {
    ls_batch *batch = &slot->batch;
    ls_shard *shard = &slot->shards[i];
    size_t begin, end;
    shard_range(loader, loader->options.first_shard + i, batch->size, &begin, &end);
    uint64_t *numbers = slot->samples + i * loader->shard_room;
    for (size_t j = begin; j < end; j++) {
        uint64_t position = first_position + j;
        numbers[j - begin] = batch->epoch * loader->count + position;
        loader->scratch[j - begin] = ls__order_at(&loader->order, position);
    }
    shard->count = end - begin;
    shard->weight = 0;
    return ls_dataset_read(loader->dataset, LS_TRAIN, loader->scratch, shard->count, shard->input,
                           shard->target, &shard->weight);
}

static ls_status fill(ls_loader *loader, ring_slot *slot, uint64_t step) {
    ls_batch *batch = &slot->batch;
    uint64_t in_epoch = step % loader->batches_per_epoch;
    uint64_t first = in_epoch * loader->options.batch_size;
    batch->step = step;
    batch->epoch = step / loader->batches_per_epoch;
    batch->last_of_epoch = in_epoch + 1 == loader->batches_per_epoch;
    uint64_t left = loader->count - first;
    batch->size = left < loader->options.batch_size ? (size_t)left : loader->options.batch_size;
    batch->weight = 0;
    if (batch->epoch != loader->order_epoch) {
        ls__order_init(&loader->order, loader->options.seed, batch->epoch, loader->count);
        loader->order_epoch = batch->epoch;
    }
    for (size_t i = 0; i < loader->options.shard_count; i++) {
        LS_TRY(fill_shard(loader, slot, i, first));
        batch->weight += slot->shards[i].weight;
    }
    return LS_OK;
}

static void *loader_main(void *argument) {
    ls_loader *loader = argument;
    ls_status status = LS_OK;
    pthread_mutex_lock(&loader->lock);
    while (status == LS_OK) {
        while (!loader->stop && loader->filled >= loader->taken + loader->options.ahead)
            pthread_cond_wait(&loader->changed, &loader->lock);
        if (loader->stop)
            break;
        uint64_t k = loader->filled;
        pthread_mutex_unlock(&loader->lock);
        status =
            fill(loader, &loader->slots[k % loader->slot_count], loader->options.first_step + k);
        pthread_mutex_lock(&loader->lock);
        if (status == LS_OK) {
            loader->filled++;
        } else {
            loader->status = status;
            snprintf(loader->text, sizeof loader->text, "%s", ls_error_text());
        }
        pthread_cond_signal(&loader->changed);
    }
    pthread_mutex_unlock(&loader->lock);
    return NULL;
}

/* --- creation ----------------------------------------------------------------------------------- */

static ls_status check_options(const ls_dataset *dataset, const ls_loader_options *o) {
    if (o->batch_size == 0)
        return ls__fail(LS_ERR_ARGUMENT, "loader: batch_size is 0, want at least 1");
    if (o->shards == 0)
        return ls__fail(LS_ERR_ARGUMENT, "loader: shards is 0, want at least 1");
    if (o->shard_count == 0)
        return ls__fail(LS_ERR_ARGUMENT, "loader: shard_count is 0, want at least 1");
    if (o->shard_count > o->shards || o->first_shard > o->shards - o->shard_count)
        return ls__fail(LS_ERR_ARGUMENT, "loader: %zu shards from shard %zu on, but there are %zu",
                        o->shard_count, o->first_shard, o->shards);
    if (o->ahead > AHEAD_MAX)
        return ls__fail(LS_ERR_ARGUMENT, "loader: ahead is %zu, want at most %d", o->ahead,
                        AHEAD_MAX);
    if (dataset->count[LS_TRAIN] == 0)
        return ls__fail(LS_ERR_ARGUMENT, "loader: the data set has no training samples");
    return LS_OK;
}

/* Bytes of `rows` rows of `elements` 4-byte elements, rounded up to the alignment. */
static bool row_bytes(size_t rows, size_t elements, size_t *bytes) {
    return !__builtin_mul_overflow(rows, elements, bytes) && *bytes <= SIZE_MAX / 8 &&
           (*bytes = (*bytes * 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT, true);
}

static ls_status plan_memory(ls_loader *loader) {
    const ls_loader_options *o = &loader->options;
    size_t product, inputs, targets, numbers;
    size_t batch = o->batch_size < loader->count ? o->batch_size : (size_t)loader->count;
    bool fits = !__builtin_mul_overflow(batch, o->shards, &product);
    loader->shard_room = (batch - 1) / o->shards + 1;
    fits = fits &&
           row_bytes(loader->shard_room, ls__dataset_input_size(loader->dataset),
                     &loader->input_stride) &&
           row_bytes(loader->shard_room, ls__dataset_target_size(loader->dataset),
                     &loader->target_stride) &&
           !__builtin_mul_overflow(o->shard_count, loader->input_stride, &inputs) &&
           !__builtin_mul_overflow(o->shard_count, loader->target_stride, &targets) &&
           !__builtin_mul_overflow(o->shard_count, loader->shard_room, &numbers) &&
           !__builtin_add_overflow(inputs, targets, &product);
    if (!fits)
        return ls__fail(LS_ERR_ARGUMENT,
                        "loader: a batch of %zu in %zu shards is more than memory "
                        "can hold",
                        o->batch_size, o->shards);
    return LS_OK;
}

static ls_status create_slot(const ls_loader *loader, ring_slot *slot) {
    size_t shards = loader->options.shard_count;
    size_t bytes = shards * (loader->input_stride + loader->target_stride);
    slot->shards = calloc(shards, sizeof *slot->shards);
    slot->samples = calloc(shards * loader->shard_room, sizeof *slot->samples);
    slot->memory = aligned_alloc(ALIGNMENT, bytes);
    if (!slot->shards || !slot->samples || !slot->memory)
        return ls__fail(LS_ERR_MEMORY, "loader: no memory for a batch of %zu bytes", bytes);
    memset(slot->memory, 0, bytes);
    char *targets = slot->memory + shards * loader->input_stride;
    for (size_t i = 0; i < shards; i++) {
        slot->shards[i].input = slot->memory + i * loader->input_stride;
        slot->shards[i].target = (int32_t *)(void *)(targets + i * loader->target_stride);
        slot->shards[i].samples = slot->samples + i * loader->shard_room;
    }
    slot->batch.shards = slot->shards;
    return LS_OK;
}

static ls_status start(ls_loader *loader) {
    LS_TRY(plan_memory(loader));
    loader->slot_count = loader->options.ahead + 1;
    loader->slots = calloc(loader->slot_count, sizeof *loader->slots);
    loader->scratch = calloc(loader->shard_room, sizeof *loader->scratch);
    if (!loader->slots || !loader->scratch)
        return ls__fail(LS_ERR_MEMORY, "loader: no memory for %zu batches", loader->slot_count);
    for (size_t i = 0; i < loader->slot_count; i++)
        LS_TRY(create_slot(loader, &loader->slots[i]));
    loader->order_epoch = loader->options.first_step / loader->batches_per_epoch;
    ls__order_init(&loader->order, loader->options.seed, loader->order_epoch, loader->count);
    /* Signals are for the threads of the program: the loader's takes none. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error_number = pthread_create(&loader->thread, NULL, loader_main, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error_number != 0)
        return ls__fail_errno(LS_ERR_SYSTEM, error_number, "loader: cannot start its thread");
    loader->thread_runs = true;
    return LS_OK;
}

ls_status ls_loader_create(ls_loader **loader, const ls_dataset *dataset,
                           const ls_loader_options *options) {
    if (!loader || !dataset || !options)
        return ls__fail(LS_ERR_ARGUMENT, "ls_loader_create: loader, dataset or options is NULL");
    *loader = NULL;
    LS_TRY(check_options(dataset, options));
    ls_loader *l = calloc(1, sizeof *l);
    if (!l)
        return ls__fail(LS_ERR_MEMORY, "loader: no memory");
    l->dataset = dataset;
    l->options = *options;
    if (l->options.ahead == 0)
        l->options.ahead = AHEAD_DEFAULT;
    l->count = dataset->count[LS_TRAIN];
    l->batches_per_epoch = (l->count - 1) / options->batch_size + 1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    ls_status status = start(l);
    if (status != LS_OK) {
        ls_loader_destroy(l);
        return status;
    }
    *loader = l;
    return LS_OK;
}

void ls_loader_destroy(ls_loader *loader) {
    if (!loader)
        return;
    if (loader->thread_runs) {
        pthread_mutex_lock(&loader->lock);
        loader->stop = true;
        pthread_cond_signal(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
        pthread_join(loader->thread, NULL); /* waits for at most the batch being filled */
    }
    for (size_t i = 0; loader->slots && i < loader->slot_count; i++) {
        free(loader->slots[i].shards);
        free(loader->slots[i].samples);
        free(loader->slots[i].memory);
    }
    free(loader->slots);
    free(loader->scratch);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
}

/* --- handing out -------------------------------------------------------------------------------- */

uint64_t ls_loader_batches_per_epoch(const ls_loader *loader) {
    return loader ? loader->batches_per_epoch : 0;
}

ls_status ls_loader_next(ls_loader *loader, const ls_batch **batch) {
    if (!loader || !batch)
        return ls__fail(LS_ERR_ARGUMENT, "ls_loader_next: loader or batch is NULL");
    ls_status status = LS_OK;
    pthread_mutex_lock(&loader->lock);
    while (loader->filled == loader->taken && loader->status == LS_OK)
        pthread_cond_wait(&loader->changed, &loader->lock);
    if (loader->filled > loader->taken) {
        *batch = &loader->slots[loader->taken % loader->slot_count].batch;
        loader->taken++;
        pthread_cond_signal(&loader->changed);
    } else {
        status = loader->status;
    }
    pthread_mutex_unlock(&loader->lock);
    /* The text is written once, before the status. */
    return status == LS_OK ? LS_OK : ls__fail(status, "loader: %s", loader->text);
}
