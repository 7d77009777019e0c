/* How a reducer with a hook reduces: buckets go to the hook, or in full where the hook does not get them,
 * one after the other in a thread of the reducer's, since hooks block. */
#ifndef LS_REDUCER_HOOKED_H
#define LS_REDUCER_HOOKED_H

#include "reducer/layout.h"
#include "reducer/runner.h"

typedef struct ls__hooked {
    ls_reducer_hook hook;
    ls_group *group;
    const ls__layout *layout; /* the reducer's, as the next four */
    const bool *ready;
    ls_reducer_bucket *report;
    char *memory;
    double *total;
    double weight;
    bool total_known;     /* in this step */
    uint64_t steps;       /* begun */
    ls_hook_piece *piece; /* (layout->count) of the bucket under way */
    uint8_t *flags;       /* (layout->count) used marks on their way */
    size_t *order;        /* (layout->count) parameters as they lie in memory */
    ls__runner *runner;   /* NULL: inline */
    bool owns;            /* the hook is ours to destroy */
} ls__hooked;

/* All that can fail on this rank alone; no collective. `hooked` has layout, ready, report, group and total
 * set. Close it also after a failure. */
ls_status ls__hooked_attach(ls__hooked *hooked, const ls_reducer_hook *hook,
                            const ls_reducer_param *params, bool threaded);
/* What the layout says has changed: positions in memory. `order`: a permutation of 0 .. count-1. */
void ls__hooked_arrange(ls__hooked *hooked, const size_t *order);
void ls__hooked_begin(ls__hooked *hooked, double weight);
/* Bucket k is filled: called for 0, 1, 2, ... */
ls_status ls__hooked_start(ls__hooked *hooked, size_t k);
/* Waits for all that was started. */
ls_status ls__hooked_wait(ls__hooked *hooked);
/* Collective: used[i] becomes whether any rank reported i. */
ls_status ls__hooked_used(ls__hooked *hooked, bool *used);
void ls__hooked_close(ls__hooked *hooked);

#endif
