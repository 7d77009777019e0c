/* A run's claim on its folder, from before it looks for what to go on from: chosen without it, a checkpoint could be
 * removed by the run that still has the folder, and this run would have started for nothing. */
#include "checkpoint/checkpointer.h"

#include "base/error.h"
#include "checkpoint/folder.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ls_checkpoint_claim {
    char *folder;
    int lock; /* rank 0's, else -1 */
};

ls_status ls_checkpoint_claim_create(ls_checkpoint_claim **claim, ls_group *group,
                                     const char *folder, ls_log_fn log, void *log_context) {
    if (claim)
        *claim = NULL;
    if (!claim || !group || !folder)
        return ls__fail(LS_ERR_ARGUMENT, "ls_checkpoint_claim_create: an argument is NULL");
    char nothing[1] = "";
    ls_checkpoint_claim *c = calloc(1, sizeof *c);
    ls_status status = LS_OK;
    if (c)
        *c = (ls_checkpoint_claim){.folder = strdup(folder), .lock = -1};
    if (!c || !c->folder)
        status = ls__fail(LS_ERR_MEMORY, "%s: no memory for a claim on it", folder);
    else if (ls_group_rank(group) == 0)
        status = ls__folder_lock(folder, "", true, log, log_context, &c->lock);
    ls_status common = ls__checkpoint_follow(group, status, nothing, sizeof nothing);
    if (status == LS_OK)
        status = common;
    if (status == LS_OK)
        *claim = c;
    else
        ls_checkpoint_claim_destroy(c);
    return status;
}

void ls_checkpoint_claim_destroy(ls_checkpoint_claim *c) {
    if (!c)
        return;
    if (c->lock >= 0)
        close(c->lock);
    free(c->folder);
    free(c);
}

bool ls__checkpoint_claims(const ls_checkpoint_claim *claim, const char *folder) {
    return strcmp(claim->folder, folder) == 0;
}
