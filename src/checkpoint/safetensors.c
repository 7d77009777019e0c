/* Reading safetensors. A file is believed in nothing: every offset is checked against the shape, the
 * neighbours and the size of the file before anything points into it.
 *
 * Stricter than the Rust reader, on purpose: names that occur twice, names with U+0000 in them (C
 * strings could not tell them apart) and integers of 2^63 and more (which only a tensor without
 * elements could have in its shape) are refused. As there, unknown keys of a tensor are ignored and
 * "__metadata__": null counts as none. */
#include "checkpoint/safetensors.h"

#include "base/error.h"
#include "base/file.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct ls_safetensors {
    const unsigned char *map; /* NULL when parsed from memory of the caller */
    size_t map_size;
    json_t *root;                         /* holds the names and the metadata */
    json_t *metadata;                     /* borrowed from root, or NULL */
    ls_safetensors_entry *entries;        /* in the order of the data */
    const ls_safetensors_entry **by_name; /* the same, sorted by name */
    size_t count;
    size_t *shapes; /* all shapes, one behind the other */
};

static const struct {
    const char *name;
    size_t bits;
} dtypes[] = {{"BOOL", 8},    {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},
              {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
              {"I16", 16},    {"U16", 16},    {"F16", 16},        {"BF16", 16},
              {"I32", 32},    {"U32", 32},    {"F32", 32},        {"C64", 64},
              {"F64", 64},    {"I64", 64},    {"U64", 64},        {"F4", 4},
              {"F6_E2M3", 6}, {"F6_E3M2", 6}};

enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

/* A name in a message: the first bytes say enough of a long one. */
#define NAME "\"%.100s\""

static const char METADATA[] = "__metadata__";

size_t ls__safetensors_dtype_bits(const char *dtype) {
    for (size_t i = 0; i < DTYPES; i++)
        if (strcmp(dtypes[i].name, dtype) == 0)
            return dtypes[i].bits;
    return 0;
}

bool ls__safetensors_same_form(const ls_safetensors_entry *a, const ls_safetensors_entry *b) {
    return strcmp(a->dtype, b->dtype) == 0 && a->dims == b->dims &&
           (a->dims == 0 || memcmp(a->shape, b->shape, a->dims * sizeof *a->shape) == 0);
}

bool ls__safetensors_bytes(const char *dtype, const size_t *shape, size_t dims, size_t *bytes) {
    size_t bits = ls__safetensors_dtype_bits(dtype), product = 1;
    if (bits == 0)
        return false;
    for (size_t i = 0; i < dims; i++)
        if (__builtin_mul_overflow(product, shape[i], &product))
            return false;
    if (__builtin_mul_overflow(product, bits, &product) || product % 8 != 0)
        return false;
    *bytes = product / 8;
    return true;
}

/* --- one tensor of the header ------------------------------------------------------------------- */

static bool is_count(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

/* Fills name, dtype, dims, shape and bytes; *begin and the end from data_offsets. */
static ls_status parse_shape(ls_safetensors_entry *entry, json_t *shape, size_t *room,
                             const char *file) {
    if (!json_is_array(shape))
        return ls__fail(LS_ERR_FORMAT, "%s: tensor " NAME ": no \"shape\" that is an array", file,
                        entry->name);
    entry->dims = json_array_size(shape);
    entry->shape = room;
    for (size_t i = 0; i < entry->dims; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!is_count(dim))
            return ls__fail(LS_ERR_FORMAT,
                            "%s: tensor " NAME ": dimension %zu of its shape is no whole number "
                            ">= 0",
                            file, entry->name, i);
        room[i] = (size_t)json_integer_value(dim);
    }
    return LS_OK;
}

static ls_status parse_tensor(ls_safetensors_entry *entry, const char *name, json_t *object,
                              size_t *shape_room, const unsigned char *data, size_t data_size,
                              const char *file) {
    entry->name = name;
    if (!json_is_object(object))
        return ls__fail(LS_ERR_FORMAT, "%s: tensor " NAME " is no JSON object", file, name);
    const char *dtype = json_string_value(json_object_get(object, "dtype"));
    if (!dtype || ls__safetensors_dtype_bits(dtype) == 0)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: tensor " NAME ": dtype is \"%.20s\", want one like F32 or BF16", file,
                        name, dtype ? dtype : "");
    entry->dtype = dtype;
    LS_TRY(parse_shape(entry, json_object_get(object, "shape"), shape_room, file));
    if (!ls__safetensors_bytes(dtype, entry->shape, entry->dims, &entry->bytes))
        return ls__fail(LS_ERR_FORMAT,
                        "%s: tensor " NAME ": its shape of %s elements is more than 2^64 bits or "
                        "no whole bytes",
                        file, name, dtype);
    json_t *offsets = json_object_get(object, "data_offsets");
    json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !is_count(first) || !is_count(second))
        return ls__fail(LS_ERR_FORMAT,
                        "%s: tensor " NAME ": no \"data_offsets\" of two whole numbers", file,
                        name);
    uint64_t begin = (uint64_t)json_integer_value(first);
    uint64_t end = (uint64_t)json_integer_value(second);
    if (begin > end || end > data_size)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: tensor " NAME ": data_offsets are %llu to %llu, but there are %zu "
                        "bytes of data",
                        file, name, (unsigned long long)begin, (unsigned long long)end, data_size);
    if (end - begin != entry->bytes)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: tensor " NAME ": data_offsets span %llu bytes, but its shape and "
                        "dtype want %zu",
                        file, name, (unsigned long long)(end - begin), entry->bytes);
    entry->data = data + begin;
    return LS_OK;
}

