/* Whole files: read into memory, or mapped. Only regular files: a pipe would block, a folder has no
 * bytes. Messages name the path. */
#ifndef LS_BASE_FILE_H
#define LS_BASE_FILE_H

#include "base/error.h"
#include <stddef.h>

/* Reads all of `path` into memory from malloc; the caller frees *bytes. */
LS_SHARED ls_status ls__file_read(const char *path, unsigned char **bytes, size_t *size);

/* Maps all of `path` read-only; ls__file_unmap with the same two values. An empty file maps too. */
LS_SHARED ls_status ls__file_map(const char *path, const unsigned char **bytes, size_t *size);
LS_SHARED void ls__file_unmap(const unsigned char *bytes, size_t size);

/* Whether a file may be renamed to `path`, for before it is written: LS_OK where nothing is there, a regular file, or
 * a link, which the rename replaces itself. LS_ERR_IO: a device, pipe, socket or folder. LS_ERR_ARGUMENT here and below:
 * the path is empty. */
LS_SHARED ls_status ls__file_check_target(const char *path);

/* Whether `path` may be opened and written in place, for before it is opened: LS_OK where nothing is there, a regular file
 * or a character device, links followed. LS_ERR_IO: a folder, or a pipe or socket, whose opening would wait. */
LS_SHARED ls_status ls__file_check_in_place(const char *path);

/* Opens /dev/null in place of a standard file that the caller closed: a file of ours that got number 1
 * would be written to by printf. */
LS_SHARED void ls__file_fill_standard(void);

#endif
