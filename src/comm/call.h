/* What the public operations share: checks of arguments (made here and nowhere below), the description
 * of an operation, and its way into the group's queue. */
#ifndef LS_COMM_CALL_H
#define LS_COMM_CALL_H

#include "base/error.h"
#include "comm/transport.h"

/* Group, dtype, and that the larger of the two buffers (count * blocks elements) can exist. */
ls_status ls__check_common(const char *name, const ls_group *group, size_t count, size_t blocks,
                           ls_dtype dtype);
/* As above for an uneven form: *total is the sum of its counts. */
ls_status ls__check_counts(const char *name, const ls_group *group, const size_t *counts,
                           ls_dtype dtype, size_t *total);
ls_status ls__check_buffer(const char *name, const char *which, const void *buffer, size_t count);
/* `in_place` is the one position of the smaller buffer inside the larger that is allowed. */
ls_status ls__check_overlap(const char *name, const void *send, size_t send_bytes, const void *recv,
                            size_t recv_bytes, bool in_place);
ls_status ls__check_op(const char *name, ls_op op);
ls_status ls__check_rank(const char *name, const char *which, const ls_group *group, int rank);
/* Of a started form; *work is NULL from here on. */
ls_status ls__check_work(const char *name, ls_work **work);

/* Into a place of the caller's: what small operations take is counted in nanoseconds. */
void ls__describe(ls__operation *operation, ls__kind kind, const void *send, void *recv,
                  size_t count, ls_dtype dtype);
/* Blocking when the caller has no place for a handle. */
ls_status ls__submit(ls_group *group, ls__operation *operation, ls_work **work);

/* An operation on blocks: one of `larger` is `smaller`'s, on ranks that have both. */
typedef struct ls__blocks_call {
    ls__kind kind;
    const char *name;
    const void *send;
    void *recv;
    ls_dtype dtype;
    ls_op op;
    bool rooted;
    int root; /* where rooted */
    bool
        sends_all; /* send is the buffer of all blocks, recv that of one; else the other way round */
} ls__blocks_call;

/* Check all arguments, then submit: blocks of `count` elements, or of counts[r]. */
ls_status ls__submit_even(ls_group *group, ls__blocks_call call, size_t count, ls_work **work);
ls_status ls__submit_uneven(ls_group *group, ls__blocks_call call, const size_t *counts,
                            ls_work **work);

#endif
