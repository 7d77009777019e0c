/* Where the time of each rank's step went, told to all without an operation: a rank's times are known only
 * when its step is over, so they are in its row of the next step's votes, in microseconds. */
#include "parallel/ddp.h"

#include <math.h>

void ls__times_cast(const ls_ddp *ddp, float row[LS__BALLOT]) {
    const ls_ddp_times *t = &ddp->own_times;
    if (ddp->steps == 0)
        return;
    const double values[LS__BALLOT - LS__BALLOT_TIMES] = {t->compute_ms * 1e3, t->transfer_ms * 1e3,
                                                          t->hidden_ms * 1e3,  t->exposed_ms * 1e3,
                                                          t->late_ms * 1e3,    t->last_rank + 1};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        row[LS__BALLOT_TIMES + i] = (float)round(values[i]);
}

void ls__times_count(ls_ddp *ddp) {
    for (int rank = 0; rank < ls_group_size(ddp->group); rank++) {
        const float *row = ddp->ballot + (size_t)rank * LS__BALLOT + LS__BALLOT_TIMES;
        ddp->times[rank] = (ls_ddp_times){.compute_ms = (double)row[0] / 1e3,
                                          .transfer_ms = (double)row[1] / 1e3,
                                          .hidden_ms = (double)row[2] / 1e3,
                                          .exposed_ms = (double)row[3] / 1e3,
                                          .late_ms = (double)row[4] / 1e3,
                                          .last_rank = (int)row[5] - 1};
    }
}

void ls__times_note(ls_ddp *ddp, const ls_reducer_report *report) {
    const ls_reducer_overlap *o = &report->overlap;
    double exposed_ms = (double)o->exposed_ns / 1e6, wait_ms = (double)report->wait_ns / 1e6;
    double passed_ms = (double)(o->wait_begin_ns - ddp->begin_ns) / 1e6;
    /* What was reduced inline is exposed, too, and passed before the wait. */
    ddp->own_times = (ls_ddp_times){.compute_ms = fmax(0, passed_ms - (exposed_ms - wait_ms)),
                                    .transfer_ms = (double)o->transfer_ns / 1e6,
                                    .hidden_ms = (double)o->hidden_ns / 1e6,
                                    .exposed_ms = exposed_ms,
                                    .late_ms = (double)o->late_ns / 1e6,
                                    .last_rank = o->last_rank};
}

const ls_ddp_times *ls_ddp_step_times(const ls_ddp *ddp) {
    return ddp && ddp->steps > 1 ? ddp->times : NULL;
}
