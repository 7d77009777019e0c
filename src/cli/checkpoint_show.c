/* lockstep checkpoint show: where the run stood, and every tensor. */
#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/manifest.h"
#include "cli/checkpoint.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct show_settings {
    int format; /* 0 text, 1 json */
} show_settings;

static const char *const examples[] = {
    "lockstep checkpoint show runs/a/checkpoints",
    "lockstep checkpoint show model.safetensors --format json",
    NULL,
};

static const ls__option options[] = {
    LS__OPTION_ROW_FORMAT(show_settings, "one object a line: the run, then each tensor"),
};

static const ls__command command = {
    .name = "checkpoint show",
    .usage = "lockstep checkpoint show PATH [--format text|json]",
    .summary = "Lists what is in a checkpoint, in the newest one of a folder, or in a safetensors "
               "file: the step, the settings of the run, names, types and shapes of all tensors.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
    .stop_at_positional = true,
};

static ls_status show_run_json(const ls__manifest *m, const char *path) {
    const ls_checkpoint_progress *p = &m->progress;
    json_t *facts = json_object();
    for (size_t i = 0; i < m->fact_count; i++)
        json_object_set_new(facts, m->fact_names[i], ls__json_text(m->fact_values[i]));
    return ls__json_write_line(
        stdout, "stdout",
        json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "checkpoint",
                  ls__json_text(path), "step", (json_int_t)p->step, "epoch", (json_int_t)p->epoch,
                  "position", (json_int_t)p->position, "shards", (json_int_t)p->shards,
                  "world_size", (json_int_t)m->world_size, "train_loss",
                  ls__json_real(p->train_loss), "val_loss", ls__json_real(p->val_loss), "settings",
                  facts));
}

static ls_status show_run(const ls__checkpoint_files *files, bool json) {
    ls__manifest m;
    LS_TRY(ls__manifest_read(&m, files->checkpoint));
    ls_status status = LS_OK;
    if (json) {
        status = show_run_json(&m, files->checkpoint);
    } else {
        const ls_checkpoint_progress *p = &m.progress;
        printf("%s: step %" PRIu64 ", epoch %" PRIu64 " at sample %" PRIu64 ", saved by %" PRId64
               " ranks\n",
               files->checkpoint, p->step, p->epoch, p->position, m.world_size);
        printf("  train_loss %.6g, val_loss %.6g\n", ls__printable_number(p->train_loss),
               ls__printable_number(p->val_loss));
        for (size_t i = 0; i < m.fact_count; i++) {
            char name[LS__CHECKPOINT_NAME], value[LS__CHECKPOINT_NAME];
            printf("  %s %s\n", ls__printable(name, sizeof name, m.fact_names[i]),
                   ls__printable(value, sizeof value, m.fact_values[i]));
        }
    }
    ls__manifest_free(&m);
    return status;
}

static ls_status show_tensor_json(const char *file, const ls_safetensors_entry *e) {
    json_t *shape = json_array();
    for (size_t d = 0; d < e->dims; d++)
        json_array_append_new(shape, json_integer((json_int_t)e->shape[d]));
    return ls__json_write_line(stdout, "stdout",
                               json_pack("{s:o, s:s, s:s, s:o, s:I}", "file", ls__json_text(file),
                                         "name", e->name, "dtype", e->dtype, "shape", shape,
                                         "bytes", (json_int_t)e->bytes));
}

static ls_status show_tensors(const ls__checkpoint_files *files, size_t i, bool json) {
    const ls_safetensors *file = files->files[i];
    const char *slash = strrchr(files->paths[i], '/');
    const char *name = slash ? slash + 1 : files->paths[i];
    size_t bytes = 0;
    char shape[200], shown[LS__CHECKPOINT_NAME];
    for (size_t t = 0; t < ls_safetensors_count(file); t++)
        bytes += ls_safetensors_get(file, t)->bytes;
    if (!json)
        printf("%s: %zu tensors, %zu bytes\n", name, ls_safetensors_count(file), bytes);
    for (size_t t = 0; t < ls_safetensors_count(file); t++) {
        const ls_safetensors_entry *e = ls_safetensors_get(file, t);
        if (json)
            LS_TRY(show_tensor_json(name, e));
        else
            printf("  %-40s %-5s %s\n", ls__printable(shown, sizeof shown, e->name), e->dtype,
                   ls__checkpoint_shape(e, shape, sizeof shape));
    }
    return LS_OK;
}

int ls__checkpoint_show_command(int argc, char **argv) {
    show_settings settings = {0};
    ls__checkpoint_files files = {0};
    char **paths;
    int count, code;
    if (!ls__checkpoint_arguments(&command, argc, argv, &settings, 1, 1, &paths, &count, &code))
        return code;
    ls_status status = ls__checkpoint_files_open(&files, paths[0]);
    if (status == LS_OK && files.checkpoint)
        status = show_run(&files, settings.format == 1);
    for (size_t i = 0; status == LS_OK && i < files.count; i++)
        status = show_tensors(&files, i, settings.format == 1);
    ls__checkpoint_files_close(&files);
    free(paths);
    return status == LS_OK ? LS__EXIT_OK : ls__cli_report("lockstep checkpoint show", status);
}
