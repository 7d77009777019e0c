/* Layers that compute with the whole batch, of which this rank holds a part: batch norm with norm=sync. */
#ifndef LS_NN_SYNC_H
#define LS_NN_SYNC_H

#include <lockstep/ops.h>

/* One for a model; its layers point to it. Whoever trains the model in parallel fills `over`; while
 * over.sum is NULL, this rank's batch is the whole one. */
typedef struct ls__sync {
    ls_batch_norm_sync over;
    size_t layers; /* that use it */
    size_t most;   /* values of the longest call of over.sum that they make */
} ls__sync;

#endif
