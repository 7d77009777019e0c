/* What the tests of models and optimizers share: a device, reference files, comparing. */
#ifndef LS_TESTS_NN_SUPPORT_H
#define LS_TESTS_NN_SUPPORT_H

#include "data_files.h"
#include "nn/model.h"
#include <lockstep/checkpoint.h>
#include <lockstep/optimizer.h>
#include <math.h>

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK)                                                                       \
            fail_msg("%s: %s", #call, ls_error_text());                                            \
    } while (0)

static inline ls_device *new_device(void) {
    ls_device *device;
    assert_ok(ls_device_cpu(&device, 1));
    return device;
}

static inline ls_model *new_model(ls_device *device, const char *spec, uint64_t seed) {
    ls_model *model;
    const ls_model_options options = {.device = device, .seed = seed};
    assert_ok(ls_model_create(&model, spec, &options));
    return model;
}

static inline ls_parameter *find_parameter(ls_model *model, const char *name) {
    for (size_t i = 0; i < ls_model_parameter_count(model); i++)
        if (strcmp(ls_parameter_name(ls_model_parameter(model, i)), name) == 0)
            return ls_model_parameter(model, i);
    fail_msg("model %s has no parameter %s", ls_model_spec(model), name);
    return NULL;
}

static inline float *values_of(ls_parameter *parameter) {
    return ls_tensor_data(ls_parameter_value(parameter));
}

/* A file of tests/data, written by scripts/reference. */
static inline ls_safetensors *open_reference(const char *name) {
    char path[1024];
    ls_safetensors *file;
    const char *source = getenv("LOCKSTEP_TEST_SOURCE");
    snprintf(path, sizeof path, "%s/tests/data/%s", source ? source : ".", name);
    assert_ok(ls_safetensors_open(&file, path));
    return file;
}

static inline const ls_safetensors_entry *entry_of(const ls_safetensors *file, const char *name) {
    const ls_safetensors_entry *entry = ls_safetensors_find(file, name);
    if (!entry)
        fail_msg("reference has no %s", name);
    return entry;
}

static inline size_t entry_count(const ls_safetensors_entry *entry) {
    return entry->bytes / (strcmp(entry->dtype, "F64") == 0 ? 8 : 4);
}

/* Element i of an F32 or F64 entry, wherever it lies. */
static inline double entry_at(const ls_safetensors_entry *entry, size_t i) {
    float f;
    double d;
    if (strcmp(entry->dtype, "F64") == 0) {
        memcpy(&d, (const char *)entry->data + 8 * i, 8);
        return d;
    }
    memcpy(&f, (const char *)entry->data + 4 * i, 4);
    return (double)f;
}

/* Every stride-th of `values` against the entry; the largest difference may be `tolerance`. */
static inline void assert_close(const char *name, const float *values, size_t stride,
                                const ls_safetensors_entry *entry, double tolerance) {
    double worst = 0;
    size_t at = 0;
    for (size_t i = 0; i < entry_count(entry); i++) {
        double difference = fabs((double)values[i * stride] - entry_at(entry, i));
        if (!(difference <= worst)) {
            worst = difference;
            at = i;
        }
    }
    if (!(worst <= tolerance))
        fail_msg("%s: element %zu is %.9g, want %.9g: off by %.3g, allowed %.3g", name, at * stride,
                 (double)values[at * stride], entry_at(entry, at), worst, tolerance);
}

/* All entries "<prefix>/NAME" or "<prefix>/NAME/STRIDE" against the model's values. */
static inline void assert_parameters(ls_model *model, const ls_safetensors *file,
                                     const char *prefix, double tolerance) {
    size_t compared = 0;
    for (size_t i = 0; i < ls_safetensors_count(file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_get(file, i);
        size_t n = strlen(prefix), stride = 1;
        char name[128];
        if (strncmp(entry->name, prefix, n) != 0 || entry->name[n] != '/')
            continue;
        snprintf(name, sizeof name, "%s", entry->name + n + 1);
        char *slash = strchr(name, '/');
        if (slash) {
            *slash = '\0';
            stride = strtoul(slash + 1, NULL, 10);
        }
        assert_close(name, values_of(find_parameter(model, name)), stride, entry, tolerance);
        compared++;
    }
    assert_int_equal(compared, ls_model_parameter_count(model));
}

#endif
