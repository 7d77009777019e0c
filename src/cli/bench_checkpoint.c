/* lockstep bench checkpoint: what saving costs the step that starts it, beside one copy of the same bytes in memory,
 * and what it costs the step after that, which computes while a thread writes. */
#include "cli/bench.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/bench_common.h"
#include "cli/bench_rank.h"
#include "nn/spec.h"
#include "optim/state.h"
#include "reducer/agree.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_ROUNDS = 100, PATIENCE_S = 60 /* more than a claim waits */ };

static const char *const examples[] = {
    "lockstep bench checkpoint --folder /tmp/somewhere",
    "lockstep bench checkpoint --folder /tmp/somewhere --model cnn --batch 64 --ranks 2",
    NULL,
};

static const ls__option options[] = {
    {.name = "folder",
     .placeholder = "DIR",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(ls__bench_settings, folder),
     .help = "where to save; the checkpoint is removed at the end, and what had to be made of DIR"},
    LS__BENCH_ROW_MODEL(
        "gpt2-124m with a context of 64",
        "what to train and save, as lockstep train takes it; a gpt needs its vocab"),
    LS__BENCH_ROW_BATCH("1", "images or sequences of one step of one rank"),
    LS__OPTION_ROW_RANKS(ls__bench_settings, "1",
                         "processes to train with on this machine, or auto: one for each core"),
    LS__OPTION_ROW_THREADS(ls__bench_settings),
    LS__BENCH_ROW_ROUNDS(MOST_ROUNDS, "5", "how often to save"),
    LS__OPTION_ROW_TRANSPORT(ls__bench_settings),
    LS__OPTION_ROW_PROGRESS(ls__bench_settings),
    LS__OPTION_ROW_FORMAT(ls__bench_settings, "one object on one line"),
};

static const ls__command command = {
    .name = "bench checkpoint",
    .usage = "lockstep bench checkpoint --folder DIR [options]",
    .summary =
        "Trains on made-up data and saves beside it, round after round: a step, a copy in memory "
        "of all that is saved, a save, a step while that is being written. start is how long "
        "the save held up training, ratio is start / copy. With several ranks each copies and "
        "saves its share; times are those of the slowest rank. All are medians over the rounds.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
};

enum { STEP, COPY, START, BESIDE, WRITE, TIMES };

typedef struct bench {
    ls__bench_rank rank;
    ls_checkpoint_claim *claim;
    ls_checkpointer *checkpointer;
    char *copy; /* of the state of all ranks, one behind the other */
    size_t state_bytes, file_bytes;
    double times[TIMES][MOST_ROUNDS]; /* ms */
} bench;

/* --- the copy ------------------------------------------------------------------------------------- */

/* Bytes [begin, end) of weights and optimizer state, to b->copy; returns how many there are in all. */
static size_t copy_state(bench *b, size_t begin, size_t end) {
    size_t at = 0, states = ls__optimizer_state_count(b->rank.optimizer);
    size_t parameters = ls_model_parameter_count(b->rank.model);
    for (size_t i = 0; i < parameters + 2 * states; i++) {
        ls_tensor *value;
        const void *from;
        if (i < parameters) {
            value = ls_parameter_value(ls_model_parameter(b->rank.model, i));
            from = ls_tensor_data(value);
        } else {
            ls__optimizer_state s =
                ls__optimizer_state_get(b->rank.optimizer, (i - parameters) / 2);
            value = ls_parameter_value(s.parameter);
            from = (i - parameters) % 2 ? s.second : s.first;
        }
        size_t bytes = from ? ls_tensor_count(value) * sizeof(float) : 0;
        size_t first = begin > at ? begin - at : 0, last = end > at ? end - at : 0;
        if (last > bytes)
            last = bytes;
        if (b->copy && first < last)
            memcpy(b->copy + at + first, (const char *)from + first, last - first);
        at += bytes;
    }
    return at;
}

