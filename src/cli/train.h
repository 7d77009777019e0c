/* The parts of `lockstep train`: settings, the run of one rank, what it prints and writes. */
#ifndef LS_CLI_TRAIN_H
#define LS_CLI_TRAIN_H

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/profile.h"
#include "parallel/plan.h"
#include <lockstep/lockstep.h>
#include <stdio.h>

/* How long the others wait for a rank that reads data, evaluates or saves, beyond the usual deadline. */
#define LS__TRAIN_PATIENCE_S 600

/* As messages of the command carry it. */
extern const char ls__train_name[];

/* Most replicas of --strategy dp. */
enum { LS__TRAIN_REPLICAS = 256 };

/* What the command line says, with defaults filled in. Equal on all ranks. */
typedef struct ls__train_settings {
    const char *model, *data, *out, *trace;
    const char *checkpoint_dir, *resume; /* NULL: not given */
    int64_t checkpoint_every, keep;      /* 0: not given */
    int64_t ranks;                       /* 0: not given */
    const char *compress;                /* ls_hook_create */
    const char *loss_scale;              /* "off", "dynamic" or a number */
    const char *local_sgd;               /* "K[,start=N]"; NULL: off */
    int64_t epochs, steps, batch_size, shards, threads, seed, eval_every, warmup, trace_steps,
        watch;
    int optimizer; /* ls_optimizer_kind */
    int schedule;  /* ls_schedule_kind */
    int transport; /* ls__launch_transport */
    int progress;  /* ls_progress */
    int dtype;     /* 0 f32, 1 bf16: what was asked for */
    int nonfinite; /* 0 stop, 1 skip */
    double rate, min_rate, momentum, beta1, beta2, epsilon, weight_decay, clip;
    int format; /* 0 text, 1 json */
    bool nesterov, decay_all, overwrite, profile, recompute, transport_given;
    bool keep_best, sync_checkpoints;
    int strategy;       /* 0 ddp, 1 dp */
    bool oversubscribe; /* --oversubscribe-memory */
    bool epochs_given, steps_given, momentum_given, min_rate_given, beta1_given, beta2_given;
    bool epsilon_given, trace_steps_given, watch_given;
} ls__train_settings;

/* --optimizer and --schedule as they are spelt; NULL: no such kind. */
const char *ls__train_optimizer_name(size_t kind);
const char *ls__train_schedule_name(size_t kind);

/* --loss-scale: false where it is neither off, dynamic nor a number that ls_loss_scaler_init takes. */
bool ls__train_loss_scale(const char *text, bool *on, ls_loss_scaler *scaler);

/* False: the command ends with *code. */
bool ls__train_parse(int argc, char **argv, ls__train_settings *settings, int *code);

/* --- one rank's run --- */
typedef struct ls__progress_line ls__progress_line; /* train_progress.c */
typedef struct ls__train_output ls__train_output;   /* train_output.c */
typedef struct ls__trace ls__trace;                 /* train_trace.c */
typedef struct ls__checkpoints ls__checkpoints;     /* train_checkpoint.c */

typedef struct ls__train_result {
    double train_loss, val_loss, val_accuracy;
    uint64_t steps, epochs, skipped_steps;
    double train_seconds, samples_per_s; /* tokens for text */
    bool stopped;                        /* on request, before the last step */
} ls__train_result;

typedef struct ls__train_plan {
    ls__memory_plan memory;
    size_t checkpoint; /* a copy of what this rank saves */
    size_t process;    /* bytes held before the model is made, and the loader's batches */
    size_t peak;       /* bytes held at most, base/usage.h */
} ls__train_plan;

/* Of --strategy dp, summed over the steps; MiB are those of the step with the most. */
typedef struct ls__train_dp_times {
    double replicate_ms, compute_ms, gather_ms, sent_mib, received_mib, steps;
} ls__train_dp_times;

