/* One IDX file of unsigned bytes (the format of MNIST), checked as a whole. All big-endian:
 *
 *     byte 0, 1   0
 *     byte 2      element type; 0x08 is unsigned byte, the only one read here
 *     byte 3      number of dimensions
 *     then        one uint32 a dimension, then the elements in C order, and nothing more
 */
#ifndef LS_DATA_IDX_H
#define LS_DATA_IDX_H

#include <lockstep/status.h>
#include <stddef.h>

enum { LS__IDX_DIMS = 3 };

typedef struct ls__idx {
    size_t shape[LS__IDX_DIMS];
    size_t size; /* product of the shape */
    const unsigned char *data;
    unsigned char *file, *unpacked; /* memory behind `data`, or NULL */
} ls__idx;

/* Reads and checks `path`, plain or gzip (told by its first bytes, not by its name), with `dims`
 * dimensions. ls__idx_free also after a failure. */
ls_status ls__idx_load(ls__idx *idx, const char *path, size_t dims);
/* The same from memory, which must outlive *idx; `name` is for messages. */
ls_status ls__idx_parse(ls__idx *idx, const unsigned char *bytes, size_t size, size_t dims,
                        const char *name);
void ls__idx_free(ls__idx *idx);

#endif
