#include "reducer/agree.h"

#include "base/error.h"
#include <inttypes.h>
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

/* Without memory of its own, which one rank might lack. */
static ls_status name_difference(ls_group *group, const char *call, const ls__setting *setting) {
    uint64_t first = setting->value, other = setting->value;
    LS_TRY(ls_broadcast(group, &first, sizeof first, LS_U8, 0));
    int64_t rank = setting->value != first ? ls_group_rank(group) : ls_group_size(group);
    LS_TRY(ls_all_reduce(group, &rank, &rank, 1, LS_I64, LS_MIN));
    LS_TRY(ls_broadcast(group, &other, sizeof other, LS_U8, (int)rank));
    return ls__fail(LS_ERR_MISMATCH, "%s: %s is %" PRIu64 " on rank 0 and %" PRIu64 " on rank %d",
                    call, setting->name, first, other, (int)rank);
}

ls_status ls__agree_on(ls_group *group, const char *call, const ls__setting *settings,
                       size_t count) {
    int64_t most[2 * LS__SETTINGS_MOST] = {0}; /* the largest, and the negative of the smallest */
    for (size_t i = 0; i < count; i++) {
        most[2 * i] = (int64_t)(settings[i].value & INT64_MAX);
        most[2 * i + 1] = -most[2 * i];
    }
    LS_TRY(ls_all_reduce(group, most, most, 2 * count, LS_I64, LS_MAX));
    for (size_t i = 0; i < count; i++) {
        if (most[2 * i] != -most[2 * i + 1])
            return name_difference(group, call, &settings[i]);
    }
    return LS_OK;
}
