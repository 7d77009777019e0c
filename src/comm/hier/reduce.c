/* Reductions over M machines of p ranks each. n bytes of send, w bytes on the wire for one of send (1, and
 * 2 for 16-bit floats, which are summed in f32 and sent so until the sum is made):
 *
 *   all_reduce       inside: reduce_scatter and all_gather, 2 n read and written a rank; between: each rank
 *                    (w + 1) n (M - 1) / (M p) bytes out and in, a machine (w + 1) n (M - 1) / M
 *   reduce_scatter   inside: reduce_scatter of n; between: each rank w n (M - 1) / (M p) out and in
 *
 * The flat way sends 2 n (N - M) / N a rank between machines, p times as much a machine. */
#include "comm/reduce.h"
#include "base/half.h"
#include "comm/hier/hier.h"

#include <string.h>

static ls_dtype wide(ls_dtype dtype) {
    return ls__hier_is_narrow(dtype) ? LS_F32 : dtype;
}

static void widen(void *to, const void *from, size_t elements, ls_dtype dtype) {
    if (elements == 0)
        return;
    if (dtype == LS_F16)
        ls__f16_to_f32(to, from, elements);
    else if (dtype == LS_BF16)
        ls__bf16_to_f32(to, from, elements);
    else
        memcpy(to, from, elements * ls_dtype_size(dtype));
}

/* Rounds to nearest even where the sum was made in f32. */
static void narrow(void *to, const void *from, size_t elements, ls_dtype dtype) {
    if (elements == 0)
        return;
    if (dtype == LS_F16)
        ls__f32_to_f16(to, from, elements);
    else if (dtype == LS_BF16)
        ls__f32_to_bf16(to, from, elements);
    else
        memcpy(to, from, elements * ls_dtype_size(dtype));
}

/* --- weights: an average is a weighted sum in which every rank weighs 1 -------------------------- */

static bool is_scaled(const ls__operation *op) {
    return op->weighted || op->op == LS_AVG;
}

/* The sum of this machine's weights, in tree order. */
static ls_status local_weight(ls__hier *hier, ls__operation *op, double *weight) {
    *weight = hier->map.local;
    if (!op->weighted)
        return LS_OK;
    ls__operation step = ls__hier_step(op, LS__ALL_GATHER);
    step.send = &op->header.weight;
    step.recv = hier->weights;
    step.count = 1;
    step.dtype = LS_F64;
    LS_TRY(ls__hier_run_local(hier, &step));
    *weight = ls__reduce_weights(hier->weights, hier->map.local);
    return LS_OK;
}

static ls__operation step_inside(const ls__operation *op, const void *send, void *recv,
                                 size_t count) {
    ls__operation step = ls__hier_step(op, LS__REDUCE_SCATTER);
    step.send = send;
    step.recv = recv;
    step.count = count;
    step.dtype = wide(op->dtype);
    step.op = op->op == LS_AVG ? LS_SUM : op->op;
    step.weighted = false;
    return step;
}

static ls__operation step_between(ls__hier *hier, const ls__operation *op, ls__kind kind,
                                  ls__hier_slot *slot) {
    ls__operation step = ls__hier_step(op, kind);
    step.send = slot->slice;
    step.dtype = wide(op->dtype);
    step.op = op->op == LS_AVG ? LS_SUM : op->op;
    step.weighted = is_scaled(op);
    step.header.weight = hier->weight;
    step.total = &slot->total;
    return step;
}

/* --- all_reduce ---------------------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* A whole chunk of a wide type is reduced where it lies; others are put into a buffer that is filled up. */
static bool lies_well(const ls__hier *hier, const ls__operation *op, const ls__hier_slot *slot) {
    return slot->count == slot->each * (size_t)hier->map.local && !ls__hier_is_narrow(op->dtype);
}

/* Elements of a slice are whole cache lines, for every machine where each makes the sum of a part. */
static size_t unit_of(const ls__hier *hier, ls_dtype dtype) {
    const size_t line = 64 / ls_dtype_size(wide(dtype));
    return ls__hier_is_narrow(dtype) ? line * (size_t)hier->map.machines : line;
}

