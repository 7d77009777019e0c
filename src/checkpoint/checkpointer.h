/* The inside of a checkpointer. */
#ifndef LS_CHECKPOINT_CHECKPOINTER_H
#define LS_CHECKPOINT_CHECKPOINTER_H

#include "checkpoint/image.h"
#include <pthread.h>

/* What a rank says about how something went. */
typedef struct ls__word {
    int32_t status; /* ls_status */
    char text[1020];
} ls__word;

enum { LS__OUTCOMES = 2 }; /* of the save under way and the one before */

struct ls_checkpointer {
    ls_group *group; /* of its own, so that the thread's operations have no order with training's */
    int rank, ranks;
    ls_checkpoint_contents contents;
    ls_checkpointer_options options;
    char *folder;
    int lock; /* rank 0's, where there is no claim; else -1 */
    ls__images images;
    size_t state_count; /* weights that the optimizer has state of, when images were made */
    char *copy;         /* of this rank's parts, one behind the other; NULL: synchronous */
    size_t copy_bytes;
    ls__word *words; /* of all ranks */

    ls_checkpoint_progress progress; /* of the save under way */
    double copy_s;
    pthread_t thread;
    bool running; /* the thread has to be joined */

    pthread_mutex_t lock_outcomes; /* guards what follows */
    ls_checkpoint_outcome outcomes[LS__OUTCOMES];
    size_t outcome_count;
    ls_status last; /* how the last save ended */
    char last_text[1024];
};

/* agree.c, collective over c->group. All tell all how it went; the first failure is everybody's. */
ls_status ls__checkpoint_agree(ls_checkpointer *c, ls_status status);
/* Rank 0 tells all how it went, and on LS_OK what stands in its `text`. */
ls_status ls__checkpoint_follow(ls_group *group, ls_status status, char *text, size_t size);

/* claim.c: whether that is the folder it is of, as it was spelt. */
bool ls__checkpoint_claims(const ls_checkpoint_claim *claim, const char *folder);

/* save.c: all ranks together write the checkpoint of c->progress, from c->copy or the tensors. Collective
 * over c->group. *path: what it is called, for the caller to free. */
ls_status ls__checkpoint_write(ls_checkpointer *c, char **path);

/* retain.c: removes what the options do not keep, and sets the links; rank 0's. */
void ls__checkpoint_retain(const ls_checkpointer *c, uint64_t saved);

#endif
