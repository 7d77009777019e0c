#include "reducer/agree.h"

#include "base/error.h"
#include <stdio.h>

ls_status ls__share_failure(ls_group *group, int failed, ls_status local,
                            char text[LS__FAILURE_TEXT]) {
    LS_TRY(ls_broadcast(group, text, LS__FAILURE_TEXT, LS_U8, failed));
    text[LS__FAILURE_TEXT - 1] = '\0';
    if (ls_group_rank(group) == failed)
        return ls__fail(local, "%s", text);
    return ls__fail(local != LS_OK ? local : LS_ERR_PEER, "rank %d failed: %s", failed, text);
}

ls_status ls__agree(ls_group *group, ls_status local) {
    int size = ls_group_size(group);
    char text[LS__FAILURE_TEXT] = "";
    if (local != LS_OK)
        snprintf(text, sizeof text, "%s", ls_error_text());
    int64_t first = local != LS_OK ? ls_group_rank(group) : size; /* `size`: nobody failed */
    LS_TRY(ls_all_reduce(group, &first, &first, 1, LS_I64, LS_MIN));
    return first < size ? ls__share_failure(group, (int)first, local, text) : LS_OK;
}
