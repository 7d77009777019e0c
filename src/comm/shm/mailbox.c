/* send and recv: a ring of cells for each ordered pair of ranks. A message that fits into the ring is
 * buffered and its send returns at once; a larger one flows through while the peer receives. A sendrecv
 * moves whichever direction can go on.
 * Cost: every byte is copied twice; one wake-up a cell at most. */
#include "comm/shm/layout.h"

#include <string.h>

ls__shm_mailbox *ls__shm_mailbox_between(const ls__shm *shm, int from, int to) {
    size_t index = (size_t)from * (size_t)shm->base.size + (size_t)to;
    char *boxes = (char *)shm->control + ls__shm_mailbox_offset(shm->base.size);
    return (ls__shm_mailbox *)(void *)boxes + index;
}

/* One message under way. */
typedef struct flow {
    const ls__operation *op; /* a send or a recv */
    ls__shm_mailbox *box;
    char *at;
    size_t left;
    uint32_t cell; /* the next one: head of a sender, tail of a receiver */
    bool done;
} flow;

static size_t cell_bytes(size_t left) {
    return left < LS__SHM_CELL_BYTES ? left : LS__SHM_CELL_BYTES;
}

static flow outgoing(const ls__shm *shm, const ls__operation *op) {
    ls__shm_mailbox *box = ls__shm_mailbox_between(shm, shm->base.rank, op->root);
    return (flow){.op = op,
                  .box = box,
                  .at = (char *)op->send,
                  .left = op->count * ls_dtype_size(op->dtype),
                  .cell = atomic_load_explicit(&box->head, memory_order_relaxed)};
}

static flow incoming(const ls__shm *shm, const ls__operation *op) {
    ls__shm_mailbox *box = ls__shm_mailbox_between(shm, op->root, shm->base.rank);
    return (flow){.op = op,
                  .box = box,
                  .at = op->recv,
                  .left = op->count * ls_dtype_size(op->dtype),
                  .cell = atomic_load_explicit(&box->tail, memory_order_relaxed)};
}

static ls__shm_condition room_for(const ls__shm *shm, const flow *out) {
    return (ls__shm_condition){.word = &out->box->tail,
                               .target = out->cell + 1 - LS__SHM_CELLS,
                               .bell = &ls__shm_my_slot(shm)->mail,
                               .peer = out->op->root};
}

static ls__shm_condition mail_of(const ls__shm *shm, const flow *in) {
    return (ls__shm_condition){.word = &in->box->head,
                               .target = in->cell + 1,
                               .bell = &ls__shm_my_slot(shm)->mail,
                               .peer = in->op->root};
}

static void advance(flow *f, size_t n) {
    f->at += n;
    f->left -= n;
    f->done =
        f->left == 0; /* also after the one cell of an empty message, which carries the header */
}

static void put_cell(ls__shm *shm, flow *out) {
    size_t n = cell_bytes(out->left), cell = out->cell % LS__SHM_CELLS;
    out->box->cell[cell].header = out->op->header;
    if (n > 0)
        memcpy(out->box->cell[cell].data, out->at, n);
    atomic_store(&out->box->head, ++out->cell);
    ls__shm_ring(&shm->control->slot[out->op->root].mail);
    advance(out, n);
}

static ls_status take_cell(ls__shm *shm, flow *in) {
    size_t n = cell_bytes(in->left), cell = in->cell % LS__SHM_CELLS;
    ls_status same =
        ls__header_compare(&in->op->header, ls__own_name(&shm->base), &in->box->cell[cell].header,
                           ls__name_of(&shm->base, in->op->root));
    if (same != LS_OK) { /* the sender may have returned long ago: it hears at its next call */
        atomic_store(&in->box->refused, 1);
        return same;
    }
    if (n > 0)
        memcpy(in->at, in->box->cell[cell].data, n);
    atomic_store(&in->box->tail, ++in->cell);
    ls__shm_ring(&shm->control->slot[in->op->root].mail);
    advance(in, n);
    return LS_OK;
}

ls_status ls__shm_send(ls__shm *shm, ls__operation *op) {
    flow out = outgoing(shm, op);
    while (!out.done) {
        ls__shm_condition room = room_for(shm, &out);
        LS_TRY(ls__shm_wait(shm, op, &room));
        put_cell(shm, &out);
    }
    return LS_OK;
}

ls_status ls__shm_recv(ls__shm *shm, ls__operation *op) {
    flow in = incoming(shm, op);
    while (!in.done) {
        ls__shm_condition mail = mail_of(shm, &in);
        LS_TRY(ls__shm_wait(shm, op, &mail));
        LS_TRY(take_cell(shm, &in));
    }
    return LS_OK;
}

ls_status ls__shm_sendrecv(ls__shm *shm, ls__operation *op) {
    ls__operation send, recv;
    ls__sendrecv_split(op, shm->base.rank, &send, &recv);
    if (op->root == shm->base.rank) {
        if (op->count > 0)
            memcpy(op->recv, op->send, op->count * ls_dtype_size(op->dtype));
        return LS_OK;
    }
    flow out = outgoing(shm, &send), in = incoming(shm, &recv);
    while (!out.done || !in.done) {
        ls__shm_condition room = room_for(shm, &out), mail = mail_of(shm, &in);
        if (!out.done && !in.done)
            room.or_else = &mail;
        LS_TRY(ls__shm_wait(shm, op, out.done ? &mail : &room));
        if (!out.done && ls__shm_reached(&room))
            put_cell(shm, &out);
        if (!in.done && ls__shm_reached(&mail))
            LS_TRY(take_cell(shm, &in));
    }
    return LS_OK;
}
