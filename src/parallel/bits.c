/* What the request breaks of the promise that N ranks give the bits of one process (docs/determinism.md):
 * found once, at creation, and kept as a sentence for whoever asks. */
#include "parallel/ddp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CARD = 128 }; /* bytes of what a rank says its kernels are */

/* Ranks own subtrees where each has the same power of two of shards. */
static bool ranks_are_subtrees(const ls_ddp *ddp) {
    size_t ranks = (size_t)ls_group_size(ddp->group), each = ddp->shards / ranks;
    return ranks == 1 || (ddp->shards % ranks == 0 && (each & (each - 1)) == 0);
}

static void compare_kernels(ls_ddp *ddp, const char *cards) {
    for (int r = 1; r < ls_group_size(ddp->group) && !ddp->bits_note[0]; r++)
        if (strncmp(cards, cards + r * CARD, CARD) != 0)
            snprintf(
                ddp->bits_note, sizeof ddp->bits_note,
                "rank 0 computes with %.100s, rank %d with %.100s: replicas stay equal, but bits "
                "depend on which rank computes what",
                cards, r, cards + r * CARD);
}

ls_status ls__bits_prepare(ls_ddp *ddp) {
    size_t ranks = (size_t)ls_group_size(ddp->group);
    ddp->cards = calloc(ranks, CARD);
    return ddp->cards
               ? LS_OK
               : ls__fail(LS_ERR_MEMORY, "ddp: no memory for the kernels of %zu ranks", ranks);
}

ls_status ls__bits_check(ls_ddp *ddp) {
    size_t ranks = (size_t)ls_group_size(ddp->group);
    if (!ranks_are_subtrees(ddp))
        snprintf(
            ddp->bits_note, sizeof ddp->bits_note,
            "%zu shards on %zu ranks: a rank's shards are no subtree of the sum, so bits are not "
            "those of other numbers of ranks; they are where shards / ranks is 1, 2, 4, 8, ...",
            ddp->shards, ranks);
    char mine[CARD] = "";
    ddp->device->table->describe(ddp->device, mine, sizeof mine);
    ls_status status = ls_all_gather(ddp->group, mine, ddp->cards, CARD, LS_U8);
    if (status == LS_OK)
        compare_kernels(ddp, ddp->cards);
    free(ddp->cards);
    ddp->cards = NULL;
    return status;
}

const char *ls_ddp_bits_note(const ls_ddp *ddp) {
    return ddp && ddp->bits_note[0] ? ddp->bits_note : NULL;
}
