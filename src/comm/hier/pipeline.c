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
    return hier->local->table->run(hier->local, step);
}

void ls__hier_launch(ls__hier *hier, ls__hier_slot *slot, const ls__operation *step) {
    slot->ticket = ls__hier_wire_start(&hier->wire[slot->stream], step);
}

/* When all had arrived, and who was last: seen from here, another machine's last rank is the one of this
 * rank's index there. */
static void note_times(const ls__hier *hier, ls__operation *operation, const ls_work_times *times) {
    if (operation->times.last_rank >= 0 || times->last_rank < 0)
        return;
    operation->times.ready_ns = times->ready_ns;
    operation->times.last_rank = ls__hier_rank_of(hier, times->last_rank, hier->map.index);
}

static ls_status take_in(ls__hier *hier, ls__operation *operation, ls__hier_slot *slot,
                         ls__hier_stage finish) {
    ls_work_times times = {.last_rank = -1};
    if (slot->ticket) {
        LS_TRY(ls__hier_wire_wait(&hier->wire[slot->stream], slot->ticket, &times));
        note_times(hier, operation, &times);
    }
    return finish(hier, operation, slot);
}

ls_status ls__hier_pipeline(ls__hier *hier, ls__operation *operation, size_t elements,
                            size_t per_chunk, ls__hier_stage begin, ls__hier_stage finish) {
    const size_t chunks = elements > 0 ? (elements - 1) / per_chunk + 1 : 1;
    const size_t slots = (size_t)hier->slots, ahead = slots - 1;
    for (size_t k = 0; k < chunks + ahead; k++) {
        if (k < chunks) {
            ls__hier_slot *slot = &hier->slot[k % slots];
            slot->first = k * per_chunk;
            slot->count = elements - slot->first < per_chunk ? elements - slot->first : per_chunk;
            slot->stream = (int)(k % (size_t)hier->streams);
            slot->ticket = 0;
            LS_TRY(begin(hier, operation, slot));
        }
        if (k >= ahead)
            LS_TRY(take_in(hier, operation, &hier->slot[(k - ahead) % slots], finish));
    }
    return LS_OK;
}
