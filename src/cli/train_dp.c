/* --strategy dp: the shards of a batch are computed by the replicas of this process, all at once. */
#include "cli/train.h"
#include <string.h>

ls_status ls__train_dp_shards(ls__train *train, const ls_batch *batch) {
    size_t replicas = train->shards, shapes[LS__TRAIN_REPLICAS][4];
    ls_dp_shard shards[LS__TRAIN_REPLICAS];
    for (size_t r = 0; r < replicas; r++) {
        const ls_shard *from = &batch->shards[r];
        shapes[r][0] = from->count;
        memcpy(shapes[r] + 1, train->sample_shape, sizeof train->sample_shape);
        shards[r] = (ls_dp_shard){.input = from->input,
                                  .target = from->target,
                                  .input_shape = shapes[r],
                                  .input_dims = 1 + train->sample_dims,
                                  .target_shape = shapes[r],
                                  .target_dims = train->tokens ? 2 : 1,
                                  .tokens = train->tokens,
                                  .samples = from->samples,
                                  .count = from->count};
    }
    const ls_step_mode mode = {
        .training = true, .recompute = train->settings->recompute, .compute = train->dtype};
    ls_dp_report report;
    LS_TRY(ls_dp_backward(train->dp, train->step, &mode, shards, &report));
    ls__train_dp_times *sum = &train->dp_times;
    sum->replicate_ms += (double)report.replicate_ns / 1e6;
    sum->compute_ms += (double)report.compute_ns / 1e6;
    sum->gather_ms += (double)report.gather_ns / 1e6;
    double sent = (double)report.sent_bytes / (1 << 20);
    double received = (double)report.received_bytes / (1 << 20);
    sum->sent_mib = sent > sum->sent_mib ? sent : sum->sent_mib;
    sum->received_mib = received > sum->received_mib ? received : sum->received_mib;
    sum->steps++;
    return LS_OK;
}

json_t *ls__train_dp_json(const ls__train *train) {
    const ls__train_dp_times *t = &train->dp_times;
    double steps = t->steps > 0 ? t->steps : 1;
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f}", "replicas", (json_int_t)train->shards,
                     "replicate_ms", t->replicate_ms / steps, "compute_ms", t->compute_ms / steps,
                     "gather_ms", t->gather_ms / steps, "sent_mib", t->sent_mib, "received_mib",
                     t->received_mib);
}

void ls__train_dp_print(const ls__train *train) {
    const ls__train_dp_times *t = &train->dp_times;
    double steps = t->steps > 0 ? t->steps : 1;
    printf(
        "dp: a step replicated %.2f ms, computed %.2f ms, gathered %.2f ms; replica 0 sent %.1f MiB and "
        "received %.1f MiB\n",
        t->replicate_ms / steps, t->compute_ms / steps, t->gather_ms / steps, t->sent_mib,
        t->received_mib);
}
