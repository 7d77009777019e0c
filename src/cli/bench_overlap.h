/* The parts of `lockstep bench overlap`. */
#ifndef LS_CLI_BENCH_OVERLAP_H
#define LS_CLI_BENCH_OVERLAP_H

#include "cli/commands.h"
#include "cli/options.h"
#include <lockstep/lockstep.h>

/* What the command line says, with defaults filled in. */
typedef struct ls__overlap_settings {
    const char *timeline; /* a file, or NULL: GPT-2 of 124 million parameters */
    const char *compress;
    int64_t ranks, steps, first_bucket, bucket;
    double ratio; /* backward over transfer; 0: the timeline's own times */
    int mode;     /* LS__OVERLAP_BOTH ... */
    int format;   /* 0 text, 1 json */
    int transport, progress;
    bool ranks_given, transport_given;
} ls__overlap_settings;

enum { LS__OVERLAP_BOTH, LS__OVERLAP_ON, LS__OVERLAP_OFF };

/* A stretch of backward: after `ms` more of it the gradient of `elements` f32 numbers is complete. */
typedef struct ls__overlap_layer {
    char name[64];
    size_t elements; /* 0: time only */
    size_t shape[2]; /* as a matrix, for hooks that look at it; one row: a vector */
    double ms;
} ls__overlap_layer;

/* One step: forward, then the layers in the order of backward. */
typedef struct ls__timeline {
    double forward_ms;
    ls__overlap_layer *layer; /* (count), owned */
    size_t count;
} ls__timeline;

/* From settings->timeline. Free it also after a failure. */
ls_status ls__timeline_read(ls__timeline *timeline, const char *path);
void ls__timeline_free(ls__timeline *timeline);
size_t ls__timeline_bytes(const ls__timeline *timeline);
double ls__timeline_backward_ms(const ls__timeline *timeline);
/* Multiplies all times so that backward takes `backward_ms`. */
void ls__timeline_scale(ls__timeline *timeline, double backward_ms);
/* How long after the end of backward the best schedule still transfers, where all bytes together take
 * `transfer_ms`: bytes go one after the other at a constant rate, each not before its gradient is complete. */
double ls__timeline_tail_ms(const ls__timeline *timeline, double transfer_ms);

/* `lockstep bench overlap`; argv[0] is "overlap", full_argc and full_argv as ls__bench_train has them. */
int ls__bench_overlap(int argc, char **argv, int full_argc, char **full_argv);
/* Measures as the rank the environment says; rank 0 prints. */
ls_status ls__bench_overlap_run(const ls__overlap_settings *settings, ls__timeline *timeline);

#endif