/* --- the whole header --------------------------------------------------------------------------- */

static ls_status check_metadata(ls_safetensors *f, json_t *metadata, const char *file) {
    if (json_is_null(metadata))
        return LS_OK;
    if (!json_is_object(metadata))
        return ls__fail(LS_ERR_FORMAT, "%s: \"__metadata__\" is no JSON object", file);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return ls__fail(LS_ERR_FORMAT, "%s: metadata " NAME " is no text", file, key);
    }
    f->metadata = metadata;
    return LS_OK;
}

static ls_status take_memory(ls_safetensors *f, const char *file) {
    size_t dims = 0;
    const char *name;
    json_t *object;
    f->count = 0;
    json_object_foreach(f->root, name, object) {
        if (strcmp(name, METADATA) == 0)
            continue;
        f->count++;
        dims += json_array_size(json_object_get(object, "shape"));
    }
    f->entries = calloc(f->count + 1, sizeof *f->entries);
    f->by_name = calloc(f->count + 1, sizeof(void *));
    f->shapes = calloc(dims + 1, sizeof *f->shapes);
    if (!f->entries || !f->by_name || !f->shapes)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for %zu tensors", file, f->count);
    return LS_OK;
}

static ls_status parse_entries(ls_safetensors *f, const unsigned char *data, size_t data_size,
                               const char *file) {
    LS_TRY(take_memory(f, file));
    size_t i = 0, *shapes = f->shapes;
    const char *name;
    json_t *object;
    json_object_foreach(f->root, name, object) {
        if (strcmp(name, METADATA) == 0) {
            LS_TRY(check_metadata(f, object, file));
            continue;
        }
        LS_TRY(parse_tensor(&f->entries[i], name, object, shapes, data, data_size, file));
        shapes += f->entries[i++].dims;
    }
    return LS_OK;
}

