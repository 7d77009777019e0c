/* Waiting for other ranks: look for a while, then sleep; wake at least ten times a second to see whether
 * somebody died.
 *
 * A synchronisation is an arrival of every rank: each writes the arrival's number into a line of its own
 * and looks at the lines of the others, which takes one line's way between two cores, the least there is.
 * Whoever finds all there wakes those who went to sleep meanwhile. */
#include "base/clock.h"
#include "base/futex.h"
#include "comm/heartbeat.h"
#include "comm/shm/layout.h"

#include <stdio.h>
#include <string.h>

static const uint64_t SLICE_NS = 100000000;

/* How long to look before sleeping. A sleep and its end cost some 5 us of system calls and, where the core
 * was put to rest, 20 us and more until it runs again; so looking is worth as much. Where ranks outnumber
 * cores the one waited for needs this core: it is offered to others instead. A thread beside the program's
 * own (the group's) takes time from it and soon sleeps. */
enum { LOOKS = 2000, LOOKS_CROWDED = 20, LOOKS_BESIDE = 100, OFFERS = 50 };
/* So many of them follow each other at once: who is as far as this rank arrives within 0.1 us, and the hint to
 * the processor takes 20 ns or more. */
enum { LOOKS_AT_ONCE = 32 };

/* Wrap-around comparison: right while the two are less than 2^31 apart. Acquire: what was written before
 * the word is seen after. */
static bool passed(const _Atomic uint32_t *word, uint32_t target) {
    return (int32_t)(atomic_load_explicit(word, memory_order_acquire) - target) >= 0;
}

bool ls__shm_has_arrived(const ls__shm *shm, int r, uint32_t number) {
    return passed(&shm->control->slot[r].arrival[number & 1].stamp, number);
}

bool ls__shm_reached(const ls__shm_condition *condition) {
    const ls__shm *shm = condition->everyone;
    if (!shm)
        return passed(condition->word, condition->target);
    for (int r = 0; r < shm->base.size; r++)
        if (!ls__shm_has_arrived(shm, r, condition->target))
            return false;
    return true;
}

static bool reached(const ls__shm_condition *condition) {
    return ls__shm_reached(condition) ||
           (condition->or_else && ls__shm_reached(condition->or_else));
}

/* Whether the wait is for rank r. */
static bool missing(const ls__shm *shm, const ls__shm_condition *condition, int r) {
    if (condition->peer >= 0)
        return r == condition->peer || (condition->or_else && r == condition->or_else->peer);
    return !ls__shm_has_arrived(shm, r, condition->target);
}

/* --- why a wait ends without success ------------------------------------------------------------ */

/* "; not arrived yet: ranks 1, 3", bounded; nothing for messages between two ranks, nor once all have met: then
 * they wait for each other in the middle of the operation. */
static void list_missing(const ls__shm *shm, const ls__operation *operation,
                         const ls__shm_condition *condition, char *text, size_t bytes) {
    bool met = operation->times.ready_ns != 0;
    size_t n = 0;
    text[0] = '\0';
    for (int r = 0; r < shm->base.size && condition->peer < 0 && !met && n + 16 < bytes; r++) {
        if (r == shm->base.rank || !missing(shm, condition, r))
            continue;
        n += (size_t)snprintf(text + n, bytes - n, n ? ", %d" : "; not arrived yet: rank %d",
                              ls__name_of(&shm->base, r));
    }
}

/* Rank r has ended in whatever way `how` says. */
static ls_status fail_rank(const ls__shm *shm, const ls__operation *operation,
                           const ls__shm_condition *condition, int r, const char *how) {
    char list[200];
    list_missing(shm, operation, condition, list, sizeof list);
    return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&shm->base),
                              "rank %d (host %s, pid %u) %s%s", ls__name_of(&shm->base, r),
                              ls__board_host(shm->base.board),
                              atomic_load(&shm->control->slot[r].pid), how, list);
}

static ls_status fail_aborted(const ls__shm *shm, const ls__operation *operation,
                              const ls__shm_condition *condition, uint32_t aborted) {
    int rank = (int)(aborted & (LS__SHM_TOLD - 1)) - 1;
    const ls__shm_slot *slot = &shm->control->slot[rank];
    const int name = ls__name_of(&shm->base, rank);
    if (aborted & LS__SHM_TOLD)
        return fail_rank(shm, operation, condition, rank, slot->told_reason);
    if (rank == shm->base.rank)
        return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&shm->base),
                                  "this rank gave up before: %s", slot->own_reason);
    /* It gave up over a message of ours: then both sides disagree, and both say so. */
    if (atomic_load(&ls__shm_mailbox_between(shm, shm->base.rank, rank)->refused))
        return ls__fail(LS_ERR_MISMATCH, "%s", slot->own_reason);
    const bool differ = atomic_load(&slot->own_status) == LS_ERR_MISMATCH;
    return ls__operation_fail(differ ? LS_ERR_MISMATCH : LS_ERR_PEER, operation,
                              ls__own_name(&shm->base), "rank %d (pid %u) gave up: %s", name,
                              atomic_load(&slot->pid), slot->own_reason);
}

