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
