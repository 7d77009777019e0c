/* send and recv: a ring of cells for each ordered pair of ranks. A message that fits into the ring is
 * buffered and its send returns at once; a larger one flows through while the peer receives.
 * Cost: every byte is copied twice; one wake-up a cell at most. */
#include "comm/shm/layout.h"

#include <string.h>

ls__shm_mailbox *ls__shm_mailbox_between(const ls__shm *shm, int from, int to) {
    size_t index = (size_t)from * (size_t)shm->base.size + (size_t)to;
    char *boxes = (char *)shm->control + ls__shm_mailbox_offset(shm->base.size);
    return (ls__shm_mailbox *)(void *)boxes + index;
}

static size_t cell_bytes(size_t left) {
    return left < LS__SHM_CELL_BYTES ? left : LS__SHM_CELL_BYTES;
}

ls_status ls__shm_send(ls__shm *shm, ls__operation *op) {
    ls__shm_mailbox *box = ls__shm_mailbox_between(shm, shm->base.rank, op->root);
    size_t left = op->count * ls_dtype_size(op->dtype);
    const char *from = op->send;
    uint32_t head = atomic_load_explicit(&box->head, memory_order_relaxed);
    do { /* at least one cell, which carries the header */
        ls__shm_condition room = {.word = &box->tail,
                                  .target = head + 1 - LS__SHM_CELLS,
                                  .bell = &ls__shm_my_slot(shm)->mail,
                                  .peer = op->root};
        LS_TRY(ls__shm_wait(shm, op, &room));
        size_t n = cell_bytes(left), cell = head % LS__SHM_CELLS;
        box->cell[cell].header = op->header;
        if (n > 0)
            memcpy(box->cell[cell].data, from, n);
        atomic_store(&box->head, ++head);
        ls__shm_ring(&shm->control->slot[op->root].mail);
        from += n;
        left -= n;
    } while (left > 0);
    return LS_OK;
}

ls_status ls__shm_recv(ls__shm *shm, ls__operation *op) {
    ls__shm_mailbox *box = ls__shm_mailbox_between(shm, op->root, shm->base.rank);
    size_t left = op->count * ls_dtype_size(op->dtype);
    char *to = op->recv;
    uint32_t tail = atomic_load_explicit(&box->tail, memory_order_relaxed);
    do {
        ls__shm_condition mail = {.word = &box->head,
                                  .target = tail + 1,
                                  .bell = &ls__shm_my_slot(shm)->mail,
                                  .peer = op->root};
        LS_TRY(ls__shm_wait(shm, op, &mail));
        size_t n = cell_bytes(left), cell = tail % LS__SHM_CELLS;
        ls_status same =
            ls__header_compare(&op->header, shm->base.rank, &box->cell[cell].header, op->root);
        if (same != LS_OK) { /* the sender may have returned long ago: it hears at its next call */
            atomic_store(&box->refused, 1);
            return same;
        }
        if (n > 0)
            memcpy(to, box->cell[cell].data, n);
        atomic_store(&box->tail, ++tail);
        ls__shm_ring(&shm->control->slot[op->root].mail);
        to += n;
        left -= n;
    } while (left > 0);
    return LS_OK;
}
