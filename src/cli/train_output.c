/* The folder of a run. metrics.jsonl grows by a line a step; model.safetensors and summary.json appear
 * when the run is complete, each under a temporary name first. A folder with a summary is a complete run
 * and is not touched without --overwrite. While a run writes there, it holds a lock on the folder, which
 * ends with the process. */
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/folder.h"
#include "cli/train.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

struct ls__train_output {
    char *folder, *metrics_path, *model_path, *summary_path;
    FILE *metrics;
    int lock; /* the folder */
};

static char *join(const char *folder, const char *name) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* model.safetensors.tmp-PID-N, and nothing that somebody else may have called alike. */
static bool is_leftover(const char *name) {
    static const char prefix[] = "model.safetensors.tmp-", digits[] = "0123456789";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    const char *pid = name + sizeof prefix - 1, *dash = pid + strspn(pid, digits);
    const char *end = *dash == '-' ? dash + 1 + strspn(dash + 1, digits) : dash;
    return dash > pid && end > dash + 1 && *end == '\0';
}

/* What runs that were killed while they saved left behind. Called with the lock. */
static void remove_leftovers(const char *folder) {
    DIR *entries = opendir(folder);
    if (!entries)
        return;
    for (struct dirent *entry; (entry = readdir(entries));)
        if (is_leftover(entry->d_name))
            unlinkat(dirfd(entries), entry->d_name, 0);
    closedir(entries);
}

static ls_status lock_folder(const char *folder, int *lock) {
    return ls__folder_lock(folder, "--out ", false, ls__cli_log, (void *)ls__train_name, lock);
}

ls_status ls__output_check(const ls__train_settings *settings) {
    const char *folder = settings->out;
    int lock;
    LS_TRY(lock_folder(folder, &lock));
    close(lock); /* the rank that will write takes it again */
    if (access(folder, W_OK | X_OK) != 0)
        return ls__fail_errno(LS_ERR_IO, errno, "--out %s: cannot write there", folder);
    char *summary = join(folder, "summary.json");
    bool complete = summary && access(summary, F_OK) == 0;
    free(summary);
    /* One that goes on makes the result again. */
    if (complete && !settings->overwrite && !settings->resume)
        return ls__fail(LS_ERR_ARGUMENT,
                        "--out %s: holds a complete run (summary.json); choose another folder or "
                        "give --overwrite",
                        folder);
    return LS_OK;
}

/* What metrics.jsonl says when a run goes on: whole lines, of steps in rising order. */
typedef struct metrics_file {
    off_t kept, bytes;    /* its length up to the step that the run goes on from; and all of it */
    uint64_t last, after; /* the last steps: of what is kept, and of all; 0: none */
} metrics_file;

static uint64_t step_of(const char *line, ssize_t size) {
    json_t *object = line[size - 1] == '\n' ? json_loads(line, 0, NULL) : NULL;
    json_int_t step = json_integer_value(json_object_get(object, "step"));
    json_decref(object);
    return step > 0 ? (uint64_t)step : 0;
}

static metrics_file read_metrics(const char *path, uint64_t first_step) {
    metrics_file m = {0};
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    for (ssize_t n; file && (n = getline(&line, &room, file)) > 0; m.bytes += n) {
        uint64_t step = step_of(line, n);
        if (step > m.after)
            m.after = step;
        if (m.kept == m.bytes && step > m.last && step <= first_step) {
            m.kept += n;
            m.last = step;
        }
    }
    free(line);
    if (file)
        fclose(file);
    return m;
}

/* Where the file does not end with the step that the run goes on from. */
static void tell_metrics(const char *path, const metrics_file *m, uint64_t first_step) {
    if (m->after > first_step)
        fprintf(stderr,
                "lockstep train: %s went on to step %" PRIu64 ": what is behind step %" PRIu64
                " is cut off, those steps are made again\n",
                path, m->after, m->last);
    else if (m->kept < m->bytes)
        fprintf(stderr,
                "lockstep train: %s: what is behind step %" PRIu64 " is cut off: it is not whole\n",
                path, m->last);
    if (m->last < first_step)
        fprintf(stderr,
                "lockstep train: %s: steps %" PRIu64 " to %" PRIu64
                " are missing, this run begins behind them\n",
                path, m->last + 1, first_step);
}

