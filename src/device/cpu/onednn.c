/* Engine, stream and plans. */
#include "device/cpu/onednn.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 64, ALIGNMENT = 64 };

struct ls__onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    ls__plan *slots[SLOTS];
    size_t plan_count;
};

static const char *dnnl_status_text(dnnl_status_t status) {
    switch (status) {
    case dnnl_success:
        return "success";
    case dnnl_out_of_memory:
        return "out of memory";
    case dnnl_invalid_arguments:
        return "invalid arguments";
    case dnnl_unimplemented:
        return "unimplemented";
    case dnnl_runtime_error:
        return "runtime error";
    default:
        return "unknown error";
    }
}

ls_status ls__onednn_check(dnnl_status_t status, const char *what) {
    if (status == dnnl_success)
        return LS_OK;
    ls_status code = LS_ERR_SYSTEM;
    if (status == dnnl_out_of_memory)
        code = LS_ERR_MEMORY;
    else if (status == dnnl_unimplemented)
        code = LS_ERR_UNSUPPORTED;
    else if (status == dnnl_invalid_arguments)
        code = LS_ERR_ARGUMENT;
    return ls__fail(code, "%s: oneDNN: %s (%d)", what, dnnl_status_text(status), (int)status);
}

ls_status ls__onednn_create(ls__onednn **out) {
    ls_status status;
    ls__onednn *onednn = calloc(1, sizeof *onednn);
    if (!onednn)
        return ls__fail(LS_ERR_MEMORY, "cpu: no memory for oneDNN's engine");
    LS_TRY_OUT(ls__onednn_check(dnnl_engine_create(&onednn->engine, dnnl_cpu, 0), "engine"));
    LS_TRY_OUT(ls__onednn_check(
        dnnl_stream_create(&onednn->stream, onednn->engine, dnnl_stream_default_flags), "stream"));
    *out = onednn;
    return LS_OK;
out:
    ls__onednn_destroy(onednn);
    return status;
}

void ls__plan_destroy(ls__plan *plan) {
    if (!plan)
        return;
    for (size_t i = 0; i < plan->argument_count; i++) {
        ls__plan_argument *argument = &plan->arguments[i];
        if (argument->reorder)
            dnnl_primitive_destroy(argument->reorder);
        if (argument->inner)
            dnnl_memory_destroy(argument->inner);
        if (argument->caller)
            dnnl_memory_destroy(argument->caller);
    }
    if (plan->scratchpad)
        dnnl_memory_destroy(plan->scratchpad);
    if (plan->primitive)
        dnnl_primitive_destroy(plan->primitive);
    free(plan);
}

static void forget_plans(ls__onednn *onednn) {
    for (size_t i = 0; i < SLOTS; i++) {
        while (onednn->slots[i]) {
            ls__plan *plan = onednn->slots[i];
            onednn->slots[i] = plan->next;
            ls__plan_destroy(plan);
        }
    }
    onednn->plan_count = 0;
}

void ls__onednn_destroy(ls__onednn *onednn) {
    if (!onednn)
        return;
    forget_plans(onednn);
    if (onednn->stream)
        dnnl_stream_destroy(onednn->stream);
    if (onednn->engine)
        dnnl_engine_destroy(onednn->engine);
    free(onednn);
}

int ls__onednn_enter(ls_device *device) {
    int before = omp_get_max_threads();
    if (before != device->threads)
        omp_set_num_threads(device->threads);
    return before;
}

void ls__onednn_leave(ls_device *device, int before) {
    if (before != device->threads)
        omp_set_num_threads(before);
}

static ls__onednn *onednn_of(ls_device *device) {
    return ((ls__cpu *)device)->onednn;
}

dnnl_engine_t ls__onednn_engine(ls_device *device) {
    return onednn_of(device)->engine;
}

/* --- the table of plans --- */

/* FNV-1a over the key's bytes */
static size_t slot_of(const ls__plan_key *key) {
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < sizeof *key; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3;
    return (size_t)(hash % SLOTS);
}

