/* Unpacking gzip (RFC 1952) from memory, piece by piece, so that the caller bounds the memory. */
#ifndef LS_DATA_GZIP_H
#define LS_DATA_GZIP_H

#include <lockstep/status.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct ls__gunzip ls__gunzip;

/* Do the bytes begin as gzip does? */
bool ls__gunzip_looks_like(const unsigned char *bytes, size_t size);

/* `bytes` and `name` (for messages) must outlive the handle. LS_ERR_UNSUPPORTED without zlib. */
ls_status ls__gunzip_open(ls__gunzip **gunzip, const unsigned char *bytes, size_t size,
                          const char *name);
/* The next `want` bytes. *got < want only at the end of the data, whose checksum was right then.
 * LS_ERR_FORMAT when the data is cut off or corrupt. Several members read as one. */
ls_status ls__gunzip_read(ls__gunzip *gunzip, unsigned char *out, size_t want, size_t *got);
void ls__gunzip_close(ls__gunzip *gunzip);

#endif
