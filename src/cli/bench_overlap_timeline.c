/* The timeline of `lockstep bench overlap`: which gradients are complete when. */
#include "cli/bench_overlap.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- GPT-2, 124 million parameters -------------------------------------------------------------- */

enum { LAYERS = 12, WIDTH = 768, VOCAB = 50257, CONTEXT = 1024 };

/* The tensors of a block in the order of backward, in elements. */
static const struct {
    const char *name;
    size_t elements;
} block[] = {
    {"mlp.c_proj", (size_t)4 * WIDTH *WIDTH + WIDTH},
    {"mlp.c_fc", (size_t)4 * WIDTH *WIDTH + (size_t)4 * WIDTH},
    {"ln_2", (size_t)2 * WIDTH},
    {"attn.c_proj", (size_t)WIDTH *WIDTH + WIDTH},
    {"attn.c_attn", (size_t)3 * WIDTH *WIDTH + (size_t)3 * WIDTH},
    {"ln_1", (size_t)2 * WIDTH},
};
enum { BLOCK_TENSORS = sizeof block / sizeof block[0] };

static ls__overlap_layer *add(ls__timeline *t) {
    return &t->layer[t->count++];
}

/* False where `columns` does not divide the elements. */
static bool set_shape(ls__overlap_layer *layer, size_t columns) {
    layer->shape[0] = columns ? layer->elements / columns : 0;
    layer->shape[1] = columns;
    return layer->shape[0] * columns == layer->elements;
}

/* A layer's time is in proportion to its multiply-adds, which are its elements. The output layer comes first
 * in backward, but its weights are the token embedding's too: their gradient is complete at the very end. */
static ls_status make_gpt2(ls__timeline *t) {
    const double ms_per_element = 1e-5;
    const size_t embedding = (size_t)VOCAB * WIDTH;
    t->layer = calloc((size_t)LAYERS * BLOCK_TENSORS + 3, sizeof *t->layer);
    if (!t->layer)
        return ls__fail(LS_ERR_MEMORY, "--timeline: out of memory");
    *add(t) = (ls__overlap_layer){.name = "lm_head", .ms = (double)embedding * ms_per_element};
    *add(t) = (ls__overlap_layer){.name = "ln_f", .elements = (size_t)2 * WIDTH};
    for (int layer = LAYERS; layer-- > 0;)
        for (size_t i = 0; i < BLOCK_TENSORS; i++) {
            ls__overlap_layer *l = add(t);
            snprintf(l->name, sizeof l->name, "h.%d.%s", layer, block[i].name);
            l->elements = block[i].elements;
            l->ms = (double)l->elements * ms_per_element;
        }
    *add(t) =
        (ls__overlap_layer){.name = "wte, wpe", .elements = embedding + (size_t)CONTEXT * WIDTH};
    for (size_t i = 0; i < t->count; i++) /* weights and biases of a layer are one tensor here */
        set_shape(&t->layer[i], WIDTH);
    t->forward_ms =
        ls__timeline_backward_ms(t) / 2; /* two products in backward for one in forward */
    return LS_OK;
}

/* --- from a file -------------------------------------------------------------------------------- */

static bool is_time(const json_t *value) {
    double ms = json_number_value(value);
    return json_is_number(value) && ms >= 0 && ms <= 1e7;
}

