/* Every operation of a group by name, for tests that need to be inside of one: with sizes for each of the ways it
 * can go. The results are not looked at. */
#ifndef TESTS_OPERATIONS_H
#define TESTS_OPERATIONS_H

#include <lockstep/group.h>
#include <stdlib.h>
#include <string.h>

enum { OPERATIONS_SMALL = 8, OPERATIONS_LARGE = 200 * 1000, OPERATIONS_RANKS = 8 };
/* Elements of the buffer that operations_run wants. */
enum { OPERATIONS_COUNT = 2 * OPERATIONS_RANKS * OPERATIONS_LARGE };

static const char *const operations[] = {
    "all_reduce", "reduce",  "reduce_scatter", "all_gather", "gather", "scatter", "all_to_all",
    "broadcast",  "barrier", "sendrecv",       "send_recv",  "alloc",  "started",
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* Four at a time, waited for in the end. */
static inline ls_status operations_started(ls_group *group, float *at, size_t count) {
    ls_work *work[4] = {NULL};
    ls_status status = LS_OK;
    for (int i = 0; i < 4 && status == LS_OK; i++)
        status = ls_all_reduce_start(group, at + (size_t)i * count, at + (size_t)i * count, count,
                                     LS_F32, LS_SUM, &work[i]);
    for (int i = 0; i < 4; i++) {
        ls_status waited = work[i] ? ls_work_wait(work[i], NULL) : LS_OK;
        status = status == LS_OK ? waited : status;
    }
    return status;
}

/* Round a ring: odd ranks receive first. */
static inline ls_status operations_ring(ls_group *group, const float *from, float *to,
                                        size_t count) {
    int rank = ls_group_rank(group), size = ls_group_size(group);
    int next = (rank + 1) % size, last = (rank + size - 1) % size;
    if (size == 1)
        return LS_OK;
    ls_status status = rank % 2 ? ls_recv(group, to, count, LS_F32, last)
                                : ls_send(group, from, count, LS_F32, next);
    if (status != LS_OK)
        return status;
    return rank % 2 ? ls_send(group, from, count, LS_F32, next)
                    : ls_recv(group, to, count, LS_F32, last);
}

static inline ls_status operations_alloc(ls_group *group, size_t count) {
    void *memory;
    ls_status status = ls_group_alloc(group, count * sizeof(float), &memory);
    return status == LS_OK ? ls_group_free(group, memory) : status;
}

static inline ls_status operations_run(ls_group *group, const char *name, float *buffer,
                                       size_t count) {
    int rank = ls_group_rank(group), size = ls_group_size(group);
    float *a = buffer, *b = buffer + (size_t)OPERATIONS_RANKS * OPERATIONS_LARGE;
    if (strcmp(name, "all_reduce") == 0)
        return ls_all_reduce(group, a, a, count, LS_F32, LS_SUM);
    if (strcmp(name, "reduce") == 0)
        return ls_reduce(group, a, b, count, LS_F32, LS_SUM, size - 1);
    if (strcmp(name, "reduce_scatter") == 0)
        return ls_reduce_scatter(group, a, b, count, LS_F32, LS_SUM);
    if (strcmp(name, "all_gather") == 0)
        return ls_all_gather(group, a, b, count, LS_F32);
    if (strcmp(name, "gather") == 0)
        return ls_gather(group, a, b, count, LS_F32, 0);
    if (strcmp(name, "scatter") == 0)
        return ls_scatter(group, a, b, count, LS_F32, 0);
    if (strcmp(name, "all_to_all") == 0)
        return ls_all_to_all(group, a, b, count, LS_F32);
    if (strcmp(name, "broadcast") == 0)
        return ls_broadcast(group, a, count, LS_F32, size - 1);
    if (strcmp(name, "sendrecv") == 0)
        return ls_sendrecv(group, a, count, (rank + 1) % size, b, count, (rank + size - 1) % size,
                           LS_F32);
    if (strcmp(name, "send_recv") == 0)
        return operations_ring(group, a, b, count);
    if (strcmp(name, "alloc") == 0)
        return operations_alloc(group, count);
    if (strcmp(name, "started") == 0)
        return operations_started(group, a, count);
    return ls_barrier(group);
}

#endif
