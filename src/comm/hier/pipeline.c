/* Chunks on their way: while some are between machines, the next is reduced inside and the last one taken
 * in, so that neither the network nor memory waits for the other. */
#include "comm/hier/hier.h"

ls__operation ls__hier_step(const ls__operation *operation, ls__kind step) {
    ls__operation s = *operation;
    s.step = step;
    s.times = (ls_work_times){.begin_ns = operation->times.begin_ns, .last_rank = -1};
    return s;
}

ls_status ls__hier_run_local(ls__hier *hier, ls__operation *step) {
    LS_TRY(hier->local->table->run(hier->local, step));
    if (hier->last_here <
        0) /* at the first step, to which all come as they come to the operation */
        hier->last_here = step->times.last_rank;
    return LS_OK;
}

void ls__hier_launch(ls__hier *hier, ls__hier_slot *slot, const ls__operation *step) {
    ls__operation between = *step;
    between.header.last = ls__hier_last(hier);
    slot->ticket = ls__hier_wire_start(&hier->wire[slot->stream], &between, slot->alone);
}

/* Which rank of another machine was its last, only that machine knows: it tells the others in its headers. */
uint32_t ls__hier_last(const ls__hier *hier) {
    const int index = hier->map.local == 1 ? 0 : hier->last_here;
    return index < 0 ? LS__LAST_UNKNOWN
                     : 1 + (uint32_t)ls__hier_rank_of(hier, hier->map.here, index);
}

void ls__hier_note_times(ls__hier *hier, ls__operation *operation, const ls_work_times *times) {
    if (hier->met || !times->ready_ns)
        return;
    hier->met = true;
    operation->times.ready_ns = times->ready_ns;
    operation->times.last_rank = times->last_rank < hier->base.size ? times->last_rank : -1;
}

/* What was started for the chunk has come back: goes on with it. */
static ls_status go_on(ls__hier *hier, ls__operation *operation, ls__hier_slot *slot,
                       ls__hier_stage stage) {
    ls_work_times times = {.last_rank = -1};
    if (slot->ticket) {
        LS_TRY(ls__hier_wire_wait(&hier->wire[slot->stream], slot->ticket, &times));
        ls__hier_note_times(hier, operation, &times);
    }
    return stage(hier, operation, slot);
}

static ls_status start(ls__hier *hier, ls__operation *operation, const ls__hier_plan *plan,
                       size_t k, ls__hier_slot *slot) {
    slot->first = k * plan->per_chunk;
    slot->count = plan->elements - slot->first;
    if (slot->count > plan->per_chunk)
        slot->count = plan->per_chunk;
    slot->stream = (int)(k % (size_t)hier->streams);
    slot->alone = plan->elements <= plan->per_chunk;
    slot->ticket = 0;
    return plan->begin(hier, operation, slot);
}

ls_status ls__hier_pipeline(ls__hier *hier, ls__operation *operation, const ls__hier_plan *plan) {
    const size_t chunks = plan->elements > 0 ? (plan->elements - 1) / plan->per_chunk + 1 : 1;
    const size_t ahead = (size_t)hier->ahead, slots = 2 * ahead + 1;
    const size_t middle = plan->middle ? ahead : 0, last = ahead + middle;
    for (size_t k = 0; k < chunks + last; k++) {
        if (k < chunks)
            LS_TRY(start(hier, operation, plan, k, &hier->slot[k % slots]));
        if (middle && k >= middle && k - middle < chunks)
            LS_TRY(go_on(hier, operation, &hier->slot[(k - middle) % slots], plan->middle));
        if (k >= last)
            LS_TRY(go_on(hier, operation, &hier->slot[(k - last) % slots], plan->finish));
    }
    return LS_OK;
}