static ls_status read_layer(ls__overlap_layer *layer, const json_t *entry, const char *path,
                            size_t i) {
    static const json_int_t largest = (json_int_t)1 << 36;
    const json_t *ms = json_object_get(entry, "ms"), *elements = json_object_get(entry, "elements");
    const char *name = json_string_value(json_object_get(entry, "name"));
    json_int_t count = json_integer_value(elements);
    if (!is_time(ms) || !json_is_integer(elements) || count < 0 || count > largest)
        return ls__fail(LS_ERR_FORMAT,
                        "--timeline %s: backward[%zu] wants \"ms\", a number from 0 to 1e7, and "
                        "\"elements\", a whole number from 0 to 2^36",
                        path, i);
    snprintf(layer->name, sizeof layer->name, "%s", name ? name : "");
    if (!name)
        snprintf(layer->name, sizeof layer->name, "layer %zu", i);
    layer->ms = json_number_value(ms);
    layer->elements = (size_t)count;
    const json_t *columns = json_object_get(entry, "columns");
    json_int_t wide = columns ? json_integer_value(columns) : count;
    if (wide < 0 || wide > count || !set_shape(layer, (size_t)wide))
        return ls__fail(LS_ERR_FORMAT,
                        "--timeline %s: \"columns\" of backward[%zu] does not divide its elements",
                        path, i);
    return LS_OK;
}

static ls_status read_layers(ls__timeline *t, const json_t *root, const char *path) {
    const json_t *forward = json_object_get(root, "forward_ms");
    const json_t *backward = json_object_get(root, "backward");
    if (!json_is_array(backward) || json_array_size(backward) == 0 ||
        (forward && !is_time(forward)))
        return ls__fail(
            LS_ERR_FORMAT,
            "--timeline %s: wants {\"forward_ms\": 5, \"backward\": [{\"name\": \"fc\", "
            "\"elements\": 1000, \"ms\": 2.5}, ...]}",
            path);
    t->layer = calloc(json_array_size(backward), sizeof *t->layer);
    if (!t->layer)
        return ls__fail(LS_ERR_MEMORY, "--timeline %s: out of memory", path);
    for (size_t i = 0; i < json_array_size(backward); i++, t->count++)
        LS_TRY(read_layer(&t->layer[i], json_array_get(backward, i), path, i));
    t->forward_ms = json_number_value(forward);
    if (ls__timeline_bytes(t) == 0 || ls__timeline_backward_ms(t) <= 0)
        return ls__fail(LS_ERR_FORMAT, "--timeline %s: backward has no %s", path,
                        ls__timeline_bytes(t) == 0 ? "elements" : "time");
    return LS_OK;
}

ls_status ls__timeline_read(ls__timeline *timeline, const char *path) {
    *timeline = (ls__timeline){0};
    if (!path)
        return make_gpt2(timeline);
    unsigned char *text;
    size_t size;
    json_error_t error;
    ls_status status = ls__file_read(path, &text, &size);
    if (status != LS_OK)
        return ls__fail_context(status, "--timeline");
    json_t *root = json_loadb((const char *)text, size, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (!root)
        return ls__fail(LS_ERR_FORMAT, "--timeline %s: line %d: %s", path, error.line, error.text);
    status = read_layers(timeline, root, path);
    json_decref(root);
    return status;
}

void ls__timeline_free(ls__timeline *timeline) {
    free(timeline->layer);
    *timeline = (ls__timeline){0};
}

/* --- what follows from it ------------------------------------------------------------------------ */

size_t ls__timeline_bytes(const ls__timeline *t) {
    size_t elements = 0;
    for (size_t i = 0; i < t->count; i++)
        elements += t->layer[i].elements;
    return elements * sizeof(float);
}

double ls__timeline_backward_ms(const ls__timeline *t) {
    double ms = 0;
    for (size_t i = 0; i < t->count; i++)
        ms += t->layer[i].ms;
    return ms;
}

void ls__timeline_scale(ls__timeline *t, double backward_ms) {
    double factor = backward_ms / ls__timeline_backward_ms(t);
    t->forward_ms *= factor;
    for (size_t i = 0; i < t->count; i++)
        t->layer[i].ms *= factor;
}

double ls__timeline_tail_ms(const ls__timeline *t, double transfer_ms) {
    double now = 0, sent = 0, total = (double)ls__timeline_bytes(t);
    for (size_t i = 0; i < t->count; i++) {
        now += t->layer[i].ms;
        sent = fmax(sent, now) + transfer_ms * (double)t->layer[i].elements * sizeof(float) / total;
    }
    return sent - now;
}
