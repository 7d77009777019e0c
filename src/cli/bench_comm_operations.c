/* The operations that `lockstep bench` measures: one row each. A new collective needs a row and, where
 * its result comes from somewhere new, an origin. */
#include "cli/bench_comm.h"

#include <string.h>

/* --- bus factors ------------------------------------------------------------------------------- */

static double bus_one(double ranks) {
    (void)ranks;
    return 1;
}

static double bus_share(double ranks) {
    return (ranks - 1) / ranks;
}

static double bus_twice(double ranks) {
    return 2 * (ranks - 1) / ranks;
}

/* --- where results come from --------------------------------------------------------------------- */

static ls__bench_origin reduced(int rank, int ranks, int root, size_t block) {
    (void)rank, (void)ranks, (void)root;
    return (ls__bench_origin){LS__BENCH_REDUCED, block};
}

static ls__bench_origin reduced_share(int rank, int ranks, int root, size_t block) {
    (void)ranks, (void)root, (void)block;
    return (ls__bench_origin){LS__BENCH_REDUCED, (size_t)rank};
}

static ls__bench_origin gathered(int rank, int ranks, int root, size_t block) {
    (void)rank, (void)ranks, (void)root;
    return (ls__bench_origin){(int)block, 0};
}

static ls__bench_origin of_root(int rank, int ranks, int root, size_t block) {
    (void)rank, (void)ranks;
    return (ls__bench_origin){root, block};
}

static ls__bench_origin of_neighbour(int rank, int ranks, int root, size_t block) {
    (void)root;
    return (ls__bench_origin){(rank + ranks - 1) % ranks, block};
}

static ls__bench_origin reduced_at_root(int rank, int ranks, int root, size_t block) {
    (void)ranks;
    return (ls__bench_origin){rank == root ? LS__BENCH_REDUCED : LS__BENCH_NOTHING, block};
}

static ls__bench_origin gathered_at_root(int rank, int ranks, int root, size_t block) {
    (void)ranks;
    return (ls__bench_origin){rank == root ? (int)block : LS__BENCH_NOTHING, 0};
}

static ls__bench_origin share_of_root(int rank, int ranks, int root, size_t block) {
    (void)ranks, (void)block;
    return (ls__bench_origin){root, (size_t)rank};
}

static ls__bench_origin exchanged(int rank, int ranks, int root, size_t block) {
    (void)ranks, (void)root;
    return (ls__bench_origin){(int)block, (size_t)rank};
}

static ls__bench_origin nothing(int rank, int ranks, int root, size_t block) {
    (void)rank, (void)ranks, (void)root, (void)block;
    return (ls__bench_origin){LS__BENCH_NOTHING, 0};
}

/* --- calls ------------------------------------------------------------------------------------------ */

static ls_status run_all_reduce(const ls__bench_call *c) {
    return ls_all_reduce(c->group, c->send, c->recv, c->count, c->dtype, c->op);
}

static ls_status run_all_reduce_weighted(const ls__bench_call *c) {
    return ls_all_reduce_weighted(c->group, c->send, c->recv, c->count, c->dtype, 1, NULL);
}

static ls_status run_reduce_scatter(const ls__bench_call *c) {
    return ls_reduce_scatter(c->group, c->send, c->recv, c->count, c->dtype, c->op);
}

static ls_status run_all_gather(const ls__bench_call *c) {
    return ls_all_gather(c->group, c->send, c->recv, c->count, c->dtype);
}

static ls_status run_broadcast(const ls__bench_call *c) {
    return ls_broadcast(c->group, c->recv, c->count, c->dtype, c->root);
}

static ls_status run_reduce(const ls__bench_call *c) {
    return ls_reduce(c->group, c->send, c->recv, c->count, c->dtype, c->op, c->root);
}

static ls_status run_gather(const ls__bench_call *c) {
    return ls_gather(c->group, c->send, c->recv, c->count, c->dtype, c->root);
}

static ls_status run_scatter(const ls__bench_call *c) {
    return ls_scatter(c->group, c->send, c->recv, c->count, c->dtype, c->root);
}

static ls_status run_all_to_all(const ls__bench_call *c) {
    return ls_all_to_all(c->group, c->send, c->recv, c->count, c->dtype);
}

static ls_status run_reduce_scatter_v(const ls__bench_call *c) {
    return ls_reduce_scatter_v(c->group, c->send, c->recv, c->counts, c->dtype, c->op);
}

static ls_status run_all_gather_v(const ls__bench_call *c) {
    return ls_all_gather_v(c->group, c->send, c->recv, c->counts, c->dtype);
}

static ls_status run_gather_v(const ls__bench_call *c) {
    return ls_gather_v(c->group, c->send, c->recv, c->counts, c->dtype, c->root);
}

static ls_status run_scatter_v(const ls__bench_call *c) {
    return ls_scatter_v(c->group, c->send, c->recv, c->counts, c->dtype, c->root);
}

static ls_status run_all_to_all_v(const ls__bench_call *c) {
    return ls_all_to_all_v(c->group, c->send, c->counts, c->recv, c->counts, c->dtype);
}

