#ifndef LS_CHECKPOINT_VERIFY_H
#define LS_CHECKPOINT_VERIFY_H

#include "checkpoint/manifest.h"

/* As ls_checkpoint_verify, and hands out the manifest, which the caller frees. */
ls_status ls__checkpoint_verify(const char *path, ls__manifest *manifest);

#endif
