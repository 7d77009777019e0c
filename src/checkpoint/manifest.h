/* manifest.json of a checkpoint, written last: what the files must be, and where the run stood. It carries
 * a checksum of itself, so that a changed digit in it is noticed as one in a tensor is. */
#ifndef LS_CHECKPOINT_MANIFEST_H
#define LS_CHECKPOINT_MANIFEST_H

#include <lockstep/checkpoint.h>
#include <stdint.h>

#define LS__MANIFEST_NAME "manifest.json"
enum { LS__MANIFEST_VERSION = 1, LS__MANIFEST_MAX_BYTES = 8 << 20, LS__MANIFEST_MAX_FILES = 64 };

/* `bytes` bytes from `offset` on have this XXH64 (seed 0). */
typedef struct ls__manifest_part {
    uint64_t offset, bytes, hash;
} ls__manifest_part;

typedef struct ls__manifest_file {
    char *name; /* a plain name, no path */
    uint64_t bytes;
    ls__manifest_part *parts; /* tile the file */
    size_t part_count;
} ls__manifest_file;

typedef struct ls__manifest {
    ls_checkpoint_progress progress;
    int64_t world_size; /* of the run that saved it */
    ls__manifest_file *files;
    size_t file_count;
    char **fact_names, **fact_values;
    size_t fact_count;
} ls__manifest;

/* From text that anybody may have written; `name` is for messages. LS_ERR_FORMAT says what is wrong. */
ls_status ls__manifest_parse(ls__manifest *manifest, const char *text, size_t size,
                             const char *name);
/* The text, which the caller frees; NULL without memory. */
char *ls__manifest_text(const ls__manifest *manifest);
/* Reads FOLDER/manifest.json. */
ls_status ls__manifest_read(ls__manifest *manifest, const char *folder);
void ls__manifest_free(ls__manifest *manifest);

#endif
