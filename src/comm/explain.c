/* What a group would do, for `lockstep bench --explain`. */
#include "base/clock.h"
#include "comm/cost_measure.h"
#include "comm/work.h"

#include <stdio.h>

ls_status ls__cost_explain(ls_group *group, const ls__cost_question *question,
                           ls__cost_answer *answer) {
    ls__transport *transport = group->transport;
    *answer = (ls__cost_answer){0};
    if (transport->size > 1 && !ls__cost_is_known(&transport->cost))
        LS_TRY(ls__cost_measure(transport, ls__deadline_ns(ls_group_timeout(group))));
    if (transport->table->explain && transport->size > 1) {
        transport->table->explain(transport, question, answer);
        return LS_OK;
    }
    ls__cost_add_option(answer, "alone", 0);
    snprintf(answer->reason, sizeof answer->reason, "a world of one talks to nobody");
    return LS_OK;
}