static ls_status take_copy(bench *b) {
    b->state_bytes = copy_state(b, 0, 0);
    void *memory = mmap(NULL, b->state_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return ls__fail(LS_ERR_MEMORY, "no memory for a copy of %zu bytes", b->state_bytes);
    b->copy = memory;
    return LS_OK;
}

/* --- the measurement ------------------------------------------------------------------------------ */

static double since(uint64_t begin_ns) {
    return (double)(ls__now_ns() - begin_ns) / 1e6;
}

static ls_status save(bench *b, size_t round) {
    const ls_checkpoint_progress progress = {.step = round + 1,
                                             .seed = 1,
                                             .shards = (size_t)b->rank.ranks,
                                             .val_loss = NAN,
                                             .train_loss = NAN,
                                             .best_loss = NAN};
    uint64_t begin = ls__now_ns();
    LS_TRY(ls_checkpointer_save(b->checkpointer, &progress));
    b->times[START][round] = since(begin);
    begin = ls__now_ns();
    LS_TRY(ls__bench_rank_step(&b->rank, round));
    b->times[BESIDE][round] = since(begin);
    LS_TRY(ls_checkpointer_wait(b->checkpointer));
    ls_checkpoint_outcome outcome;
    while (ls_checkpointer_poll(b->checkpointer, &outcome)) {
        b->times[WRITE][round] = outcome.write_s * 1e3;
        b->file_bytes = outcome.bytes;
    }
    return LS_OK;
}

static ls_status measure(bench *b) {
    size_t share = b->state_bytes / (size_t)b->rank.ranks, first = share * (size_t)b->rank.rank;
    LS_TRY(ls__bench_rank_step(&b->rank, 0)); /* builds kernels */
    for (size_t r = 0; r < (size_t)b->rank.settings->rounds; r++) {
        uint64_t begin = ls__now_ns();
        LS_TRY(ls__bench_rank_step(&b->rank, r));
        b->times[STEP][r] = since(begin);
        begin = ls__now_ns();
        copy_state(b, first, first + share);
        b->times[COPY][r] = since(begin);
        LS_TRY(ls_barrier(b->rank.world));
        LS_TRY(save(b, r));
    }
    for (size_t i = 0; i < TIMES; i++)
        LS_TRY(ls_all_reduce(b->rank.world, b->times[i], b->times[i],
                             (size_t)b->rank.settings->rounds, LS_F64, LS_MAX));
    return LS_OK;
}

static ls_status print(bench *b) {
    size_t rounds = (size_t)b->rank.settings->rounds;
    double median[TIMES];
    for (size_t i = 0; i < TIMES; i++) {
        ls__bench_sort(b->times[i], rounds);
        median[i] = ls__bench_median(b->times[i], rounds);
    }
    if (b->rank.settings->format == 1)
        return ls__json_write_line(
            stdout, "stdout",
            json_pack("{s:s, s:I, s:i, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "model",
                      ls_model_spec(b->rank.model), "params",
                      (json_int_t)ls_model_element_count(b->rank.model), "ranks", b->rank.ranks,
                      "state_bytes", (json_int_t)b->state_bytes, "file_bytes",
                      (json_int_t)b->file_bytes, "step_ms", median[STEP], "copy_ms", median[COPY],
                      "start_ms", median[START], "ratio", median[START] / median[COPY], "beside_ms",
                      median[BESIDE], "write_ms", median[WRITE]));
    printf("model          %s, %zu parameters, %d rank%s\n", ls_model_spec(b->rank.model),
           ls_model_element_count(b->rank.model), b->rank.ranks, b->rank.ranks == 1 ? "" : "s");
    printf("state          %.1f MB; a checkpoint %.1f MB\n", (double)b->state_bytes / 1e6,
           (double)b->file_bytes / 1e6);
    printf("copy           %.1f ms: %s in memory, median of %zu (%.1f to %.1f)\n", median[COPY],
           b->rank.ranks == 1 ? "the state" : "a rank's share", rounds, b->times[COPY][0],
           b->times[COPY][rounds - 1]);
    printf("start          %.1f ms: how long a save holds up training (%.1f to %.1f)\n",
           median[START], b->times[START][0], b->times[START][rounds - 1]);
    printf("ratio          %.2f\n", median[START] / median[COPY]);
    printf("step           %.1f ms; %.1f ms beside the writing\n", median[STEP], median[BESIDE]);
    printf("write          %.1f ms from start to its name, synced and read back: %.0f MB/s\n",
           median[WRITE], (double)b->file_bytes / 1e3 / median[WRITE]);
    return LS_OK;
}

/* A folder that holds checkpoints is somebody's: the measurement would remove them. */
static ls_status check_empty(const char *folder) {
    size_t count;
    LS_TRY(ls_checkpoint_count(folder, &count));
    if (count > 0)
        return ls__fail(LS_ERR_ARGUMENT, "--folder %s: holds %zu checkpoint%s; choose another",
                        folder, count, count == 1 ? "" : "s");
    return LS_OK;
}

/* From here on nobody else saves there, so what there will be is this run's. A job that others began has not looked
 * before, and who had the folder until now may have saved. */
static ls_status claim_folder(bench *b) {
    const char *folder = b->rank.settings->folder;
    LS_TRY(ls_job_set_phase(b->rank.job, "waiting for --folder", PATIENCE_S));
    LS_TRY(ls_checkpoint_claim_create(&b->claim, b->rank.world, folder, ls__cli_log,
                                      (void *)b->rank.command));
    LS_TRY(ls__agree(b->rank.world, b->rank.rank == 0 ? check_empty(folder) : LS_OK));
    return ls_job_set_phase(b->rank.job, NULL, 0);
}

static ls_status run(bench *b, const char *spec) {
    LS_TRY(ls__bench_rank_join(&b->rank));
    LS_TRY(claim_folder(b));
    LS_TRY(ls__bench_rank_create(&b->rank, spec, b->rank.world, (size_t)b->rank.settings->batch));
    LS_TRY(take_copy(b));
    const ls_checkpoint_contents contents = {.model = b->rank.model,
                                             .optimizer = b->rank.optimizer};
    const ls_checkpointer_options where = {
        .folder = b->rank.settings->folder, .keep = 1, .claim = b->claim};
    LS_TRY(ls_checkpointer_create(&b->checkpointer, b->rank.world, &contents, &where));
    LS_TRY(measure(b));
    LS_TRY(ls_checkpointer_clear(b->checkpointer));
    if (b->rank.rank == 0)
        LS_TRY(print(b));
    return ls_barrier(b->rank.world);
}

/* "a/b/" becomes "a", and "a" "". */
static void cut_name(char *path) {
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    while (end > 0 && path[end - 1] != '/')
        end--;
    while (end > 0 && path[end - 1] == '/')
        end--;
    path[end] = '\0';
}

/* How many of the last names in `path` are missing. */
static size_t count_missing(const char *path) {
    char *above = strdup(path);
    size_t missing = 0;
    while (above && *above && access(above, F_OK) != 0 && errno == ENOENT) {
        missing++;
        cut_name(above);
    }
    free(above);
    return missing;
}

/* The last `made` names in `path` are this run's; what others put there keeps them. */
static void remove_made(const char *path, size_t made) {
    char *folder = strdup(path);
    while (folder && made-- > 0 && rmdir(folder) == 0)
        cut_name(folder);
    free(folder);
}

static ls_status run_rank(const ls__bench_settings *settings, const char *spec) {
    bench *b = calloc(1, sizeof *b);
    if (!b)
        return ls__fail(LS_ERR_MEMORY, "bench checkpoint: out of memory");
    b->rank = (ls__bench_rank){.settings = settings, .command = "lockstep bench checkpoint"};
    ls__kept_error kept = ls__cli_keep(run(b, spec));
    if (kept.status != LS_OK && b->checkpointer) /* claim_folder: these are this run's */
        (void)ls_checkpointer_clear(b->checkpointer);
    ls_checkpointer_destroy(b->checkpointer);
    ls_checkpoint_claim_destroy(b->claim);
    if (b->copy)
        munmap(b->copy, b->state_bytes);
    ls__bench_rank_close(&b->rank);
    free(b);
    return ls__cli_restore(&kept);
}

static ls_status check(const ls__bench_settings *s, const char *spec) {
    ls__spec parsed;
    LS_TRY(ls__spec_parse(&parsed, spec, 0));
    return check_empty(s->folder);
}

int ls__bench_checkpoint(int argc, char **argv, int full_argc, char **full_argv) {
    static const char name[] = "lockstep bench checkpoint";
    static const char small_context[] =
        "gpt:layers=12,heads=12,width=768,context=64,vocab=50257"; /* a step in less than a second */
    ls__bench_settings settings = {.batch = 1, .ranks = 1, .threads = 1, .rounds = 5};
    int first, code;
    if (!ls__options_parse(&command, argc, argv, &settings, &first, &code))
        return code;
    if (!settings.folder)
        return ls__usage_error(&command, "--folder is missing, for example --folder /tmp/bench");
    if (!ls__transport_choose(&command, settings.transport_given, &settings.transport))
        return LS__EXIT_USAGE;
    const char *spec = settings.model ? settings.model : small_context;
    size_t missing = count_missing(settings.folder);
    ls_status status = ls__is_rank() ? LS_OK : check(&settings, spec);
    if (status == LS_OK && settings.ranks > 1 && !ls__is_rank())
        code = ls__cli_launch_self(name, settings.ranks, settings.transport, full_argc, full_argv);
    else if (status == LS_OK && (status = run_rank(&settings, spec)) == LS_OK)
        code = LS__EXIT_OK;
    if (status != LS_OK)
        code = ls__cli_report(name, status);
    remove_made(settings.folder, missing);
    return code;
}
