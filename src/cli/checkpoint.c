/* lockstep checkpoint: finds the action, and opens what its paths mean. */
#include "cli/checkpoint.h"

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- the command line ----------------------------------------------------------------------------- */

bool ls__checkpoint_arguments(const ls__command *command, int argc, char **argv, void *settings,
                              int least, int most, char ***paths, int *count, int *code) {
    *count = 0;
    *paths = calloc((size_t)argc + 1, sizeof **paths);
    *code = LS__EXIT_FAILURE;
    if (!*paths) {
        fprintf(stderr, "lockstep %s: out of memory\n", command->name);
        return false;
    }
    for (int at = 0; at < argc;) { /* argv[at] is the name, then each path */
        int first;
        if (!ls__options_parse(command, argc - at, argv + at, settings, &first, code)) {
            free(*paths);
            return false;
        }
        at += first;
        if (at < argc)
            (*paths)[(*count)++] = argv[at];
    }
    if (*count >= least && *count <= most)
        return true;
    *code = ls__usage_error(command, "%d path%s given, want %s", *count, *count == 1 ? "" : "s",
                            least == most ? (least == 1 ? "one" : "two")
                            : least == 1  ? "one or more"
                                          : "two or more");
    free(*paths);
    return false;
}

typedef struct action {
    const char *name, *what;
    int (*run)(int argc, char **argv);
} action;

static const action actions[] = {
    {"verify", "compare checkpoints with their checksums", ls__checkpoint_verify_command},
    {"show", "list what is in one", ls__checkpoint_show_command},
    {"diff", "compare two, tensor by tensor", ls__checkpoint_diff_command},
    {"merge", "put the tensors of several files into one", ls__checkpoint_merge_command},
};

enum { ACTIONS = sizeof actions / sizeof actions[0] };

static void print_help(FILE *file) {
    fputs("Usage: lockstep checkpoint ACTION PATH... [options]\n"
          "\n"
          "A path is a checkpoint (a folder with manifest.json), a folder of checkpoints, or a\n"
          "safetensors file.\n"
          "\n"
          "Actions\n",
          file);
    for (size_t i = 0; i < ACTIONS; i++)
        fprintf(file, "  %-8s %s\n", actions[i].name, actions[i].what);
    fputs("\nlockstep checkpoint ACTION --help lists its options.\n", file);
}

int ls__cli_checkpoint(int argc, char **argv) {
    const char *names[ACTIONS + 1] = {NULL};
    if (argc < 2) {
        print_help(stderr);
        return LS__EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return LS__EXIT_OK;
    }
    for (size_t i = 0; i < ACTIONS; i++) {
        if (strcmp(argv[1], actions[i].name) == 0)
            return actions[i].run(argc - 1, argv + 1);
        names[i] = actions[i].name;
    }
    const char *nearest = ls__nearest(argv[1], names);
    fprintf(stderr,
            "lockstep checkpoint: unknown action %.60s%s%s%s (lockstep checkpoint --help lists "
            "all)\n",
            argv[1], nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    return LS__EXIT_USAGE;
}

/* --- what a path means ---------------------------------------------------------------------------- */

static ls_status add_file(ls__checkpoint_files *files, char *path) {
    if (!path)
        return ls__fail(LS_ERR_MEMORY, "checkpoint: out of memory");
    files->paths[files->count] = path;
    ls_status status = ls_safetensors_open(&files->files[files->count], path);
    files->count++;
    return status;
}

/* `path`, or the newest checkpoint in it; the caller frees it. */
static ls_status choose(const char *path, char **chosen) {
    char *manifest;
    uint64_t *steps;
    size_t count;
    if (asprintf(&manifest, "%s/%s", path, LS__MANIFEST_NAME) < 0)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for its name", path);
    bool itself = access(manifest, F_OK) == 0;
    free(manifest);
    LS_TRY(ls__folder_steps(path, &steps, &count));
    if (itself)
        *chosen = strdup(path);
    else if (count > 0)
        *chosen = ls__folder_step_path(path, steps[count - 1]);
    free(steps);
    if (!itself && count == 0)
        return ls__fail(LS_ERR_IO, "%s: neither a checkpoint nor a folder of checkpoints", path);
    return *chosen ? LS_OK : ls__fail(LS_ERR_MEMORY, "%s: no memory for its name", path);
}

static ls_status open_checkpoint(ls__checkpoint_files *files, const char *path) {
    ls__manifest manifest;
    LS_TRY(choose(path, &files->checkpoint));
    LS_TRY(ls__manifest_read(&manifest, files->checkpoint));
    ls_status status = LS_OK;
    for (size_t i = 0; status == LS_OK && i < manifest.file_count; i++) {
        char *name;
        if (asprintf(&name, "%s/%s", files->checkpoint, manifest.files[i].name) < 0)
            name = NULL;
        status = add_file(files, name);
    }
    ls__manifest_free(&manifest);
    return status;
}

ls_status ls__checkpoint_files_open(ls__checkpoint_files *files, const char *path) {
    struct stat info;
    *files = (ls__checkpoint_files){0};
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    ls_status status = folder ? open_checkpoint(files, path) : add_file(files, strdup(path));
    if (status != LS_OK)
        ls__checkpoint_files_close(files);
    return status;
}

void ls__checkpoint_files_close(ls__checkpoint_files *files) {
    for (size_t i = 0; i < files->count; i++) {
        ls_safetensors_close(files->files[i]);
        free(files->paths[i]);
    }
    free(files->checkpoint);
    *files = (ls__checkpoint_files){0};
}

const ls_safetensors_entry *ls__checkpoint_files_find(const ls__checkpoint_files *files,
                                                      const char *name) {
    const ls_safetensors_entry *found = NULL;
    for (size_t i = 0; !found && i < files->count; i++)
        found = ls_safetensors_find(files->files[i], name);
    return found;
}

const char *ls__checkpoint_shape(const ls_safetensors_entry *entry, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "(");
    for (size_t d = 0; d < entry->dims && used + 24 < size; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%zu", d ? ", " : "", entry->shape[d]);
    snprintf(text + used, size - used, ")");
    return text;
}
