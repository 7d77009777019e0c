/* Waiting for other ranks: look a few times, then sleep; wake at least ten times a second to see
 * whether somebody died.
 *
 * A synchronisation is one counter of all arrivals: rank r's k-th arrival waits until it has reached
 * k * size. One atomic addition a rank, and one wake-up by the last. */
#include "base/clock.h"
#include "base/futex.h"
#include "comm/shm/layout.h"

#include <stdio.h>
#include <string.h>

static const uint64_t SLICE_NS = 100000000;

/* Wrap-around comparison: right while the two are less than 2^31 apart. */
bool ls__shm_reached(const ls__shm_condition *condition) {
    uint32_t now = atomic_load_explicit(condition->word, memory_order_acquire);
    return (int32_t)(now - condition->target) >= 0;
}

static bool reached(const ls__shm_condition *condition) {
    return ls__shm_reached(condition) ||
           (condition->or_else && ls__shm_reached(condition->or_else));
}

/* Whether the wait is for rank r. */
static bool missing(const ls__shm *shm, const ls__shm_condition *condition, int r) {
    if (condition->peer >= 0)
        return r == condition->peer || (condition->or_else && r == condition->or_else->peer);
    return (int32_t)(atomic_load(&shm->control->slot[r].arrived) - shm->arrivals) < 0;
}

/* --- why a wait ends without success ------------------------------------------------------------ */

static ls_status fail_aborted(const ls__shm *shm, const ls__operation *operation,
                              uint32_t aborted) {
    int rank = (int)(aborted & (LS__SHM_TOLD - 1)) - 1;
    const ls__shm_slot *slot = &shm->control->slot[rank];
    const unsigned pid = atomic_load(&slot->pid);
    const int name = ls__name_of(&shm->base, rank);
    if (aborted & LS__SHM_TOLD)
        return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&shm->base),
                                  "rank %d (pid %u) %s", name, pid, slot->told_reason);
    if (rank == shm->base.rank)
        return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&shm->base),
                                  "this rank gave up before: %s", slot->own_reason);
    /* It gave up over a message of ours: then both sides disagree, and both say so. */
    if (atomic_load(&ls__shm_mailbox_between(shm, shm->base.rank, rank)->refused))
        return ls__fail(LS_ERR_MISMATCH, "%s", slot->own_reason);
    const bool differ = atomic_load(&slot->own_status) == LS_ERR_MISMATCH;
    return ls__operation_fail(differ ? LS_ERR_MISMATCH : LS_ERR_PEER, operation,
                              ls__own_name(&shm->base), "rank %d (pid %u) gave up: %s", name, pid,
                              slot->own_reason);
}

/* Looks for a reason why the condition cannot come true any more. The caller looks at the condition
 * once more before it believes it: a peer may do its part and leave in one breath. */
static ls_status find_failure(const ls__shm *shm, const ls__operation *operation,
                              const ls__shm_condition *condition, bool look_at_processes) {
    uint32_t aborted = atomic_load(&shm->control->aborted);
    if (aborted)
        return fail_aborted(shm, operation, aborted);
    for (int r = 0; r < shm->base.size; r++) {
        const ls__shm_slot *slot = &shm->control->slot[r];
        bool left = atomic_load(&slot->left);
        if (r == shm->base.rank || !missing(shm, condition, r))
            continue;
        uint32_t pid = atomic_load(&slot->pid);
        /* a part's own segment hears nothing from the launcher */
        const ls__shm_slot *home = &shm->root->slot[shm->root_slot ? shm->root_slot[r] : r];
        if (atomic_load(&home->told_written) == LS__SHM_WRITTEN)
            return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&shm->base),
                                      "rank %d (pid %u) %s", ls__name_of(&shm->base, r), pid,
                                      home->told_reason);
        if (left)
            return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&shm->base),
                                      "rank %d (pid %u) has left the %s",
                                      ls__name_of(&shm->base, r), pid,
                                      shm->root_slot ? "group" : "job (ls_job_finish)");
        if (look_at_processes && pid && ls__process_gone(pid, atomic_load(&slot->start_time)))
            return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&shm->base),
                                      "rank %d (pid %u) ended without leaving the job",
                                      ls__name_of(&shm->base, r), pid);
    }
    return LS_OK;
}

