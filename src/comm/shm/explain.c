/* Which of the regimes of collective.h an operation takes, in words. Here the buffers decide, not the costs: of
 * those that are possible for them the first one is always the fastest. */
#include "comm/shm/collective.h"

#include <stdio.h>

/* Pairwise, and copies in and out of all but the rank's own share, which read and write about what adding two
 * sources does; the first of `pairwise`'s two synchronisations is the meeting, the other a chunk's. */
static double staged_s(const ls__shm *shm, size_t bytes) {
    const ls__cost *cost = &shm->base.cost;
    const double size = shm->base.size, copied = 2 * (double)bytes * (size - 1) / size;
    const double chunks = (double)(bytes / LS__SHM_HALF_BYTES + 1);
    return ls__cost_of(cost, LS__PAIRWISE, shm->base.size, bytes, SIZE_MAX) +
           copied / cost->add_per_s + chunks * cost->sync_s;
}

void ls__shm_explain(const ls__transport *transport, const ls__cost_question *question,
                     ls__cost_answer *answer) {
    const ls__shm *shm = (const ls__shm *)transport;
    const size_t bytes = question->bytes;
    const int size = transport->size;
    answer->costs.inside = transport->cost;
    ls__cost_add_option(answer, "tiny",
                        ls__cost_of(&transport->cost, LS__ONE_SHOT, size, bytes, SIZE_MAX));
    ls__cost_add_option(answer, "mapped",
                        ls__cost_of(&transport->cost, LS__PAIRWISE, size, bytes, SIZE_MAX));
    ls__cost_add_option(answer, "staged", staged_s(shm, bytes));
    if (bytes <= LS__SHM_TINY_BYTES) {
        snprintf(answer->reason, sizeof answer->reason,
                 "up to %d bytes a value is in place before its rank arrives: one synchronisation",
                 LS__SHM_TINY_BYTES);
    } else if (question->registered) {
        answer->chosen = 1;
        snprintf(
            answer->reason, sizeof answer->reason,
            "the buffers come from ls_group_alloc: ranks read and write each other's, no copies");
    } else {
        answer->chosen = 2;
        snprintf(
            answer->reason, sizeof answer->reason,
            "ordinary memory goes through chunks that all ranks map; ls_group_alloc would save the copies");
    }
}
