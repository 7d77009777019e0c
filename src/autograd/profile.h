/* Where the time of steps goes, by operation. A step with a profile (ls_step.profile) tells it when an
 * operation was recorded and when its backward is done; the time since the last such event is that
 * operation's. So nothing is counted twice, also where a backward runs a forward again, and what a
 * new operation costs shows without a line of its own. Without a profile: one comparison a node. */
#ifndef LS_AUTOGRAD_PROFILE_H
#define LS_AUTOGRAD_PROFILE_H

#include "autograd/tape.h"

typedef enum ls__pass { LS__PASS_FORWARD, LS__PASS_BACKWARD, LS__PASS_UPDATE } ls__pass;

enum { LS__PROFILE_ROWS = 96 };

typedef struct ls__profile_row {
    const char *name; /* of static life */
    ls__pass pass;
    uint64_t calls, time_ns;
    double flops; /* of matrix products and convolutions, a multiply-add is two; 0 for others */
    double bytes; /* that must at least be read and written; 0 where unknown */
} ls__profile_row;

typedef struct ls__profile {
    ls__profile_row rows[LS__PROFILE_ROWS]; /* further ones are not kept: their time is nobody's */
    size_t count;
    uint64_t mark_ns; /* the last event */
} ls__profile;

/* In all of these, profile may be NULL: then nothing happens. */

/* The time up to now is nobody's. */
void ls__profile_mark(ls__profile *profile);

/* The time since the last event was this one's. */
void ls__profile_add(ls__profile *profile, const char *name, ls__pass pass, double flops,
                     double bytes);

/* The same for an operation on the tape, whose tensors tell how much there was to do. */
void ls__profile_add_node(ls__profile *profile, const ls__node *node, ls__pass pass);

#endif
