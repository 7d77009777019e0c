/* lockstep checkpoint diff: where do two differ, and by how much? */
#include "base/error.h"
#include "base/half.h"
#include "base/printable.h"
#include "checkpoint/safetensors.h"
#include "cli/checkpoint.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct diff_settings {
    int format; /* 0 text, 1 json */
} diff_settings;

static const char *const examples[] = {
    "lockstep checkpoint diff runs/a/model.safetensors runs/b/model.safetensors",
    "lockstep checkpoint diff runs/a/checkpoints/step-00000100 runs/b/checkpoints",
    NULL,
};

static const ls__option options[] = {
    LS__OPTION_ROW_FORMAT(diff_settings, "one object for each tensor that differs, one in all"),
};

static const ls__command command = {
    .name = "checkpoint diff",
    .usage = "lockstep checkpoint diff PATH PATH [--format text|json]",
    .summary = "Compares two checkpoints or safetensors files tensor by tensor, by name: which "
               "are missing, which differ in type or shape, and of the others how many elements "
               "differ and the largest difference. Exit code 0: equal to the bit, 1: not.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .examples = examples,
    .stop_at_positional = true,
};

/* How one tensor differs. */
typedef struct difference {
    const char *name, *what; /* what: NULL where type and shape agree */
    size_t elements, first;  /* elements that differ in a bit; index of the first */
    double largest;          /* NaN: one of them is no number, or numbers are not known */
} difference;

/* Element i as a number; NaN of types that are not known here. */
static double element(const ls_safetensors_entry *e, size_t i, size_t size) {
    const char *at = (const char *)e->data + i * size;
    if (strcmp(e->dtype, "F32") == 0) {
        float value;
        memcpy(&value, at, sizeof value);
        return (double)value;
    }
    if (strcmp(e->dtype, "F64") == 0) {
        double value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (strcmp(e->dtype, "F16") == 0 || strcmp(e->dtype, "BF16") == 0) {
        uint16_t half;
        float value;
        memcpy(&half, at, sizeof half);
        if (e->dtype[0] == 'B')
            ls__bf16_to_f32(&value, &half, 1);
        else
            ls__f16_to_f32(&value, &half, 1);
        return (double)value;
    }
    if (strcmp(e->dtype, "I64") == 0 || strcmp(e->dtype, "I32") == 0) {
        int64_t wide = 0;
        int32_t narrow = 0;
        memcpy(size == 8 ? (void *)&wide : (void *)&narrow, at, size);
        return size == 8 ? (double)wide : (double)narrow;
    }
    return NAN;
}

/* False: equal to the bit. */
static bool compare(const ls_safetensors_entry *a, const ls_safetensors_entry *b, difference *d) {
    *d = (difference){.name = a->name};
    if (!ls__safetensors_same_form(a, b)) {
        d->what = "another type or shape";
        return true;
    }
    if (a->bytes == 0 || memcmp(a->data, b->data, a->bytes) == 0)
        return false;
    size_t count = 1;
    for (size_t i = 0; i < a->dims; i++)
        count *= a->shape[i];
    size_t size = a->bytes / count > 0 ? a->bytes / count : 1;
    for (size_t i = 0; (i + 1) * size <= a->bytes; i++) {
        if (memcmp((const char *)a->data + i * size, (const char *)b->data + i * size, size) == 0)
            continue;
        if (d->elements++ == 0)
            d->first = i;
        double by = fabs(element(a, i, size) - element(b, i, size));
        if (isnan(by) || by > d->largest)
            d->largest = by; /* a NaN stays: nothing is larger */
    }
    return true;
}

static ls_status print(const difference *d, bool json) {
    if (json && d->what)
        return ls__json_write_line(stdout, "stdout",
                                   json_pack("{s:s, s:s}", "name", d->name, "difference", d->what));
    if (json)
        return ls__json_write_line(stdout, "stdout",
                                   json_pack("{s:s, s:s, s:I, s:I, s:o}", "name", d->name,
                                             "difference", "values", "elements",
                                             (json_int_t)d->elements, "first", (json_int_t)d->first,
                                             "largest", ls__json_real(d->largest)));
    char name[LS__CHECKPOINT_NAME];
    ls__printable(name, sizeof name, d->name);
    if (d->what)
        printf("%s: %s\n", name, d->what);
    else
        printf("%s: %zu element%s differ, the first at %zu, by at most %.9g\n", name, d->elements,
               d->elements == 1 ? "" : "s", d->first, d->largest);
    return LS_OK;
}

/* Every tensor of `a` against its namesake in `b`; of `b` only those that `a` lacks. */
static ls_status compare_all(const ls__checkpoint_files *a, const ls__checkpoint_files *b,
                             bool json, size_t *equal, size_t *different) {
    for (size_t f = 0; f < a->count; f++)
        for (size_t i = 0; i < ls_safetensors_count(a->files[f]); i++) {
            const ls_safetensors_entry *mine = ls_safetensors_get(a->files[f], i);
            const ls_safetensors_entry *other = ls__checkpoint_files_find(b, mine->name);
            difference d = {.name = mine->name, .what = "only in the first"};
            if (other && !compare(mine, other, &d)) {
                ++*equal;
                continue;
            }
            ++*different;
            LS_TRY(print(&d, json));
        }
    for (size_t f = 0; f < b->count; f++)
        for (size_t i = 0; i < ls_safetensors_count(b->files[f]); i++) {
            const char *name = ls_safetensors_get(b->files[f], i)->name;
            const difference d = {.name = name, .what = "only in the second"};
            if (ls__checkpoint_files_find(a, name))
                continue;
            ++*different;
            LS_TRY(print(&d, json));
        }
    return LS_OK;
}

int ls__checkpoint_diff_command(int argc, char **argv) {
    diff_settings settings = {0};
    ls__checkpoint_files a = {0}, b = {0};
    size_t equal = 0, different = 0;
    char **paths;
    int count, code;
    if (!ls__checkpoint_arguments(&command, argc, argv, &settings, 2, 2, &paths, &count, &code))
        return code;
    bool json = settings.format == 1;
    ls_status status = ls__checkpoint_files_open(&a, paths[0]);
    if (status == LS_OK)
        status = ls__checkpoint_files_open(&b, paths[1]);
    if (status == LS_OK)
        status = compare_all(&a, &b, json, &equal, &different);
    if (status == LS_OK && json)
        status = ls__json_write_line(stdout, "stdout",
                                     json_pack("{s:I, s:I}", "equal", (json_int_t)equal,
                                               "different", (json_int_t)different));
    else if (status == LS_OK)
        printf("%zu tensors are equal, %zu differ\n", equal, different);
    ls__checkpoint_files_close(&a);
    ls__checkpoint_files_close(&b);
    free(paths);
    if (status != LS_OK)
        return ls__cli_report("lockstep checkpoint diff", status);
    return different ? LS__EXIT_FAILURE : LS__EXIT_OK;
}
