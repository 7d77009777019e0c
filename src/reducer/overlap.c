/* What of a step's transfers was hidden behind backward, from the times of its buckets. */
#include "reducer/overlap.h"

static uint64_t until(uint64_t begin, uint64_t end) {
    return end > begin ? end - begin : 0;
}

/* The rank for which the buckets of this rank waited longest in all; -1: none, or not known. Buckets are
 * few and last ranks fewer: every one is added up where it stands first. */
static int latest_rank(const ls_reducer_bucket *buckets, size_t count) {
    uint64_t most = 0;
    int rank = -1;
    for (size_t k = 0; k < count; k++) {
        int last = buckets[k].times.last_rank;
        uint64_t waited = 0;
        for (size_t j = 0; last >= 0 && j < count; j++)
            if (buckets[j].times.last_rank == last)
                waited += until(buckets[j].times.begin_ns, buckets[j].times.ready_ns);
        if (waited > most) {
            most = waited;
            rank = last;
        }
    }
    return rank;
}

ls_reducer_overlap ls__overlap_of(const ls_reducer_bucket *buckets, size_t count, bool beside,
                                  uint64_t wait_begin_ns, uint64_t wait_end_ns) {
    ls_reducer_overlap o = {.wait_begin_ns = wait_begin_ns,
                            .exposed_ns = until(wait_begin_ns, wait_end_ns),
                            .last_rank = latest_rank(buckets, count)};
    for (size_t k = 0; k < count; k++) {
        const ls_work_times *t = &buckets[k].times;
        uint64_t before = t->end_ns < wait_begin_ns ? t->end_ns : wait_begin_ns;
        o.transfer_ns += until(t->ready_ns, t->end_ns);
        o.late_ns += until(t->begin_ns, t->ready_ns);
        if (beside)
            o.hidden_ns += until(t->ready_ns, before);
        else
            o.exposed_ns += until(t->begin_ns, before);
    }
    return o;
}
