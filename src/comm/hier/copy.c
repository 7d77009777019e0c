/* Operations that only copy, over M machines of p ranks each, B bytes of a block:
 *
 *   all_gather   between: the blocks of one index, B (M - 1) in for each rank; inside: all_gather of M B
 *   broadcast    the root's machine to one rank of each other: B (M - 1) out; inside: broadcast
 *   barrier      inside, between, inside
 *   alloc        inside, where memory can be shared; all machines or none */
#include "comm/hier/hier.h"

#include <stdio.h>
#include <string.h>

enum { BROADCAST_BYTES = 1 << 20 };

/* --- barrier ------------------------------------------------------------------------------------- */

/* Waits for what goes between machines as one step. */
static ls_status run_between(ls__hier *hier, ls__operation *step) {
    step->header.last = ls__hier_last(hier);
    return ls__hier_wire_wait(&hier->wire[0], ls__hier_wire_start(&hier->wire[0], step, true),
                              &step->times);
}

static ls_status meet_inside(ls__hier *hier, const ls__operation *op) {
    ls__operation inside = ls__hier_step(op, LS__BARRIER);
    return ls__hier_run_local(hier, &inside);
}

ls_status ls__hier_meet(ls__hier *hier, ls__operation *op) {
    ls__operation between = ls__hier_step(op, LS__BARRIER);
    LS_TRY(meet_inside(hier, op));
    LS_TRY(run_between(hier, &between));
    ls__hier_note_times(hier, op, &between.times);
    return LS_OK;
}

ls_status ls__hier_barrier(ls__hier *hier, ls__operation *op) {
    LS_TRY(ls__hier_meet(hier, op));
    return meet_inside(hier, op);
}

/* --- all_gather ---------------------------------------------------------------------------------- */

static ls_status begin_all_gather(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    ls__operation between = ls__hier_step(op, LS__ALL_GATHER);
    between.send = (const char *)op->send + slot->first * ls_dtype_size(op->dtype);
    between.recv = slot->slice;
    between.count = slot->count;
    ls__hier_launch(hier, slot, &between);
    return LS_OK;
}

/* What comes from inside is in the order (index, machine). */
static ls_status finish_all_gather(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    const size_t element = ls_dtype_size(op->dtype), bytes = slot->count * element;
    ls__operation inside = ls__hier_step(op, LS__ALL_GATHER);
    inside.send = slot->slice;
    inside.recv = hier->unpack;
    inside.count = slot->count * (size_t)hier->map.machines;
    LS_TRY(ls__hier_run_local(hier, &inside));
    const char *from = hier->unpack;
    for (int index = 0; index < hier->map.local && bytes > 0; index++)
        for (int machine = 0; machine < hier->map.machines; machine++, from += bytes) {
            const size_t rank = (size_t)ls__hier_rank_of(hier, machine, index);
            memcpy((char *)op->recv + (rank * op->count + slot->first) * element, from, bytes);
        }
    return LS_OK;
}

ls_status ls__hier_all_gather(ls__hier *hier, ls__operation *op) {
    const size_t element = ls_dtype_size(op->dtype);
    LS_TRY(meet_inside(hier, op));
    const ls__hier_plan plan = {.elements = op->count,
                                .per_chunk =
                                    hier->slice_bytes / element / (size_t)hier->map.machines,
                                .begin = begin_all_gather,
                                .finish = finish_all_gather};
    return ls__hier_pipeline(hier, op, &plan);
}

/* --- broadcast ----------------------------------------------------------------------------------- */

static ls__operation step_of(ls__operation *op, const ls__hier_slot *slot, int root) {
    ls__operation step = ls__hier_step(op, LS__BROADCAST);
    char *buffer = op->recv;
    if (slot->count > 0)
        buffer += slot->first * ls_dtype_size(op->dtype);
    step.send = step.recv = buffer;
    step.count = slot->count;
    step.root = root;
    return step;
}

static ls_status begin_broadcast(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    if (hier->map.index == op->root % hier->map.local) {
        ls__operation between = step_of(op, slot, op->root / hier->map.local);
        ls__hier_launch(hier, slot, &between);
    }
    return LS_OK;
}

static ls_status finish_broadcast(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    ls__operation inside = step_of(op, slot, op->root % hier->map.local);
    return ls__hier_run_local(hier, &inside);
}

ls_status ls__hier_broadcast(ls__hier *hier, ls__operation *op) {
    LS_TRY(meet_inside(hier, op));
    const ls__hier_plan plan = {.elements = op->count,
                                .per_chunk = BROADCAST_BYTES / ls_dtype_size(op->dtype),
                                .begin = begin_broadcast,
                                .finish = finish_broadcast};
    return ls__hier_pipeline(hier, op, &plan);
}

/* --- memory -------------------------------------------------------------------------------------- */

/* All machines or none: each tells how it went inside. */
static ls_status agree(ls__hier *hier, ls__operation *op, ls_status mine) {
    char text[512];
    int32_t *all = (int32_t *)(void *)hier->slot[0].slice, status = (int32_t)mine;
    snprintf(text, sizeof text, "%s", mine == LS_OK ? "" : ls_error_text());
    ls__operation between = ls__hier_step(op, LS__ALL_GATHER);
    between.send = &status;
    between.recv = all;
    between.count = 1;
    between.dtype = LS_I32;
    LS_TRY(run_between(hier, &between));
    if (mine != LS_OK)
        return ls__fail(mine, "%s", text);
    for (int machine = 0; machine < hier->map.machines; machine++)
        if (all[machine] != LS_OK)
            return ls__operation_fail((ls_status)all[machine], op, hier->base.rank,
                                      "the machine of rank %d could not get its part of %zu bytes "
                                      "(%s)",
                                      ls__hier_rank_of(hier, machine, 0), op->bytes,
                                      ls_status_text((ls_status)all[machine]));
    return LS_OK;
}

ls_status ls__hier_alloc(ls__hier *hier, ls__operation *op) {
    ls__operation inside = *op;
    const ls_status mine = ls__hier_run_local(hier, &inside);
    if (mine != LS_OK && mine != LS_ERR_MEMORY)
        return mine;
    const ls_status status = agree(hier, op, mine);
    if (status != LS_OK && mine == LS_OK) {
        char text[1024];
        snprintf(text, sizeof text, "%s", ls_error_text());
        ls__operation release = ls__hier_step(op, LS__FREE);
        (void)ls__hier_run_local(hier, &release);
        *op->memory = NULL;
        ls__fail(status, "%s", text);
    }
    return status;
}

ls_status ls__hier_free(ls__hier *hier, ls__operation *op) {
    ls__operation inside = *op, between = ls__hier_step(op, LS__BARRIER);
    LS_TRY(ls__hier_run_local(hier, &inside));
    return run_between(hier, &between);
}
