/* Checkpoints of `lockstep train`: where to go on, when to save, and the agreed stop. */
#include "base/error.h"
#include "cli/train.h"
#include "data/dataset.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_FACTS = 24 };

struct ls__checkpoints {
    ls_checkpoint_claim *claim; /* from before anything is looked for */
    ls_checkpointer *checkpointer;
    char *folder, *found;         /* found: what this run goes on from, or NULL */
    ls_checkpoint_progress start; /* of `found` */
    ls_checkpoint_fact facts[MOST_FACTS];
    char values[MOST_FACTS][64];
    size_t fact_count;
    ls__train_items items;
    double best_loss;
    uint64_t saved;  /* step of the last save that began */
    uint64_t failed; /* saves of this run that failed */
    char failure[1024];
};

bool ls__checkpoints_wanted(const ls__train_settings *s) {
    return s->checkpoint_every || s->checkpoint_dir || s->resume;
}

/* Of a run's folder; the caller frees it. */
static char *checkpoints_in(const char *out) {
    char *folder = NULL;
    return asprintf(&folder, "%s/checkpoints", out) < 0 ? NULL : folder;
}

/* --checkpoint-dir, or the folder in --out; the caller frees it. */
static char *folder_of(const ls__train_settings *s) {
    return s->checkpoint_dir ? strdup(s->checkpoint_dir) : checkpoints_in(s->out);
}

/* --- facts ---------------------------------------------------------------------------------------- */

static void add_fact(ls__checkpoints *c, const char *name, bool binding, const char *format, ...)
    LS_PRINTF(4, 5);

static void add_fact(ls__checkpoints *c, const char *name, bool binding, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->values[c->fact_count], sizeof c->values[0], format, args);
    va_end(args);
    c->facts[c->fact_count] = (ls_checkpoint_fact){name, c->values[c->fact_count], binding};
    c->fact_count++;
}

/* With another model, optimizer, data, batch or seed nothing of the checkpoint would mean what it did. The rest
 * may be changed on purpose; it is said that the bits are others then. */
static void collect_facts(ls__checkpoints *c, const ls__train *train) {
    const ls__train_settings *s = train->settings;
    c->facts[c->fact_count++] = (ls_checkpoint_fact){"--model", ls_model_spec(train->model), true};
    add_fact(c, "--optimizer", true, "%s", ls__train_optimizer_name((size_t)s->optimizer));
    add_fact(c, "--batch-size", true, "%" PRId64, s->batch_size);
    add_fact(c, "--seed", true, "%" PRId64, s->seed);
    add_fact(c, "--data (hash of its content)", true, "%016" PRIx64,
             ls__dataset_fingerprint(train->dataset));
    add_fact(c, "--compress", true, "%s", s->compress);
    add_fact(c, "--local-sgd", true, "%s", s->local_sgd ? s->local_sgd : "off");
    add_fact(c, "--loss-scale", true, "%s", s->loss_scale);
    add_fact(c, "--shards", false, "%zu", train->shards);
    add_fact(c, "--dtype", false, "%s", ls__cli_dtype_name(train->dtype));
    add_fact(c, "--threads", false, "%" PRId64, s->threads);
    add_fact(c, "--lr", false, "%.17g", s->rate);
    add_fact(c, "--schedule", false, "%s", ls__train_schedule_name((size_t)s->schedule));
    add_fact(c, "--warmup", false, "%" PRId64, s->warmup);
    if (s->schedule != LS_CONSTANT) {
        add_fact(c, "--min-lr", false, "%.17g", s->min_rate);
        add_fact(c, "the number of steps", false, "%" PRIu64, train->total_steps);
    }
    if (s->optimizer == LS_SGD) {
        add_fact(c, "--momentum", false, "%.17g", s->momentum);
        add_fact(c, "--nesterov", false, "%s", s->nesterov ? "given" : "absent");
    } else {
        add_fact(c, "--beta1", false, "%.17g", s->beta1);
        add_fact(c, "--beta2", false, "%.17g", s->beta2);
        add_fact(c, "--epsilon", false, "%.17g", s->epsilon);
    }
    add_fact(c, "--weight-decay", false, "%.17g", s->weight_decay);
    add_fact(c, "--decay-all", false, "%s", s->decay_all ? "given" : "absent");
    add_fact(c, "--clip", false, "%.17g", s->clip);
}

