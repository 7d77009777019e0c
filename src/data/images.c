/* Images with labels: four IDX files in one folder. */
#include "base/error.h"
#include "data/dataset.h"
#include "data/idx.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { CLASSES = 10 }; /* of every set published under the four names */

static const char *const image_names[2] = {"train-images-idx3-ubyte", "t10k-images-idx3-ubyte"};
static const char *const label_names[2] = {"train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"};

typedef struct images {
    ls__idx pixels[2]; /* (count, height, width), by ls_split */
    ls__idx labels[2]; /* (count) */
    double mean, deviation;
    float normal[256]; /* (x / 255 - mean) / deviation */
} images;

static void images_close(ls_dataset *dataset) {
    images *set = dataset->state;
    for (int split = 0; split < 2; split++) {
        ls__idx_free(&set->pixels[split]);
        ls__idx_free(&set->labels[split]);
    }
    free(set);
}

/* The plain file is preferred: it was unpacked on purpose. */
static ls_status load_either(ls__idx *idx, const char *folder, const char *name, size_t dims,
                             const char *hint) {
    char *path = NULL;
    if (asprintf(&path, "%s/%s.gz", folder, name) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s/%s: no memory for the path", folder, name);
    size_t plain_length = strlen(path) - 3;
    path[plain_length] = '\0';
    bool found = access(path, F_OK) == 0;
    const int reason = errno;
    if (!found) {
        path[plain_length] = '.';
        found = access(path, F_OK) == 0;
    }
    ls_status status;
    if (found)
        status = ls__idx_load(idx, path, dims);
    else if (reason != ENOENT)
        status = ls__fail_errno(LS_ERR_IO, reason, "%s/%s: cannot open", folder, name);
    else
        status = ls__fail(LS_ERR_IO,
                          "%s/%s: not found, nor with .gz; the folder must hold %s, %s, %s and %s, "
                          "plain or .gz%s",
                          folder, name, image_names[0], label_names[0], image_names[1],
                          label_names[1], hint);
    free(path);
    return status;
}

static ls_status check_labels(const ls__idx *labels, const char *folder, const char *name) {
    for (size_t i = 0; i < labels->size; i++)
        if (labels->data[i] >= CLASSES)
            return ls__fail(LS_ERR_RANGE, "%s/%s: label %zu is %d, want 0 to %d", folder, name, i,
                            labels->data[i], CLASSES - 1);
    return LS_OK;
}

static ls_status load_split(images *set, int split, const char *folder, const char *hint) {
    ls__idx *pixels = &set->pixels[split], *labels = &set->labels[split];
    LS_TRY(load_either(pixels, folder, image_names[split], 3, hint));
    LS_TRY(load_either(labels, folder, label_names[split], 1, hint));
    if (pixels->size == 0)
        return ls__fail(LS_ERR_FORMAT, "%s/%s: %zu images of %zu x %zu pixels, want at least one",
                        folder, image_names[split], pixels->shape[0], pixels->shape[1],
                        pixels->shape[2]);
    if (pixels->shape[0] != labels->shape[0])
        return ls__fail(LS_ERR_FORMAT,
                        "%s: %zu images in %s, but %zu labels in %s; want as many of each", folder,
                        pixels->shape[0], image_names[split], labels->shape[0], label_names[split]);
    return check_labels(labels, folder, label_names[split]);
}

/* Sums of integers are exact, so the result is the same bits everywhere. Each of the counts times
 * 255^2 stays below 2^64 for any data that fits into 2^48 bytes. */
static void normalise(images *set) {
    const ls__idx *pixels = &set->pixels[LS_TRAIN];
    uint64_t histogram[256] = {0}, sum = 0, squares = 0;
    for (size_t i = 0; i < pixels->size; i++)
        histogram[pixels->data[i]]++;
    for (uint64_t x = 0; x < 256; x++) {
        sum += histogram[x] * x;
        squares += histogram[x] * x * x;
    }
    double n = (double)pixels->size, mean = (double)sum / n;
    double variance = (double)squares / n - mean * mean;
    set->mean = mean / 255;
    set->deviation = sqrt(variance > 0 ? variance : 0) / 255;
    /* Pixels that are all equal have nothing to scale: they become 0. */
    double scale = set->deviation > 0 ? set->deviation : 1;
    for (int x = 0; x < 256; x++)
        set->normal[x] = (float)((x / 255.0 - set->mean) / scale);
}

/* Sizes first: the same bytes cut otherwise are other images. */
static uint64_t fingerprint(const images *set) {
    uint64_t hash = 0;
    for (int split = 0; split < 2; split++) {
        const ls__idx *pixels = &set->pixels[split], *labels = &set->labels[split];
        for (int d = 0; d < 3; d++)
            hash = hash * 1000003 + pixels->shape[d];
        hash = XXH64(pixels->data, pixels->size, hash);
        hash = XXH64(labels->data, labels->size, hash);
    }
    return hash;
}

static ls_status images_read(const ls_dataset *dataset, ls_split split, const uint64_t *samples,
                             size_t count, void *input, int32_t *target, double *weight) {
    const images *set = dataset->state;
    size_t pixels = dataset->shape[1] * dataset->shape[2];
    float *out = input; /* (count, 1, height, width) */
    for (size_t i = 0; i < count; i++) {
        const unsigned char *in = set->pixels[split].data + samples[i] * pixels;
        for (size_t j = 0; j < pixels; j++)
            out[i * pixels + j] = set->normal[in[j]];
        target[i] = set->labels[split].data[samples[i]];
    }
    *weight += (double)count;
    return LS_OK;
}

static const ls__dataset_kind images_kind = {images_read, images_close};

ls_status ls__images_open(ls_dataset *dataset, const char *folder, const char *hint) {
    images *set = calloc(1, sizeof *set);
    if (!set)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a data set", folder);
    dataset->functions = &images_kind;
    dataset->state = set;
    dataset->kind = LS_IMAGES;
    dataset->classes = CLASSES;
    LS_TRY(load_split(set, LS_TRAIN, folder, hint));
    LS_TRY(load_split(set, LS_VALIDATION, folder, hint));
    const size_t *train = set->pixels[LS_TRAIN].shape, *test = set->pixels[LS_VALIDATION].shape;
    if (train[1] != test[1] || train[2] != test[2])
        return ls__fail(
            LS_ERR_FORMAT, "%s: images are %zu x %zu in %s, but %zu x %zu in %s; want the same",
            folder, train[1], train[2], image_names[0], test[1], test[2], image_names[1]);
    dataset->fingerprint = fingerprint(set);
    dataset->count[LS_TRAIN] = train[0];
    dataset->count[LS_VALIDATION] = test[0];
    dataset->dims = 3;
    dataset->shape[0] = 1;
    dataset->shape[1] = train[1];
    dataset->shape[2] = train[2];
    normalise(set);
    return LS_OK;
}

void ls__images_statistics(const ls_dataset *dataset, double *mean, double *deviation) {
    const images *set = dataset->state;
    *mean = set->mean;
    *deviation = set->deviation;
}