/* "rank 2 (pid 71, in recv #3)" */
static size_t describe_rank(const ls__shm *shm, int r, char *text, size_t bytes) {
    const ls__shm_slot *slot = &shm->control->slot[r];
    uint32_t pid = atomic_load(&slot->pid);
    int kind = (int)atomic_load(&slot->doing), n;
    r = ls__name_of(&shm->base, r);
    if (!pid)
        n = snprintf(text, bytes, "rank %d (not started)", r);
    else if (kind)
        n = snprintf(text, bytes, "rank %d (pid %u, in %s #%llu)", r, pid, ls__kind_name(kind),
                     (unsigned long long)atomic_load(&slot->doing_sequence));
    else
        n = snprintf(text, bytes, "rank %d (pid %u, in no operation%s)", r, pid,
                     shm->root_slot ? " of this group" : "");
    return n < 0 ? 0 : (size_t)n < bytes ? (size_t)n : bytes - 1;
}

static ls_status fail_timeout(const ls__shm *shm, const ls__operation *operation,
                              const ls__shm_condition *condition) {
    char list[600] = "";
    size_t length = 0;
    for (int r = 0; r < shm->base.size && length < sizeof list - 80; r++) {
        if (r == shm->base.rank || !missing(shm, condition, r))
            continue;
        if (length > 0)
            length += (size_t)snprintf(list + length, sizeof list - length, ", ");
        length += describe_rank(shm, r, list + length, sizeof list - length);
    }
    double waited = (double)(ls__now_ns() - operation->times.begin_ns) * 1e-9;
    return ls__operation_fail(
        LS_ERR_TIMEOUT, operation, ls__own_name(&shm->base),
        "after %.1f s still waiting for %s; raise LOCKSTEP_TIMEOUT if that is "
        "too short",
        waited, list);
}

/* --- waiting -------------------------------------------------------------------------------------- */

static void sleep_on(ls__shm_bell *bell, uint32_t seen, uint64_t until) {
    atomic_fetch_add(&bell->sleepers, 1);
    ls__futex_wait(&bell->bell, seen, until);
    atomic_fetch_sub(&bell->sleepers, 1);
}

ls_status ls__shm_wait(ls__shm *shm, const ls__operation *operation,
                       const ls__shm_condition *condition) {
    for (int i = 0; i < shm->spins; i++) {
        if (reached(condition))
            return LS_OK;
        ls__cpu_relax();
    }
    uint64_t look = ls__now_ns() + SLICE_NS; /* when to look at the other processes next */
    for (;;) {
        uint32_t seen = atomic_load(&condition->bell->bell);
        if (reached(condition))
            return LS_OK;
        uint64_t now = ls__now_ns();
        ls_status status = find_failure(shm, operation, condition, now >= look);
        if (status == LS_OK && now >= operation->deadline)
            status = fail_timeout(shm, operation, condition);
        if (status != LS_OK)
            return reached(condition) ? LS_OK : status;
        if (now >= look)
            look = now + SLICE_NS;
        sleep_on(condition->bell, seen, look < operation->deadline ? look : operation->deadline);
    }
}

ls_status ls__shm_sync(ls__shm *shm, const ls__operation *operation) {
    ls__shm_control *control = shm->control;
    shm->arrivals++;
    ls__shm_condition all = {.word = &control->count,
                             .target =
                                 LS__SHM_FIRST_COUNT + shm->arrivals * (uint32_t)shm->base.size,
                             .bell = &control->all,
                             .peer = -1};
    /* The shared count first: a rank that is killed between the two has arrived for everyone. */
    uint32_t before = atomic_fetch_add(&control->count, 1);
    atomic_store(&ls__shm_my_slot(shm)->arrived, shm->arrivals);
    if (before + 1 == all.target) {
        ls__shm_ring(&control->all);
        return LS_OK;
    }
    return ls__shm_wait(shm, operation, &all);
}

/* Notices alternate between two places. A rank writes its notice k + 2 where notice k was: it has then
 * passed the synchronisation of k + 1, which nobody reaches before having read all of k. */
const ls__shm_notice *ls__shm_notice_of(const ls__shm *shm, int r) {
    return &shm->control->slot[r].notice[(shm->notices - 1) & 1];
}

ls_status ls__shm_meet(ls__shm *shm, ls__operation *operation, ls__shm_notice notice) {
    notice.header = operation->header;
    notice.arrived_ns = ls__now_ns();
    ls__shm_my_slot(shm)->notice[shm->notices++ & 1] = notice;
    LS_TRY(ls__shm_sync(shm, operation));
    uint64_t ready = 0;
    int last = -1;
    for (int r = 0; r < shm->base.size; r++) {
        const ls__shm_notice *other = ls__shm_notice_of(shm, r);
        if (r != shm->base.rank)
            LS_TRY(ls__header_compare(&operation->header, ls__own_name(&shm->base), &other->header,
                                      ls__name_of(&shm->base, r)));
        if (other->arrived_ns > ready) {
            ready = other->arrived_ns;
            last = r;
        }
    }
    if (operation->times.last_rank < 0) {
        operation->times.ready_ns = ready;
        operation->times.last_rank = last;
    }
    return LS_OK;
}