/* Looks for a reason why the condition cannot come true any more. The caller looks at the condition
 * once more before it believes it: a peer may do its part and leave in one breath. */
static ls_status find_failure(const ls__shm *shm, const ls__operation *operation,
                              const ls__shm_condition *condition, bool look_at_processes) {
    uint32_t aborted = atomic_load(&shm->control->aborted);
    if (aborted)
        return fail_aborted(shm, operation, condition, aborted);
    for (int r = 0; r < shm->base.size; r++) {
        const ls__shm_slot *slot = &shm->control->slot[r];
        bool left = atomic_load(&slot->left);
        if (r == shm->base.rank || !missing(shm, condition, r))
            continue;
        uint32_t pid = atomic_load(&slot->pid);
        char how[300];
        /* a part's own segment hears nothing from the launcher */
        const ls__shm_slot *home = &shm->root->slot[shm->root_slot ? shm->root_slot[r] : r];
        if (atomic_load(&home->told_written) == LS__SHM_WRITTEN)
            return fail_rank(shm, operation, condition, r, home->told_reason);
        if (!pid && ls__board_is_absent(shm->base.board, ls__name_of(&shm->base, r)))
            return ls__operation_fail(LS_ERR_PEER, operation, ls__own_name(&shm->base),
                                      "rank %d ended before it joined the job",
                                      ls__name_of(&shm->base, r));
        if (left)
            return fail_rank(shm, operation, condition, r,
                             shm->root_slot ? "has left the group"
                                            : "has left the job (ls_job_finish)");
        if (look_at_processes && pid && ls__process_gone(pid, atomic_load(&slot->start_time)))
            return fail_rank(shm, operation, condition, r, "ended without leaving the job");
        if (look_at_processes &&
            ls__heartbeat_stopped(shm->base.heartbeat, ls__name_of(&shm->base, r), how, sizeof how))
            return fail_rank(shm, operation, condition, r, how);
    }
    return ls__shm_find_standoff(shm, operation, condition);
}

/* "rank 2 (pid 71, in recv #3)" */
static size_t describe_rank(const ls__shm *shm, int r, char *text, size_t bytes) {
    const ls__shm_slot *slot = &shm->control->slot[r];
    uint32_t pid = atomic_load(&slot->pid);
    const ls__shm_doing doing = ls__shm_doing_of(shm, r);
    int n;
    char phase[100];
    ls__heartbeat_phase(shm->base.heartbeat, ls__name_of(&shm->base, r), phase, sizeof phase);
    r = ls__name_of(&shm->base, r);
    if (!pid)
        n = snprintf(text, bytes, "rank %d (not started)", r);
    else if (doing.kind)
        n = snprintf(text, bytes, "rank %d (pid %u, in %s #%llu%s)", r, pid,
                     ls__kind_name(doing.kind), (unsigned long long)doing.sequence, phase);
    else
        n = snprintf(text, bytes, "rank %d (pid %u, in no operation%s%s)", r, pid,
                     shm->root_slot ? " of this group" : "", phase);
    return n < 0 ? 0 : (size_t)n < bytes ? (size_t)n : bytes - 1;
}

static ls_status fail_timeout(const ls__shm *shm, const ls__operation *operation,
                              const ls__shm_condition *condition) {
    char list[600] = "";
    size_t length = 0;
    for (int r = 0; r < shm->base.size && length < sizeof list - 180; r++) {
        if (r == shm->base.rank || !missing(shm, condition, r))
            continue;
        if (length > 0)
            length += (size_t)snprintf(list + length, sizeof list - length, ", ");
        length += describe_rank(shm, r, list + length, sizeof list - length);
    }
    double waited = (double)(ls__now_ns() - operation->times.begin_ns) * 1e-9;
    return ls__operation_fail(
        LS_ERR_TIMEOUT, operation, ls__own_name(&shm->base),
        "after %.1f s on host %s still waiting for %s; raise LOCKSTEP_TIMEOUT if that is "
        "too short",
        waited, ls__board_host(shm->base.board), list);
}

/* --- waiting -------------------------------------------------------------------------------------- */

/* True once the condition is. */
static bool look(const ls__shm *shm, const ls__operation *operation,
                 const ls__shm_condition *condition) {
    int looks = operation->beside ? LOOKS_BESIDE : LOOKS;
    if (shm->crowded)
        looks = LOOKS_CROWDED;
    for (int i = 0; i < looks; i++) {
        if (reached(condition))
            return true;
        if (i >= LOOKS_AT_ONCE)
            ls__cpu_relax();
    }
    for (int i = 0; shm->crowded && i < OFFERS; i++) {
        sched_yield();
        if (reached(condition))
            return true;
    }
    return false;
}

