/* Saving and loading parameters as safetensors. Part of liblockstep. */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes all parameters, by name, with the model's spec in the metadata ("lockstep.model"). The file
 * appears under `path` only when it is complete, on disk and read back: temporary name, fsync, rename,
 * fsync of the folder. On failure `path` is as it was. */
LS_API ls_status ls_model_save(ls_model *model, const char *path);

/* Reads parameters by name into the model. Names, shapes and dtypes must match both ways; the first
 * difference is named and nothing is changed. */
LS_API ls_status ls_model_load(ls_model *model, const char *path);

/* --- the file format itself --- */
typedef struct ls_safetensors ls_safetensors; /* opaque: an open, checked file, mapped read-only */

typedef struct ls_safetensors_entry {
    const char *name;  /* may hold any bytes but NUL */
    const char *dtype; /* as in the file, e.g. "F32" */
    size_t dims;
    const size_t *shape;
    const void *data; /* no alignment promised */
    size_t bytes;
} ls_safetensors_entry;

/* Strict: offsets must tile the data without hole or overlap, sizes must agree with shapes, nothing may
 * follow. Refused beyond that: names used twice or with U+0000, integers of 2^63 and more. The file
 * must not be shortened while it is open. LS_ERR_IO, LS_ERR_FORMAT, LS_ERR_MEMORY. */
LS_API ls_status ls_safetensors_open(ls_safetensors **file, const char *path);
LS_API void ls_safetensors_close(ls_safetensors *file);
/* The getters: any thread. Entries are tensors; metadata is none. */
LS_API size_t ls_safetensors_count(const ls_safetensors *file);
/* Entry i in the order of the data. Valid until close. */
LS_API const ls_safetensors_entry *ls_safetensors_get(const ls_safetensors *file, size_t i);
/* NULL when there is none. */
LS_API const ls_safetensors_entry *ls_safetensors_find(const ls_safetensors *file,
                                                       const char *name);
/* The text of a metadata key, or NULL. */
LS_API const char *ls_safetensors_metadata(const ls_safetensors *file, const char *key);

#ifdef __cplusplus
}
#endif
#endif
