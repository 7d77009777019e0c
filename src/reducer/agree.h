/* How ranks that create something together learn of the failure of one of them, instead of waiting for it. */
#ifndef LS_REDUCER_AGREE_H
#define LS_REDUCER_AGREE_H

#include "base/error.h"
#include <lockstep/group.h>

enum { LS__FAILURE_TEXT = 1024 }; /* bytes, the end included */

/* Collective. `local` is what happened on this rank, with its text in ls_error_text. LS_OK on all ranks, or an
 * error on all, with the text of the lowest rank that failed: `local` where it happened, LS_ERR_PEER elsewhere.
 * One all-reduce of 8 bytes where all is well. */
LS_SHARED ls_status ls__agree(ls_group *group, ls_status local);

/* What all ranks must give alike. */
typedef struct ls__setting {
    const char *name;
    uint64_t value;
} ls__setting;

enum { LS__SETTINGS_MOST = 8 };

/* Collective; as many settings on every rank, in the same order. LS_ERR_MISMATCH on all ranks names the first that
 * differs with both values. `call`: the function that was called. One all-reduce where all is well. */
LS_SHARED ls_status ls__agree_on(ls_group *group, const char *call, const ls__setting *settings,
                                 size_t count);

/* Collective, where all know that rank `failed` did: its `text` reaches all, and all return an error as above. */
ls_status ls__share_failure(ls_group *group, int failed, ls_status local,
                            char text[LS__FAILURE_TEXT]);

#endif
