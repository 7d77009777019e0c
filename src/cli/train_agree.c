/* Ranks started by hand may have been given different options. Whatever decides what is computed, or what is
 * written where (which only rank 0's options decide), has to agree, so it is compared once, before the first step,
 * and the first difference is told on all ranks. */
#include "base/error.h"
#include "cli/train.h"
#include "data/dataset.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4096 }; /* what each rank sends: lines of NAME=VALUE, filled up with zeros */

typedef struct settings_text {
    char text[BYTES];
    size_t used;
} settings_text;

/* What does not fit is cut: the beginning of a long value still tells most differences. */
static void add(settings_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(settings_text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->text + t->used, BYTES - t->used, format, args);
    va_end(args);
    if (n > 0)
        t->used = t->used + (size_t)n < BYTES ? t->used + (size_t)n : BYTES - 1;
}

/* With as many digits as tell it from its neighbours. */
static void add_real(settings_text *t, const char *name, double value) {
    char text[32];
    snprintf(text, sizeof text, "%.15g", value);
    add(t, strtod(text, NULL) == value ? "%s=%.15g\n" : "%s=%.17g\n", name, value);
}

/* What was given as text, up to 500 bytes of it. */
static void add_text(settings_text *t, const char *name, const char *value) {
    add(t, "%s=%.500s\n", name, value ? value : "absent");
}

static void describe(settings_text *t, const ls__train *train) {
    const ls__train_settings *s = train->settings;
    add(t, "the version of lockstep=%s\n", LOCKSTEP_VERSION);
    add(t, "--batch-size=%" PRId64 "\n--shards=%" PRId64 "\n", s->batch_size, s->shards);
    add(t, "--seed=%" PRId64 "\n--threads=%" PRId64 "\n", s->seed, s->threads);
    add(t, "the type computed in (--dtype)=%s\n", ls__cli_dtype_name(train->dtype));
    add(t, "--epochs=%" PRId64 "\n--steps=%" PRId64 "\n", s->epochs, s->steps);
    add(t, "--eval-every=%" PRId64 "\n", s->eval_every);
    add(t, "--checkpoint-every=%" PRId64 "\n--keep-best=%d\n", s->checkpoint_every, s->keep_best);
    add(t, "--keep=%" PRId64 "\n--sync-checkpoints=%d\n", s->keep, s->sync_checkpoints);
    add_text(t, "--resume", s->resume);
    add_text(t, "--checkpoint-dir", s->checkpoint_dir);
    add_text(t, "--out", s->out);
    add_text(t, "--trace", s->trace);
    add(t, "--trace-steps=%" PRId64 "\n", s->trace_steps);
    add(t, "--overwrite=%d\n--profile=%d\n", s->overwrite, s->profile);
    add(t, "--optimizer=%d\n", s->optimizer);
    add_real(t, "--lr", s->rate);
    add_real(t, "--min-lr", s->min_rate);
    add(t, "--schedule=%d\n--warmup=%" PRId64 "\n", s->schedule, s->warmup);
    add_real(t, "--momentum", s->momentum);
    add(t, "--nesterov=%d\n--decay-all=%d\n", s->nesterov, s->decay_all);
    add_real(t, "--beta1", s->beta1);
    add_real(t, "--beta2", s->beta2);
    add_real(t, "--epsilon", s->epsilon);
    add_real(t, "--weight-decay", s->weight_decay);
    add_real(t, "--clip", s->clip);
    add(t, "--nonfinite=%d\n--watch=%" PRId64 "\n", s->nonfinite, s->watch);
    add(t, "--compress=%.100s\n--loss-scale=%.40s\n", s->compress, s->loss_scale);
    add(t, "--local-sgd=%.60s\n", s->local_sgd ? s->local_sgd : "off");
    add(t, "--model=%.1000s\n", s->model);
}

