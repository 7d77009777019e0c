/* Error feedback: what a compressing hook left out of each tensor's gradient, which it adds to the next one. */
#ifndef LS_REDUCER_FEEDBACK_H
#define LS_REDUCER_FEEDBACK_H

#include <lockstep/status.h>
#include <stddef.h>

/* One tensor's. */
typedef struct ls__feedback {
    size_t param; /* its place in the reducer's list */
    char *name;
    size_t count;
    float *error; /* (count), zeros at first */
} ls__feedback;

/* Zero-initialise. */
typedef struct ls__feedback_table {
    ls__feedback
        *row; /* (rows), in the order in which they were added: a hook's states are in this order */
    size_t rows;
    ls__feedback **of_param; /* (params); NULL: that tensor has none */
    size_t params;
} ls__feedback_table;

/* An empty table for `params` tensors, in place of what was there: a hook is attached again when its reducer came
 * to nothing. Free it also after a failure. */
ls_status ls__feedback_start(ls__feedback_table *table, size_t params);
/* The tensor number `param` gets a row; each at most once. */
ls_status ls__feedback_add(ls__feedback_table *table, size_t param, const char *name, size_t count);
void ls__feedback_free(ls__feedback_table *table);

/* gradient (count) += error */
void ls__feedback_apply(const ls__feedback *feedback, float *gradient);

#endif
