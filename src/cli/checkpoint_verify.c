/* lockstep checkpoint verify: is what lies on the disk what was saved? */
#include "base/error.h"
#include "checkpoint/folder.h"
#include "cli/checkpoint.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct verify_settings {
    int format; /* 0 text, 1 json */
} verify_settings;

static const char *const examples[] = {
    "lockstep checkpoint verify runs/a/checkpoints",
    "lockstep checkpoint verify runs/a/checkpoints/step-00001000 model.safetensors",
    NULL,
};

static const ls__option options[] = {
    LS__OPTION_ROW_FORMAT(verify_settings, "one object a line"),
};

static const ls__command command = {
    .name = "checkpoint verify",
    .usage = "lockstep checkpoint verify PATH... [--format text|json]",
    .summary = "Reads checkpoints to the end and compares every checksum; of a folder of "
               "checkpoints all of them, of a safetensors file, which has no checksum, only the "
               "form. Exit code 3 when any is broken or cannot be read.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
    .stop_at_positional = true,
};

static ls_status verify_one(const char *path) {
    struct stat info;
    ls__checkpoint_files files;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        LS_TRY(ls_checkpoint_verify(path, NULL));
    LS_TRY(ls__checkpoint_files_open(&files, path)); /* tensors that tile their files */
    ls__checkpoint_files_close(&files);
    return LS_OK;
}

static ls_status report(const char *path, bool json, bool *broken) {
    ls_status status = verify_one(path);
    *broken |= status != LS_OK;
    if (json)
        return ls__json_write_line(
            stdout, "stdout",
            json_pack("{s:o, s:b, s:o}", "path", ls__json_text(path), "whole", status == LS_OK,
                      "error", status == LS_OK ? json_null() : ls__json_text(ls_error_text())));
    if (status == LS_OK)
        printf("%s: whole\n", path);
    else if (status == LS_ERR_IO) /* and may be whole */
        printf("%s: cannot be checked: %s\n", path, ls_error_text());
    else
        printf("%s: broken: %s\n", path, ls_error_text());
    return LS_OK;
}

/* A checkpoint or file, or all checkpoints of a folder. */
static ls_status verify(const char *path, bool json, bool *broken) {
    uint64_t *steps = NULL;
    size_t count = 0;
    struct stat info;
    ls_status status = LS_OK;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        LS_TRY(ls__folder_steps(path, &steps, &count));
    if (count == 0)
        status = report(path, json, broken);
    for (size_t i = 0; status == LS_OK && i < count; i++) {
        char *one = ls__folder_step_path(path, steps[i]);
        status = one ? report(one, json, broken) : LS_ERR_MEMORY;
        free(one);
    }
    free(steps);
    return status;
}

int ls__checkpoint_verify_command(int argc, char **argv) {
    verify_settings settings = {0};
    char **paths;
    int count, code;
    if (!ls__checkpoint_arguments(&command, argc, argv, &settings, 1, argc, &paths, &count, &code))
        return code;
    bool broken = false;
    ls_status status = LS_OK;
    for (int i = 0; status == LS_OK && i < count; i++)
        status = verify(paths[i], settings.format == 1, &broken);
    free(paths);
    if (status != LS_OK)
        return ls__cli_report("lockstep checkpoint verify", status);
    return broken ? LS__EXIT_INPUT : LS__EXIT_OK;
}
