/* Do all ranks train the same model? The description of a rank's parameters is a sequence of strings,
 * each with its NUL: the bucket sizes, the hook, then one for each parameter ("fc2.weight F32 [10, 100]"). */
#ifndef LS_REDUCER_FINGERPRINT_H
#define LS_REDUCER_FINGERPRINT_H

#include <lockstep/reducer.h>

typedef struct ls__description {
    char *text;    /* owned; free() */
    size_t length; /* bytes, NULs included */
} ls__description;

ls_status ls__description_create(ls__description *description, const ls_reducer_param *params,
                                 size_t count, size_t first_bucket_bytes, size_t bucket_bytes,
                                 const ls_reducer_hook *hook);

/* The string of parameter i; NULL past the last. */
const char *ls__description_param(const ls__description *description, size_t i);

/* Collective. `local` is what happened on this rank so far, with its text in ls_error_text: a rank that
 * cannot go on still comes here, so that the others learn of it at once instead of waiting for it.
 * LS_OK on all ranks, or an error on all: `local` where it happened and LS_ERR_PEER elsewhere, or
 * LS_ERR_MISMATCH that names the first difference between rank 0 and the first rank unlike it. */
ls_status ls__fingerprint_compare(ls_group *group, ls_status local,
                                  const ls__description *description);

#endif