/* The value as the user knows it. */
static const char *spell(const char *name, const char *value) {
    static const char *const flags[] = {"absent", "given"};
    static const char *const nonfinite[] = {"stop", "skip"};
    size_t index = (size_t)(*value - '0');
    if (strcmp(name, "--optimizer") == 0 && ls__train_optimizer_name(index))
        return ls__train_optimizer_name(index);
    if (strcmp(name, "--schedule") == 0 && ls__train_schedule_name(index))
        return ls__train_schedule_name(index);
    if (strcmp(name, "--nonfinite") == 0 && index < 2)
        return nonfinite[index];
    static const char *const on_or_off[] = {"--nesterov",         "--decay-all", "--keep-best",
                                            "--sync-checkpoints", "--overwrite", "--profile"};
    for (size_t i = 0; i < sizeof on_or_off / sizeof *on_or_off; i++)
        if (strcmp(name, on_or_off[i]) == 0 && index < 2)
            return flags[index];
    /* options that were left out */
    static const char *const left_out[] = {"--steps", "--shards", "--eval-every",
                                           "--checkpoint-every", "--keep"};
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strcmp(name, left_out[i]) == 0 && strcmp(value, "0") == 0)
            return flags[0];
    return value;
}

/* Both texts have the same names in the same order, unless the programs differ. */
static ls_status report(char *first, char *other, int rank) {
    char *rest_a = NULL, *rest_b = NULL;
    char *a = strtok_r(first, "\n", &rest_a), *b = strtok_r(other, "\n", &rest_b);
    while (a && b && strcmp(a, b) == 0) {
        a = strtok_r(NULL, "\n", &rest_a);
        b = strtok_r(NULL, "\n", &rest_b);
    }
    char *value_a = a ? strchr(a, '=') : NULL, *value_b = b ? strchr(b, '=') : NULL;
    if (!value_a || !value_b)
        return ls__fail(LS_ERR_MISMATCH,
                        "ranks 0 and %d are different programs; start the same one everywhere",
                        rank);
    *value_a++ = *value_b++ = '\0';
    return ls__fail(LS_ERR_MISMATCH,
                    "%s differs: %.200s on rank 0, %.200s on rank %d; give all ranks the same", a,
                    spell(a, value_a), spell(a, value_b), rank);
}

/* Collective: every rank learns of the lowest rank whose text is not that of rank 0. */
static ls_status compare(ls_group *world, const settings_text *mine) {
    size_t ranks = (size_t)ls_group_size(world);
    char *all = malloc(ranks * BYTES);
    ls_status status = LS_OK;
    if (!all)
        status = ls__fail(LS_ERR_MEMORY, "no memory to compare the settings of %zu ranks", ranks);
    if (status == LS_OK)
        status = ls_all_gather(world, mine->text, all, BYTES, LS_U8);
    for (size_t r = 1; status == LS_OK && r < ranks; r++)
        if (memcmp(all, all + r * BYTES, BYTES) != 0)
            status = report(all, all + r * BYTES, (int)r);
    free(all);
    return status;
}

ls_status ls__train_agree(const ls__train *train) {
    settings_text mine = {.used = 0};
    describe(&mine, train);
    return compare(train->world, &mine);
}

/* Paths may differ between machines, what is in the files may not. */
ls_status ls__train_agree_data(const ls__train *train) {
    typedef struct data_card {
        uint64_t hash;
        char spec[248];
    } data_card;
    size_t ranks = (size_t)train->ranks;
    data_card mine = {.hash = ls__dataset_fingerprint(train->dataset)};
    data_card *all = calloc(ranks, sizeof *all);
    ls_status status = LS_OK;
    if (!all)
        status = ls__fail(LS_ERR_MEMORY, "no memory to compare the data of %zu ranks", ranks);
    snprintf(mine.spec, sizeof mine.spec, "%s", train->settings->data);
    if (status == LS_OK)
        status = ls_all_gather(train->world, &mine, all, sizeof mine, LS_U8);
    for (size_t r = 1; status == LS_OK && r < ranks; r++)
        if (all[r].hash != all[0].hash)
            status = ls__fail(LS_ERR_MISMATCH,
                              "--data differs in content: %s on rank 0 (hash %016" PRIx64
                              "), %s on rank %zu (hash %016" PRIx64 "); give all ranks the same",
                              all[0].spec, all[0].hash, all[r].spec, r, all[r].hash);
    free(all);
    return status;
}