static ls_status open_metrics(ls__train_output *o, const ls__train_settings *settings,
                              uint64_t first_step) {
    struct stat about;
    if (stat(o->metrics_path, &about) == 0 &&
        !S_ISREG(about.st_mode)) /* it is cut to what is kept */
        return ls__fail(LS_ERR_IO, "%s: is no regular file; remove it, or choose another --out",
                        o->metrics_path);
    metrics_file m = {0};
    if (settings->resume) {
        m = read_metrics(o->metrics_path, first_step);
        tell_metrics(o->metrics_path, &m, first_step);
    }
    int fd = open(o->metrics_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd >= 0 && ftruncate(fd, m.kept) == 0 && (o->metrics = fdopen(fd, "a")))
        return LS_OK;
    ls_status status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", o->metrics_path);
    if (fd >= 0)
        close(fd);
    return status;
}

/* Before the first step, and not when all are made. */
static ls_status check_targets(const ls__train_output *o) {
    LS_TRY(ls__file_check_target(o->model_path));
    return ls__file_check_target(o->summary_path);
}

ls_status ls__output_open(ls__train_output **out, const ls__train_settings *settings,
                          uint64_t first_step) {
    const char *folder = settings->out;
    LS_TRY(ls__output_check(settings));
    ls__train_output *o = calloc(1, sizeof *o);
    if (!o)
        return ls__fail(LS_ERR_MEMORY, "--out %s: out of memory", folder);
    o->lock = -1;
    o->folder = strdup(folder);
    o->metrics_path = join(folder, "metrics.jsonl");
    o->model_path = join(folder, "model.safetensors");
    o->summary_path = join(folder, "summary.json");
    ls_status status = LS_OK;
    if (!o->folder || !o->metrics_path || !o->model_path || !o->summary_path)
        status = ls__fail(LS_ERR_MEMORY, "--out %s: out of memory", folder);
    else
        status = lock_folder(folder, &o->lock);
    if (status == LS_OK)
        remove_leftovers(folder);
    if (status == LS_OK)
        status = check_targets(o);
    /* From here on the folder is no complete run until this one is. */
    if (status == LS_OK && unlink(o->summary_path) != 0 && errno != ENOENT)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot replace", o->summary_path);
    if (status == LS_OK)
        status = open_metrics(o, settings, first_step);
    if (status != LS_OK) {
        ls__output_close(o);
        return status;
    }
    *out = o;
    return LS_OK;
}

/* {"step": 41, "compute_ms": [a number for each rank], ...}: of the step before this line's, when its times
 * travelled; NULL in the first. */
static json_t *timing(const ls__train *train, uint64_t step) {
    const ls_ddp_times *times = ls_ddp_step_times(train->ddp);
    if (!times || ls_local_sgd_is_local(train->local)) /* the latter: of this rank alone */
        return NULL;
    json_t *compute = json_array(), *hidden = json_array(), *exposed = json_array();
    json_t *transfer = json_array(), *late = json_array(), *last = json_array();
    for (int rank = 0; rank < train->ranks; rank++) {
        json_array_append_new(compute, json_real(times[rank].compute_ms));
        json_array_append_new(transfer, json_real(times[rank].transfer_ms));
        json_array_append_new(hidden, json_real(times[rank].hidden_ms));
        json_array_append_new(exposed, json_real(times[rank].exposed_ms));
        json_array_append_new(late, json_real(times[rank].late_ms));
        json_array_append_new(last, json_integer(times[rank].last_rank));
    }
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "step", (json_int_t)step - 1,
                     "compute_ms", compute, "transfer_ms", transfer, "hidden_ms", hidden,
                     "exposed_ms", exposed, "late_ms", late, "last_rank", last);
}

