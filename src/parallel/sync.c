/* Batch norm over the whole batch: the sums its layers ask for, in forward and in backward, over all ranks.
 *
 * They go through a group of their own, so that they have no order with the buckets of gradients. What the
 * layers of one rank ask for, those of all ask for at the same time, because all run the same model; but a
 * rank without samples does not run it. So a rank that is through with its backward, or has none, goes on
 * taking part with zeros until all ranks are through. Every message has the same size, so it need not
 * know what for:
 *
 *     values       0 active ranks | 1 sum of their counts | 2 of the squares of those | 3... the sums
 *
 * The counts of a forward are odd, of a backward even, and differ with the channels: where active ranks do
 * not ask for the same thing, 0 times 2 is not 1 squared.
 *
 * Cost: two all-reduces a layer and one a step, of 8 (4 + 2 channels of the widest layer) bytes. */
#include "nn/sync.h"
#include "comm/hold.h"
#include "parallel/ddp.h"

#include <stdlib.h>
#include <string.h>

enum { ACTIVE, COUNTS, SQUARES, VALUES };

static size_t message_size(const ls__sync *sync) {
    return VALUES + sync->most;
}

/* One exchange; what came together stays in ddp->sync_values. */
static ls_status exchange(ls_ddp *ddp) {
    ls_status status = ls_all_reduce(ddp->sync_group, ddp->sync_values, ddp->sync_values,
                                     message_size(ddp->model->sync), LS_F64, LS_SUM);
    const double *v = ddp->sync_values;
    if (status == LS_OK && v[ACTIVE] * v[SQUARES] != v[COUNTS] * v[COUNTS])
        status = ls__fail(LS_ERR_MISMATCH,
                          "batch norm with norm=sync: ranks are in different layers, or some in "
                          "forward and some in backward; all ranks with samples must run the same "
                          "forwards and backwards");
    if (status != LS_OK)
        ddp->failed = status;
    return status;
}

static ls_status sum(void *context, double *values, size_t count) {
    ls_ddp *ddp = context;
    double *v = ddp->sync_values;
    if (ddp->failed != LS_OK)
        return ls__fail(ddp->failed, "batch norm with norm=sync: an earlier step failed");
    if (!ddp->in_step || ddp->next == ddp->count)
        return ls__fail(LS_ERR_STATE,
                        "batch norm with norm=sync: a training forward outside of a step, or after "
                        "this rank's backward; call ls_ddp_begin before it");
    memset(v, 0, message_size(ddp->model->sync) * sizeof *v);
    v[ACTIVE] = 1;
    v[COUNTS] = (double)count;
    v[SQUARES] = (double)count * (double)count;
    memcpy(v + VALUES, values, count * sizeof *v);
    LS_TRY(exchange(ddp));
    memcpy(values, v + VALUES, count * sizeof *v);
    return LS_OK;
}

ls_status ls__sync_finish(ls_ddp *ddp) {
    if (!ddp->sync_group)
        return LS_OK;
    do {
        memset(ddp->sync_values, 0, message_size(ddp->model->sync) * sizeof(double));
        LS_TRY(exchange(ddp));
    } while (ddp->sync_values[ACTIVE] > 0);
    return LS_OK;
}

static ls_status check(const ls_ddp *ddp) {
    size_t ranks = (size_t)ls_group_size(ddp->group);
    if (ddp->shards != ranks)
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "ddp: norm=sync takes all shards at the same time, so there must be one a "
                        "rank: %zu shards on %zu rank%s are not; give %zu shards, or norm=batch",
                        ddp->shards, ranks, ranks == 1 ? "" : "s", ranks);
    if (ddp->reducer_options.progress == LS_PROGRESS_INLINE)
        return ls__fail(
            LS_ERR_UNSUPPORTED,
            "ddp: norm=sync and progress inline do not go together: a rank that reduces "
            "inside of its backward would wait for one that waits for its layers");
    return LS_OK;
}

ls_status ls__sync_prepare(ls_ddp *ddp) {
    const ls__sync *sync = ddp->model->sync;
    if (!sync || sync->layers == 0)
        return LS_OK;
    LS_TRY(check(ddp));
    if (ls_group_size(ddp->group) == 1)
        return LS_OK;
    ddp->sync_values = calloc(message_size(sync), sizeof *ddp->sync_values);
    if (!ddp->sync_values)
        return ls__fail(LS_ERR_MEMORY, "ddp: no memory for the sums of batch norm");
    return LS_OK;
}

ls_status ls__sync_create(ls_ddp *ddp) {
    if (!ddp->sync_values)
        return LS_OK;
    LS_TRY(ls_group_split(ddp->group, 0, ls_group_rank(ddp->group), &ddp->sync_group));
    ls__group_hold(ddp->sync_group);
    ddp->model->sync->over = (ls_batch_norm_sync){.sum = sum, .context = ddp};
    return LS_OK;
}

void ls__sync_free(ls_ddp *ddp) {
    ls__sync *sync = ddp->model->sync;
    if (sync && sync->over.context == ddp)
        sync->over = (ls_batch_norm_sync){0};
    ls_group_destroy(ddp->sync_group);
    ls__group_release(ddp->sync_group);
    free(ddp->sync_values);
}
