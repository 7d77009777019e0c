/* ls_group_split: one all_gather of (color, key) over the parent, as an operation of its queue, then the
 * transport makes the part. Every part has memory or connections of its own, so operations of different
 * groups never meet, and may run at the same time from different threads. */
#include "comm/split.h"

#include "comm/call.h"
#include "comm/work.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- in the parent's queue ---------------------------------------------------------------------- */

static ls_status compare_lists(const ls__transport *transport, const ls__operation *operation) {
    const ls__split *split = operation->split;
    for (int r = 0; r < transport->size; r++)
        if (split->seat[r].list != split->mine.list)
            return ls__operation_fail(LS_ERR_MISMATCH, operation, ls__own_name(transport),
                                      "rank %d gives another list of ranks than rank %d; all ranks "
                                      "of the parent give the same",
                                      ls__name_of(transport, r), ls__own_name(transport));
    return LS_OK;
}

ls_status ls__split_run(ls__transport *transport, ls__operation *operation) {
    ls__split *split = operation->split;
    if (!transport->table->split)
        return ls__operation_fail(LS_ERR_UNSUPPORTED, operation, ls__own_name(transport),
                                  "the transport %s cannot be split", transport->table->name);
    LS_TRY(transport->table->run(transport, operation));
    LS_TRY(compare_lists(transport, operation));
    ls_status status = transport->table->split(transport, split->mine.color, split->mine.key,
                                               operation->deadline, &split->part);
    if (status == LS_OK && split->part && !ls__cost_is_known(&split->part->cost)) {
        split->part->cost = transport->cost;
        split->part->algorithm = transport->algorithm;
    }
    if (status == LS_OK)
        return LS_OK;
    return ls__operation_fail(status, operation, ls__own_name(transport), "%s", ls_error_text());
}

/* --- the part's group ------------------------------------------------------------------------------ */

/* Whether rank a of the parent comes before rank b in their part. */
static bool before(const ls__split *split, int a, int b) {
    return split->seat[a].key < split->seat[b].key ||
           (a < b && split->seat[a].key == split->seat[b].key);
}

/* names[i]: what messages call rank i of this rank's part: its number in the world. */
static void name_ranks(const ls_group *parent, const ls__split *split, int *names) {
    const int size = ls_group_size(parent), color = split->mine.color;
    for (int r = 0; r < size; r++) {
        int rank = 0;
        if (split->seat[r].color != color)
            continue;
        for (int other = 0; other < size; other++)
            rank += split->seat[other].color == color && before(split, other, r);
        names[rank] = ls__name_of(parent->transport, r);
    }
}

/* Equal on all ranks of the part, and another one for every part ever made. */
static uint64_t identity(uint64_t parent, uint64_t number, int color) {
    uint64_t x = parent;
    const uint64_t parts[2] = {number, (uint64_t)color};
    for (int i = 0; i < 2; i++) {
        x += parts[i] + UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
        x ^= x >> 31;
    }
    return x < 2 ? x + 2 : x; /* 0 is no group, 1 the world */
}

/* The transport belongs to the group from here on, also on failure. */
static ls_status make_group(ls_group *parent, const ls__split *split, uint64_t number,
                            ls_group **group) {
    int *names = calloc((size_t)split->part->size, sizeof *names);
    ls_group *g = NULL;
    if (!names) {
        split->part->table->close(split->part);
        return ls__fail(LS_ERR_MEMORY, "group_split: no memory for %d ranks", split->part->size);
    }
    name_ranks(parent, split, names);
    split->part->names = names;
    split->part->board = parent->transport->board;
    split->part->heartbeat = parent->transport->heartbeat;
    ls_status status = ls__group_create(&g, split->part, ls_group_timeout(parent), parent->board);
    if (status != LS_OK) {
        free(names);
        return status;
    }
    char name[LS__FLIGHT_NAME_BYTES];
    if (snprintf(name, sizeof name, "%s.split%llu[color %d]", parent->name,
                 (unsigned long long)number, split->mine.color) >= (int)sizeof name)
        memcpy(name + sizeof name - 4, "...", 4);
    ls__group_adopt(parent, g, identity(parent->id, number, split->mine.color), name, names);
    *group = g;
    return LS_OK;
}

/* --- public ------------------------------------------------------------------------------------------ */

static ls_status split_group(ls_group *parent, ls__split_seat mine, ls_group **group) {
    const size_t size = (size_t)ls_group_size(parent);
    ls__split split = {.mine = mine, .seat = calloc(size, sizeof(ls__split_seat))};
    if (!split.seat)
        return ls__fail(LS_ERR_MEMORY, "group_split: no memory for %zu ranks", size);
    ls__operation operation;
    ls__describe(&operation, LS__SPLIT, &split.mine, split.seat, sizeof split.mine, LS_U8);
    operation.step = LS__ALL_GATHER;
    operation.split = &split;
    ls_status status = ls__submit(parent, &operation, NULL);
    if (status == LS_OK) {
        const uint64_t number = ls__group_count_split(parent);
        if (split.part)
            status = make_group(parent, &split, number, group);
    }
    free(split.seat);
    return status;
}

ls_status ls_group_split(ls_group *parent, int color, int key, ls_group **group) {
    if (!parent || !group)
        return ls__fail(LS_ERR_ARGUMENT, "group_split: %s is NULL", parent ? "group" : "parent");
    *group = NULL;
    if (color < 0 && color != LS_GROUP_NONE)
        return ls__fail(LS_ERR_ARGUMENT,
                        "group_split: color is %d, want 0 or more, or "
                        "LS_GROUP_NONE",
                        color);
    return split_group(parent, (ls__split_seat){.color = color, .key = key}, group);
}

static ls_status check_list(const ls_group *parent, const int *ranks, int count) {
    for (int i = 0; i < count; i++) {
        if (ranks[i] < 0 || ranks[i] >= ls_group_size(parent))
            return ls__fail(LS_ERR_ARGUMENT, "group_create_subset: ranks[%d] is %d, want 0 to %d",
                            i, ranks[i], ls_group_size(parent) - 1);
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return ls__fail(LS_ERR_ARGUMENT,
                                "group_create_subset: rank %d stands in the list twice", ranks[i]);
    }
    return LS_OK;
}

ls_status ls_group_create_subset(ls_group *parent, const int *ranks, int count, ls_group **group) {
    if (!parent || !ranks || !group)
        return ls__fail(LS_ERR_ARGUMENT, "group_create_subset: %s is NULL",
                        !parent ? "parent"
                        : ranks ? "group"
                                : "ranks");
    *group = NULL;
    if (count < 1 || count > ls_group_size(parent))
        return ls__fail(LS_ERR_ARGUMENT, "group_create_subset: count is %d, want 1 to %d", count,
                        ls_group_size(parent));
    LS_TRY(check_list(parent, ranks, count));
    ls__split_seat mine = {.color = LS_GROUP_NONE, .list = (uint64_t)count};
    for (int i = 0; i < count; i++) {
        mine.list = identity(mine.list, (uint64_t)i, ranks[i]);
        if (ranks[i] == ls_group_rank(parent)) {
            mine.color = 0;
            mine.key = i;
        }
    }
    return split_group(parent, mine, group);
}
