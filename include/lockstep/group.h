/* Collectives over a group of ranks. Part of liblockstep-comm.
 *
 * Rules for all of them:
 *   - every rank of the group makes the same calls in the same order, from any thread, but one thread
 *     of a rank at a time decides the order (send and recv included: they pair up in call order per peer);
 *   - counts are elements of the dtype beside them; buffers are caller-owned and must stay valid and
 *     untouched until the call returns or its work is waited for; send and receive buffers are the
 *     same pointer (in place) or do not overlap;
 *   - a header (group, sequence, operation, dtype, count, root) travels with every operation and a
 *     difference is LS_ERR_MISMATCH on all ranks (of send and recv: on both), naming ranks, value seen
 *     and value wanted; nobody's buffers have been touched then. Two ranks that wait for each other in
 *     different operations are found likewise (but for two in recv over tcp and mpi, which the timeout ends);
 *   - every wait is bounded by the group's timeout; a rank that died, has stopped or left is LS_ERR_PEER,
 *     named;
 *   - after any error but LS_ERR_ARGUMENT the group is broken: further calls return the first error;
 *   - sums run in the order of one balanced binary tree over ranks: T(a, n) = T(a, m) + T(a + m, n - m)
 *     with m the largest power of two below n. 16-bit floats are summed in f32 and rounded once.
 *     The result is equal to the bit on every rank, transport, algorithm and split (docs/determinism.md).
 *
 * "started" forms return at once with a work handle; operations of one group run one after the other
 * in the order they were started. */
#ifndef LOCKSTEP_GROUP_H
#define LOCKSTEP_GROUP_H

#include <lockstep/dtype.h>
#include <lockstep/job.h>
#include <lockstep/status.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_work ls_work; /* opaque: a started operation */

typedef enum ls_op { LS_SUM, LS_PRODUCT, LS_MIN, LS_MAX, LS_AVG, LS_OP_COUNT } ls_op;

/* This process in the group, 0 .. size - 1. Any thread. */
LS_API int ls_group_rank(const ls_group *group);
LS_API int ls_group_size(const ls_group *group);
/* What messages call it: "world", "world.split2[color 1]". Messages name ranks by their numbers in the
 * world; where this rank's number in the group is another, they say so. */
LS_API const char *ls_group_name(const ls_group *group);

/* --- groups of some of the ranks ------------------------------------------------------------------
 *
 * A part has memory and connections of its own, a queue and a thread: its operations have no order with
 * those of other groups and may run at the same time from another thread. It can be split again, lasts
 * until ls_group_destroy or ls_job_finish, and needs its job, not its parent. When a group breaks, other
 * groups of its ranks go on; a rank that died breaks each group in which it is waited for. */

enum { LS_GROUP_NONE = -1 }; /* as color: no group for this rank */

/* Collective over `parent`, in the order of its operations. The ranks that give the same color (0 or more)
 * become one group, numbered by key, then by their rank in the parent. LS_GROUP_NONE: *group is NULL.
 * The part takes the parent's timeout over. On failure on one rank, others may get LS_ERR_PEER. */
LS_API ls_status ls_group_split(ls_group *parent, int color, int key, ls_group **group);
/* The same for one group: `ranks` (count of them, ranks of the parent, each once) in the order of the new
 * group. All ranks of the parent call it with the same list; those not in it get NULL. */
LS_API ls_status ls_group_create_subset(ls_group *parent, const int *ranks, int count,
                                        ls_group **group);
/* Ends this rank's part in a group: waits for started operations, gives memory, connections and thread
 * back, memory of ls_group_alloc included. No collective: peers that still wait for this rank in the group
 * get LS_ERR_PEER. NULL is allowed; the world is the job's, and stays. No other thread may be inside of a
 * call on the group. */
LS_API void ls_group_destroy(ls_group *group);

/* How long an operation may wait, once it has begun, for ranks that beat (see ls_job_options.heartbeat_s) but do
 * not arrive: then LS_ERR_TIMEOUT names them. Default: the job's timeout_s. Holds for operations that this
 * rank starts from now on, so one operation gets its own by setting it before and back after the call; a
 * started one keeps what was set when it was started. Each rank sets its own. ls_job_set_phase is for
 * waits that one rank knows it will cause. */
LS_API ls_status ls_group_set_timeout(ls_group *group, double seconds);
LS_API double ls_group_timeout(ls_group *group);

/* recv[i] = op over ranks of send[i], on all ranks. LS_AVG divides the sum by the group's size;
 * integers: truncated towards zero. */
LS_API ls_status ls_all_reduce(ls_group *group, const void *send, void *recv, size_t count,
                               ls_dtype dtype, ls_op op);
