/* What a rank is inside of, shown to the others: they name it in messages, and find that a message between two
 * ranks can never come.
 *
 * Operations of a group run one after the other on each rank, so two ranks that wait for each other in different
 * ones wait for ever:
 *   - this rank for a message of r (or for room to send r one), r in a collective, for which it needs this rank;
 *   - both in recv, and neither has sent; both in send, and neither takes anything out.
 * What is seen of r is looked at before the mailboxes, so a message sent before that is not missed. */
#include "comm/shm/layout.h"

/* In one word, so that it is seen whole: kind, 1 + the other rank of a message, number of the operation. */
enum { KIND_BITS = 8, PEER_BITS = 16 };

void ls__shm_show_doing(const ls__shm *shm, const ls__operation *operation) {
    uint64_t doing = 0;
    if (operation)
        doing = operation->header.kind | (uint64_t)(operation->root + 1) << KIND_BITS |
                operation->header.sequence << (KIND_BITS + PEER_BITS);
    atomic_store_explicit(&ls__shm_my_slot(shm)->doing, doing, memory_order_release);
}

ls__shm_doing ls__shm_doing_of(const ls__shm *shm, int r) {
    uint64_t doing = atomic_load(&shm->control->slot[r].doing);
    return (ls__shm_doing){
        .kind = (int)(doing & ((1U << KIND_BITS) - 1)),
        .peer = (int)(doing >> KIND_BITS & ((1U << PEER_BITS) - 1)) - 1,
        .sequence = doing >> (KIND_BITS + PEER_BITS),
    };
}

static uint32_t cells_in(const ls__shm *shm, int from, int to) {
    ls__shm_mailbox *box = ls__shm_mailbox_between(shm, from, to);
    return atomic_load(&box->head) - atomic_load(&box->tail);
}

/* Rank r waits for this one, which is in a send or recv: of the same kind, so neither goes on. */
static bool faces_me(const ls__shm *shm, const ls__operation *mine, ls__shm_doing theirs, int r) {
    const int me = shm->base.rank;
    if (theirs.kind != (int)mine->header.kind || theirs.peer != me)
        return false;
    if (theirs.kind == LS__RECV)
        return cells_in(shm, me, r) == 0;
    return theirs.kind == LS__SEND && cells_in(shm, r, me) == LS__SHM_CELLS;
}

ls_status ls__shm_find_standoff(const ls__shm *shm, const ls__operation *operation,
                                const ls__shm_condition *condition) {
    for (; condition && condition->peer >= 0; condition = condition->or_else) {
        const int r = condition->peer;
        const ls__shm_doing theirs = ls__shm_doing_of(shm, r);
        const bool met = ls__shm_has_arrived(shm, r, shm->arrivals + 1);
        if ((!met && !faces_me(shm, operation, theirs, r)) || ls__shm_reached(condition))
            continue;
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
