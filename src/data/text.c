/* Text at byte level: a token is a byte, the vocabulary the bytes that occur. The first nine tenths
 * train, the rest validates. */
#include "base/error.h"
#include "base/file.h"
#include "data/dataset.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct text {
    unsigned char *tokens; /* ids: train_size, then validation_size of them */
    size_t train_size, validation_size;
} text;

static void text_close(ls_dataset *dataset) {
    text *t = dataset->state;
    free(t->tokens);
    free(t);
}

/* Replaces bytes by ids: their ranks among the bytes that occur. */
static void number_bytes(ls_dataset *dataset, unsigned char *bytes, size_t size) {
    bool occurs[256] = {false};
    unsigned char id[256] = {0};
    for (size_t i = 0; i < size; i++)
        occurs[bytes[i]] = true;
    for (int byte = 0; byte < 256; byte++)
        if (occurs[byte]) {
            id[byte] = (unsigned char)dataset->classes;
            dataset->vocabulary[dataset->classes++] = (unsigned char)byte;
        }
    for (size_t i = 0; i < size; i++)
        bytes[i] = id[bytes[i]];
}

/* Windows of T + 1 tokens at every start. */
static void read_train(const text *t, size_t context, uint64_t sample, int32_t *input,
                       int32_t *target) {
    const unsigned char *window = t->tokens + sample;
    for (size_t i = 0; i < context; i++) {
        input[i] = window[i];
        target[i] = window[i + 1];
    }
}

/* Windows side by side; each of the validation_size - 1 targets stands in exactly one of them.
 * Returns how many this one has. */
static size_t read_validation(const text *t, size_t context, uint64_t sample, int32_t *input,
                              int32_t *target) {
    size_t start = (size_t)sample * context;
    const unsigned char *window = t->tokens + t->train_size + start;
    size_t left = t->validation_size - 1 - start;
    size_t n = left < context ? left : context;
    for (size_t i = 0; i < n; i++) {
        input[i] = window[i];
        target[i] = window[i + 1];
    }
    for (size_t i = n; i < context; i++) {
        input[i] = 0;
        target[i] = -1;
    }
    return n;
}

static ls_status text_read(const ls_dataset *dataset, ls_split split, const uint64_t *samples,
                           size_t count, void *input, int32_t *target, double *weight) {
    const text *t = dataset->state;
    size_t context = dataset->shape[0];
    for (size_t i = 0; i < count; i++) {
        int32_t *in = (int32_t *)input + i * context, *out = target + i * context;
        if (split == LS_TRAIN) {
            read_train(t, context, samples[i], in, out);
            *weight += (double)context;
        } else {
            *weight += (double)read_validation(t, context, samples[i], in, out);
        }
    }
    return LS_OK;
}

static const ls__dataset_kind text_kind = {text_read, text_close};

static ls_status check_size(const char *path, size_t size, const text *t, size_t context) {
    if (size == 0)
        return ls__fail(LS_ERR_FORMAT, "%s: is empty, want a text", path);
    if (t->train_size < 2 || t->train_size - 2 < context)
        return ls__fail(LS_ERR_RANGE,
                        "%s: too short: its %zu bytes leave %zu to train on, want at least %zu "
                        "for a context of %zu; take a longer text or a smaller context",
                        path, size, t->train_size, context + 2, context);
    if (t->validation_size < 2)
        return ls__fail(LS_ERR_RANGE,
                        "%s: too short: its %zu bytes leave %zu to validate on, want at least 2; "
                        "take a longer text",
                        path, size, t->validation_size);
    return LS_OK;
}

ls_status ls__text_open(ls_dataset *dataset, const char *path, size_t context) {
    if (context == 0 || context > SIZE_MAX / 8)
        return ls__fail(LS_ERR_ARGUMENT, "%s: the context is %zu tokens, want at least 1", path,
                        context);
    text *t = calloc(1, sizeof *t);
    if (!t)
        return ls__fail(LS_ERR_MEMORY, "%s: no memory for a data set", path);
    dataset->functions = &text_kind;
    dataset->state = t;
    dataset->kind = LS_TOKENS;
    dataset->dims = 1;
    dataset->shape[0] = context;
    size_t size;
    LS_TRY(ls__file_read(path, &t->tokens, &size));
    t->train_size = size / 10 * 9 + size % 10 * 9 / 10; /* floor(size * 9 / 10) */
    t->validation_size = size - t->train_size;
    LS_TRY(check_size(path, size, t, context));
    dataset->fingerprint = XXH64(t->tokens, size, 0);
    number_bytes(dataset, t->tokens, size);
    dataset->count[LS_TRAIN] = t->train_size - context;
    dataset->count[LS_VALIDATION] = (t->validation_size - 2) / context + 1;
    return LS_OK;
}
