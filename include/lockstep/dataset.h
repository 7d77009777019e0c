/* Data sets, the global order of samples, and the loader. Part of liblockstep. */
#ifndef LOCKSTEP_DATASET_H
#define LOCKSTEP_DATASET_H

#include <lockstep/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_dataset ls_dataset; /* opaque; read-only once open, any thread */
typedef struct ls_loader ls_loader;   /* opaque */

/* What is learned from, and what is held out: the t10k files of images, the last tenth of a text. */
typedef enum ls_split { LS_TRAIN, LS_VALIDATION } ls_split;
typedef enum ls_dataset_kind { LS_IMAGES, LS_TOKENS } ls_dataset_kind;

/* Opens by spec:
 *   "fashion-mnist"   the folder of Debian's package dataset-fashion-mnist
 *   "idx:DIR"         a folder with the four usual names (train-images-idx3-ubyte, t10k-labels-idx1-ubyte,
 *                     ...), plain or .gz; "mnist:DIR" is the same
 *   "text:FILE"       UTF-8 or any bytes; the vocabulary is the set of bytes that occur, in rising order;
 *                     the last tenth of the file is held out for validation
 * Everything the file says is checked: magic, sizes against the file, image count = label count, labels
 * < classes. Messages name the file, the value seen and the value wanted. `context` is the window of a
 * text sample in tokens; ignored for images. */
LS_API ls_status ls_dataset_open(ls_dataset **dataset, const char *spec, size_t context);
LS_API void ls_dataset_close(ls_dataset *dataset);

/* The getters: any thread. */
LS_API ls_dataset_kind ls_dataset_get_kind(const ls_dataset *dataset);
/* Samples. Text, LS_TRAIN: every start of a window of context + 1 tokens. Text, LS_VALIDATION: windows
 * side by side over the whole held-out part, the last one padded with targets of -1. */
LS_API size_t ls_dataset_count(const ls_dataset *dataset, ls_split split);
/* Classes, or the size of the vocabulary. */
LS_API size_t ls_dataset_classes(const ls_dataset *dataset);
/* Images: {channels, height, width}. Tokens: {context}. Returns the number of dimensions. `shape`
 * may be NULL. */
LS_API size_t ls_dataset_sample_shape(const ls_dataset *dataset, size_t shape[3]);
/* The bytes of the vocabulary of a text, one for each token id; NULL for images. */
LS_API const unsigned char *ls_dataset_vocabulary(const ls_dataset *dataset);

/* Fills `count` samples, one row each. Images: input f32, pixels (x / 255 - mean) / sd with the mean and
 * standard deviation of the training images; target one I32. Tokens: input I32 (context), target I32
 * (context), -1 where padded. Returns in *weight (may be NULL) the number of targets that count. Any
 * thread. */
LS_API ls_status ls_dataset_read(const ls_dataset *dataset, ls_split split, const uint64_t *samples,
                                 size_t count, void *input, int32_t *target, double *weight);

/* Which sample stands at `position` (0..count-1) of epoch `epoch`: a permutation of 0..count-1 that is
 * computed, not stored: a keyed Feistel network with cycle walking (Black, Rogaway 2002). Any thread.
 * count up to 2^62; UINT64_MAX, which no sample is, when position >= count. */
LS_API uint64_t ls_order_sample(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t count);

/* A loader thread that prepares the shards of this rank ahead of the step. */
typedef struct ls_loader_options {
    uint64_t seed;
    size_t batch_size;  /* of the whole job */
    size_t shards;      /* of the batch; shard s of a batch of n samples has positions
                            [s*n/shards, (s+1)*n/shards) */
    size_t first_shard; /* this rank's */
    size_t shard_count;
    size_t ahead;        /* prepared batches, at most 4096; default 2 */
    uint64_t first_step; /* where to begin: 0 is the first batch of epoch 0 */
} ls_loader_options;

/* One shard of a batch. */
typedef struct ls_shard {
    void *input; /* as ls_dataset_read */
    int32_t *target;
    /* (count) numbers for ls_step_mode: epoch * samples of the split + position, unique in the run */
    const uint64_t *samples;
    size_t count;  /* samples; 0 is legal in a short last batch */
    double weight; /* targets that count */
} ls_shard;

typedef struct ls_batch {
    uint64_t step, epoch;
    bool last_of_epoch;
    size_t size;            /* samples of the global batch; the last of an epoch may be short */
    const ls_shard *shards; /* shard_count of them */
    double weight;          /* sum over this rank's shards */
} ls_batch;

/* Starts the thread. The data set must outlive the loader. LS_ERR_ARGUMENT names the option. */
LS_API ls_status ls_loader_create(ls_loader **loader, const ls_dataset *dataset,
                                  const ls_loader_options *options);
LS_API void ls_loader_destroy(ls_loader *loader);
/* ceil(count / batch_size) */
LS_API uint64_t ls_loader_batches_per_epoch(const ls_loader *loader);
/* The next batch; belongs to the loader and is valid until the next call. One thread at a time. The
 * epochs never end. An error of the loader's thread comes out here, after the batches before it. */
LS_API ls_status ls_loader_next(ls_loader *loader, const ls_batch **batch);

#ifdef __cplusplus
}
#endif
#endif