/* As above with LS_SUM, then divided by the sum over ranks of `weight` (each rank gives its own, 0 is
 * legal, negative or NaN is not). All weights 0 gives zeros. Float dtypes only. *total (may be NULL)
 * receives the global weight. The division is one multiplication by 1 / total, which
 * is rounded to f32 first for all dtypes but F64. */
LS_API ls_status ls_all_reduce_weighted(ls_group *group, const void *send, void *recv, size_t count,
                                        ls_dtype dtype, double weight, double *total);
/* As ls_all_reduce, but the result is in recv of rank `root` only. The others' recv is not looked at and
 * may be NULL. In place: recv == send on the root. */
LS_API ls_status ls_reduce(ls_group *group, const void *send, void *recv, size_t count,
                           ls_dtype dtype, ls_op op, int root);
/* Rank r receives elements [r*count, (r+1)*count) of the reduction of send (size*count elements). In
 * place: recv == (char *)send + rank * count * element size. */
LS_API ls_status ls_reduce_scatter(ls_group *group, const void *send, void *recv, size_t count,
                                   ls_dtype dtype, ls_op op);
/* recv (size*count elements) = every rank's send (count elements), in rank order. In place: send ==
 * (char *)recv + rank * count * element size. */
LS_API ls_status ls_all_gather(ls_group *group, const void *send, void *recv, size_t count,
                               ls_dtype dtype);
/* As ls_all_gather, but only into recv of rank `root`; the others' may be NULL. */
LS_API ls_status ls_gather(ls_group *group, const void *send, void *recv, size_t count,
                           ls_dtype dtype, int root);
/* Elements [r*count, (r+1)*count) of the root's send (size*count elements; the others' may be NULL) go to
 * recv of rank r. In place on the root: recv == (char *)send + root * count * element size. */
LS_API ls_status ls_scatter(ls_group *group, const void *send, void *recv, size_t count,
                            ls_dtype dtype, int root);
/* Elements [r*count, (r+1)*count) of send go to rank r, which finds those of rank s in elements
 * [s*count, (s+1)*count) of its recv. Both buffers hold size*count elements. In place: recv == send. */
LS_API ls_status ls_all_to_all(ls_group *group, const void *send, void *recv, size_t count,
                               ls_dtype dtype);
/* The buffer of rank `root`, 0 .. size - 1, to all. */
LS_API ls_status ls_broadcast(ls_group *group, void *buffer, size_t count, ls_dtype dtype,
                              int root);
/* Returns once every rank has called it. */
LS_API ls_status ls_barrier(ls_group *group);

/* Uneven forms: counts[r] elements, 0 included, are rank r's block, and blocks lie one behind the other
 * in rank order. `counts` (size) is the same on all ranks (a hash of it is compared), belongs to the caller
 * and stays as it is until a started operation is waited for. In place: the smaller buffer is its block of
 * the larger one. */
LS_API ls_status ls_reduce_scatter_v(ls_group *group, const void *send, void *recv,
                                     const size_t *counts, ls_dtype dtype, ls_op op);
LS_API ls_status ls_all_gather_v(ls_group *group, const void *send, void *recv,
                                 const size_t *counts, ls_dtype dtype);
LS_API ls_status ls_gather_v(ls_group *group, const void *send, void *recv, const size_t *counts,
                             ls_dtype dtype, int root);
LS_API ls_status ls_scatter_v(ls_group *group, const void *send, void *recv, const size_t *counts,
                              ls_dtype dtype, int root);
/* Every rank has counts of its own: send_counts[r] elements go to rank r, recv_counts[r] come from it.
 * What a rank sends and what its receiver expects is compared. There is no in-place form. */
LS_API ls_status ls_all_to_all_v(ls_group *group, const void *send, const size_t *send_counts,
                                 void *recv, const size_t *recv_counts, ls_dtype dtype);

/* Point to point, to or from another rank. Both sides give the same count and dtype. send may return
 * before the peer has it. */
LS_API ls_status ls_send(ls_group *group, const void *buffer, size_t count, ls_dtype dtype, int to);
LS_API ls_status ls_recv(ls_group *group, void *buffer, size_t count, ls_dtype dtype, int from);
/* Sends and receives at once, so that ranks in a ring need not take turns. Either half meets a send or recv
 * of the peer as well as a sendrecv. `to` and `from` may be the same rank; this rank itself only as both, with
 * equal counts. The buffers do not overlap. */
LS_API ls_status ls_sendrecv(ls_group *group, const void *send, size_t send_count, int to,
                             void *recv, size_t recv_count, int from, ls_dtype dtype);

