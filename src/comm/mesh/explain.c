/* Which way a sum goes, in words. */
#include "comm/mesh/mesh.h"

#include <stdio.h>

void ls__mesh_explain(const ls__transport *transport, const ls__cost_question *question,
                      ls__cost_answer *answer) {
    const ls__mesh *mesh = (const ls__mesh *)transport;
    const ls__cost *cost = &transport->cost;
    const int size = transport->size;
    answer->costs.between = *cost;
    for (ls__algorithm a = LS__ONE_SHOT; a <= LS__PAIRWISE; a++)
        ls__cost_add_option(answer, ls__algorithm_name(a),
                            ls__cost_of(cost, a, size, question->bytes, mesh->chunk));
    const ls__algorithm chosen =
        ls__cost_choose(cost, transport->algorithm, size, question->bytes, mesh->chunk);
    answer->chosen = chosen == LS__PAIRWISE;
    if (transport->algorithm == chosen)
        snprintf(answer->reason, sizeof answer->reason, "LOCKSTEP_ALGORITHM is %s",
                 ls__algorithm_name(chosen));
    else if (chosen == LS__ONE_SHOT)
        snprintf(answer->reason, sizeof answer->reason,
                 "a step less, %.1f us, is worth more than %s", cost->sync_s * 1e6,
                 size > 2 ? "the bytes it sends more" : "adding all on both");
    else
        snprintf(answer->reason, sizeof answer->reason,
                 "%s is worth more than the step, %.1f us, that it takes more",
                 size > 2 ? "sending less" : "adding half", cost->sync_s * 1e6);
}