/* --- where to go on ------------------------------------------------------------------------------- */

ls_status ls__checkpoints_check(const ls__train_settings *s) {
    if (!ls__checkpoints_wanted(s) || s->resume || s->overwrite)
        return LS_OK;
    char *folder = folder_of(s);
    size_t count = 0;
    ls_status status = folder ? ls_checkpoint_count(folder, &count)
                              : ls__fail(LS_ERR_MEMORY, "--checkpoint-dir: out of memory");
    if (status == LS_OK && count > 0)
        status = ls__fail(LS_ERR_ARGUMENT,
                          "%s: holds %zu checkpoints of an earlier run; give --resume auto to go "
                          "on, --overwrite to begin again, or another folder",
                          folder, count);
    free(folder);
    return status;
}

/* The folder of a run holds that of its checkpoints. */
static ls_status refuse(const char *resume) {
    if (access(resume, F_OK) != 0)
        return ls__fail_errno(LS_ERR_IO, errno, "--resume %s: cannot look into it", resume);
    char *inside = checkpoints_in(resume);
    size_t count = 0;
    bool run = inside && ls_checkpoint_count(inside, &count) == LS_OK && count > 0;
    ls_status status =
        run ? ls__fail(LS_ERR_IO,
                       "--resume %s: holds no whole checkpoint; those of a run lie in its folder "
                       "checkpoints: --resume %s",
                       resume, inside)
            : ls__fail(LS_ERR_IO, "--resume %s: holds no whole checkpoint", resume);
    free(inside);
    return status;
}

/* "auto" looks where this run saves, and starts from the beginning where there is none yet. */
static ls_status find(ls__train *train, ls__checkpoints *c) {
    const char *resume = train->settings->resume;
    bool automatic = strcmp(resume, "auto") == 0;
    const char *where = automatic ? c->folder : resume;
    LS_TRY(ls_checkpoint_find(train->world, where, ls__cli_log, (void *)ls__train_name, &c->found,
                              &c->start));
    if (!c->found && !automatic)
        return refuse(resume);
    train->first_step = c->found ? c->start.step : 0;
    if (train->rank == 0 && train->settings->format)
        return ls__json_write_line(stdout, "stdout",
                                   json_pack("{s:s, s:I, s:o}", "event", "resume", "step",
                                             (json_int_t)train->first_step, "checkpoint",
                                             c->found ? ls__json_text(c->found) : json_null()));
    if (train->rank == 0 && c->found)
        fprintf(stderr, "lockstep train: going on from %s\n", c->found);
    else if (train->rank == 0)
        fprintf(stderr, "lockstep train: no checkpoint in %s yet, starting from the beginning\n",
                where);
    return LS_OK;
}

ls_status ls__checkpoints_find(ls__train *train) {
    if (!ls__checkpoints_wanted(train->settings))
        return LS_OK;
    ls__checkpoints *c = calloc(1, sizeof *c);
    train->checkpoints = c;
    if (!c || !(c->folder = folder_of(train->settings)))
        return ls__fail(LS_ERR_MEMORY, "--checkpoint-dir: out of memory");
    c->best_loss = NAN;
    LS_TRY(ls_job_set_phase(train->job, "checking checkpoints", LS__TRAIN_PATIENCE_S));
    LS_TRY(ls_checkpoint_claim_create(&c->claim, train->world, c->folder, ls__cli_log,
                                      (void *)ls__train_name));
    if (train->settings->resume)
        LS_TRY(find(train, c));
    else if (train->rank == 0)
        LS_TRY(ls__checkpoints_check(train->settings));
    return ls_job_set_phase(train->job, NULL, 0);
}

