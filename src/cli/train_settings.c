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
    .optimizer = LS_ADAMW,
    .rate = 1e-3,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .epsilon = 1e-8,
};

/* What only the options together can tell. Returns the exit code, 0 when they fit. */
static int check_together(const ls__command *command, const ls__train_settings *s) {
    if (!s->model)
        return ls__usage_error(command, "--model is missing, for example --model cnn");
    if (!s->data)
        return ls__usage_error(command, "--data is missing, for example --data fashion-mnist");
    if (s->shards && s->shards > s->batch_size)
        return ls__usage_error(command, "--shards %lld is more than --batch-size %lld",
                               (long long)s->shards, (long long)s->batch_size);
    if (s->ranks > s->batch_size)
        return ls__usage_error(
            command, "--batch-size %lld is smaller than --ranks %lld: every rank needs a sample",
            (long long)s->batch_size, (long long)s->ranks);
    if (s->shards && s->ranks > s->shards)
        return ls__usage_error(
            command, "--shards %lld is smaller than --ranks %lld: every rank needs a shard",
            (long long)s->shards, (long long)s->ranks);
    if (s->nesterov && !(s->momentum > 0))
        return ls__usage_error(command, "--nesterov wants --momentum above 0");
    if (s->min_rate > s->rate)
        return ls__usage_error(command, "--min-lr %g is above --lr %g", s->min_rate, s->rate);
    return 0;
}