static ls__plan *plan_find(ls_device *device, const ls__plan_key *key) {
    ls__plan *plan = onednn_of(device)->slots[slot_of(key)];
    while (plan && memcmp(&plan->key, key, sizeof *key) != 0)
        plan = plan->next;
    return plan;
}

static void plan_keep(ls_device *device, ls__plan *plan) {
    ls__onednn *onednn = onednn_of(device);
    if (onednn->plan_count == LS__PLANS)
        forget_plans(onednn);
    ls__plan **slot = &onednn->slots[slot_of(&plan->key)];
    plan->next = *slot;
    *slot = plan;
    onednn->plan_count++;
}

ls_status ls__plan_new(ls__plan **plan, const ls__plan_key *key) {
    *plan = calloc(1, sizeof **plan);
    if (!*plan)
        return ls__fail(LS_ERR_MEMORY, "cpu: no memory for a plan of %zu bytes", sizeof **plan);
    memcpy(&(*plan)->key, key, sizeof *key);
    return LS_OK;
}

static ls_status find_or_build(ls_device *device, const ls__plan_key *key, ls__plan_build_fn build,
                               const void *context, ls__plan **plan) {
    *plan = plan_find(device, key);
    if (*plan)
        return LS_OK;
    LS_TRY(ls__plan_new(plan, key));
    ls_status status = build(device, *plan, context);
    if (status != LS_OK) {
        ls__plan_destroy(*plan);
        return status;
    }
    plan_keep(device, *plan);
    return LS_OK;
}

ls_status ls__plan_do(ls_device *device, const ls__plan_key *key, ls__plan_build_fn build,
                      const void *context, void *const *tensors, const char *what) {
    ls__plan *plan;
    int before = ls__onednn_enter(device);
    ls_status status = find_or_build(device, key, build, context, &plan);
    if (status == LS_OK)
        status = ls__plan_run(device, plan, tensors, what);
    ls__onednn_leave(device, before);
    return status;
}

size_t ls__plan_count(ls_device *device) {
    return onednn_of(device)->plan_count;
}

/* --- one plan --- */

/* Takes room in the device's scratch memory, which the plan gets when it runs. */
static size_t plan_take(ls__plan *plan, size_t bytes) {
    size_t offset = plan->scratch_bytes;
    plan->scratch_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return offset;
}

static ls_status new_memory(ls_device *device, ls__dnnl_layout_ref layout, dnnl_memory_t *memory) {
    return ls__onednn_check(
        dnnl_memory_create(memory, layout, ls__onednn_engine(device), DNNL_MEMORY_NONE), "memory");
}

ls_status ls__plan_attributes(dnnl_primitive_attr_t *attributes) {
    dnnl_status_t result = dnnl_primitive_attr_create(attributes);
    if (result == dnnl_success)
        result = dnnl_primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user);
    return ls__onednn_check(result, "attributes");
}

ls_status ls__plan_set_primitive(ls_device *device, ls__plan *plan,
                                 const_dnnl_primitive_desc_t description) {
    LS_TRY(ls__onednn_check(dnnl_primitive_create(&plan->primitive, description), "primitive"));
    ls__dnnl_layout_ref layout =
        dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    size_t bytes = layout ? dnnl_memory_desc_get_size(layout) : 0;
    if (bytes == 0)
        return LS_OK;
    plan->scratchpad_offset = plan_take(plan, bytes);
    return new_memory(device, layout, &plan->scratchpad);
}

static ls_status new_reorder(ls_device *device, ls__dnnl_layout_ref from, ls__dnnl_layout_ref to,
                             bool add, dnnl_primitive_t *reorder) {
    dnnl_engine_t engine = ls__onednn_engine(device);
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t after = NULL;
    dnnl_primitive_desc_t description = NULL;
    dnnl_status_t result = dnnl_primitive_attr_create(&attributes);
    if (result == dnnl_success && add) {
        result = dnnl_post_ops_create(&after);
        if (result == dnnl_success)
            result = ls__dnnl_append_sum(after);
        if (result == dnnl_success)
            result = dnnl_primitive_attr_set_post_ops(attributes, after);
    }
    if (result == dnnl_success)
        result =
            dnnl_reorder_primitive_desc_create(&description, from, engine, to, engine, attributes);
    if (result == dnnl_success)
        result = dnnl_primitive_create(reorder, description);
    if (description)
        dnnl_primitive_desc_destroy(description);
    if (after)
        dnnl_post_ops_destroy(after);
    if (attributes)
        dnnl_primitive_attr_destroy(attributes);
    return ls__onednn_check(result, "reorder");
}

