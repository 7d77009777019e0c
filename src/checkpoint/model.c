/* Saving and loading the parameters of a model, by name.
 *
 * Files of GPT-2 as Hugging Face's libraries write them are read as well: a gpt model takes names with
 * "transformer." in front, skips the attention masks (h.N.attn.bias, h.N.attn.masked_bias), and takes
 * a stored lm_head.weight where it is what ties it to wte.weight: equal. */
#include "nn/model.h"
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

static const char SPEC_KEY[] = "lockstep.model";

ls_status ls_model_save(ls_model *model, const char *path) {
    if (!model || !path)
        return ls__fail(LS_ERR_ARGUMENT, "ls_model_save: %s is NULL", model ? "path" : "model");
    /* "format" is what other readers of such files ask for */
    const char *keys[] = {"format", SPEC_KEY, "lockstep.version"};
    const char *values[] = {"pt", model->spec.text, LOCKSTEP_VERSION};
    ls_safetensors_entry *entries = calloc(model->parameter_count, sizeof *entries);
    if (!entries)
        return ls__fail(LS_ERR_MEMORY, "%s: out of memory for saving", path);
    for (size_t i = 0; i < model->parameter_count; i++) {
        const ls_parameter *parameter = model->by_name[i];
        entries[i] = (ls_safetensors_entry){
            .name = parameter->name,
            .dtype = ls_dtype_name(parameter->value.dtype),
            .dims = parameter->value.dims,
            .shape = parameter->value.shape,
            .data = parameter->value.data,
            .bytes = parameter->value.count * ls_dtype_size(parameter->value.dtype),
        };
    }
    ls_status status = ls__safetensors_write(path, entries, model->parameter_count, keys, values,
                                             sizeof keys / sizeof *keys);
    free(entries);
    return status;
}

/* One load: which entry goes into which parameter. */
struct load {
    ls_model *model;
    const char *path;
    ls_safetensors *file;
    const ls_safetensors_entry **entries; /* for each of model->by_name */
};

static int compare_name(const void *name, const void *parameter) {
    return strcmp(name, (*(ls_parameter *const *)parameter)->name);
}

/* Index in by_name, or parameter_count. */
static size_t find_parameter(const ls_model *model, const char *name) {
    ls_parameter **found =
        bsearch(name, model->by_name, model->parameter_count, sizeof(ls_parameter *), compare_name);
    return found ? (size_t)(found - model->by_name) : model->parameter_count;
}

