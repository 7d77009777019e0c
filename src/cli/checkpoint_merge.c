/* lockstep checkpoint merge: one safetensors file of several, for example of the pieces in which large models are
 * handed out (model-00001-of-00003.safetensors, ...), or of a whole checkpoint. */
#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "cli/checkpoint.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct merge_settings {
    const char *out;
    bool overwrite;
} merge_settings;

static const char *const examples[] = {
    "lockstep checkpoint merge model-*-of-00003.safetensors --out model.safetensors",
    NULL,
};

static const ls__option options[] = {
    {.name = "out",
     .placeholder = "FILE",
     .kind = LS__OPTION_TEXT,
     .at = offsetof(merge_settings, out),
     .help = "what to write"},
    {.name = "overwrite",
     .kind = LS__OPTION_FLAG,
     .at = offsetof(merge_settings, overwrite),
     .help = "replace FILE if it is there"},
};

static const ls__command command = {
    .name = "checkpoint merge",
    .usage = "lockstep checkpoint merge PATH... --out FILE [--overwrite]",
    .summary = "Puts the tensors of several safetensors files, or of all files of a checkpoint, "
               "into one file, which appears when it is complete, on disk and read back. A name "
               "may stand in two of them only if the tensors are equal to the bit.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
    .stop_at_positional = true,
};

typedef struct merge {
    ls__checkpoint_files *inputs; /* one for each path */
    int input_count;
    ls_safetensors_entry *entries;
    size_t count;
} merge;

static const ls_safetensors_entry *find_before(const merge *m, int input, const char *name) {
    const ls_safetensors_entry *found = NULL;
    for (int i = 0; !found && i < input; i++)
        found = ls__checkpoint_files_find(&m->inputs[i], name);
    return found;
}

static bool same(const ls_safetensors_entry *a, const ls_safetensors_entry *b) {
    return ls__safetensors_same_form(a, b) && a->bytes == b->bytes &&
           (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0);
}

static ls_status add_input(merge *m, int input) {
    const ls__checkpoint_files *files = &m->inputs[input];
    for (size_t f = 0; f < files->count; f++) {
        size_t tensors = ls_safetensors_count(files->files[f]);
        ls_safetensors_entry *more =
            realloc(m->entries, (m->count + tensors + 1) * sizeof *m->entries);
        if (!more)
            return ls__fail(LS_ERR_MEMORY, "no memory for a list of %zu tensors",
                            m->count + tensors);
        m->entries = more;
        for (size_t i = 0; i < tensors; i++) {
            const ls_safetensors_entry *e = ls_safetensors_get(files->files[f], i);
            const ls_safetensors_entry *before = find_before(m, input, e->name);
            if (before && !same(before, e))
                return ls__fail(LS_ERR_FORMAT, "%s: tensor %s is another one than before",
                                files->paths[f], e->name);
            if (!before)
                m->entries[m->count++] = *e;
        }
    }
    return LS_OK;
}

static ls_status write_out(const merge *m, const char *out) {
    static const char SPEC[] = "lockstep.model";
    const char *keys[] = {"format", SPEC}, *values[] = {"pt", NULL};
    for (int i = 0; !values[1] && i < m->input_count; i++)
        values[1] = ls_safetensors_metadata(m->inputs[i].files[0], SPEC);
    return ls__safetensors_write(out, m->entries, m->count, keys, values, values[1] ? 2 : 1);
}

/* The new file takes the name of the old: a device, a pipe or a link would be gone. */
static ls_status check_out(const merge_settings *settings) {
    struct stat about;
    if (lstat(settings->out, &about) != 0)
        return LS_OK;
    if (!settings->overwrite)
        return ls__fail(LS_ERR_ARGUMENT, "--out %s: is there; choose another, or give --overwrite",
                        settings->out);
    if (!S_ISREG(about.st_mode))
        return ls__fail(LS_ERR_ARGUMENT,
                        "--out %s: is no regular file, and only those are replaced", settings->out);
    return LS_OK;
}

static ls_status run(merge *m, char **paths, int count, const merge_settings *settings) {
    LS_TRY(check_out(settings));
    m->inputs = calloc((size_t)count, sizeof *m->inputs);
    if (!m->inputs)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d files", count);
    for (; m->input_count < count; m->input_count++)
        LS_TRY(ls__checkpoint_files_open(&m->inputs[m->input_count], paths[m->input_count]));
    for (int i = 0; i < count; i++)
        LS_TRY(add_input(m, i));
    return write_out(m, settings->out);
}

int ls__checkpoint_merge_command(int argc, char **argv) {
    merge_settings settings = {0};
    merge m = {0};
    char **paths;
    int count, code;
    if (!ls__checkpoint_arguments(&command, argc, argv, &settings, 1, argc, &paths, &count, &code))
        return code;
    if (!settings.out) {
        free(paths);
        return ls__usage_error(&command, "--out is missing, for example --out model.safetensors");
    }
    ls_status status = run(&m, paths, count, &settings);
    if (status == LS_OK)
        printf("%s: %zu tensors\n", settings.out, m.count);
    for (int i = 0; i < m.input_count; i++)
        ls__checkpoint_files_close(&m.inputs[i]);
    free(m.inputs);
    free(m.entries);
    free(paths);
    return status == LS_OK ? LS__EXIT_OK : ls__cli_report("lockstep checkpoint merge", status);
}
