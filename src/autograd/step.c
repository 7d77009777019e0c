/* A step's life: what ls_step_begin forgets, and what it keeps for the next. */
#include "autograd/profile.h"
#include "autograd/tape.h"
#include "tensor/arena.h"

#include <stdlib.h>

ls_status ls_step_create(ls_step **step, const ls_step_options *options) {
    if (!step)
        return ls__fail(LS_ERR_ARGUMENT, "step: the place for the handle is NULL");
    *step = NULL;
    if (!options || !options->device)
        return ls__fail(LS_ERR_ARGUMENT, "step: no device given");
    ls_status status = LS_OK;
    ls_step *s = calloc(1, sizeof *s);
    if (!s)
        return ls__fail(LS_ERR_MEMORY, "step: no memory for its %zu bytes", sizeof *s);
    s->device = options->device;
    s->seed = options->seed;
    LS_TRY_OUT(ls__arena_create(&s->arena, options->device));
    LS_TRY_OUT(ls__arena_create(&s->records, NULL));
    LS_TRY_OUT(ls__tape_create(&s->tape));
    *step = s;
    return LS_OK;
out:
    ls_step_destroy(s);
    return status;
}

void ls_step_destroy(ls_step *step) {
    if (!step)
        return;
    ls__tape_destroy(step->tape);
    ls__arena_destroy(step->records);
    ls__arena_destroy(step->arena);
    free(step->samples);
    free(step);
}

/* Copies the sample numbers: the caller's array may be gone before backward asks for them again. */
static ls_status set_samples(ls_step *step, const uint64_t *samples, size_t count) {
    if (count > step->sample_capacity) {
        uint64_t *grown =
            count <= SIZE_MAX / 2 / sizeof *grown ? malloc(count * sizeof *grown) : NULL;
        if (!grown)
            return ls__fail(LS_ERR_MEMORY, "step: no memory for %zu sample numbers", count);
        free(step->samples);
        step->samples = grown;
        step->sample_capacity = count;
    }
    for (size_t i = 0; i < count; i++)
        step->samples[i] = samples ? samples[i] : i;
    step->sample_count = count;
    return LS_OK;
}

ls_status ls_step_begin(ls_step *step, const ls_step_mode *mode) {
    if (!step)
        return ls__fail(LS_ERR_ARGUMENT, "step_begin: step is NULL");
    ls_step_mode none = {0};
    if (!mode)
        mode = &none;
    step->status = LS_OK;
    step->error[0] = '\0';
    step->training = mode->training;
    step->recompute = mode->recompute;
    step->unrecorded = false;
    step->sample_count = 0;
    step->compute = mode->compute;
    ls__tape_reset(step->tape);
    ls_status status = ls__arena_reset(step->arena);
    if (status == LS_OK)
        status = ls__arena_reset(step->records);
    if (status == LS_OK)
        status = set_samples(step, mode->samples, mode->sample_count);
    const char *lacks = ls_device_lacks(step->device, mode->compute);
    if (status == LS_OK && lacks)
        status = ls__fail(LS_ERR_UNSUPPORTED, "step_begin: computing in %s needs %s",
                          ls_dtype_name(mode->compute), lacks);
    if (status != LS_OK)
        ls__step_fail(step, status);
    ls__profile_mark(step->profile);
    return status;
}

ls_status ls_step_status(const ls_step *step) {
    if (!step)
        return ls__fail(LS_ERR_ARGUMENT, "step_status: step is NULL");
    return step->status == LS_OK ? LS_OK : ls__fail(step->status, "%s", step->error);
}

size_t ls_step_peak_bytes(const ls_step *step) {
    return step ? ls__arena_peak(step->arena) + ls__arena_peak(step->records) : 0;
}