/* Of a 16-bit type, each machine sums its part in f32, which the next stage rounds and gathers. */
static ls_status begin_all_reduce(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    const size_t element = ls_dtype_size(op->dtype), local = (size_t)hier->map.local;
    const size_t width = ls_dtype_size(wide(op->dtype));
    const char *send = (const char *)op->send + slot->first * element;
    slot->each = round_up((slot->count + local - 1) / local, unit_of(hier, op->dtype));
    if (!lies_well(hier, op, slot)) {
        widen(hier->pack, send, slot->count, op->dtype);
        memset(hier->pack + slot->count * width, 0, (slot->each * local - slot->count) * width);
        send = hier->pack;
    }
    ls__operation inside = step_inside(op, send, slot->slice, slot->each);
    LS_TRY(ls__hier_run_local(hier, &inside));
    const bool parts = ls__hier_is_narrow(op->dtype);
    ls__operation between =
        step_between(hier, op, parts ? LS__REDUCE_SCATTER : LS__ALL_REDUCE, slot);
    between.count = parts ? slot->each / (size_t)hier->map.machines : slot->each;
    between.recv = slot->slice;
    if (parts) /* in place */
        between.recv = slot->slice + (size_t)hier->map.here * between.count * width;
    ls__hier_launch(hier, slot, &between);
    return LS_OK;
}

/* 16-bit types only. */
static ls_status gather_parts(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    const size_t part = slot->each / (size_t)hier->map.machines;
    const size_t first = (size_t)hier->map.here * part;
    ls__operation between = ls__hier_step(op, LS__ALL_GATHER);
    char *mine = slot->out + first * ls_dtype_size(op->dtype);
    narrow(mine, slot->slice + first * ls_dtype_size(wide(op->dtype)), part, op->dtype);
    between.send = mine;
    between.recv = slot->out;
    between.count = part;
    ls__hier_launch(hier, slot, &between);
    return LS_OK;
}

static ls_status finish_all_reduce(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    const size_t element = ls_dtype_size(op->dtype);
    char *recv = (char *)op->recv + slot->first * element;
    const bool whole = slot->count == slot->each * (size_t)hier->map.local;
    ls__operation inside = ls__hier_step(op, LS__ALL_GATHER);
    if (op->total)
        *op->total = slot->total;
    inside.send = ls__hier_is_narrow(op->dtype) ? slot->out : slot->slice;
    inside.recv = whole ? recv : hier->unpack;
    inside.count = slot->each;
    LS_TRY(ls__hier_run_local(hier, &inside));
    if (!whole && slot->count > 0)
        memcpy(recv, hier->unpack, slot->count * element);
    return LS_OK;
}

ls_status ls__hier_all_reduce(ls__hier *hier, ls__operation *op) {
    const size_t unit = unit_of(hier, op->dtype);
    const size_t slice = hier->slice_bytes / ls_dtype_size(wide(op->dtype)) / unit * unit;
    const ls__hier_plan plan = {.elements = op->count,
                                .per_chunk = slice * (size_t)hier->map.local,
                                .begin = begin_all_reduce,
                                .middle = ls__hier_is_narrow(op->dtype) ? gather_parts : NULL,
                                .finish = finish_all_reduce};
    LS_TRY(local_weight(hier, op, &hier->weight));
    return ls__hier_pipeline(hier, op, &plan);
}

/* --- reduce_scatter ------------------------------------------------------------------------------ */

/* Elements [first, first + count) of every rank's block, in the order (index, machine). */
static void pack_blocks(ls__hier *hier, const ls__operation *op, const ls__hier_slot *slot) {
    const size_t element = ls_dtype_size(op->dtype);
    char *to = hier->pack;
    for (int index = 0; index < hier->map.local; index++)
        for (int machine = 0; machine < hier->map.machines; machine++) {
            const size_t rank = (size_t)ls__hier_rank_of(hier, machine, index);
            const char *from = op->send;
            if (slot->count > 0)
                from += (rank * op->count + slot->first) * element;
            widen(to, from, slot->count, op->dtype);
            to += slot->count * ls_dtype_size(wide(op->dtype));
        }
}

static ls_status begin_reduce_scatter(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    pack_blocks(hier, op, slot);
    ls__operation inside =
        step_inside(op, hier->pack, slot->slice, slot->count * (size_t)hier->map.machines);
    LS_TRY(ls__hier_run_local(hier, &inside));
    ls__operation between = step_between(hier, op, LS__REDUCE_SCATTER, slot);
    between.recv = slot->out;
    between.count = slot->count;
    ls__hier_launch(hier, slot, &between);
    return LS_OK;
}

static ls_status finish_reduce_scatter(ls__hier *hier, ls__operation *op, ls__hier_slot *slot) {
    (void)hier;
    if (slot->count > 0)
        narrow((char *)op->recv + slot->first * ls_dtype_size(op->dtype), slot->out, slot->count,
               op->dtype);
    return LS_OK;
}

ls_status ls__hier_reduce_scatter(ls__hier *hier, ls__operation *op) {
    const size_t width = ls_dtype_size(wide(op->dtype));
    hier->weight = hier->map.local;
    const ls__hier_plan plan = {.elements = op->count,
                                .per_chunk = hier->slice_bytes / width / (size_t)hier->map.machines,
                                .begin = begin_reduce_scatter,
                                .finish = finish_reduce_scatter};
    return ls__hier_pipeline(hier, op, &plan);
}