/* Started forms. On success *work must be given to ls_work_wait exactly once. */
LS_API ls_status ls_all_reduce_start(ls_group *group, const void *send, void *recv, size_t count,
                                     ls_dtype dtype, ls_op op, ls_work **work);
LS_API ls_status ls_all_reduce_weighted_start(ls_group *group, const void *send, void *recv,
                                              size_t count, ls_dtype dtype, double weight,
                                              double *total, ls_work **work);
LS_API ls_status ls_reduce_start(ls_group *group, const void *send, void *recv, size_t count,
                                 ls_dtype dtype, ls_op op, int root, ls_work **work);
LS_API ls_status ls_reduce_scatter_start(ls_group *group, const void *send, void *recv,
                                         size_t count, ls_dtype dtype, ls_op op, ls_work **work);
LS_API ls_status ls_all_gather_start(ls_group *group, const void *send, void *recv, size_t count,
                                     ls_dtype dtype, ls_work **work);
LS_API ls_status ls_gather_start(ls_group *group, const void *send, void *recv, size_t count,
                                 ls_dtype dtype, int root, ls_work **work);
LS_API ls_status ls_scatter_start(ls_group *group, const void *send, void *recv, size_t count,
                                  ls_dtype dtype, int root, ls_work **work);
LS_API ls_status ls_all_to_all_start(ls_group *group, const void *send, void *recv, size_t count,
                                     ls_dtype dtype, ls_work **work);
LS_API ls_status ls_broadcast_start(ls_group *group, void *buffer, size_t count, ls_dtype dtype,
                                    int root, ls_work **work);
LS_API ls_status ls_barrier_start(ls_group *group, ls_work **work);
LS_API ls_status ls_reduce_scatter_v_start(ls_group *group, const void *send, void *recv,
                                           const size_t *counts, ls_dtype dtype, ls_op op,
                                           ls_work **work);
LS_API ls_status ls_all_gather_v_start(ls_group *group, const void *send, void *recv,
                                       const size_t *counts, ls_dtype dtype, ls_work **work);
LS_API ls_status ls_gather_v_start(ls_group *group, const void *send, void *recv,
                                   const size_t *counts, ls_dtype dtype, int root, ls_work **work);
LS_API ls_status ls_scatter_v_start(ls_group *group, const void *send, void *recv,
                                    const size_t *counts, ls_dtype dtype, int root, ls_work **work);
LS_API ls_status ls_all_to_all_v_start(ls_group *group, const void *send, const size_t *send_counts,
                                       void *recv, const size_t *recv_counts, ls_dtype dtype,
                                       ls_work **work);
LS_API ls_status ls_send_start(ls_group *group, const void *buffer, size_t count, ls_dtype dtype,
                               int to, ls_work **work);
LS_API ls_status ls_recv_start(ls_group *group, void *buffer, size_t count, ls_dtype dtype,
                               int from, ls_work **work);
LS_API ls_status ls_sendrecv_start(ls_group *group, const void *send, size_t send_count, int to,
                                   void *recv, size_t recv_count, int from, ls_dtype dtype,
                                   ls_work **work);

/* When an operation ran, in ns of CLOCK_MONOTONIC, and who was last to arrive at it. */
typedef struct ls_work_times {
    uint64_t queued_ns; /* the call that started it */
    uint64_t begin_ns;  /* this rank arrived */
    uint64_t ready_ns;  /* all ranks had arrived: up to here it was waiting */
    uint64_t end_ns;    /* done: from ready to here it was work */
    int last_rank;      /* the rank that arrived last; -1 where the transport cannot tell */
} ls_work_times;

/* Waits for the operation and frees the handle. `times` may be NULL. */
LS_API ls_status ls_work_wait(ls_work *work, ls_work_times *times);
/* 1 once the operation ended (well or not), else 0; does not free. */
LS_API int ls_work_done(const ls_work *work);

/* Collective. Memory of `bytes` bytes on each rank (the same number on all), zeroed, aligned to a page,
 * which every rank of this machine maps: collectives on buffers inside it make no copies. Each rank
 * sees its own part. Where memory cannot be shared it is ordinary memory; everything still works.
 * Reserved at the call: LS_ERR_MEMORY on all ranks rather than a fault later. */
LS_API ls_status ls_group_alloc(ls_group *group, size_t bytes, void **memory);
/* Collective. `memory` NULL is allowed (on all ranks). What is not freed lives as long as the job. */
LS_API ls_status ls_group_free(ls_group *group, void *memory);

#ifdef __cplusplus
}
#endif
#endif
