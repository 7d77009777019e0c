/* The norm of the reduced gradients, made together. What the ranks hold after the reduction is equal, so each squares
 * only its part of it and they tell each other their sums: a pass over all gradients becomes one over 1/p of them. The
 * parts are blocks of LS__SQUARES_BLOCK elements, numbered over all parameters, frozen ones too (what is frozen
 * changes), and the sums of blocks are added up in the order in which one process does: the norm has its bits.
 *
 * Cost: B / p bytes read for B of gradients, and one all_gather of B / 2048; worth it where that takes microseconds. */
#include "parallel/ddp.h"

#include "comm/shares.h"
#include <stdlib.h>

enum { FEWEST = 1 << 18 }; /* elements */

ls_status ls__squares_prepare(ls_ddp *ddp) {
    const size_t ranks = (size_t)ls_group_size(ddp->group);
    size_t blocks = 0, elements = 0;
    for (size_t i = 0; i < ddp->parameter_count; i++) {
        blocks += ls__squares_blocks(ddp->entries[i].count);
        elements += ddp->entries[i].count;
    }
    if (ranks == 1 || elements < FEWEST || !ls__group_shares_memory(ddp->group))
        return LS_OK;
    ddp->squares_each = (blocks + ranks - 1) / ranks;
    ddp->squares = calloc(ranks * ddp->squares_each, sizeof *ddp->squares);
    return ddp->squares ? LS_OK : ls__fail(LS_ERR_MEMORY, "ddp: no memory for %zu sums", blocks);
}

void ls__squares_free(ls_ddp *ddp) {
    free(ddp->squares);
    ddp->squares = NULL;
}

/* What of the entry, whose first block is number `at`, is in [begin, end). */
static ls_status square_part(const ls_ddp *ddp, const ls__ddp_entry *e, size_t at, size_t begin,
                             size_t end) {
    const size_t blocks = ls__squares_blocks(e->count);
    const size_t first = begin > at ? begin - at : 0;
    const size_t last = end > at ? (end - at < blocks ? end - at : blocks) : 0;
    if (!e->reduces || !e->parameter->present || first >= last)
        return LS_OK;
    const size_t element = first * LS__SQUARES_BLOCK;
    const size_t behind = last == blocks ? e->count : last * LS__SQUARES_BLOCK;
    return ddp->device->table->squares(ddp->device, behind - element, e->parameter->gradient_factor,
                                       e->slots[0] + element, ddp->squares + at + first);
}

ls_status ls__squares_share(ls_ddp *ddp) {
    const size_t begin = (size_t)ls_group_rank(ddp->group) * ddp->squares_each;
    if (!ddp->squares_each || !ddp->tally.update)
        return LS_OK;
    for (size_t i = 0, at = 0; i < ddp->parameter_count; i++) {
        const ls__ddp_entry *e = &ddp->entries[i];
        LS_TRY(square_part(ddp, e, at, begin, begin + ddp->squares_each));
        at += ls__squares_blocks(e->count);
    }
    LS_TRY(
        ls_all_gather(ddp->group, ddp->squares + begin, ddp->squares, ddp->squares_each, LS_F64));
    for (size_t i = 0, at = 0; i < ddp->parameter_count; i++) {
        const ls__ddp_entry *e = &ddp->entries[i];
        e->parameter->squares = ls__squares_total(ddp->squares + at, e->count);
        e->parameter->squares_known = e->reduces && e->parameter->present;
        at += ls__squares_blocks(e->count);
    }
    return LS_OK;
}