ls_status ls__plan_add(ls_device *device, ls__plan *plan, int index, ls__plan_flow flow,
                       ls__dnnl_layout_ref caller, ls__dnnl_layout_ref inner) {
    ls__plan_argument *argument = &plan->arguments[plan->argument_count++];
    argument->index = index;
    argument->flow = flow;
    LS_TRY(new_memory(device, caller, &argument->caller));
    if (flow != LS__PLAN_ADD && dnnl_memory_desc_equal(caller, inner))
        return LS_OK;
    argument->scratch_offset = plan_take(plan, dnnl_memory_desc_get_size(inner));
    LS_TRY(new_memory(device, inner, &argument->inner));
    if (flow == LS__PLAN_READ)
        return new_reorder(device, caller, inner, false, &argument->reorder);
    return new_reorder(device, inner, caller, flow == LS__PLAN_ADD, &argument->reorder);
}

static dnnl_status_t run_reorder(dnnl_stream_t stream, dnnl_primitive_t reorder, dnnl_memory_t from,
                                 dnnl_memory_t to) {
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    return dnnl_primitive_execute(reorder, stream, 2, arguments);
}

/* Reorders what is read, runs the primitive, reorders what was written. */
static dnnl_status_t plan_execute(dnnl_stream_t stream, ls__plan *plan) {
    dnnl_exec_arg_t arguments[LS__PLAN_ARGUMENTS + 1];
    int count = 0;
    dnnl_status_t result = dnnl_success;
    for (size_t i = 0; i < plan->argument_count && result == dnnl_success; i++) {
        const ls__plan_argument *argument = &plan->arguments[i];
        if (argument->reorder && argument->flow == LS__PLAN_READ)
            result = run_reorder(stream, argument->reorder, argument->caller, argument->inner);
        arguments[count++] = (dnnl_exec_arg_t){argument->index, argument->inner ? argument->inner
                                                                                : argument->caller};
    }
    if (plan->scratchpad)
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, plan->scratchpad};
    if (result == dnnl_success)
        result = dnnl_primitive_execute(plan->primitive, stream, count, arguments);
    for (size_t i = 0; i < plan->argument_count && result == dnnl_success; i++) {
        const ls__plan_argument *argument = &plan->arguments[i];
        if (argument->reorder && argument->flow != LS__PLAN_READ)
            result = run_reorder(stream, argument->reorder, argument->inner, argument->caller);
    }
    return result == dnnl_success ? dnnl_stream_wait(stream) : result;
}

dnnl_status_t ls__plan_execute(dnnl_stream_t stream, ls__plan *plan, void *const *tensors,
                               char *scratch) {
    dnnl_status_t result = dnnl_success;
    for (size_t i = 0; i < plan->argument_count && result == dnnl_success; i++) {
        ls__plan_argument *argument = &plan->arguments[i];
        result = dnnl_memory_set_data_handle(argument->caller, tensors[i]);
        if (result == dnnl_success && argument->inner)
            result =
                dnnl_memory_set_data_handle(argument->inner, scratch + argument->scratch_offset);
    }
    if (result == dnnl_success && plan->scratchpad)
        result = dnnl_memory_set_data_handle(plan->scratchpad, scratch + plan->scratchpad_offset);
    return result == dnnl_success ? plan_execute(stream, plan) : result;
}

ls_status ls__plan_run(ls_device *device, ls__plan *plan, void *const *tensors, const char *what) {
    void *scratch;
    LS_TRY(ls__cpu_scratch(device, plan->scratch_bytes, &scratch));
    return ls__onednn_check(ls__plan_execute(onednn_of(device)->stream, plan, tensors, scratch),
                            what);
}
