/* Whether a sum goes in two steps or flat, reckoned with the costs that all ranks agreed on; and the same in
 * words. */
#include "comm/hier/hier.h"

#include <stdio.h>

static ls__algorithm between_way(const ls__hier *hier, size_t bytes) {
    const ls__transport *wire = hier->wire[0].transport;
    const size_t slice = bytes / (size_t)hier->map.local;
    return ls__cost_choose(&wire->cost, wire->algorithm, wire->size,
                           slice < hier->slice_bytes ? slice : hier->slice_bytes,
                           hier->slice_bytes);
}

/* The first chunk goes through both steps one after the other; then the slower one counts. */
static double two_steps_s(const ls__hier *hier, ls__algorithm algorithm, size_t bytes) {
    const size_t local = (size_t)hier->map.local, slice = bytes / local + (bytes % local > 0);
    const double chunks = slice > 0 ? (double)((slice - 1) / hier->slice_bytes + 1) : 1;
    const double between = ls__cost_of(&hier->wire[0].transport->cost, algorithm,
                                       hier->map.machines, slice, hier->slice_bytes) /
                           hier->streams_gain;
    double inside = 0;
    if (local > 1)
        inside = ls__cost_of(&hier->local->cost, LS__PAIRWISE, (int)local, bytes, SIZE_MAX);
    const double slower = between > inside ? between : inside;
    return (inside + between) / chunks + (1 - 1 / chunks) * slower;
}

/* All ranks meet first, as nobody else would compare their headers. */
static double flat_s(const ls__hier *hier, size_t bytes) {
    const ls__transport *flat = hier->flat;
    const ls__algorithm best =
        ls__cost_choose(&flat->cost, LS__BY_COST, flat->size, bytes, flat->grain);
    return 2 * hier->local->cost.sync_s + flat->cost.sync_s +
           ls__cost_of(&flat->cost, best, flat->size, bytes, flat->grain);
}

bool ls__hier_goes_flat(const ls__hier *hier, size_t bytes) {
    if (hier->base.algorithm != LS__BY_COST || !ls__cost_is_known(&hier->base.cost))
        return hier->base.algorithm == LS__FLAT;
    return flat_s(hier, bytes) < two_steps_s(hier, between_way(hier, bytes), bytes);
}

static void give_reason(const ls__hier *hier, ls__cost_answer *answer) {
    if (hier->base.algorithm != LS__BY_COST)
        snprintf(answer->reason, sizeof answer->reason, "LOCKSTEP_ALGORITHM is %s",
                 ls__algorithm_name(hier->base.algorithm));
    else if (answer->chosen == 2)
        snprintf(answer->reason, sizeof answer->reason,
                 "adding inside the machine first would take longer than sending all");
    else
        snprintf(answer->reason, sizeof answer->reason,
                 "a machine of %d ranks sends every byte once, not %d times; between machines %d "
                 "stream%s, %s",
                 hier->map.local, hier->map.local, hier->streams, hier->streams > 1 ? "s" : "",
                 hier->place.streams_given ? "as asked for" : "as measured");
}

void ls__hier_explain(const ls__transport *transport, const ls__cost_question *question,
                      ls__cost_answer *answer) {
    const ls__hier *hier = (const ls__hier *)transport;
    const size_t bytes = question->bytes;
    answer->costs = hier->place.costs;
    ls__cost_add_option(answer, "two steps, one-shot", two_steps_s(hier, LS__ONE_SHOT, bytes));
    ls__cost_add_option(answer, "two steps, pairwise", two_steps_s(hier, LS__PAIRWISE, bytes));
    ls__cost_add_option(answer, "flat", flat_s(hier, bytes));
    answer->chosen = between_way(hier, bytes) == LS__PAIRWISE;
    if (ls__hier_goes_flat(hier, bytes))
        answer->chosen = 2;
    give_reason(hier, answer);
}
