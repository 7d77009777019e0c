/* The drift watch. Every watch_every steps each rank puts a hash of its weights and its optimizer's state,
 * as they were before this step's update, into its row of the votes: 64 bits in four pieces of 16, which a
 * f32 carries exactly through the weighted sum. So looking costs one pass over that memory and no message;
 * only where two hashes differ do all ranks, which know it together, look for the tensor. */
#include "parallel/ddp.h"
#include "parallel/replicas.h"

enum { DEFAULT_EVERY = 100 };

size_t ls__watch_interval(const ls_ddp_options *options) {
    if (options->no_watch)
        return 0;
    return options->watch_every ? options->watch_every : DEFAULT_EVERY;
}

ls_status ls__watch_create(ls_ddp *ddp, const ls_ddp_options *options) {
    ddp->watch_every = ls__watch_interval(options);
    if (!ddp->watch_every)
        return LS_OK;
    ddp->hash_state = ls__replicas_hash_state();
    return ddp->hash_state ? LS_OK : ls__fail(LS_ERR_MEMORY, "ddp: no memory for the watch");
}

void ls__watch_free(ls_ddp *ddp) {
    ls__replicas_hash_free(ddp->hash_state);
}

void ls__watch_write(ls_ddp *ddp, float *pieces) {
    if (!ddp->watch_every || ls_group_size(ddp->group) == 1 ||
        (ddp->steps + 1) % ddp->watch_every != 0)
        return;
    ls__ballot_write(pieces, ls__replicas_hash(ddp->model, ddp->hash_state));
}

ls_status ls__watch_compare(ls_ddp *ddp) {
    const float *first = ddp->ballot + LS__BALLOT_HASH;
    size_t ranks = (size_t)ls_group_size(ddp->group), r = 1;
    while (r < ranks && ls__ballot_read(first + r * LS__BALLOT) == ls__ballot_read(first))
        r++;
    if (r >= ranks)
        return LS_OK;
    ls_status status = ls__replicas_verify(ddp->model, ddp->group);
    if (status == LS_OK)
        status = ls__fail(LS_ERR_MISMATCH,
                          "replicas differ: rank %zu is not what rank 0 is, and looking for the "
                          "tensor found none: does something else write to the weights?",
                          r);
    return ls__fail_context(status, "before update %llu", (unsigned long long)ddp->steps + 1);
}
