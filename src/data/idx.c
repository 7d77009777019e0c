#include "data/idx.h"

#include "base/error.h"
#include "base/file.h"
#include "data/gzip.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { TYPE_U8 = 0x08, HEADER_MAX = 4 + 4 * LS__IDX_DIMS };

/* Deflate's best case is 1032 bytes out of one. */
enum { GZIP_RATIO = 1032 };

static uint32_t big_endian(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static ls_status check_magic(const unsigned char *header, size_t dims, const char *name) {
    uint32_t magic = big_endian(header), want = TYPE_U8 << 8 | (uint32_t)dims;
    if (magic == want)
        return LS_OK;
    if (magic >> 16 != 0)
        return ls__fail(LS_ERR_FORMAT, "%s: no IDX file: magic is 0x%08x, want 0x%08x", name, magic,
                        want);
    if (header[2] != TYPE_U8)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: element type is 0x%02x, want 0x%02x, unsigned byte (magic 0x%08x, "
                        "want 0x%08x)",
                        name, header[2], TYPE_U8, magic, want);
    return ls__fail(LS_ERR_FORMAT, "%s: has %u dimensions, want %zu (magic 0x%08x, want 0x%08x)",
                    name, header[3], dims, magic, want);
}

/* The shape as "60000 x 28 x 28". */
static const char *shape_text(const ls__idx *idx, size_t dims, char *text, size_t bytes) {
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < dims && n < bytes; i++)
        n += (size_t)snprintf(text + n, bytes - n, i ? " x %zu" : "%zu", idx->shape[i]);
    return text;
}

static ls_status read_shape(ls__idx *idx, const unsigned char *header, size_t dims,
                            const char *name) {
    size_t product = 1;
    bool overflow = false;
    for (size_t i = 0; i < dims; i++) {
        idx->shape[i] = big_endian(header + 4 + 4 * i);
        overflow |= __builtin_mul_overflow(product, idx->shape[i], &product);
    }
    char text[64];
    if (overflow || product > SIZE_MAX / 2)
        return ls__fail(LS_ERR_FORMAT, "%s: a shape of %s is more than memory can hold", name,
                        shape_text(idx, dims, text, sizeof text));
    idx->size = product;
    return LS_OK;
}

static ls_status parse_plain(ls__idx *idx, const unsigned char *bytes, size_t size, size_t dims,
                             const char *name) {
    size_t header = 4 + 4 * dims;
    if (size < header)
        return ls__fail(LS_ERR_FORMAT, "%s: has %zu bytes, want at least %zu for the header", name,
                        size, header);
    LS_TRY(check_magic(bytes, dims, name));
    LS_TRY(read_shape(idx, bytes, dims, name));
    char text[64];
    if (size - header != idx->size)
        return ls__fail(LS_ERR_FORMAT, "%s: has %zu bytes, want %zu for %s: %s", name, size,
                        header + idx->size, shape_text(idx, dims, text, sizeof text),
                        size - header < idx->size ? "cut off" : "bytes follow the data");
    idx->data = bytes + header;
    return LS_OK;
}

/* Takes no more memory than the shape says, and believes no shape that `packed` bytes cannot hold. */
static ls_status parse_gzip(ls__idx *idx, ls__gunzip *gunzip, size_t packed, size_t dims,
                            const char *name) {
    unsigned char header[HEADER_MAX];
    size_t want = 4 + 4 * dims, got;
    LS_TRY(ls__gunzip_read(gunzip, header, want, &got));
    if (got < want)
        return ls__fail(LS_ERR_FORMAT, "%s: unpacks to %zu bytes, want at least %zu for the header",
                        name, got, want);
    LS_TRY(check_magic(header, dims, name));
    LS_TRY(read_shape(idx, header, dims, name));
    char text[64];
    shape_text(idx, dims, text, sizeof text);
    if (idx->size / GZIP_RATIO > packed)
        return ls__fail(LS_ERR_FORMAT, "%s: a shape of %s does not fit into %zu bytes of gzip",
                        name, text, packed);
    idx->unpacked = malloc(idx->size + 1);
    if (!idx->unpacked)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for its %zu bytes", name, idx->size);
    LS_TRY(ls__gunzip_read(gunzip, idx->unpacked, idx->size, &got));
    if (got < idx->size)
        return ls__fail(LS_ERR_FORMAT, "%s: unpacks to %zu bytes, want %zu for %s: cut off", name,
                        want + got, want + idx->size, text);
    unsigned char more;
    LS_TRY(ls__gunzip_read(gunzip, &more, 1, &got));
    if (got > 0)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: unpacks to more than the %zu bytes for %s: bytes follow the data",
                        name, want + idx->size, text);
    idx->data = idx->unpacked;
    return LS_OK;
}

ls_status ls__idx_parse(ls__idx *idx, const unsigned char *bytes, size_t size, size_t dims,
                        const char *name) {
    *idx = (ls__idx){0};
    if (size == 0)
        return ls__fail(LS_ERR_FORMAT, "%s: is empty", name);
    if (!ls__gunzip_looks_like(bytes, size))
        return parse_plain(idx, bytes, size, dims, name);
    ls__gunzip *gunzip;
    LS_TRY(ls__gunzip_open(&gunzip, bytes, size, name));
    ls_status status = parse_gzip(idx, gunzip, size, dims, name);
    ls__gunzip_close(gunzip);
    return status;
}

ls_status ls__idx_load(ls__idx *idx, const char *path, size_t dims) {
    *idx = (ls__idx){0};
    unsigned char *file;
    size_t size;
    LS_TRY(ls__file_read(path, &file, &size));
    ls_status status = ls__idx_parse(idx, file, size, dims, path);
    if (idx->unpacked)
        free(file);
    else
        idx->file = file;
    return status;
}

void ls__idx_free(ls__idx *idx) {
    free(idx->file);
    free(idx->unpacked);
    *idx = (ls__idx){0};
}