typedef struct ls__train {
    const ls__train_settings *settings;
    ls_job *job;
    ls_group *world;
    int rank, ranks;
    size_t shards;
    ls_device *device;
    ls_dtype dtype; /* that is computed in; equal on all ranks */
    ls_dataset *dataset;
    bool tokens; /* a language model: samples are windows, weights count tokens */
    /* As the weights and the metrics are called: "tokens", "tokens_per_s", "val_accuracy", or
     * "samples", "samples_per_s", "test_accuracy". */
    const char *unit, *speed, *accuracy;
    size_t sample_shape[3], sample_dims;
    ls_model *model;
    ls_ddp *ddp;         /* of the next step; with --local-sgd it belongs to `local` */
    ls_local_sgd *local; /* with --local-sgd */
    ls_dp *dp;           /* with --strategy dp */
    ls__train_dp_times dp_times;
    ls_optimizer *optimizer;
    ls_loader *loader;
    ls_step *step;
    ls_schedule schedule;
    uint64_t total_steps, batches_per_epoch;
    uint64_t first_step;          /* updates already in the checkpoint that this run goes on from */
    ls__checkpoints *checkpoints; /* with --checkpoint-every, --checkpoint-dir or --resume */
    ls__train_output *output;     /* rank 0 with --out */
    ls__progress_line *progress;  /* rank 0 */
    ls__trace *trace;             /* with --trace */
    ls__profile_report *profile;  /* with --profile */
    double optimizer_bytes;       /* ls__profile_optimizer_bytes */
    int skips_in_a_row;
    ls__train_plan plan;
    bool scales_loss;
    ls_loss_scaler scaler; /* with scales_loss */
    ls__train_result result;
} ls__train;

/* What can be said to be wrong before any rank starts: data, model spec, sizes, the folder. */
ls_status ls__train_check(const ls__train_settings *settings);

/* Trains as the rank the environment says. */
ls_status ls__train_run(const ls__train_settings *settings);
ls_status ls__train_loop(ls__train *train);

/* `count` samples as tensors of the current step, in the caller's memory: x (B, C, H, W) and y (B) of
 * images, both (B, T) of a text. A failure is the step's. */
void ls__train_wrap(ls__train *train, void *input, int32_t *target, size_t count, ls_tensor **x,
                    ls_tensor **y);

/* Collective. LS_ERR_MISMATCH on all ranks, with the first difference, where ranks started by hand were
 * given other settings, or data of other content. */
ls_status ls__train_agree(const ls__train *train);
ls_status ls__train_agree_data(const ls__train *train);

/* Mean loss and accuracy over the whole validation split, computed by all ranks together; equal to the
 * bit for every number of ranks. Collective. */
ls_status ls__train_evaluate(ls__train *train, double *loss, double *accuracy);

/* --- checkpoints --- */
/* Whether these settings ask for any. */
bool ls__checkpoints_wanted(const ls__train_settings *settings);
/* Before any rank starts: would a run from the beginning meet checkpoints of an earlier one? */
ls_status ls__checkpoints_check(const ls__train_settings *settings);
/* Collective. Finds what --resume asks for. */
ls_status ls__checkpoints_find(ls__train *train);
/* Shards of the run that is gone on from; 0: none. */
size_t ls__checkpoints_shards(const ls__train *train);
/* Collective, when model and optimizer are there: takes the folder, and loads what was found. */
ls_status ls__checkpoints_open(ls__train *train);
/* Collective, after each update and its evaluation: saves when it is time. *stop: a rank was asked to end
 * (SIGTERM, SIGUSR1), so all save and end here. */
struct ls__step_record;
ls_status ls__checkpoints_step(ls__train *train, const struct ls__step_record *record,
                               const ls_batch *batch, bool *stop);
/* Waits for the save under way. LS_ERR_IO when any save of this run has failed. */
ls_status ls__checkpoints_finish(ls__train *train);
void ls__checkpoints_close(ls__checkpoints *checkpoints);

/* --- local SGD: nothing of it happens without --local-sgd --- */
bool ls__train_local_parse(const char *text, uint64_t *every, uint64_t *start);
ls_status ls__train_local_open(ls__train *train, const ls_ddp_options *ddp);
/* After each update; `weight`: this rank's of that step. */
ls_status ls__train_local_step(ls__train *train, double weight, struct ls__step_record *record);
/* Collective: makes the replicas equal, before something looks at them. */
ls_status ls__train_local_settle(ls__train *train, struct ls__step_record *record);

