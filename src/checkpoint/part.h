/* Writing a part of a file, and comparing what a file holds with a checksum. */
#ifndef LS_CHECKPOINT_PART_H
#define LS_CHECKPOINT_PART_H

#include "checkpoint/image.h"
#include "checkpoint/manifest.h"

/* Writes a part into FOLDER's file, which exists; from `copy` where that is not NULL, else from the memory of the
 * tensors. Then it is brought to the disk, read back and compared. *hash: the XXH64 of the part. */
ls_status ls__part_write(const ls__images *images, const ls__part *part, const char *folder,
                         const void *copy, uint64_t *hash);

/* Makes FOLDER's empty file of an image with room for all of it: a full disk is found here. */
ls_status ls__part_make_file(const ls__image *image, const char *folder);

/* Reads `bytes` bytes of `fd` from `offset` on. `path` is for messages. */
ls_status ls__part_hash(int fd, const char *path, uint64_t offset, uint64_t bytes, uint64_t *hash);

#endif
