/* The files of a checkpoint before they are files: which tensors at which bytes. Every rank computes the same
 * images and the same parts from the contents, so nothing about the layout has to travel.
 *
 *     model.safetensors       all parameters by plain name: loads wherever safetensors are read
 *     optimizer.safetensors   WEIGHT.exp_avg, WEIGHT.exp_avg_sq, WEIGHT.momentum_buffer; WEIGHT.step (I64)
 *     state.safetensors       items that are equal on all ranks; only where there are any
 *     ranks.safetensors       rank-R.ITEM for all ranks R, rank by rank; only where there are any */
#ifndef LS_CHECKPOINT_IMAGE_H
#define LS_CHECKPOINT_IMAGE_H

#include "checkpoint/safetensors.h"

enum { LS__IMAGES = 4 };
enum { LS__IMAGE_MODEL, LS__IMAGE_OPTIMIZER, LS__IMAGE_STATE, LS__IMAGE_RANKS };

typedef struct ls__image {
    const char *name;              /* of the file */
    ls_safetensors_entry *entries; /* data: this rank's memory; NULL of another rank's */
    char **names;                  /* those of the entries that were made here */
    size_t count;                  /* 0: there is no such file */
    char *header;                  /* the bytes up to the data */
    size_t header_bytes;
    uint64_t bytes; /* of the whole file */
} ls__image;

/* A run of bytes of one file that one rank writes and that has a checksum of its own. */
typedef struct ls__part {
    size_t image; /* index */
    uint64_t offset, bytes;
    int rank;
} ls__part;

typedef struct ls__images {
    ls__image of[LS__IMAGES];
    ls__part *parts; /* tile every file, in the order of (image, offset) */
    size_t part_count;
    uint64_t bytes; /* of all files */
} ls__images;

/* As rank `rank` of `ranks` has them; ls__images_free also after a failure. LS_ERR_ARGUMENT names an item. */
ls_status ls__images_create(ls__images *images, const ls_checkpoint_contents *contents, int rank,
                            int ranks);
void ls__images_free(ls__images *images);

/* Calls `take` for the pieces of memory that a part consists of, in order, until it fails. */
typedef ls_status (*ls__piece_fn)(void *context, const void *bytes, size_t size);
ls_status ls__part_pieces(const ls__images *images, const ls__part *part, ls__piece_fn take,
                          void *context);

#endif