size_t ls__checkpoints_shards(const ls__train *train) {
    return train->checkpoints && train->checkpoints->found ? train->checkpoints->start.shards : 0;
}

/* Whoever names a checkpoint goes back to it: those of later steps must not be taken for this run's. */
static ls_status rewind_to(ls__train *train, ls__checkpoints *c) {
    const char *resume = train->settings->resume;
    struct stat named, ours;
    size_t moved;
    if (strcmp(resume, "auto") == 0 || (stat(resume, &named) == 0 && stat(c->folder, &ours) == 0 &&
                                        named.st_dev == ours.st_dev && named.st_ino == ours.st_ino))
        return LS_OK; /* the newest that is whole */
    LS_TRY(ls_checkpointer_rewind(c->checkpointer, c->start.step, &moved));
    if (train->rank == 0 && moved > 0)
        fprintf(stderr,
                "lockstep train: %zu checkpoint%s of later steps in %s now called old-step-N\n",
                moved, moved == 1 ? "" : "s", c->folder);
    return LS_OK;
}

static ls_status load(ls__train *train, ls__checkpoints *c) {
    LS_TRY(ls_job_set_phase(train->job, "loading a checkpoint", LS__TRAIN_PATIENCE_S));
    LS_TRY(ls_checkpointer_load(c->checkpointer, c->found, &c->start));
    LS_TRY(ls_job_set_phase(train->job, NULL, 0));
    if (c->start.step > train->total_steps)
        return ls__fail(LS_ERR_ARGUMENT, "%s: is of step %" PRIu64 ", this run ends after %" PRIu64,
                        c->found, c->start.step, train->total_steps);
    uint64_t in_epoch = train->first_step % train->batches_per_epoch;
    if (c->start.epoch != train->first_step / train->batches_per_epoch ||
        c->start.position != in_epoch * (uint64_t)train->settings->batch_size)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: step %" PRIu64 " of this data is not epoch %" PRIu64
                        ", position %" PRIu64,
                        c->found, c->start.step, c->start.epoch, c->start.position);
    c->saved = c->start.step;
    c->best_loss = c->start.best_loss;
    train->result.steps = c->start.step;
    train->result.epochs = c->start.position > 0 ? c->start.epoch + 1 : c->start.epoch;
    train->result.train_loss = c->start.train_loss;
    LS_TRY(ls_ddp_verify(train->ddp)); /* all ranks have read the same */
    return rewind_to(train, c);
}

ls_status ls__checkpoints_open(ls__train *train) {
    ls__checkpoints *c = train->checkpoints;
    const ls__train_settings *s = train->settings;
    if (!c)
        return LS_OK;
    collect_facts(c, train);
    LS_TRY(ls__train_items_collect(&c->items, train));
    const ls_checkpoint_contents contents = {.model = train->model,
                                             .optimizer = train->optimizer,
                                             .items = c->items.item,
                                             .item_count = c->items.count,
                                             .facts = c->facts,
                                             .fact_count = c->fact_count};
    const ls_checkpointer_options options = {.folder = c->folder,
                                             .claim = c->claim,
                                             .keep = (size_t)s->keep,
                                             .keep_best = s->keep_best,
                                             .start_over = s->overwrite,
                                             .synchronous = s->sync_checkpoints,
                                             .log = ls__cli_log,
                                             .log_context = (void *)ls__train_name};
    LS_TRY(ls_checkpointer_create(&c->checkpointer, train->world, &contents, &options));
    if (c->found)
        LS_TRY(load(train, c));
    ls__stop_arm();
    return LS_OK;
}

/* --- saving --------------------------------------------------------------------------------------- */

static ls_status tell(const ls__train *train, const ls_checkpoint_outcome *o) {
    if (train->rank != 0)
        return LS_OK;
    if (o->status != LS_OK)
        fprintf(stderr,
                "lockstep train: the checkpoint of step %" PRIu64 " could not be saved: %s; "
                "earlier ones are as they were\n",
                o->step, o->text);
    if (!train->settings->format)
        return LS_OK;
    return ls__json_write_line(stdout, "stdout",
                               json_pack("{s:s, s:I, s:b, s:o, s:I, s:f, s:f}", "event",
                                         "checkpoint", "step", (json_int_t)o->step, "saved",
                                         o->status == LS_OK, o->status == LS_OK ? "path" : "error",
                                         ls__json_text(o->text), "bytes", (json_int_t)o->bytes,
                                         "copy_ms", o->copy_s * 1e3, "write_ms", o->write_s * 1e3));
}