/* A ring: to the next rank, from the one before. */
static ls_status run_sendrecv(const ls__bench_call *c) {
    int rank = ls_group_rank(c->group), ranks = ls_group_size(c->group);
    if (ranks == 1) {
        memcpy(c->recv, c->send, c->count * ls_dtype_size(c->dtype));
        return LS_OK;
    }
    return ls_sendrecv(c->group, c->send, c->count, (rank + 1) % ranks, c->recv, c->count,
                       (rank + ranks - 1) % ranks, c->dtype);
}

static ls_status run_barrier(const ls__bench_call *c) {
    return ls_barrier(c->group);
}

/* --- the table ---------------------------------------------------------------------------------------- */

static const ls__bench_operation all_reduce = {
    .name = "all_reduce",
    .what = "every rank gets the reduction of all",
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_twice,
    .origin = reduced,
    .run = run_all_reduce,
};

static const ls__bench_operation all_reduce_weighted = {
    .name = "all_reduce_weighted",
    .what = "the same, divided by the sum of the ranks' weights",
    .weighted = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_twice,
    .origin = reduced,
    .run = run_all_reduce_weighted,
};

static const ls__bench_operation reduce_scatter = {
    .name = "reduce_scatter",
    .what = "every rank gets its share of the reduction",
    .send_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = reduced_share,
    .run = run_reduce_scatter,
};

static const ls__bench_operation all_gather = {
    .name = "all_gather",
    .what = "every rank gets the blocks of all",
    .recv_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = gathered,
    .run = run_all_gather,
};

static const ls__bench_operation broadcast = {
    .name = "broadcast",
    .rooted = true,
    .what = "the buffer of --root to all",
    .in_place = LS__BENCH_IN_PLACE_ALWAYS,
    .bus = bus_one,
    .origin = of_root,
    .run = run_broadcast,
};

static const ls__bench_operation reduce = {
    .name = "reduce",
    .rooted = true,
    .what = "--root gets the reduction of all",
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_one,
    .origin = reduced_at_root,
    .run = run_reduce,
};

static const ls__bench_operation gather = {
    .name = "gather",
    .rooted = true,
    .what = "--root gets the blocks of all",
    .recv_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = gathered_at_root,
    .run = run_gather,
};

static const ls__bench_operation scatter = {
    .name = "scatter",
    .rooted = true,
    .what = "every rank gets its block of --root",
    .send_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = share_of_root,
    .run = run_scatter,
};

static const ls__bench_operation all_to_all = {
    .name = "all_to_all",
    .what = "every rank gets its block of each",
    .send_blocks = true,
    .recv_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = exchanged,
    .run = run_all_to_all,
};

/* The forms with a count for each rank, at equal counts, so that they compare with those above. */

static const ls__bench_operation reduce_scatter_v = {
    .name = "reduce_scatter_v",
    .what = "reduce_scatter with a count for each rank (equal ones here)",
    .send_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = reduced_share,
    .run = run_reduce_scatter_v,
};

static const ls__bench_operation all_gather_v = {
    .name = "all_gather_v",
    .what = "all_gather with a count for each rank (equal ones here)",
    .recv_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = gathered,
    .run = run_all_gather_v,
};

static const ls__bench_operation gather_v = {
    .name = "gather_v",
    .rooted = true,
    .what = "gather with a count for each rank (equal ones here)",
    .recv_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = gathered_at_root,
    .run = run_gather_v,
};

static const ls__bench_operation scatter_v = {
    .name = "scatter_v",
    .rooted = true,
    .what = "scatter with a count for each rank (equal ones here)",
    .send_blocks = true,
    .in_place = LS__BENCH_IN_PLACE_CAN,
    .bus = bus_share,
    .origin = share_of_root,
    .run = run_scatter_v,
};

static const ls__bench_operation all_to_all_v = {
    .name = "all_to_all_v",
    .what = "all_to_all with counts for each pair (equal ones here)",
    .send_blocks = true,
    .recv_blocks = true,
    .bus = bus_share,
    .origin = exchanged,
    .run = run_all_to_all_v,
};

static const ls__bench_operation sendrecv = {
    .name = "sendrecv",
    .what = "send to the next rank, recv from the one before",
    .bus = bus_one,
    .origin = of_neighbour,
    .run = run_sendrecv,
};

static const ls__bench_operation barrier = {
    .name = "barrier",
    .what = "all wait for all; has no size",
    .empty = true,
    .bus = bus_one,
    .origin = nothing,
    .run = run_barrier,
};

static const ls__bench_operation *const operations[] = {
    &all_reduce,
    &all_reduce_weighted,
    &reduce_scatter,
    &all_gather,
    &broadcast,
    &reduce,
    &gather,
    &scatter,
    &all_to_all,
    &reduce_scatter_v,
    &all_gather_v,
    &gather_v,
    &scatter_v,
    &all_to_all_v,
    &sendrecv,
    &barrier,
    NULL,
};

const ls__bench_operation *const *ls__bench_operations(void) {
    return operations;
}

const ls__bench_operation *ls__bench_operation_find(const char *name) {
    for (size_t i = 0; operations[i]; i++)
        if (strcmp(operations[i]->name, name) == 0)
            return operations[i];
    return NULL;
}

bool ls__bench_reduces(const ls__bench_operation *operation) {
    return operation->origin(0, 1, 0, 0).rank == LS__BENCH_REDUCED; /* as the root sees it */
}
