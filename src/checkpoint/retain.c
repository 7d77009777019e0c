/* Which checkpoints stay. Nothing is removed that cannot be read: it may be somebody's. */
#include "checkpoint/checkpointer.h"

#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include <math.h>
#include <stdlib.h>

typedef struct row {
    uint64_t step;
    double val_loss;
    bool linked; /* somebody's link to where he moved it: stays, and is none of those to keep */
} row;

/* Those that have a manifest, in rising order of their steps; the caller frees *rows. */
static size_t list(const char *folder, row **rows) {
    uint64_t *steps;
    size_t count, good = 0;
    if (ls__folder_steps(folder, &steps, &count) != LS_OK)
        return 0;
    *rows = calloc(count + 1, sizeof **rows);
    for (size_t i = 0; *rows && i < count; i++) {
        ls__manifest manifest;
        char *path = ls__folder_step_path(folder, steps[i]);
        if (path && ls__manifest_read(&manifest, path) == LS_OK) {
            (*rows)[good++] = (row){steps[i], manifest.progress.val_loss, !ls__folder_is_own(path)};
            ls__manifest_free(&manifest);
        }
        free(path);
    }
    free(steps);
    return good;
}

/* Index of the lowest val_loss, of equal ones the earliest; `count` when none was measured. */
static size_t find_best(const row *rows, size_t count) {
    size_t best = count;
    for (size_t i = 0; i < count; i++)
        if (!isnan(rows[i].val_loss) && (best == count || rows[i].val_loss < rows[best].val_loss))
            best = i;
    return best;
}

void ls__checkpoint_retain(const ls_checkpointer *c, uint64_t saved) {
    row *rows = NULL;
    size_t count = list(c->folder, &rows), best = find_best(rows, count);
    ls__folder_link(c->folder, "latest", saved);
    if (best < count)
        ls__folder_link(c->folder, "best", rows[best].step);
    size_t kept = 0;
    for (size_t i = count; c->options.keep > 0 && i-- > 0;) {
        if (rows[i].linked)
            continue;
        bool last = kept++ < c->options.keep || rows[i].step == saved;
        if (last || (c->options.keep_best && i == best))
            continue;
        char *path = ls__folder_step_path(c->folder, rows[i].step);
        if (path)
            (void)ls__folder_remove(c->folder, path);
        free(path);
    }
    free(rows);
}
