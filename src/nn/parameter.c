#include "nn/parameter.h"

#include "autograd/prepared.h"

#include <lockstep/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements computed on the host at a time, then copied to the device. */
enum { CHUNK = 4096 };

static ls_status initialise(ls_parameter *parameter, uint64_t seed, ls__init init) {
    char purpose[512];
    if (parameter->device->dry)
        return LS_OK;
    snprintf(purpose, sizeof purpose, "init/%s", parameter->name);
    uint64_t stream = ls_random_stream(purpose);
    float values[CHUNK];
    for (size_t done = 0; done < parameter->value.count; done += CHUNK) {
        size_t count = parameter->value.count - done;
        if (count > CHUNK)
            count = CHUNK;
        for (size_t i = 0; i < count; i += 4) {
            float four[4] = {0};
            if (init.kind == LS__UNIFORM)
                ls_random_uniform4(seed, stream, (done + i) / 4, four);
            else if (init.kind == LS__NORMAL)
                ls_random_normal4(seed, stream, (done + i) / 4, four);
            for (size_t j = 0; j < 4; j++) {
                double x = init.kind == LS__CONSTANT  ? 1
                           : init.kind == LS__UNIFORM ? 2 * (double)four[j] - 1
                                                      : (double)four[j];
                values[i + j] = (float)(x * init.scale);
            }
        }
        LS_TRY(parameter->device->table->copy(parameter->device,
                                              (float *)parameter->value.data + done, values,
                                              count * sizeof(float)));
    }
    return LS_OK;
}

/* Product of the extents in *count, with room for that many floats in a size_t. */
static ls_status count_elements(const char *name, const size_t *shape, size_t dims, size_t *count) {
    size_t bytes = sizeof(float);
    if (dims > LS_MAX_DIMS)
        return ls__fail(LS_ERR_ARGUMENT, "parameter %s: %zu dimensions, want at most %d", name,
                        dims, LS_MAX_DIMS);
    for (size_t i = 0; i < dims; i++)
        if (shape[i] == 0 || __builtin_mul_overflow(bytes, shape[i], &bytes))
            return ls__fail(LS_ERR_RANGE, "parameter %s: extent %zu of dimension %zu is too %s",
                            name, shape[i], i, shape[i] == 0 ? "small" : "large");
    *count = bytes / sizeof(float);
    return LS_OK;
}

ls_status ls__parameter_own_gradient(ls_parameter *parameter) {
    ls_device *device = parameter->device;
    if (parameter->owns_gradient || parameter->role == LS_FROZEN)
        return LS_OK;
    size_t bytes = parameter->value.count * sizeof(float);
    void *memory = NULL;
    LS_TRY(device->table->alloc(device, bytes, &memory));
    ls_status status = device->table->zero(device, memory, bytes);
    if (status != LS_OK) {
        device->table->free(device, memory);
        return status;
    }
    parameter->gradient = memory;
    parameter->gradient_writes++;
    parameter->gradient_factor = 1;
    parameter->owns_gradient = true;
    parameter->managed = parameter->reduced = parameter->present = false;
    parameter->squares_known = false;
    return LS_OK;
}

void ls__parameter_set_gradient(ls_parameter *parameter, float *storage) {
    if (parameter->owns_gradient)
        parameter->device->table->free(parameter->device, parameter->gradient);
    parameter->owns_gradient = false;
    parameter->gradient = storage;
    parameter->gradient_writes++;
    parameter->gradient_factor = 1;
    parameter->managed = true;
    parameter->reduced = parameter->present = parameter->squares_known = false;
}

ls_status ls__parameter_create(ls_parameter **parameter, ls_device *device, const char *name,
                               ls_role role, const size_t *shape, size_t dims, uint64_t seed,
                               ls__init init) {
    size_t count = 0;
    ls_status status = LS_OK;
    LS_TRY(count_elements(name, shape, dims, &count));
    ls_parameter *p = calloc(1, sizeof *p);
    if (!p || !(p->name = strdup(name))) {
        free(p);
        return ls__fail(LS_ERR_MEMORY, "parameter %s: out of memory", name);
    }
    p->device = device;
    p->role = role;
    p->decay = dims >= 2;
    p->gradient_factor = 1;
    p->version = 1;
    p->value = (ls_tensor){
        .dtype = LS_F32,
        .dims = dims,
        .count = count,
        .need_grad = role == LS_WEIGHT,
        .parameter = p,
        .exposed = &p->exposed,
    };
    memcpy(p->value.shape, shape, dims * sizeof *shape);
    LS_TRY_OUT(device->table->alloc(device, count * sizeof(float), &p->value.data));
    LS_TRY_OUT(initialise(p, seed, init));
    LS_TRY_OUT(ls__parameter_own_gradient(p));
    *parameter = p;
    return LS_OK;
out:
    ls__parameter_destroy(p);
    return ls__fail_context(status, "parameter %s", name);
}

void ls__parameter_destroy(ls_parameter *parameter) {
    if (!parameter)
        return;
    const ls__device_table *table = parameter->device->table;
    if (parameter->owns_gradient)
        table->free(parameter->device, parameter->gradient);
    ls__prepared_free(parameter);
    if (parameter->value.data)
        table->free(parameter->device, parameter->value.data);
    free(parameter->name);
    free(parameter);
}

const char *ls_parameter_name(const ls_parameter *parameter) {
    return parameter ? parameter->name : NULL;
}

ls_role ls_parameter_role(const ls_parameter *parameter) {
    return parameter ? parameter->role : LS_WEIGHT;
}

ls_tensor *ls_parameter_value(ls_parameter *parameter) {
    return parameter ? &parameter->value : NULL;
}

float *ls_parameter_gradient(ls_parameter *parameter) {
    if (!parameter || ls__parameter_settle_gradient(parameter) != LS_OK)
        return NULL;
    parameter->gradient_exposed = true;
    return parameter->gradient;
}
