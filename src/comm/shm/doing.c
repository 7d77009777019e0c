/* What a rank is inside of, shown to the others: they name it in messages, and find that a message between two
 * ranks can never come.
 *
 * Operations of a group run one after the other on each rank, so two ranks that wait for each other in different
 * ones wait for ever:
 *   - this rank for a message of r (or for room to send r one), and r has arrived at a meeting at which this rank has
 *     not: what r sent or took before is seen with its arrival, and before this rank arrives it does nothing more;
 *   - both for a message, or both for room. r shows the number that the counter of its wait has to reach, and that is a
 *     counter which this rank alone moves: as long as it is short of that, r waits. */
#include "comm/shm/layout.h"

/* Each in one word, so that it is seen whole. */
enum { KIND_BITS = 8, PEER_BITS = 24 };
static const uint64_t KIND = (1U << KIND_BITS) - 1, PEER = (1U << PEER_BITS) - 1;

void ls__shm_show_doing(const ls__shm *shm, const ls__operation *operation) {
    uint64_t doing =
        operation ? operation->header.kind | operation->header.sequence << KIND_BITS : 0;
    atomic_store_explicit(&ls__shm_my_slot(shm)->doing, doing, memory_order_relaxed);
}

ls__shm_doing ls__shm_doing_of(const ls__shm *shm, int r) {
    uint64_t doing = atomic_load_explicit(&shm->control->slot[r].doing, memory_order_relaxed);
    return (ls__shm_doing){.kind = (int)(doing & KIND), .sequence = doing >> KIND_BITS};
}

void ls__shm_show_wait(const ls__shm *shm, const ls__operation *operation,
                       const ls__shm_condition *condition) {
    uint64_t waits = 0;
    if (condition && condition->peer >= 0 && !condition->or_else)
        waits = operation->header.kind | (uint64_t)condition->peer << KIND_BITS |
                (uint64_t)condition->target << (KIND_BITS + PEER_BITS);
    atomic_store(&ls__shm_my_slot(shm)->waits, waits);
}

/* Rank r waits for this one as this one waits for it. */
static bool faces_me(const ls__shm *shm, const ls__operation *mine, int r) {
    const uint64_t waits = atomic_load(&shm->control->slot[r].waits);
    const int kind = (int)(waits & KIND), peer = (int)(waits >> KIND_BITS & PEER);
    const uint32_t target = (uint32_t)(waits >> (KIND_BITS + PEER_BITS));
    if (kind != (int)mine->header.kind || peer != shm->base.rank)
        return false;
    const _Atomic uint32_t *counter = kind == LS__RECV
                                          ? &ls__shm_mailbox_between(shm, shm->base.rank, r)->head
                                          : &ls__shm_mailbox_between(shm, r, shm->base.rank)->tail;
    return (kind == LS__RECV || kind == LS__SEND) && (int32_t)(atomic_load(counter) - target) < 0;
}

ls_status ls__shm_find_standoff(const ls__shm *shm, const ls__operation *operation,
                                const ls__shm_condition *condition) {
    for (; condition && condition->peer >= 0; condition = condition->or_else) {
        const int r = condition->peer;
        const bool met = ls__shm_has_arrived(shm, r, shm->arrivals + 1);
        if ((!met && !faces_me(shm, operation, r)) || ls__shm_reached(condition))
            continue;
        const ls__shm_doing theirs = ls__shm_doing_of(shm, r);
        const int name = ls__name_of(&shm->base, r);
        return ls__operation_fail(
            LS_ERR_MISMATCH, operation, ls__own_name(&shm->base),
            "ranks disagree on the operation: this waits for rank %d, and rank %d waits in %s #%llu "
            "for rank %d; want a send of one and a recv of the other, in the order of all operations",
            name, name, theirs.kind ? ls__kind_name(theirs.kind) : "an operation",
            (unsigned long long)theirs.sequence, ls__own_name(&shm->base));
    }
    return LS_OK;
}