static ls_status hear(ls__train *train) {
    ls__checkpoints *c = train->checkpoints;
    ls_checkpoint_outcome outcome;
    while (ls_checkpointer_poll(c->checkpointer, &outcome)) {
        LS_TRY(tell(train, &outcome));
        if (outcome.status == LS_OK)
            continue;
        c->failed++;
        memcpy(c->failure, outcome.text, sizeof c->failure);
    }
    return LS_OK;
}

/* `stop`: set where the average before saving, in local steps, brought a request to end. */
static ls_status save(ls__train *train, const ls__step_record *record, const ls_batch *batch,
                      bool *stop) {
    ls__checkpoints *c = train->checkpoints;
    uint64_t in_epoch = record->step % train->batches_per_epoch;
    const ls_checkpoint_progress progress = {
        .step = record->step,
        .epoch = batch->last_of_epoch ? batch->epoch + 1 : batch->epoch,
        .position = in_epoch * (uint64_t)train->settings->batch_size,
        .seed = (uint64_t)train->settings->seed,
        .shards = train->shards,
        .train_loss = record->loss,
        .val_loss = record->evaluated ? record->val_loss : NAN,
        .best_loss = c->best_loss,
    };
    c->saved = record->step;
    ls__step_record settled = {0}; /* the step's line is written */
    LS_TRY(ls__train_local_settle(train, &settled));
    *stop |= settled.stop && record->step < train->total_steps;
    LS_TRY(ls_job_set_phase(train->job, "saving a checkpoint", LS__TRAIN_PATIENCE_S));
    LS_TRY(ls_checkpointer_save(c->checkpointer, &progress));
    return ls_job_set_phase(train->job, NULL, 0);
}

ls_status ls__checkpoints_step(ls__train *train, const ls__step_record *record,
                               const ls_batch *batch, bool *stop) {
    ls__checkpoints *c = train->checkpoints;
    const ls__train_settings *s = train->settings;
    /* equal on all ranks: the request came with the votes of this step, or with an average after it */
    bool asked = record->local ? record->stop : ls_ddp_votes(train->ddp)->stop > 0;
    *stop = asked && record->step < train->total_steps;
    bool best =
        record->evaluated && isfinite(record->val_loss) && !(record->val_loss >= c->best_loss);
    if (best)
        c->best_loss = record->val_loss;
    bool due = s->checkpoint_every && record->step % (uint64_t)s->checkpoint_every == 0;
    if (due || *stop || (best && s->keep_best))
        LS_TRY(save(train, record, batch, stop));
    if (*stop && train->rank == 0)
        fprintf(stderr,
                "lockstep train: stopped on request after step %" PRIu64 " of %" PRIu64
                "; --resume auto goes on from there\n",
                record->step, train->total_steps);
    return hear(train);
}

ls_status ls__checkpoints_finish(ls__train *train) {
    ls__checkpoints *c = train->checkpoints;
    if (!c)
        return LS_OK;
    (void)ls_checkpointer_wait(c->checkpointer);
    LS_TRY(hear(train));
    if (c->failed == 0)
        return LS_OK;
    return ls__fail(LS_ERR_IO, "%" PRIu64 " checkpoint%s could not be saved, the last because: %s",
                    c->failed, c->failed == 1 ? "" : "s", c->failure);
}

void ls__checkpoints_close(ls__checkpoints *c) {
    if (!c)
        return;
    ls_checkpointer_destroy(c->checkpointer);
    ls_checkpoint_claim_destroy(c->claim);
    ls__train_items_free(&c->items);
    free(c->folder);
    free(c->found);
    free(c);
}