/* Looks and sleeps in turn. The bell's sleepers are counted before the condition is looked at again, and
 * whoever makes it true looks at their number afterwards: with a full barrier between on both sides, one
 * of the two sees the other. */
static ls_status wait_asleep(ls__shm *shm, const ls__operation *operation,
                             const ls__shm_condition *condition) {
    uint64_t look_at = ls__now_ns() + SLICE_NS; /* when to look at the other processes next */
    for (;;) {
        uint32_t seen = atomic_load(&condition->bell->bell);
        if (reached(condition))
            return LS_OK;
        uint64_t now = ls__now_ns();
        ls_status status = find_failure(shm, operation, condition, now >= look_at);
        uint64_t deadline = ls__operation_deadline(shm->base.heartbeat, operation);
        if (status == LS_OK && now >= deadline)
            status = fail_timeout(shm, operation, condition);
        if (status != LS_OK)
            return reached(condition) ? LS_OK : status;
        if (now >= look_at)
            look_at = now + SLICE_NS;
        ls__futex_wait(&condition->bell->bell, seen, look_at < deadline ? look_at : deadline);
    }
}

ls_status ls__shm_wait(ls__shm *shm, const ls__operation *operation,
                       const ls__shm_condition *condition) {
    if (look(shm, operation, condition))
        return LS_OK;
    atomic_fetch_add(&condition->bell->sleepers, 1);
    ls__shm_show_wait(shm, operation, condition);
    atomic_thread_fence(memory_order_seq_cst);
    ls_status status = wait_asleep(shm, operation, condition);
    ls__shm_show_wait(shm, operation, NULL);
    atomic_fetch_sub(&condition->bell->sleepers, 1);
    return status;
}

/* --- arriving ------------------------------------------------------------------------------------- */

/* All have arrived at `number`: wakes those who sleep for it, once. */
static void wake_sleepers(ls__shm_control *control, uint32_t number) {
    /* My stamp before the number of sleepers; the other side is in ls__shm_wait. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&control->all.sleepers, memory_order_relaxed) > 0 &&
        atomic_exchange(&control->rung, number) != number)
        ls__shm_ring(&control->all);
}

static uint32_t arrive(ls__shm *shm) {
    uint32_t number = ++shm->arrivals;
    atomic_store_explicit(&ls__shm_my_slot(shm)->arrival[number & 1].stamp, number,
                          memory_order_release);
    return number;
}

static ls_status await_all(ls__shm *shm, const ls__operation *operation, uint32_t number) {
    ls__shm_condition all = {
        .everyone = shm, .target = number, .bell = &shm->control->all, .peer = -1};
    LS_TRY(ls__shm_wait(shm, operation, &all));
    wake_sleepers(shm->control, number);
    return LS_OK;
}

ls_status ls__shm_sync(ls__shm *shm, const ls__operation *operation) {
    return await_all(shm, operation, arrive(shm));
}

/* Arrivals alternate between two lines. A rank writes its arrival k + 2 where k was: it has then passed
 * arrival k + 1, which nobody reaches before having read all that was told at k. */
const ls__shm_notice *ls__shm_notice_of(const ls__shm *shm, int r) {
    return &shm->control->slot[r].arrival[shm->met & 1].notice;
}

/* Identities of headers are equal where headers are, and the other way round but for 2^-64. */
static ls_status compare_headers(const ls__shm *shm, const ls__operation *operation, int r) {
    const ls__header *other = &shm->control->slot[r].header[shm->met & 1];
    int name = ls__name_of(&shm->base, r);
    LS_TRY(ls__header_compare(&operation->header, ls__own_name(&shm->base), other, name));
    return ls__operation_fail(LS_ERR_MISMATCH, operation, ls__own_name(&shm->base),
                              "rank %d does something else, but its header is the same", name);
}

ls_status ls__shm_meet(ls__shm *shm, ls__operation *operation) {
    ls__shm_notice *mine = ls__shm_next_notice(shm);
    shm->met = shm->arrivals + 1;
    ls__shm_my_slot(shm)->header[shm->met & 1] = operation->header;
    const uint64_t identity = ls__header_identity(&operation->header);
    mine->identity = identity;
    mine->arrived_ns = operation->times.begin_ns;
    mine->weight = operation->header.weight;
    LS_TRY(ls__shm_sync(shm, operation));
    uint64_t ready = 0;
    int last = -1;
    for (int r = 0; r < shm->base.size; r++) {
        const ls__shm_notice *other = ls__shm_notice_of(shm, r);
        if (other->identity != identity)
            return compare_headers(shm, operation, r);
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