bool ls__train_parse(int argc, char **argv, ls__train_settings *s, int *code) {
    *s = defaults;
    const char *ranks = NULL;
    bool transport_given = false;
    int format = 0, optimizer = LS_ADAMW;
    const ls__option options[] = {
        {.group = "Job",
         .name = "model",
         .placeholder = "SPEC",
         .kind = LS__OPTION_TEXT,
         .text = &s->model,
         .help =
             "mlp:784,1024,10 | cnn | resnet18[:channels=1][,side=][,classes=][,width=] | gpt:layers=,heads=,width=,context=[,vocab=][,dropout=] | gpt2-124m"},
        {.name = "data",
         .placeholder = "SPEC",
         .kind = LS__OPTION_TEXT,
         .text = &s->data,
         .help = "fashion-mnist | idx:DIR | text:FILE"},
        {.name = "out",
         .placeholder = "DIR",
         .kind = LS__OPTION_TEXT,
         .text = &s->out,
         .help = "write metrics.jsonl, model.safetensors and summary.json there"},
        {.name = "overwrite",
         .kind = LS__OPTION_FLAG,
         .flag = &s->overwrite,
         .help = "allow --out to replace an earlier result"},
        {.name = "ranks",
         .letter = 'n',
         .placeholder = "N",
         .kind = LS__OPTION_TEXT,
         .text = &ranks,
         .fallback = "1",
         .help = "processes to train with on this machine, or auto: one for each core"},
        {.name = "shards",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->shards,
         .min = 1,
         .max = 1 << 20,
         .fallback = "one per rank",
         .help =
             "micro-batches the batch is cut into; fix it, and 1, 2, 4 ... ranks give the same bits"},
        {.name = "threads",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->threads,
         .min = 1,
         .max = 1024,
         .fallback = "1",
         .help = "threads of each rank; bits are equal for equal numbers"},
        {.name = "dtype",
         .kind = LS__OPTION_CHOICE,
         .choice = &s->dtype,
         .choices = "f32|bf16",
         .fallback = "f32",
         .help = "bf16: factors of matrix products are rounded to bf16, all else is f32"},
        {.name = "transport",
         .placeholder = "T",
         .kind = LS__OPTION_CHOICE,
         .choice = &s->transport,
         .choices = "shm|tcp",
         .given = &transport_given,
         .fallback = "LOCKSTEP_TRANSPORT, else shm",
         .help = "how --ranks of this machine talk"},
        {.name = "seed",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->seed,
         .min = 0,
         .max = INT64_MAX,
         .fallback = "1",
         .help = "of initial weights, data order and dropout"},
        {.group = "Length and batch",
         .name = "epochs",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->epochs,
         .min = 1,
         .max = INT32_MAX,
         .fallback = "1",
         .help = "passes over the data"},
        {.name = "steps",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->steps,
         .min = 1,
         .max = INT64_MAX / 2,
         .help = "updates; instead of --epochs"},
        {.name = "batch-size",
         .letter = 'b',
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->batch_size,
         .min = 1,
         .max = 1 << 30,
         .fallback = "64",
         .help = "samples of one update, of the whole job"},
        {.name = "eval-every",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->eval_every,
         .min = 1,
         .max = INT64_MAX,
         .fallback = "each epoch",
         .help = "evaluate every N steps; the end is always evaluated"},
        {.group = "Optimizer",
         .name = "optimizer",
         .placeholder = "O",
         .kind = LS__OPTION_CHOICE,
         .choice = &optimizer,
         .choices = "sgd|adam|adamw",
         .fallback = "adamw",
         .help = "update rule"},
        {.name = "lr",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .real = &s->rate,
         .low = 0,
         .high = 1e6,
         .fallback = "0.001",
         .help = "learning rate after warm-up"},
        {.name = "min-lr",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .real = &s->min_rate,
         .low = 0,
         .high = 1e6,
         .fallback = "0",
         .help = "where cosine and linear schedules end"},
        {.name = "schedule",
         .placeholder = "S",
         .kind = LS__OPTION_CHOICE,
         .choice = &s->schedule,
         .choices = "constant|cosine|linear",
         .fallback = "constant",
         .help = "course of the learning rate"},
        {.name = "warmup",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->warmup,
         .min = 0,
         .max = INT64_MAX,
         .fallback = "0",
         .help = "steps over which the learning rate rises"},
        {.name = "momentum",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .real = &s->momentum,
         .low = 0,
         .high = 1,
         .fallback = "0",
         .help = "of sgd"},
        {.name = "nesterov",
         .kind = LS__OPTION_FLAG,
         .flag = &s->nesterov,
         .help = "Nesterov's form of momentum"},
        {.name = "beta1",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .real = &s->beta1,
         .low = 0,
         .high = 0.999999,
         .fallback = "0.9",
         .help = "of adam and adamw"},
        {.name = "beta2",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .real = &s->beta2,
         .low = 0,
         .high = 0.9999999,
         .fallback = "0.999",
         .help = "of adam and adamw"},
        {.name = "epsilon",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .real = &s->epsilon,
         .low = 1e-30,
         .high = 1,
         .fallback = "1e-8",
         .help = "of adam and adamw"},
        {.name = "weight-decay",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .real = &s->weight_decay,
         .low = 0,
         .high = 1e3,
         .fallback = "0",
         .help = "of weights with two or more dimensions"},
        {.name = "decay-all",
         .kind = LS__OPTION_FLAG,
         .flag = &s->decay_all,
         .help = "decay biases and norms as well"},
        {.name = "clip",
         .placeholder = "X",
         .kind = LS__OPTION_REAL,
         .real = &s->clip,
         .low = 0,
         .high = 1e9,
         .fallback = "0, off",
         .help = "largest global norm of the gradients"},
        {.name = "recompute",
         .kind = LS__OPTION_FLAG,
         .flag = &s->recompute,
         .help =
             "gpt: keep only the inputs of blocks, compute the rest again; less memory, same bits"},
        {.group = "Looking inside",
         .name = "format",
         .placeholder = "F",
         .kind = LS__OPTION_CHOICE,
         .choice = &format,
         .choices = "text|json",
         .fallback = "text",
         .help = "json: one object a line on stdout"},
        {.name = "trace",
         .placeholder = "FILE",
         .kind = LS__OPTION_TEXT,
         .text = &s->trace,
         .help = "write a timeline of the first steps, for chrome://tracing or Perfetto"},
        {.name = "trace-steps",
         .placeholder = "N",
         .kind = LS__OPTION_INTEGER,
         .integer = &s->trace_steps,
         .min = 1,
         .max = 1000,
         .fallback = "2",
         .help = "how many steps --trace covers"},
        {.name = "profile",
         .kind = LS__OPTION_FLAG,
         .flag = &s->profile,
         .help =
             "time by operation, on stderr at the end and into --out as profile.json; the first "
             "step is left out"},
        {.name = "progress",
         .placeholder = "P",
         .kind = LS__OPTION_CHOICE,
         .choice = &s->progress,
         .choices = "thread|inline",
         .fallback = "thread",
         .help = "who reduces gradients: a thread beside backward, or backward itself"},
    };
    const ls__command command = {
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
    int first;
    if (!ls__options_parse(&command, argc, argv, &first, code))
        return false;
    s->optimizer = optimizer;
    s->json = format == 1;
    const char *why = NULL;
    if (ranks && !ls__ranks_parse(ranks, &s->ranks, &why))
        *code = ls__usage_error(&command, "--ranks '%.40s' %s", ranks, why);
    else if (!ls__transport_choose(&command, transport_given, &s->transport))
        *code = LS__EXIT_USAGE;
    else
        *code = check_together(&command, s);
    return *code == 0;
}
