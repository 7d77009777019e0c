/* The parts of `lockstep bench`. */
#ifndef LS_CLI_BENCH_H
#define LS_CLI_BENCH_H

#include "cli/commands.h"
#include "cli/options.h"
#include <lockstep/lockstep.h>

/* What the command line says, with defaults filled in. */
typedef struct ls__bench_settings {
    const char *model;
    const char *folder; /* checkpoint */
    int64_t batch, seq, ranks, threads, steps, warmup;
    int64_t rounds; /* scaling, checkpoint */
    double seconds; /* scaling: of a turn */
    int dtype;      /* 0 f32, 1 bf16 */
    int format;     /* 0 text, 1 json */
    int transport;  /* ls__launch_transport */
    int progress;   /* ls_progress */
    bool profile, recompute, ranks_given, transport_given;
} ls__bench_settings;

/* Options that several of them have. */
#define LS__BENCH_ROW_MODEL(start, text)                                                           \
    {                                                                                              \
        .name = "model", .placeholder = "SPEC", .kind = LS__OPTION_TEXT,                           \
        .at = offsetof(ls__bench_settings, model), .fallback = (start), .help = (text)             \
    }
#define LS__BENCH_ROW_BATCH(start, text)                                                           \
    {                                                                                              \
        .name = "batch", .letter = 'b', .placeholder = "N", .kind = LS__OPTION_INTEGER,            \
        .at = offsetof(ls__bench_settings, batch), .min = 1, .max = 1 << 24, .fallback = (start),  \
        .help = (text)                                                                             \
    }
#define LS__BENCH_ROW_ROUNDS(most, start, text)                                                    \
    {                                                                                              \
        .name = "rounds", .placeholder = "N", .kind = LS__OPTION_INTEGER,                          \
        .at = offsetof(ls__bench_settings, rounds), .min = 1, .max = (most), .fallback = (start),  \
        .help = (text)                                                                             \
    }

/* `lockstep bench train`; argv[0] is "train". full_argc and full_argv as the user typed them from "bench"
 * on: what ranks are started with. */
int ls__bench_train(int argc, char **argv, int full_argc, char **full_argv);

/* `lockstep bench scaling`, likewise. */
int ls__bench_scaling(int argc, char **argv, int full_argc, char **full_argv);

/* `lockstep bench checkpoint`, likewise. */
int ls__bench_checkpoint(int argc, char **argv, int full_argc, char **full_argv);

/* Measures as the rank the environment says, with the model `spec`; rank 0 prints. */
ls_status ls__bench_train_run(const ls__bench_settings *settings, const char *spec);

/* GFLOP/s of a matrix product of 1024 x 1024 x 1024 by this device with factors of `dtype`, the median of
 * several: what the machine offers. */
ls_status ls__bench_peak(ls_device *device, ls_dtype dtype, double *gflops);

#endif
