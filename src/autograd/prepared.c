/* Whoever writes to a parameter's value says so with ls__parameter_changed, which counts its version up; what
 * was packed from another version is packed again when it is asked for. A caller who got the value's
 * address through ls_tensor_data may write there at any time without a word, so from then on that
 * parameter is packed again at every call: never stale, and in a step of one shard no more work. */
#include "autograd/prepared.h"

#include <stdlib.h>

struct ls__prepared {
    ls__prepared *next;
    ls__preparation what;
    uint64_t version; /* of the value that was packed; 0: none yet */
    void *data;
};

void ls__parameter_changed(ls_parameter *parameter) {
    parameter->version++;
}

ls__packing ls__prepared_packing(const ls_tensor *weight, const ls__preparation *p, size_t first) {
    size_t rows = weight->shape[0] - first, columns = weight->shape[1];
    if (p->block && p->block < rows)
        rows = p->block;
    return (ls__packing){.dtype = p->dtype,
                         .k = p->transposed ? columns : rows,
                         .n = p->transposed ? rows : columns,
                         .transposed = p->transposed};
}

const void *ls__prepared_block(ls_step *step, const void *prepared, const ls_tensor *weight,
                               const ls__preparation *p, size_t first) {
    const ls__packing whole = ls__prepared_packing(weight, p, 0);
    size_t bytes = step->device->table->packed_bytes(step->device, &whole);
    return (const char *)prepared + (first ? first / p->block * bytes : 0);
}

static size_t total_bytes(ls_device *device, const ls_tensor *weight, const ls__preparation *p) {
    size_t rows = weight->shape[0], step = p->block ? p->block : rows, bytes = 0;
    for (size_t first = 0; first < rows; first += step) {
        const ls__packing packing = ls__prepared_packing(weight, p, first);
        bytes += device->table->packed_bytes(device, &packing);
    }
    return bytes;
}

static ls_status pack(ls_step *step, const ls_tensor *weight, const ls__preparation *p, void *to) {
    size_t rows = weight->shape[0], block = p->block ? p->block : rows;
    for (size_t first = 0; first < rows; first += block) {
        const ls__packing packing = ls__prepared_packing(weight, p, first);
        LS_TRY(step->device->table->pack(step->device, &packing,
                                         (const float *)weight->data + first * weight->shape[1],
                                         (void *)ls__prepared_block(step, to, weight, p, first)));
    }
    return LS_OK;
}

static ls_status find_or_add(ls_parameter *parameter, const ls__preparation *p,
                             ls__prepared **found) {
    ls_device *device = parameter->device;
    for (ls__prepared *e = parameter->prepared; e; e = e->next)
        if (e->what.dtype == p->dtype && e->what.transposed == p->transposed &&
            e->what.block == p->block) {
            *found = e;
            return LS_OK;
        }
    ls__prepared *e = calloc(1, sizeof *e);
    if (!e)
        return ls__fail(LS_ERR_MEMORY, "parameter %s: out of memory", parameter->name);
    ls_status status =
        device->table->alloc(device, total_bytes(device, &parameter->value, p), &e->data);
    if (status != LS_OK) {
        free(e);
        return ls__fail_context(status, "parameter %s, packed", parameter->name);
    }
    e->what = *p;
    e->next = parameter->prepared;
    parameter->prepared = *found = e;
    return LS_OK;
}

static ls_status get_kept(ls_step *step, ls_tensor *weight, const ls__preparation *p,
                          const void **data) {
    ls_parameter *parameter = weight->parameter;
    ls__prepared *e = NULL;
    LS_TRY(find_or_add(parameter, p, &e));
    *data = e->data;
    if (e->version == parameter->version && !parameter->exposed)
        return LS_OK;
    e->version = 0;
    LS_TRY(pack(step, weight, p, e->data));
    e->version = parameter->version;
    return LS_OK;
}

const void *ls__prepared_get(ls_step *step, ls_tensor *weight, const ls__preparation *p) {
    const void *data = NULL;
    ls_status status;
    if (weight->parameter) {
        status = get_kept(step, weight, p, &data);
    } else {
        void *memory = ls__step_alloc(step, total_bytes(step->device, weight, p));
        if (!memory)
            return NULL;
        status = pack(step, weight, p, memory);
        data = memory;
    }
    return status == LS_OK ? data : ls__step_fail(step, status);
}

void ls__prepared_free(ls_parameter *parameter) {
    while (parameter->prepared) {
        ls__prepared *e = parameter->prepared;
        parameter->prepared = e->next;
        parameter->device->table->free(parameter->device, e->data);
        free(e);
    }
}
