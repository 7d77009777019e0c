/* Tree-ordered sums over the shards of one rank.
 *
 * Each local shard's gradients are computed on their own and then added in the order of the balanced
 * tree, so that the sum does not depend on how shards are spread over ranks. That needs a small stack
 * of gradient buffers ("slots"), used like the digits of a binary counter: before shard i, slot s
 * holds the sum of the s-th complete subtree, popcount(i) of them. Shard i is computed into slot
 * popcount(i); each trailing one bit of i then completes a subtree: slot s-1 += slot s. Slot 0 is the
 * reducer's memory, so with one shard per rank nothing is added or copied here. In the last shard the
 * additions happen parameter by parameter, as soon as its gradient is ready, and the reducer is told.
 *
 * Memory: floor(log2(local shards)) gradient buffers beside the buckets. */
#include "parallel/ddp.h"

#include "reducer/align.h"

static size_t slot_of(size_t shard) {
    return (size_t)__builtin_popcountll(shard);
}

size_t ls__ddp_slots_needed(size_t shards) {
    size_t slots = 1; /* popcount(i) is largest in the last number of the form 2^n - 1 */
    while (shards >>= 1)
        slots++;
    return slots;
}

/* One buffer a slot, entries aligned as in the reducer's memory. */
ls_status ls__ddp_create_scratch(ls_ddp *ddp) {
    const size_t line = LS__GRADIENT_ALIGN / sizeof(float);
    size_t total = 0;
    for (size_t i = 0; i < ddp->entry_count; i++) {
        ddp->entries[i].scratch_offset = total;
        if (ddp->entries[i].by_shard)
            total += (ddp->entries[i].count + line - 1) / line * line;
    }
    for (size_t s = 1; s < ddp->slot_count; s++)
        LS_TRY(ddp->device->table->alloc(ddp->device, total * sizeof(float),
                                         (void **)&ddp->scratch[s]));
    return LS_OK;
}

void ls__ddp_free_scratch(ls_ddp *ddp) {
    for (size_t s = 1; s < ddp->slot_count; s++) {
        if (ddp->scratch[s])
            ddp->device->table->free(ddp->device, ddp->scratch[s]);
        ddp->scratch[s] = NULL;
    }
}

void ls__ddp_place_slots(ls_ddp *ddp) {
    for (size_t i = 0; i < ddp->entry_count; i++) {
        ls__ddp_entry *e = &ddp->entries[i];
        if (!e->reduces)
            continue;
        e->slots[0] = ls_reducer_gradient(ddp->reducer, i);
        for (size_t s = 1; e->by_shard && s < ddp->slot_count; s++)
            e->slots[s] = ddp->scratch[s] + e->scratch_offset;
    }
}

void ls__ddp_aim_gradients(ls_ddp *ddp, size_t shard) {
    size_t slot = slot_of(shard);
    for (size_t i = 0; i < ddp->entry_count; i++) {
        ls__ddp_entry *e = &ddp->entries[i];
        if (e->parameter && e->reduces)
            ls__parameter_set_gradient(e->parameter, e->slots[slot]);
    }
}

/* slot s-1 += slot s. A shard that did not use a parameter counts as zero, as in the reducer. */
static ls_status fold_slot(ls_ddp *ddp, ls__ddp_entry *e, size_t s) {
    const ls__device_table *table = ddp->device->table;
    uint64_t upper = e->holds & (uint64_t)1 << s, lower = e->holds & (uint64_t)1 << (s - 1);
    if (upper || lower) {
        size_t bytes = e->count * sizeof(float);
        if (!upper)
            LS_TRY(table->zero(ddp->device, e->slots[s], bytes));
        if (!lower)
            LS_TRY(table->zero(ddp->device, e->slots[s - 1], bytes));
        LS_TRY(table->binary_forward(ddp->device, LS_F32, LS__ADD, 1, e->count, e->slots[s - 1],
                                     e->slots[s], false, e->slots[s - 1]));
        e->holds |= (uint64_t)1 << (s - 1);
    }
    e->holds &= ~((uint64_t)1 << s);
    return LS_OK;
}

/* The last shard's contribution to the entry is in (or there is none): add up and tell the reducer. */
static ls_status finish_entry(ls_ddp *ddp, size_t i) {
    ls__ddp_entry *e = &ddp->entries[i];
    for (size_t s = slot_of(ddp->count - 1); s > 0; s--)
        LS_TRY(fold_slot(ddp, e, s));
    if (!e->holds)
        return LS_OK; /* no shard of this rank used it */
    e->ready = true;
    ddp->failed = ls_reducer_ready(ddp->reducer, i);
    return ddp->failed;
}

float *ls__ddp_entry_slot(ls_ddp *ddp, size_t i) {
    return ddp->entries[i].slots[slot_of(ddp->next)];
}

ls_status ls__ddp_entry_done(ls_ddp *ddp, size_t i) {
    ddp->entries[i].holds |= (uint64_t)1 << slot_of(ddp->next);
    return ddp->next + 1 == ddp->count ? finish_entry(ddp, i) : LS_OK;
}

ls_status ls__ddp_close_shard(ls_ddp *ddp) {
    size_t shard = ddp->next++;
    if (ddp->next == ddp->count) {
        for (size_t i = 0; i < ddp->entry_count; i++)
            if (ddp->entries[i].by_shard && !ddp->entries[i].ready)
                LS_TRY(finish_entry(ddp, i));
        return LS_OK;
    }
    size_t slot = slot_of(shard);
    for (size_t bits = shard; bits & 1; bits >>= 1, slot--)
        for (size_t i = 0; i < ddp->entry_count; i++)
            LS_TRY(fold_slot(ddp, &ddp->entries[i], slot));
    ls__ddp_aim_gradients(ddp, ddp->next);
    return LS_OK;
}
