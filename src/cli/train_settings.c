/* The options of `lockstep train`. */
#include "cli/train.h"

#include "launch/launch.h"
#include <stdlib.h>
#include <string.h>

static const char *const examples[] = {
    "lockstep train --model cnn --data fashion-mnist --epochs 2 --ranks 2 --out runs/fashion",
    "lockstep train --model gpt:layers=4,heads=4,width=128,context=64 --data text:book.txt "
    "--steps 2000 --batch-size 12 --ranks 2",
    "# ranks started by hand, over tcp: on every machine, with RANK set to 0, 1, ...",
    "RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 LOCKSTEP_TOKEN=secret lockstep "
    "train --model cnn --data fashion-mnist",
    NULL,
};

static const ls__train_settings defaults = {
    .epochs = 1,
    .batch_size = 64,
    .threads = 1,
    .seed = 1,
    .trace_steps = 2,
    .compress = "none",
    .loss_scale = "off",
    .watch = 100,
    .optimizer = LS_ADAMW,
    .rate = 1e-3,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .epsilon = 1e-8,
};

static const ls__option options[] = {
    {.group = "Job",
     .name = "model",
     .placeholder = "SPEC",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, model),
     .help =
         "mlp:784,1024,10 | cnn[:norm=batch] | resnet18[:channels=1][,side=][,classes=][,width=][,norm=sync] | gpt:layers=,heads=,width=,context=[,vocab=][,dropout=] | gpt2-124m"},
    {.name = "data",
     .placeholder = "SPEC",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, data),
     .help = "fashion-mnist | idx:DIR | text:FILE"},
    {.name = "out",
     .placeholder = "DIR",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, out),
     .help = "write metrics.jsonl, model.safetensors and summary.json there"},
    {.name = "overwrite",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__train_settings, overwrite),
     .help = "allow --out to replace an earlier result, --checkpoint-dir earlier checkpoints"},
    {.name = "ranks",
     .letter = 'n',
     .placeholder = "N",
     .kind = LS__OPTION_RANKS,
     .at = offsetof(ls__train_settings, ranks),
     .fallback = "1",
     .help = "processes to train with on this machine, or auto: one for each core"},
    {.name = "strategy",
     .placeholder = "S",
     .kind = LS__OPTION_CHOICE,
     .at = offsetof(ls__train_settings, strategy),
     .choices = "ddp|dp",
     .fallback = "ddp",
     .help =
         "dp: --ranks are replicas in threads of one process, gathered on the first; to compare"},
    {.name = "shards",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, shards),
     .min = 1,
     .max = 1 << 20,
     .fallback = "one per rank",
     .help =
         "micro-batches the batch is cut into; fix it, and 1, 2, 4 ... ranks give the same bits"},
    LS__OPTION_ROW_THREADS(ls__train_settings),
    LS__OPTION_ROW_DTYPE(ls__train_settings),
    LS__OPTION_ROW_TRANSPORT(ls__train_settings),
    {.name = "seed",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, seed),
     .min = 0,
     .max = INT64_MAX,
     .fallback = "1",
     .help = "of initial weights, data order and dropout"},
    {.group = "Length and batch",
     .name = "epochs",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, epochs),
     .given = 1 + offsetof(ls__train_settings, epochs_given),
     .min = 1,
     .max = INT32_MAX,
     .fallback = "1",
     .help = "passes over the data"},
    {.name = "steps",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, steps),
     .given = 1 + offsetof(ls__train_settings, steps_given),
     .min = 1,
     .max = INT64_MAX / 2,
     .help = "updates; instead of --epochs"},
    {.name = "batch-size",
     .letter = 'b',
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, batch_size),
     .min = 1,
     .max = 1 << 30,
     .fallback = "64",
     .help = "samples of one update, of the whole job"},
    {.name = "eval-every",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, eval_every),
     .min = 1,
     .max = INT64_MAX,
     .fallback = "each epoch",
     .help = "evaluate every N steps; the end is always evaluated"},
    {.group = "Checkpoints (docs/checkpoints.md)",
     .name = "checkpoint-every",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, checkpoint_every),
     .min = 1,
     .max = INT64_MAX,
     .fallback = "only when stopped",
     .help = "save every N steps"},
    {.name = "checkpoint-dir",
     .placeholder = "DIR",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, checkpoint_dir),
     .fallback = "checkpoints in --out",
     .help = "where to save: DIR/step-00001000; all ranks have to see it"},
    {.name = "keep",
     .placeholder = "K",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, keep),
     .min = 1,
     .max = INT32_MAX,
     .fallback = "all",
     .help = "keep the last K checkpoints"},
    {.name = "keep-best",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__train_settings, keep_best),
     .help = "save at every new lowest val_loss as well, and keep that one"},
    {.name = "sync-checkpoints",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__train_settings, sync_checkpoints),
     .help = "training waits for each save; needs no memory for a copy of the state"},
    {.name = "resume",
     .placeholder = "auto|PATH",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, resume),
     .help = "go on from the newest whole checkpoint, if there is one; or from this one"},
    {.group = "Optimizer",
     .name = "optimizer",
     .placeholder = "O",
     .kind = LS__OPTION_CHOICE,
     .at = offsetof(ls__train_settings, optimizer),
     .choices = "sgd|adam|adamw",
     .fallback = "adamw",
     .help = "update rule"},
    {.name = "lr",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__train_settings, rate),
     .low = 0,
     .high = 1e6,
     .fallback = "0.001",
     .help = "learning rate after warm-up"},
    {.name = "min-lr",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__train_settings, min_rate),
     .given = 1 + offsetof(ls__train_settings, min_rate_given),
     .low = 0,
     .high = 1e6,
     .fallback = "0",
     .help = "where cosine and linear schedules end"},
    {.name = "schedule",
     .placeholder = "S",
     .kind = LS__OPTION_CHOICE,
     .at = offsetof(ls__train_settings, schedule),
     .choices = "constant|cosine|linear",
     .fallback = "constant",
     .help = "course of the learning rate"},
    {.name = "warmup",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, warmup),
     .min = 0,
     .max = INT64_MAX,
     .fallback = "0",
     .help = "steps over which the learning rate rises"},
    {.name = "momentum",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__train_settings, momentum),
     .given = 1 + offsetof(ls__train_settings, momentum_given),
     .low = 0,
     .high = 1,
     .fallback = "0",
     .help = "of sgd"},
    {.name = "nesterov",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__train_settings, nesterov),
     .help = "Nesterov's form of momentum"},
    {.name = "beta1",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__train_settings, beta1),
     .given = 1 + offsetof(ls__train_settings, beta1_given),
     .low = 0,
     .high = 0.999999,
     .fallback = "0.9",
     .help = "of adam and adamw"},
    {.name = "beta2",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__train_settings, beta2),
     .given = 1 + offsetof(ls__train_settings, beta2_given),
     .low = 0,
     .high = 0.9999999,
     .fallback = "0.999",
     .help = "of adam and adamw"},
    {.name = "epsilon",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__train_settings, epsilon),
     .given = 1 + offsetof(ls__train_settings, epsilon_given),
     .low = 1e-30,
     .high = 1,
     .fallback = "1e-8",
     .help = "of adam and adamw"},
    {.name = "weight-decay",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__train_settings, weight_decay),
     .low = 0,
     .high = 1e3,
     .fallback = "0",
     .help = "of weights with two or more dimensions"},
    {.name = "decay-all",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__train_settings, decay_all),
     .help = "with --weight-decay: of biases and norms as well"},
    {.name = "clip",
     .placeholder = "X",
     .kind = LS__OPTION_REAL,
     .at = offsetof(ls__train_settings, clip),
     .low = 0,
     .high = 1e9,
     .fallback = "0, off",
     .help = "largest global norm of the gradients"},
    {.name = "nonfinite",
     .placeholder = "W",
     .kind = LS__OPTION_CHOICE,
     .at = offsetof(ls__train_settings, nonfinite),
     .choices = "stop|skip",
     .fallback = "stop",
     .help =
         "what all ranks do when a gradient is a NaN or an infinity: end, or leave that update out"},
    {.name = "compress",
     .placeholder = "HOOK",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, compress),
     .fallback = "none",
     .help =
         "how gradients travel: none | bf16 | f16 | powersgd:rank=4[,start=N] | topk:ratio=0.01"},
    {.name = "local-sgd",
     .placeholder = "K[,start=N]",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, local_sgd),
     .fallback = "off",
     .help =
         "after N steps (0) ranks train by themselves and are averaged, optimizer included, every K "
         "steps, before evaluations and before checkpoints"},
    {.name = "loss-scale",
     .placeholder = "S",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, loss_scale),
     .fallback = "off",
     .help =
         "multiply the loss during backward, so that small gradients survive --compress f16: off | "
         "dynamic (from 65536 on; updates with infinities are left out) | a number"},
    LS__OPTION_ROW_RECOMPUTE(ls__train_settings),
    {.name = "oversubscribe-memory",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__train_settings, oversubscribe),
     .help = "start although the memory plan says that the ranks do not fit this machine"},
    {.group = "Looking inside",
     .name = "watch",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, watch),
     .given = 1 + offsetof(ls__train_settings, watch_given),
     .min = 0,
     .max = INT64_MAX / 2,
     .fallback = "100",
     .help = "every N steps, compare weights and optimizer state of all ranks; 0: never"},
    {.name = "trace",
     .placeholder = "FILE",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__train_settings, trace),
     .help = "write a timeline of the first steps, for chrome://tracing or Perfetto"},
    {.name = "trace-steps",
     .placeholder = "N",
     .kind = LS__OPTION_INTEGER,
     .at = offsetof(ls__train_settings, trace_steps),
     .given = 1 + offsetof(ls__train_settings, trace_steps_given),
     .min = 1,
     .max = 1000,
     .fallback = "2",
     .help = "how many steps --trace covers"},
    {.name = "profile",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(ls__train_settings, profile),
     .help = "time by operation, on stderr at the end and into --out as profile.json; the first "
             "step is left out"},
    LS__OPTION_ROW_PROGRESS(ls__train_settings),
    LS__OPTION_ROW_FORMAT(ls__train_settings, "one object a line on stdout"),
};

