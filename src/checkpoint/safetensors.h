/* Inside of the safetensors format: parsing from memory, and writing. The layout of a file:
 *
 *     bytes 0..7     N, uint64 little-endian, at most 100,000,000
 *     bytes 8..8+N   JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *                    "__metadata__": {"key": "text", ...}}, padded with spaces
 *     then           the data; offsets count from here; no hole, no overlap, nothing behind
 */
#ifndef LS_CHECKPOINT_SAFETENSORS_H
#define LS_CHECKPOINT_SAFETENSORS_H

#include <lockstep/checkpoint.h>
#include <stdbool.h>

/* JSON of at most this many bytes, in files read and written. */
enum { LS__SAFETENSORS_HEADER_MAX = 100000000 };

/* Bits of an element, or 0 for a dtype the format does not have. */
size_t ls__safetensors_dtype_bits(const char *dtype);

/* Bytes of a tensor. False on overflow, an unknown dtype, or bits that are no whole bytes. */
bool ls__safetensors_bytes(const char *dtype, const size_t *shape, size_t dims, size_t *bytes);

/* Whether dtype and shape are equal. */
bool ls__safetensors_same_form(const ls_safetensors_entry *a, const ls_safetensors_entry *b);

/* Checks a file that stands in memory, which must outlive the handle; `name` is for messages. */
ls_status ls__safetensors_parse(ls_safetensors **file, const unsigned char *bytes, size_t size,
                                const char *name);

/* The bytes of a file up to the data of these tensors, which follow in the order given: *size of them; the
 * caller frees *header. `path` is for messages; the data of the entries is not looked at. */
ls_status ls__safetensors_make_header(const char *path, const ls_safetensors_entry *entries,
                                      size_t count, const char *const *keys,
                                      const char *const *values, size_t metadata_count,
                                      char **header, size_t *size);

/* Writes `count` tensors in the order given, and `metadata_count` pairs of metadata (keys and values
 * in UTF-8). The file appears under `path` only when it is complete, on disk and read back: temporary
 * name in the same folder, fsync, check, rename, fsync of the folder. On failure the temporary file
 * is removed and `path` is as it was. */
ls_status ls__safetensors_write(const char *path, const ls_safetensors_entry *entries, size_t count,
                                const char *const *keys, const char *const *values,
                                size_t metadata_count);

#endif
