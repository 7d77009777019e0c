/* Votes: what each rank says about a step, and what follows for all of them.
 *
 * A rank that meets a bad sample, runs out of data or fails cannot simply stay away from a reduction, and
 * must not decide alone. So each rank's word travels with the gradients, in an entry of the last bucket:
 * a row of LS__BALLOT floats for every rank, in which each fills its own and leaves zeros in the others',
 * so that the sum over ranks is the table of all. The reduction divides it by the global weight; numbers
 * below 2^16 are found again by multiplying and rounding. A global weight of 0 makes zeros of everything:
 * then, and all ranks know it together, the table takes one small operation of its own.
 *
 *     element 0      ls_vote, plus NONFINITE, plus STOP
 *     elements 1-4   the replica's hash in pieces of 16 bits (watch.c); all 0: not in this step
 *     elements 5-8   the rank's loss scale, likewise
 *     elements 9-14  the times of this rank's last step (times.c), which need not arrive exactly */
#include "parallel/ddp.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NONFINITE = 4, STOP = 8 };

void ls__votes_begin(ls_ddp *ddp) {
    ddp->vote = LS_VOTE_OK;
    ddp->reason[0] = '\0';
    ddp->nonfinite = false;
}

ls_status ls_ddp_vote(ls_ddp *ddp, ls_vote vote, const char *reason) {
    if (!ddp)
        return ls__fail(LS_ERR_ARGUMENT, "ddp is NULL");
    if ((int)vote < LS_VOTE_OK || vote > LS_VOTE_FAILED)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_ddp_vote: vote is %d, want LS_VOTE_OK to "
                        "LS_VOTE_FAILED",
                        (int)vote);
    if (!ddp->in_step)
        return ls__fail(LS_ERR_STATE, "ls_ddp_vote: outside of a step; call ls_ddp_begin first");
    if (ddp->lost && vote != LS_VOTE_SKIP && vote != LS_VOTE_FAILED)
        return ls__fail(LS_ERR_STATE, "ls_ddp_vote: a backward of this step failed on this rank; "
                                      "only LS_VOTE_SKIP and LS_VOTE_FAILED are left");
    ddp->vote = vote;
    snprintf(ddp->reason, sizeof ddp->reason, "%s", reason ? reason : "");
    return LS_OK;
}

ls_status ls__votes_cast(ls_ddp *ddp) {
    size_t i = ls__ddp_votes_entry(ddp), count = ddp->entries[i].count;
    memset(ddp->ballot, 0, count * sizeof *ddp->ballot);
    float *mine = ddp->ballot + (size_t)ls_group_rank(ddp->group) * LS__BALLOT;
    mine[0] = (float)((int)ddp->vote + (ddp->nonfinite ? NONFINITE : 0) +
                      (ddp->stop_requested ? STOP : 0));
    ls__watch_write(ddp, mine + LS__BALLOT_HASH);
    uint64_t scale;
    memcpy(&scale, &ddp->loss_scale, sizeof scale);
    ls__ballot_write(mine + LS__BALLOT_SCALE, scale);
    ls__times_cast(ddp, mine);
    LS_TRY(ddp->device->table->copy(ddp->device, ddp->entries[i].slots[0], ddp->ballot,
                                    count * sizeof *ddp->ballot));
    return ls_reducer_ready(ddp->reducer, i);
}

/* The table as the ranks wrote it. */
static ls_status read_ballot(ls_ddp *ddp, const ls_reducer_report *report) {
    size_t i = ls__ddp_votes_entry(ddp), count = ddp->entries[i].count;
    if (report->weight == 0) /* ballot still is what this rank alone wrote */
        return ls_all_reduce(ddp->group, ddp->ballot, ddp->ballot, count, LS_F32, LS_SUM);
    LS_TRY(ddp->device->table->copy(ddp->device, ddp->ballot, ddp->entries[i].slots[0],
                                    count * sizeof *ddp->ballot));
    for (size_t k = 0; k < count; k++)
        ddp->ballot[k] = (float)round((double)ddp->ballot[k] * report->scale * report->weight);
    return LS_OK;
}

