#include "data/dataset.h"

#include "base/error.h"
#include <stdlib.h>
#include <string.h>

/* The rest of `spec` behind `prefix`, or NULL. */
static const char *behind(const char *spec, const char *prefix) {
    size_t n = strlen(prefix);
    return strncmp(spec, prefix, n) == 0 ? spec + n : NULL;
}

static ls_status open_spec(ls_dataset *dataset, const char *spec, size_t context) {
    const char *rest;
    if (strcmp(spec, "fashion-mnist") == 0)
        return ls__images_open(dataset, LS__FASHION_MNIST,
                               "; `apt-get install dataset-fashion-mnist` brings them");
    if ((rest = behind(spec, "idx:")) || (rest = behind(spec, "mnist:"))) {
        if (*rest)
            return ls__images_open(dataset, rest, "");
        return ls__fail(LS_ERR_ARGUMENT, "data \"%s\": no folder behind the colon", spec);
    }
    if ((rest = behind(spec, "text:"))) {
        if (*rest)
            return ls__text_open(dataset, rest, context);
        return ls__fail(LS_ERR_ARGUMENT, "data \"%s\": no file behind the colon", spec);
    }
    return ls__fail(LS_ERR_ARGUMENT,
                    "data \"%s\": unknown; known are fashion-mnist, idx:DIR, mnist:DIR, text:FILE",
                    spec);
}

ls_status ls_dataset_open(ls_dataset **dataset, const char *spec, size_t context) {
    if (!dataset)
        return ls__fail(LS_ERR_ARGUMENT, "ls_dataset_open: dataset is NULL");
    *dataset = NULL;
    if (!spec)
        return ls__fail(LS_ERR_ARGUMENT, "ls_dataset_open: spec is NULL");
    ls_dataset *d = calloc(1, sizeof *d);
    if (!d)
        return ls__fail(LS_ERR_MEMORY, "data \"%s\": no memory", spec);
    ls_status status = open_spec(d, spec, context);
    if (status != LS_OK) {
        ls_dataset_close(d);
        return status;
    }
    *dataset = d;
    return LS_OK;
}

void ls_dataset_close(ls_dataset *dataset) {
    if (!dataset)
        return;
    if (dataset->functions)
        dataset->functions->close(dataset);
    free(dataset);
}

ls_dataset_kind ls_dataset_get_kind(const ls_dataset *dataset) {
    return dataset ? dataset->kind : (ls_dataset_kind)0;
}

size_t ls_dataset_count(const ls_dataset *dataset, ls_split split) {
    return dataset ? dataset->count[split == LS_VALIDATION] : 0;
}

size_t ls_dataset_classes(const ls_dataset *dataset) {
    return dataset ? dataset->classes : 0;
}

size_t ls_dataset_sample_shape(const ls_dataset *dataset, size_t shape[3]) {
    if (!dataset)
        return 0;
    for (size_t i = 0; shape && i < dataset->dims; i++)
        shape[i] = dataset->shape[i];
    return dataset->dims;
}

uint64_t ls__dataset_fingerprint(const ls_dataset *dataset) {
    return dataset->fingerprint;
}

const unsigned char *ls_dataset_vocabulary(const ls_dataset *dataset) {
    return dataset ? dataset->kind == LS_TOKENS ? dataset->vocabulary : NULL : NULL;
}

size_t ls__dataset_input_size(const ls_dataset *dataset) {
    size_t size = 1;
    for (size_t i = 0; i < dataset->dims; i++)
        size *= dataset->shape[i];
    return size;
}

size_t ls__dataset_target_size(const ls_dataset *dataset) {
    return dataset->kind == LS_TOKENS ? dataset->shape[0] : 1;
}

ls_status ls_dataset_read(const ls_dataset *dataset, ls_split split, const uint64_t *samples,
                          size_t count, void *input, int32_t *target, double *weight) {
    if (!dataset || (count > 0 && (!samples || !input || !target)))
        return ls__fail(LS_ERR_ARGUMENT, "ls_dataset_read: dataset, samples, input or target is "
                                         "NULL");
    if (split != LS_TRAIN && split != LS_VALIDATION)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_dataset_read: split is %d, want LS_TRAIN or "
                        "LS_VALIDATION",
                        (int)split);
    for (size_t i = 0; i < count; i++)
        if (samples[i] >= dataset->count[split])
            return ls__fail(LS_ERR_ARGUMENT, "ls_dataset_read: sample %llu, want less than %zu",
                            (unsigned long long)samples[i], dataset->count[split]);
    double sum = 0;
    LS_TRY(dataset->functions->read(dataset, split, samples, count, input, target, &sum));
    if (weight)
        *weight = sum;
    return LS_OK;
}