/* What belongs into a checkpoint beside weights and optimizer; names and shapes stand in `state`. */
typedef struct ls__train_items {
    ls_checkpoint_item *item;
    size_t count;
    ls_hook_state *state;
} ls__train_items;
/* Free them also after a failure. */
ls_status ls__train_items_collect(ls__train_items *items, ls__train *train);
void ls__train_items_free(ls__train_items *items);

/* --- a request to stop (train_stop.c) --- */
/* Before any other thread is made: SIGTERM and SIGUSR1 no longer end the process, once it is armed. */
ls_status ls__stop_watch(void);
void ls__stop_arm(void);
int ls__stop_asked(void); /* the signal's number, or 0 */
void ls__stop_end(void);

/* Samples of one forward in evaluation. */
size_t ls__train_evaluation_unit(const ls_dataset *dataset);

/* What the settings say about the optimizer. */
ls_optimizer_options ls__train_optimizer(const ls__train_settings *settings);

/* --- --strategy dp --- */
/* All shards of the batch, on all replicas. */
ls_status ls__train_dp_shards(ls__train *train, const ls_batch *batch);
json_t *ls__train_dp_json(const ls__train *train); /* means of a step */
void ls__train_dp_print(const ls__train *train);

/* --- the memory plan --- */
/* Of the job's largest rank. `process` counts what this process holds now: the data is open, the model is not
 * there yet. */
ls_status ls__train_plan_make(ls__train_plan *plan, const ls__train_settings *settings,
                              const ls_dataset *dataset, ls_device *device, ls_dtype dtype,
                              size_t ranks, size_t shards);
/* LS_ERR_MEMORY where `local_ranks` such ranks do not fit this machine, unless told to try. */
ls_status ls__train_plan_check(const ls__train_plan *plan, const ls__train_settings *settings,
                               size_t local_ranks);
json_t *ls__train_plan_json(const ls__train_plan *plan); /* MiB */
void ls__train_plan_print(const ls__train_plan *plan);
void ls__train_plan_compare(const ls__train_plan *plan);

/* --- the output folder, rank 0 --- */
ls_status ls__output_check(const ls__train_settings *settings);
/* `first_step`: the run goes on behind this step (0: from the beginning); what metrics.jsonl says of later
 * ones is removed. */
ls_status ls__output_open(ls__train_output **output, const ls__train_settings *settings,
                          uint64_t first_step);
typedef struct ls__step_record {
    uint64_t step, epoch; /* step counts from 1 */
    double loss, rate, norm, samples, milliseconds, wait_milliseconds;
    bool evaluated, skipped; /* skipped: no update was made */
    bool local, averaged;    /* --local-sgd: not reduced; replicas were averaged after it */
    bool stop;               /* and a rank was asked to end, which all heard with that average */
    double loss_scale;       /* of this step; 0: none */
    double val_loss, val_accuracy;
} ls__step_record;
ls_status ls__output_step(ls__train_output *output, const ls__train *train,
                          const ls__step_record *record);
/* model.safetensors, then summary.json: once that is there, the run was complete. */
ls_status ls__output_finish(ls__train_output *output, const ls__train *train);
void ls__output_close(ls__train_output *output);
/* What summary.json holds. */
json_t *ls__train_summary(const ls__train *train);

/* --- what the user sees, rank 0 --- */
ls_status ls__progress_open(ls__progress_line **progress, const ls__train *train);
void ls__progress_step(ls__progress_line *progress, const ls__train *train,
                       const ls__step_record *record);
void ls__progress_finish(ls__progress_line *progress, const ls__train *train);
void ls__progress_close(ls__progress_line *progress);

/* --- a trace of the first steps, in the format chrome://tracing and Perfetto read --- */
/* `path`, on the rank that will write, is tried at once: not only after hours of training. */
ls_status ls__trace_open(ls__trace **trace, uint64_t steps, const char *path);
void ls__trace_span(ls__trace *trace, uint64_t step, const char *name, uint64_t begin_ns,
                    uint64_t end_ns);
void ls__trace_report(ls__trace *trace, uint64_t step, const ls_reducer_report *report);
/* Collective: rank 0 gathers all ranks' events and writes the file. */
ls_status ls__trace_write(ls__trace *trace, ls_group *group, const char *path);
void ls__trace_close(ls__trace *trace);

#endif
