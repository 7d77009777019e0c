/* lockstep checkpoint: the actions and what they have in common. */
#ifndef LS_CLI_CHECKPOINT_H
#define LS_CLI_CHECKPOINT_H

#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include <lockstep/checkpoint.h>

/* Each: argv[0] is the action's name; returns the exit code. */
int ls__checkpoint_verify_command(int argc, char **argv);
int ls__checkpoint_show_command(int argc, char **argv);
int ls__checkpoint_diff_command(int argc, char **argv);
int ls__checkpoint_merge_command(int argc, char **argv);

/* Options may stand before, between and behind the paths, which are `least` to `most`. False: the command ends
 * with *code. The array of *paths is the caller's to free. */
bool ls__checkpoint_arguments(const ls__command *command, int argc, char **argv, void *settings,
                              int least, int most, char ***paths, int *count, int *code);

/* The safetensors files that a path means: itself, those of a checkpoint, or those of the newest
 * checkpoint in a folder. */
enum { LS__CHECKPOINT_FILES = 64 };
typedef struct ls__checkpoint_files {
    char *checkpoint; /* the folder, NULL for a file */
    char *paths[LS__CHECKPOINT_FILES];
    ls_safetensors *files[LS__CHECKPOINT_FILES];
    size_t count;
} ls__checkpoint_files;
ls_status ls__checkpoint_files_open(ls__checkpoint_files *files, const char *path);
void ls__checkpoint_files_close(ls__checkpoint_files *files);
/* The tensor of that name and which file it is in, or NULL. */
const ls_safetensors_entry *ls__checkpoint_files_find(const ls__checkpoint_files *files,
                                                      const char *name);

/* Names of tensors and settings are the file's: shown with ls__printable, in as many bytes. */
enum { LS__CHECKPOINT_NAME = 512 };

/* "(2, 3)" into text. */
const char *ls__checkpoint_shape(const ls_safetensors_entry *entry, char *text, size_t size);

#endif
