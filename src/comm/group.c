/* Groups themselves, and the memory they share. The operations are in group_reduce.c, group_copy.c and
 * group_point.c. */
#include "comm/call.h"
#include "comm/shares.h"
#include "comm/work.h"

#include <string.h>

int ls_group_rank(const ls_group *group) {
    return group ? group->label.rank : -1;
}

int ls_group_size(const ls_group *group) {
    return group ? group->label.size : 0;
}

void ls_group_destroy(ls_group *group) {
    if (group && group != group->world)
        ls__group_destroy(group);
}

const char *ls_group_name(const ls_group *group) {
    return group ? group->name : NULL;
}

bool ls__group_shares_memory(const ls_group *group) {
    return strcmp(group->transport->table->name, "shm") == 0;
}

/* --- memory ----------------------------------------------------------------------------------- */

ls_status ls_group_alloc(ls_group *group, size_t bytes, void **memory) {
    if (!group || !memory)
        return ls__fail(LS_ERR_ARGUMENT, "group_alloc: %s is NULL", group ? "memory" : "group");
    *memory = NULL;
    ls__operation operation;
    ls__describe(&operation, LS__ALLOC, NULL, NULL, bytes, LS_U8);
    operation.bytes = bytes > 0 ? bytes : 1; /* nothing still has an address of its own */
    operation.memory = memory;
    return ls__submit(group, &operation, NULL);
}

ls_status ls_group_free(ls_group *group, void *memory) {
    if (!group)
        return ls__fail(LS_ERR_ARGUMENT, "group_free: group is NULL");
    ls__operation operation;
    ls__describe(&operation, LS__FREE, NULL, NULL, 0, LS_U8);
    operation.memory = &memory;
    return ls__submit(group, &operation, NULL);
}
