/* What rank 0 shows. On a terminal one line on stderr that is written over; elsewhere a plain line every
 * few seconds; with --format json objects on stdout. Results go to stdout. */
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/printable.h"
#include "cli/train.h"
#include "comm/variables.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ls__progress_line {
    bool terminal;
    uint64_t shown_ns;
    double busy_ms, samples; /* of training steps since the start */
};

/* Between two updates of the line. */
static const uint64_t TERMINAL_NS = 100000000, PLAIN_NS = 5000000000;

ls_status ls__progress_open(ls__progress_line **out, const ls__train *train) {
    ls__progress_line *p = calloc(1, sizeof *p);
    if (!p)
        return ls__fail(LS_ERR_MEMORY, "progress: out of memory");
    /* Under a launcher stderr is a pipe; it says so when its own is a terminal. */
    p->terminal = isatty(STDERR_FILENO) || ls__variable("LOCKSTEP_TERMINAL");
    p->shown_ns = ls__now_ns();
    if (!train->settings->format) {
        printf(
            "%s on %s: %zu parameters, %d rank%s over %s, batch %lld in %zu shard%s, %llu steps\n",
            ls_model_spec(train->model), train->settings->data,
            ls_model_element_count(train->model), train->ranks, train->ranks == 1 ? "" : "s",
            ls_job_transport(train->job), (long long)train->settings->batch_size, train->shards,
            train->shards == 1 ? "" : "s", (unsigned long long)train->total_steps);
        ls__train_plan_print(&train->plan);
        fflush(stdout);
    } else {
        ls__json_write_line(stdout, "stdout",
                            json_pack("{s:s, s:o}", "event", "plan", "memory_plan",
                                      ls__train_plan_json(&train->plan)));
    }
    *out = p;
    return LS_OK;
}

static void time_left(double seconds, char *text, size_t size) {
    if (seconds < 100)
        snprintf(text, size, "%.0f s left", seconds);
    else if (seconds < 6000)
        snprintf(text, size, "%.0f min left", seconds / 60);
    else
        snprintf(text, size, "%.1f h left", seconds / 3600);
}

static void show_json(const ls__train *train, const ls__step_record *r) {
    json_t *line =
        json_pack("{s:s, s:I, s:I, s:I, s:o, s:f}", "event", r->evaluated ? "eval" : "step", "step",
                  (json_int_t)r->step, "of", (json_int_t)train->total_steps, "epoch",
                  (json_int_t)r->epoch, "loss", ls__json_real(r->loss), "lr", r->rate);
    if (line && r->evaluated) {
        json_object_set_new(line, "val_loss", ls__json_real(r->val_loss));
        json_object_set_new(line, train->accuracy, ls__json_real(r->val_accuracy));
    }
    ls__json_write_line(stdout, "stdout", line);
}

void ls__progress_step(ls__progress_line *p, const ls__train *train, const ls__step_record *r) {
    p->busy_ms += r->milliseconds;
    p->samples += r->samples;
    uint64_t now = ls__now_ns();
    bool last = r->step == train->total_steps;
    if (!r->evaluated && !last && now - p->shown_ns < (p->terminal ? TERMINAL_NS : PLAIN_NS))
        return;
    p->shown_ns = now;
    if (train->settings->format) {
        show_json(train, r);
        return;
    }
    char left[32];
    time_left(p->busy_ms / 1e3 / (double)(r->step - train->first_step) *
                  (double)(train->total_steps - r->step),
              left, sizeof left);
    const char *clear = p->terminal ? "\r\033[K" : "";
    fprintf(stderr, "%sepoch %llu  step %llu/%llu  loss %.4f  lr %.2e  %.0f %s/s  %s%s", clear,
            (unsigned long long)r->epoch, (unsigned long long)r->step,
            (unsigned long long)train->total_steps, ls__printable_number(r->loss), r->rate,
            p->samples / (p->busy_ms / 1e3), train->unit, left, p->terminal ? "\r" : "\n");
    if (r->evaluated)
        fprintf(stderr, "%sepoch %llu  step %llu  val_loss %.4f  %s %.4f\n", clear,
                (unsigned long long)r->epoch, (unsigned long long)r->step,
                ls__printable_number(r->val_loss), train->accuracy,
                ls__printable_number(r->val_accuracy));
    fflush(stderr);
}

void ls__progress_finish(ls__progress_line *p, const ls__train *train) {
    const ls__train_result *r = &train->result;
    if (train->settings->format) {
        json_t *line = ls__train_summary(train);
        if (line)
            json_object_set_new(line, "event", json_string("summary"));
        ls__json_write_line(stdout, "stdout", line);
        return;
    }
    if (p->terminal)
        fputs("\r\033[K", stderr);
    printf(
        "val_loss %.4f  %s %.4f  after %llu steps in %.1f s (%.0f %s/s)\nweights_xxh64 %016llx\n",
        ls__printable_number(r->val_loss), train->accuracy, ls__printable_number(r->val_accuracy),
        (unsigned long long)r->steps, r->train_seconds, r->samples_per_s, train->unit,
        (unsigned long long)ls_model_hash(train->model));
    if (train->dp)
        ls__train_dp_print(train);
    ls__train_plan_compare(&train->plan);
    if (train->settings->out)
        printf("saved %s/model.safetensors, metrics.jsonl, summary.json\n", train->settings->out);
    if (r->skipped_steps > 0)
        printf("left out: %llu of %llu updates, because a gradient held a NaN or an infinity\n",
               (unsigned long long)r->skipped_steps,
               (unsigned long long)(r->steps - train->first_step));
    fflush(stdout);
}

void ls__progress_close(ls__progress_line *p) {
    free(p);
}
