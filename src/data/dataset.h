/* What the kinds of data sets have in common. Each kind fills an ls_dataset and gives the two
 * functions that differ. */
#ifndef LS_DATA_DATASET_H
#define LS_DATA_DATASET_H

#include <lockstep/dataset.h>

/* The folder of Debian's package dataset-fashion-mnist. */
#define LS__FASHION_MNIST "/usr/share/datasets/fashion-mnist"

typedef struct ls__dataset_kind {
    /* As ls_dataset_read; the sample numbers are in range, *weight comes as 0 and is added to. */
    ls_status (*read)(const ls_dataset *dataset, ls_split split, const uint64_t *samples,
                      size_t count, void *input, int32_t *target, double *weight);
    void (*close)(ls_dataset *dataset); /* frees `state` */
} ls__dataset_kind;

struct ls_dataset {
    const ls__dataset_kind *functions;
    ls_dataset_kind kind;
    size_t count[2]; /* by ls_split */
    size_t classes;
    size_t dims, shape[3];
    unsigned char vocabulary[256]; /* tokens only: the byte of each id */
    uint64_t fingerprint;          /* of all bytes: equal on ranks that hold the same data */
    void *state;                   /* of the kind */
};

/* Elements of one row of the input and of the target. Both have 4-byte elements: f32 or I32. */
size_t ls__dataset_input_size(const ls_dataset *dataset);
size_t ls__dataset_target_size(const ls_dataset *dataset);

/* XXH64 of the data as it was read; the context of a text is not part of it. */
uint64_t ls__dataset_fingerprint(const ls_dataset *dataset);

/* images.c: the folder with the four usual names; `hint` ends the message about a missing file. */
ls_status ls__images_open(ls_dataset *dataset, const char *folder, const char *hint);
/* Of the training pixels, in 0..1. */
void ls__images_statistics(const ls_dataset *dataset, double *mean, double *deviation);

/* text.c */
ls_status ls__text_open(ls_dataset *dataset, const char *path, size_t context);

#endif