static const ls__command command = {
    .name = "train",
    .usage = "lockstep train --model SPEC --data SPEC [options]",
    .summary =
        "Trains a model data-parallel: every rank holds the whole model and computes its share "
        "of each batch, gradients are averaged while backward still runs. Batch size, learning "
        "rate and results mean the same at every number of ranks.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
};

/* In the order of .choices. */
const char *ls__train_optimizer_name(size_t kind) {
    static const char *const names[] = {[LS_SGD] = "sgd", [LS_ADAM] = "adam", [LS_ADAMW] = "adamw"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : NULL;
}

const char *ls__train_schedule_name(size_t kind) {
    static const char *const names[] = {
        [LS_CONSTANT] = "constant", [LS_COSINE] = "cosine", [LS_LINEAR] = "linear"};
    return kind < sizeof names / sizeof names[0] ? names[kind] : NULL;
}

bool ls__train_loss_scale(const char *text, bool *on, ls_loss_scaler *scaler) {
    char *end;
    *on = strcmp(text, "off") != 0;
    if (!*on || strcmp(text, "dynamic") == 0)
        return ls_loss_scaler_init(scaler, 0) == LS_OK;
    double fixed = strtod(text, &end);
    return end != text && *end == '\0' && fixed > 0 && ls_loss_scaler_init(scaler, fixed) == LS_OK;
}

/* --- what only the options together can tell; each returns the exit code, 0 when they fit ------------- */

static int check_sizes(const ls__train_settings *s) {
    if (s->shards && s->shards > s->batch_size)
        return ls__usage_error(&command, "--shards %lld is more than --batch-size %lld",
                               (long long)s->shards, (long long)s->batch_size);
    if (s->ranks > s->batch_size)
        return ls__usage_error(
            &command, "--batch-size %lld is smaller than --ranks %lld: every rank needs a sample",
            (long long)s->batch_size, (long long)s->ranks);
    if (s->shards && s->ranks > s->shards)
        return ls__usage_error(
            &command, "--shards %lld is smaller than --ranks %lld: every rank needs a shard",
            (long long)s->shards, (long long)s->ranks);
    return 0;
}

static int check_dp(const ls__train_settings *s) {
    if (s->strategy == 1 && s->shards && s->shards != (s->ranks ? s->ranks : 1))
        return ls__usage_error(&command,
                               "--shards %lld: --strategy dp has one for each of --ranks %lld",
                               (long long)s->shards, (long long)(s->ranks ? s->ranks : 1));
    if (s->strategy == 1 &&
        (s->local_sgd || strcmp(s->loss_scale, "off") != 0 || strcmp(s->compress, "none") != 0))
        return ls__usage_error(
            &command, "--strategy dp has no --local-sgd, --loss-scale or --compress; take ddp");
    if (s->strategy == 1 && s->ranks > LS__TRAIN_REPLICAS)
        return ls__usage_error(&command, "--ranks %lld: --strategy dp takes %d at most",
                               (long long)s->ranks, LS__TRAIN_REPLICAS);
    return 0;
}

static int check_checkpoints(const ls__train_settings *s) {
    if ((s->checkpoint_every || s->resume) && !s->checkpoint_dir && !s->out)
        return ls__usage_error(&command, "--%s wants --out or --checkpoint-dir",
                               s->resume ? "resume" : "checkpoint-every");
    if ((s->keep || s->keep_best || s->sync_checkpoints) && !ls__checkpoints_wanted(s))
        return ls__usage_error(&command,
                               "--%s wants --checkpoint-every, --checkpoint-dir or "
                               "--resume",
                               s->keep        ? "keep"
                               : s->keep_best ? "keep-best"
                                              : "sync-checkpoints");
    if (s->resume && s->overwrite)
        return ls__usage_error(&command, "--resume and --overwrite contradict each other");
    return 0;
}

static int check_updates(const ls__train_settings *s) {
    if (s->epochs_given && s->steps_given)
        return ls__usage_error(&command, "--epochs and --steps contradict each other; give one");
    if (s->nesterov && !(s->momentum > 0))
        return ls__usage_error(&command, "--nesterov wants --momentum above 0");
    if (s->min_rate > s->rate)
        return ls__usage_error(&command, "--min-lr %g is above --lr %g", s->min_rate, s->rate);
    return 0;
}

/* What becomes of gradients on their way. */
static int check_wire(const ls__train_settings *s) {
    ls_reducer_hook *hook;
    if (ls_hook_create(&hook, s->compress) != LS_OK)
        return ls__usage_error(&command, "--compress: %s", ls_error_text());
    bool forgets = !hook || !hook->states, scales;
    ls_hook_destroy(hook);
    ls_loss_scaler scaler;
    if (!ls__train_loss_scale(s->loss_scale, &scales, &scaler))
        return ls__usage_error(
            &command, "--loss-scale %.40s: want off, dynamic or a number above 0", s->loss_scale);
    uint64_t every, start;
    if (s->local_sgd && !ls__train_local_parse(s->local_sgd, &every, &start))
        return ls__usage_error(
            &command, "--local-sgd %.40s: want K or K,start=N, K steps from 1 on", s->local_sgd);
    if (s->local_sgd && (scales || strcmp(s->compress, "none") != 0))
        return ls__usage_error(&command, "--local-sgd does not go with --%s",
                               scales ? "loss-scale" : "compress");
    if (scales && !forgets)
        return ls__usage_error(&command,
                               "--loss-scale does not go with --compress %.40s, which remembers "
                               "gradients of other scales",
                               s->compress);
    return 0;
}

/* What means something only beside other options. */
static int check_uses(const ls__train_settings *s) {
    const bool sgd = s->optimizer == LS_SGD, dp = s->strategy == 1;
    const char *adam = "--optimizer adam and adamw", *ranks = "--strategy ddp, which has ranks";
    const ls__option_use uses[] = {
        {s->nesterov, sgd, "--nesterov", "--optimizer sgd"},
        {s->momentum_given, sgd, "--momentum", "--optimizer sgd"},
        {s->beta1_given, !sgd, "--beta1", adam},
        {s->beta2_given, !sgd, "--beta2", adam},
        {s->epsilon_given, !sgd, "--epsilon", adam},
        {s->decay_all, s->weight_decay > 0, "--decay-all", "--weight-decay above 0"},
        {s->min_rate_given, s->schedule != LS_CONSTANT, "--min-lr", "--schedule cosine and linear"},
        {s->trace_steps_given, s->trace != NULL, "--trace-steps", "--trace"},
        {s->overwrite, s->out || s->checkpoint_dir, "--overwrite", "--out and --checkpoint-dir"},
        {s->transport_given, !dp, "--transport", ranks},
        {s->watch_given, !dp, "--watch", ranks},
    };
    return ls__options_check_uses(&command, uses, sizeof uses / sizeof uses[0]);
}

static int check_together(const ls__train_settings *s) {
    if (!s->model)
        return ls__usage_error(&command, "--model is missing, for example --model cnn");
    if (!s->data)
        return ls__usage_error(&command, "--data is missing, for example --data fashion-mnist");
    int (*const checks[])(const ls__train_settings *) = {
        check_uses, check_dp, check_sizes, check_checkpoints, check_updates, check_wire};
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        int code = checks[i](s);
        if (code != 0)
            return code;
    }
    return 0;
}

bool ls__train_parse(int argc, char **argv, ls__train_settings *s, int *code) {
    *s = defaults;
    int first;
    if (!ls__options_parse(&command, argc, argv, s, &first, code))
        return false;
    *code = ls__transport_choose(&command, s->transport_given, &s->transport) ? check_together(s)
                                                                              : LS__EXIT_USAGE;
    if (s->strategy == 1) { /* replicas are threads of one rank, which computes a shard in each */
        s->shards = s->ranks ? s->ranks : 1;
        s->ranks = 1;
    }
    return *code == 0;
}