static const char *without_prefix(const ls_model *model, const char *name) {
    static const char prefix[] = "transformer.";
    bool strip = model->spec.kind == LS__GPT && strncmp(name, prefix, sizeof prefix - 1) == 0;
    return strip ? name + sizeof prefix - 1 : name;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool is_attention_mask(const ls_model *model, const char *name) {
    return model->spec.kind == LS__GPT && strncmp(name, "h.", 2) == 0 &&
           (ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias"));
}

static ls_status check_entry(const struct load *load, const ls_safetensors_entry *entry,
                             const ls_parameter *parameter) {
    const ls_tensor *value = &parameter->value;
    char seen[160], wanted[160];
    if (strcmp(entry->dtype, ls_dtype_name(value->dtype)) != 0)
        return ls__fail(LS_ERR_FORMAT, "%s: tensor %s is %s, model %s wants %s", load->path,
                        entry->name, entry->dtype, load->model->spec.text,
                        ls_dtype_name(value->dtype));
    if (entry->dims != value->dims ||
        memcmp(entry->shape, value->shape, value->dims * sizeof *value->shape) != 0)
        return ls__fail(LS_ERR_FORMAT, "%s: tensor %s has shape %s, model %s wants %s", load->path,
                        entry->name, ls__shape_text(entry->shape, entry->dims, seen, sizeof seen),
                        load->model->spec.text,
                        ls__shape_text(value->shape, value->dims, wanted, sizeof wanted));
    return LS_OK;
}

/* Finds each entry of the file its parameter. */
static ls_status match_entries(struct load *load) {
    const ls_model *model = load->model;
    for (size_t i = 0; i < ls_safetensors_count(load->file); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_get(load->file, i);
        const char *name = without_prefix(model, entry->name);
        size_t p = find_parameter(model, name);
        if (p == model->parameter_count) {
            bool head = model->spec.kind == LS__GPT && strcmp(entry->name, "lm_head.weight") == 0;
            if (head || is_attention_mask(model, name))
                continue;
            const char *spec = ls_safetensors_metadata(load->file, SPEC_KEY);
            return ls__fail(LS_ERR_FORMAT, "%s: tensor %s is not in model %s%s%s", load->path,
                            entry->name, model->spec.text, spec ? "; the file was saved from " : "",
                            spec ? spec : "");
        }
        if (load->entries[p])
            return ls__fail(LS_ERR_FORMAT, "%s: tensors %s and %s are the same parameter",
                            load->path, load->entries[p]->name, entry->name);
        LS_TRY(check_entry(load, entry, model->by_name[p]));
        load->entries[p] = entry;
    }
    for (size_t p = 0; p < model->parameter_count; p++)
        if (!load->entries[p])
            return ls__fail(LS_ERR_FORMAT, "%s: no tensor %s, which model %s has", load->path,
                            model->by_name[p]->name, model->spec.text);
    return LS_OK;
}

static ls_status check_tied_head(const struct load *load) {
    const ls_safetensors_entry *head = ls_safetensors_find(load->file, "lm_head.weight");
    if (load->model->spec.kind != LS__GPT || !head)
        return LS_OK;
    size_t p = find_parameter(load->model, "wte.weight");
    LS_TRY(check_entry(load, head, load->model->by_name[p]));
    if (memcmp(head->data, load->entries[p]->data, head->bytes) != 0)
        return ls__fail(LS_ERR_FORMAT,
                        "%s: lm_head.weight differs from %s; model %s has one for both", load->path,
                        load->entries[p]->name, load->model->spec.text);
    return LS_OK;
}

/* The number of heads shows in no shape, yet with another one the weights mean something else. */
static ls_status check_heads(const struct load *load) {
    const char *text = ls_safetensors_metadata(load->file, SPEC_KEY);
    ls__spec saved;
    if (load->model->spec.kind != LS__GPT || !text || ls__spec_parse(&saved, text, 0) != LS_OK)
        return LS_OK;
    if (saved.heads != load->model->spec.heads)
        return ls__fail(LS_ERR_FORMAT, "%s: saved from %s with %zu heads, model %s has %zu",
                        load->path, text, saved.heads, load->model->spec.text,
                        load->model->spec.heads);
    return LS_OK;
}

ls_status ls_model_load(ls_model *model, const char *path) {
    if (!model || !path)
        return ls__fail(LS_ERR_ARGUMENT, "ls_model_load: %s is NULL", model ? "path" : "model");
    struct load load = {.model = model, .path = path};
    ls_status status = LS_OK;
    load.entries = calloc(model->parameter_count, sizeof(ls_safetensors_entry *));
    if (!load.entries)
        return ls__fail(LS_ERR_MEMORY, "%s: out of memory for loading", path);
    LS_TRY_OUT(ls_safetensors_open(&load.file, path));
    LS_TRY_OUT(match_entries(&load));
    LS_TRY_OUT(check_tied_head(&load));
    LS_TRY_OUT(check_heads(&load));
    for (size_t p = 0; p < model->parameter_count; p++) {
        ls__parameter_changed(model->by_name[p]);
        LS_TRY_OUT(model->device->table->copy(model->device, model->by_name[p]->value.data,
                                              load.entries[p]->data, load.entries[p]->bytes));
    }
out:
    ls_safetensors_close(load.file);
    free(load.entries);
    return status;
}