static void count_rank(ls_ddp_tally *t, int rank, int said) {
    static const int strength[] = {
        [LS_VOTE_OK] = 0, [LS_VOTE_FINISHED] = 0, [LS_VOTE_SKIP] = 1, [LS_VOTE_FAILED] = 2};
    int vote = said % NONFINITE;
    bool stronger = strength[vote] > (t->failed ? 2 : t->skip ? 1 : 0);
    t->finished += vote == LS_VOTE_FINISHED;
    t->skip += vote == LS_VOTE_SKIP;
    t->failed += vote == LS_VOTE_FAILED;
    if (stronger)
        t->first = rank;
    t->stop += (said & STOP) != 0;
    if (!(said & NONFINITE))
        return;
    if (t->nonfinite++ == 0)
        t->first_nonfinite = rank;
}

/* The sum of gradients that were scaled differently is that of no loss. */
static ls_status compare_scales(const ls_ddp *ddp) {
    const float *first = ddp->ballot + LS__BALLOT_SCALE;
    const uint64_t wanted = ls__ballot_read(first);
    for (int r = 1; r < ls_group_size(ddp->group); r++) {
        const uint64_t seen = ls__ballot_read(first + (size_t)r * LS__BALLOT);
        double scale[2];
        if (seen == wanted)
            continue;
        memcpy(&scale[0], &wanted, sizeof scale[0]);
        memcpy(&scale[1], &seen, sizeof scale[1]);
        return ls__fail(LS_ERR_MISMATCH,
                        "ddp: rank %d scales its loss by %.17g, rank 0 by %.17g; call "
                        "ls_ddp_set_loss_scale with the same value on all ranks",
                        r, scale[1], scale[0]);
    }
    return LS_OK;
}

/* Rank `tally.first` tells all others why. Only in steps that are not to be: costs nothing else. */
static ls_status share_reason(ls_ddp *ddp) {
    char *text = ddp->tally.reason;
    snprintf(text, sizeof ddp->tally.reason, "%s", ddp->reason);
    LS_TRY(ls_broadcast(ddp->group, text, sizeof ddp->tally.reason, LS_U8, ddp->tally.first));
    text[sizeof ddp->tally.reason - 1] = '\0';
    return LS_OK;
}

ls_status ls__votes_count(ls_ddp *ddp, const ls_reducer_report *report) {
    ls_ddp_tally *t = &ddp->tally;
    *t = (ls_ddp_tally){.ranks = ls_group_size(ddp->group),
                        .first = -1,
                        .first_nonfinite = -1,
                        .skipped_steps = t->skipped_steps};
    LS_TRY(read_ballot(ddp, report));
    for (int r = 0; r < t->ranks; r++)
        count_rank(t, r, (int)ddp->ballot[(size_t)r * LS__BALLOT]);
    ls__times_count(ddp);
    if (t->skip || t->failed)
        LS_TRY(share_reason(ddp));
    t->update = !t->skip && !t->failed && report->weight > 0;
    t->skipped_steps += t->skip > 0;
    if (t->failed)
        return ls__fail(LS_ERR_PEER, "ddp: rank %d of %d cannot go on: %s", t->first, t->ranks,
                        t->reason[0] ? t->reason : "it gave no reason");
    return compare_scales(ddp);
}

ls_status ls_ddp_request_stop(ls_ddp *ddp) {
    if (!ddp)
        return ls__fail(LS_ERR_ARGUMENT, "ddp is NULL");
    ddp->stop_requested = true;
    return LS_OK;
}

const ls_ddp_tally *ls_ddp_votes(const ls_ddp *ddp) {
    return ddp ? &ddp->tally : NULL;
}
