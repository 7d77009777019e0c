#include "cli/commands.h"

#include "base/error.h"
#include <stdio.h>

ls__kept_error ls__cli_keep(ls_status status) {
    ls__kept_error kept = {.status = status};
    if (status != LS_OK)
        snprintf(kept.text, sizeof kept.text, "%s", ls_error_text());
    return kept;
}

ls_status ls__cli_restore(const ls__kept_error *kept) {
    return kept->status == LS_OK ? LS_OK : ls__fail(kept->status, "%s", kept->text);
}

ls_status ls__cli_lose_step(ls_ddp *ddp, ls_status status) {
    ls__kept_error kept = ls__cli_keep(status);
    if (ls_ddp_vote(ddp, LS_VOTE_FAILED, kept.text) == LS_OK)
        (void)ls_ddp_wait(ddp,
                          NULL); /* fails, on all ranks; at once where the reduction itself has */
    return ls__cli_restore(&kept);
}