/* By place; tensors without bytes come before the one that begins there, among them by name. */
static int compare_place(const void *a, const void *b) {
    const ls_safetensors_entry *x = a, *y = b;
    const char *p = x->data, *q = y->data;
    if (p != q)
        return p < q ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b) {
    const ls_safetensors_entry *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* Each tensor begins where the one before it ended, the last ends with the file. */
static ls_status check_places(ls_safetensors *f, const unsigned char *data, size_t data_size,
                              const char *file) {
    qsort(f->entries, f->count, sizeof *f->entries, compare_place);
    size_t at = 0;
    for (size_t i = 0; i < f->count; i++) {
        const ls_safetensors_entry *entry = &f->entries[i];
        size_t begin = (size_t)((const unsigned char *)entry->data - data);
        if (begin != at)
            return ls__fail(LS_ERR_FORMAT,
                            "%s: tensor " NAME " begins at byte %zu of the data, want %zu: %s",
                            file, entry->name, begin, at,
                            begin < at ? "it overlaps the one before" : "there is a hole");
        at += entry->bytes;
        f->by_name[i] = entry;
    }
    if (at != data_size)
        return ls__fail(LS_ERR_FORMAT, "%s: has %zu bytes of data, but its tensors end at %zu",
                        file, data_size, at);
    qsort(f->by_name, f->count, sizeof(void *), compare_name);
    return LS_OK;
}

static ls_status parse(ls_safetensors *f, const unsigned char *bytes, size_t size,
                       const char *file) {
    if (size < 8)
        return ls__fail(LS_ERR_FORMAT, "%s: has %zu bytes, want at least 8: no safetensors file",
                        file, size);
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | bytes[i];
    if (header > LS__SAFETENSORS_HEADER_MAX)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: its header says it is %llu bytes long, want at most %d: no "
                        "safetensors file",
                        file, (unsigned long long)header, LS__SAFETENSORS_HEADER_MAX);
    if (header > size - 8)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: has %zu bytes, but its header says it ends at byte %llu: cut off",
                        file, size, (unsigned long long)header + 8);
    json_error_t error;
    f->root = json_loadb((const char *)bytes + 8, (size_t)header, JSON_REJECT_DUPLICATES, &error);
    if (!f->root && json_error_code(&error) == json_error_out_of_memory)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for its header", file);
    if (!f->root)
        return ls__fail(LS_ERR_FORMAT, "%s: its header is no valid JSON, at byte %d: %s", file,
                        error.position + 8, error.text);
    if (!json_is_object(f->root))
        return ls__fail(LS_ERR_FORMAT, "%s: its header is no JSON object", file);
    const unsigned char *data = bytes + 8 + header;
    size_t data_size = size - 8 - (size_t)header;
    LS_TRY(parse_entries(f, data, data_size, file));
    return check_places(f, data, data_size, file);
}

/* --- the interface ------------------------------------------------------------------------------ */

ls_status ls__safetensors_parse(ls_safetensors **file, const unsigned char *bytes, size_t size,
                                const char *name) {
    *file = NULL;
    ls_safetensors *f = calloc(1, sizeof *f);
    if (!f)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory to read it", name);
    ls_status status = parse(f, bytes, size, name);
    if (status == LS_OK)
        *file = f;
    else
        ls_safetensors_close(f);
    return status;
}

ls_status ls_safetensors_open(ls_safetensors **file, const char *path) {
    if (!file || !path)
        return ls__fail(LS_ERR_ARGUMENT, "ls_safetensors_open: file or path is NULL");
    *file = NULL;
    const unsigned char *map;
    size_t size;
    LS_TRY(ls__file_map(path, &map, &size));
    ls_status status = ls__safetensors_parse(file, map, size, path);
    if (!*file) {
        ls__file_unmap(map, size);
        return status;
    }
    (*file)->map = map;
    (*file)->map_size = size;
    return LS_OK;
}

void ls_safetensors_close(ls_safetensors *file) {
    if (!file)
        return;
    if (file->map)
        ls__file_unmap(file->map, file->map_size);
    json_decref(file->root);
    free(file->entries);
    free(file->by_name);
    free(file->shapes);
    free(file);
}

size_t ls_safetensors_count(const ls_safetensors *file) {
    return file ? file->count : 0;
}

const ls_safetensors_entry *ls_safetensors_get(const ls_safetensors *file, size_t i) {
    return file && i < file->count ? &file->entries[i] : NULL;
}

const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file, const char *name) {
    const ls_safetensors_entry key = {.name = name}, *pointer = &key;
    if (!file || !name)
        return NULL;
    const ls_safetensors_entry **found =
        bsearch(&pointer, file->by_name, file->count, sizeof(void *), compare_name);
    return found ? *found : NULL;
}

const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key) {
    return file && key ? json_string_value(json_object_get(file->metadata, key)) : NULL;
}