ls_status ls__output_step(ls__train_output *o, const ls__train *train, const ls__step_record *r) {
    json_t *line =
        json_pack("{s:I, s:I, s:o, s:f, s:o, s:f, s:f, s:f}", "step", (json_int_t)r->step, "epoch",
                  (json_int_t)r->epoch, "loss", ls__json_real(r->loss), "lr", r->rate, "grad_norm",
                  ls__json_real(r->norm), train->unit, r->samples, "step_ms", r->milliseconds,
                  "wait_ms", r->wait_milliseconds);
    if (line)
        json_object_set_new(line, "timing", timing(train, r->step));
    if (line && r->local)
        json_object_set_new(line, "averaged", json_boolean(r->averaged));
    if (line && r->loss_scale > 0)
        json_object_set_new(line, "loss_scale", json_real(r->loss_scale));
    if (line && r->skipped)
        json_object_set_new(line, "skipped", json_true());
    if (line && r->evaluated) {
        json_object_set_new(line, "val_loss", ls__json_real(r->val_loss));
        json_object_set_new(line, train->accuracy, ls__json_real(r->val_accuracy));
    }
    return ls__json_write_line(o->metrics, o->metrics_path, line);
}

json_t *ls__train_summary(const ls__train *train) {
    const ls__train_settings *s = train->settings;
    const ls__train_result *r = &train->result;
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)ls_model_hash(train->model));
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    json_t *summary = json_pack(
        "{s:s, s:s, s:o, s:I, s:i, s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:o, s:o, s:o, s:s, "
        "s:f, s:f, s:f, s:o, s:f}",
        "version", LOCKSTEP_VERSION, "model", ls_model_spec(train->model), "data",
        ls__json_text(s->data), "parameters", (json_int_t)ls_model_element_count(train->model),
        "ranks", train->ranks, "shards", (json_int_t)train->shards, "threads",
        (json_int_t)s->threads, "dtype", ls__cli_dtype_name(train->dtype), "batch_size",
        (json_int_t)s->batch_size, "seed", (json_int_t)s->seed, "steps", (json_int_t)r->steps,
        "skipped_steps", (json_int_t)r->skipped_steps, "epochs", (json_int_t)r->epochs, "optimizer",
        ls__train_optimizer_name((size_t)s->optimizer), "transport", ls_job_transport(train->job),
        "train_loss", ls__json_real(r->train_loss), "val_loss", ls__json_real(r->val_loss),
        train->accuracy, ls__json_real(r->val_accuracy), "weights_xxh64", hash, "train_seconds",
        r->train_seconds, train->speed, r->samples_per_s, "peak_rss_mb",
        (double)usage.ru_maxrss / 1024, "memory_plan", ls__train_plan_json(&train->plan),
        "memory_peak", (double)train->plan.peak / (1 << 20));
    if (summary)
        json_object_set_new(summary, "compress", json_string(s->compress));
    if (summary && s->local_sgd)
        json_object_set_new(summary, "local_sgd", json_string(s->local_sgd));
    if (summary && train->dp)
        json_object_set_new(summary, "dp", ls__train_dp_json(train));
    return summary;
}

/* On disk first, then under its name. */
static ls_status write_summary(ls__train_output *o, json_t *summary) {
    char *temporary = join(o->folder, ".summary.json.part");
    FILE *file = temporary ? fopen(temporary, "we") : NULL;
    if (!file) {
        json_decref(summary);
        ls_status status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", o->summary_path);
        free(temporary);
        return status;
    }
    ls_status status = ls__json_write_line(file, o->summary_path, summary);
    if (status == LS_OK && fsync(fileno(file)) != 0)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", o->summary_path);
    if (fclose(file) != 0 && status == LS_OK)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", o->summary_path);
    if (status == LS_OK && rename(temporary, o->summary_path) != 0)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", o->summary_path);
    if (status != LS_OK)
        unlink(temporary);
    free(temporary);
    return status;
}

ls_status ls__output_finish(ls__train_output *o, const ls__train *train) {
    if (fsync(fileno(o->metrics)) != 0)
        return ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", o->metrics_path);
    LS_TRY(ls_model_save(train->model, o->model_path));
    json_t *summary = ls__train_summary(train);
    if (!summary)
        return ls__fail(LS_ERR_MEMORY, "%s: out of memory", o->summary_path);
    LS_TRY(write_summary(o, summary));
    (void)ls__folder_sync(o->folder); /* the new names themselves */
    return LS_OK;
}

void ls__output_close(ls__train_output *o) {
    if (!o)
        return;
    if (o->metrics)
        fclose(o->metrics);
    if (o->lock >= 0)
        close(o->lock);
    free(o->folder);
    free(o->metrics_path);
    free(o->model_path);
    free(o->summary_path);
    free(o);
}
