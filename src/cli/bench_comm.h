/* The parts of `lockstep bench OPERATION`: collectives are checked, then timed, in the manner of
 * nccl-tests. bench_comm.c reads the command line, bench_comm_run.c measures, bench_comm_operations.c
 * is the table of operations, bench_comm_explain.c says which way each size would go, bench_comm_values.c what goes in and must come out, bench_comm_floor.c
 * the machine's own speed. */
#ifndef LS_CLI_BENCH_COMM_H
#define LS_CLI_BENCH_COMM_H

#include "cli/commands.h"
#include <lockstep/group.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* One call of an operation: buffers of `count` elements, or of that for each rank (see below). */
typedef struct ls__bench_call {
    ls_group *group;
    void *send, *recv;
    size_t count;   /* elements of a block */
    size_t *counts; /* (ranks), each `count`: for the uneven forms */
    ls_dtype dtype;
    ls_op op;
    int root;
} ls__bench_call;

/* Where block `block` of a result comes from: that of one rank's send buffer, or of all, reduced. */
typedef struct ls__bench_origin {
    int rank; /* LS__BENCH_REDUCED, LS__BENCH_NOTHING: this rank receives nothing */
    size_t block;
} ls__bench_origin;
enum { LS__BENCH_REDUCED = -1, LS__BENCH_NOTHING = -2 };

typedef enum ls__bench_in_place {
    LS__BENCH_IN_PLACE_NEVER,
    LS__BENCH_IN_PLACE_CAN,
    LS__BENCH_IN_PLACE_ALWAYS, /* the operation has one buffer */
} ls__bench_in_place;

typedef struct ls__bench_operation {
    const char *name;
    const char *what; /* a line of --help */
    bool send_blocks; /* the send buffer holds a block for each rank; else one */
    bool recv_blocks;
    bool weighted; /* divides by the global weight: float dtypes, --op sum */
    bool rooted;   /* one rank is apart: --root */
    bool empty;    /* moves nothing: there is no size, and there are no buffers */
    ls__bench_in_place in_place;
    /* Bytes that must pass each rank's link for one byte of the larger buffer; nccl-tests' factors. */
    double (*bus)(double ranks);
    ls__bench_origin (*origin)(int rank, int ranks, int root, size_t block);
    ls_status (*run)(const ls__bench_call *call);
} ls__bench_operation;

/* NULL ends the list. */
const ls__bench_operation *const *ls__bench_operations(void);
/* NULL when there is none of that name. */
const ls__bench_operation *ls__bench_operation_find(const char *name);

enum { LS__BENCH_SIZES_MAX = 64 };

typedef struct ls__bench_comm_settings {
    const ls__bench_operation *operation;
    const char *size_list;            /* as it was typed */
    size_t size[LS__BENCH_SIZES_MAX]; /* bytes of the larger buffer */
    size_t sizes;
    int64_t ranks, root;
    int64_t warmup, iterations; /* -1, 0: as many as the size needs */
    int dtype;                  /* ls_dtype */
    int op;                     /* ls_op */
    int transport;              /* ls__launch_transport */
    int format;                 /* 0 text, 1 json */
    bool registered, in_place, floor;
    bool explain;      /* say what would be done, instead of doing it */
    const char *store; /* where the costs go; NULL: nowhere */
    bool ranks_given, transport_given;
    bool sizes_given, dtype_given, op_given, root_given;
} ls__bench_comm_settings;

/* `lockstep bench OPERATION`; argv[0] is the operation's name, full_argv what the user typed from
 * "bench" on. */
int ls__bench_comm(const ls__bench_operation *operation, int argc, char **argv, int full_argc,
                   char **full_argv);

/* --explain, in place of the measurement: a table on rank 0's stdout. Collective. */
ls_status ls__bench_explain(const ls__bench_comm_settings *settings, ls_job *job);

/* Measures as the rank the environment says; rank 0 prints. */
ls_status ls__bench_comm_run(const ls__bench_comm_settings *settings);

/* --- values: small whole numbers that depend on rank and place, so that every order of a reduction
 * gives the same bits and nothing can be in the wrong place unseen --- */

/* Fills `elements` elements as `rank`'s send buffer. */
void ls__bench_fill(void *buffer, size_t elements, ls_dtype dtype, ls_op op, int rank, int ranks);
/* Whether the operation has a result that --op makes. */
bool ls__bench_reduces(const ls__bench_operation *operation);
/* True when the call left in recv what it should; else *wrong is the first bad element. */
bool ls__bench_verify(const ls__bench_operation *operation, const ls__bench_call *call,
                      size_t *wrong);

/* Microseconds (the median) that this machine needs to read the `bytes` bytes of the call's send, add to them and
 * write its recv, on all ranks at the same time. Overwrites recv. Collective. */
ls_status ls__bench_floor(const ls__bench_call *call, size_t bytes, int64_t iterations, double *us);

/* Times of iterations in us: the slowest rank's of each, sorted. Collective. */
ls_status ls__bench_slowest(ls_group *group, double *times, size_t count);

#endif
