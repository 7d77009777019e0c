/* ls_model: a tree of modules, its list of parameters, and the checks at the public edge. */
#include "nn/model.h"

#include <stdlib.h>
#include <string.h>

static int compare_names(const void *a, const void *b) {
    return strcmp((*(ls_parameter *const *)a)->name, (*(ls_parameter *const *)b)->name);
}

/* Fills the two lists of parameters. */
static ls_status list_parameters(ls_model *model) {
    size_t count = ls__module_collect(model->root, NULL, 0);
    model->parameters = calloc(count, sizeof(ls_parameter *));
    model->by_name = calloc(count, sizeof(ls_parameter *));
    model->hash_state = XXH64_createState();
    if (!model->parameters || !model->by_name || !model->hash_state)
        return ls__fail(LS_ERR_MEMORY, "model: out of memory");
    model->parameter_count = ls__module_collect(model->root, model->parameters, 0);
    memcpy(model->by_name, model->parameters, count * sizeof(ls_parameter *));
    qsort(model->by_name, count, sizeof(ls_parameter *), compare_names);
    for (size_t i = 0; i < count; i++)
        if (model->parameters[i]->role == LS_WEIGHT)
            model->element_count += model->parameters[i]->value.count;
    return LS_OK;
}

ls_status ls__model_adopt(ls_model **model, ls_device *device, ls__module *root) {
    ls_model *m = calloc(1, sizeof *m);
    if (!m) {
        ls__module_destroy(root);
        return ls__fail(LS_ERR_MEMORY, "model: out of memory");
    }
    m->device = device;
    m->root = root;
    ls_status status = list_parameters(m);
    if (status != LS_OK) {
        ls_model_destroy(m);
        return status;
    }
    *model = m;
    return LS_OK;
}

static ls_status build(ls__module **root, const ls__spec *spec, const ls_model_options *options,
                       ls__sync *sync) {
    const ls__builder builder = {.device = options->device,
                                 .seed = options->seed,
                                 .sync = spec->norm == LS__NORM_SYNC ? sync : NULL};
    switch (spec->kind) {
    case LS__MLP:
        return ls__mlp_create(root, &builder, spec);
    case LS__CNN:
        return ls__cnn_create(root, &builder, spec);
    case LS__RESNET:
        return ls__resnet_create(root, &builder, spec);
    case LS__GPT:
        return ls__gpt_create(root, &builder, spec);
    }
    return ls__fail(LS_ERR_UNSUPPORTED, "model %s: unknown kind", spec->text);
}

/* What callers may ask about the model. */
static void describe(ls_model *model, const ls__spec *spec) {
    model->spec = *spec;
    if (spec->kind == LS__MLP) {
        model->classes = spec->widths[spec->width_count - 1];
        model->input_elements = spec->widths[0];
    } else if (spec->kind == LS__CNN) {
        model->classes = LS__CNN_CLASSES;
        model->input_elements = (size_t)LS__CNN_SIDE * LS__CNN_SIDE;
    } else if (spec->kind == LS__RESNET) {
        model->classes = spec->classes;
        model->input_elements = spec->channels * spec->side * spec->side;
    } else {
        model->classes = spec->vocab;
        model->context = spec->context;
    }
}

ls_status ls_model_create(ls_model **model, const char *spec, const ls_model_options *options) {
    if (model)
        *model = NULL;
    if (!model || !options || !options->device)
        return ls__fail(LS_ERR_ARGUMENT, "ls_model_create: %s is NULL",
                        !model ? "model" : "the device in the options");
    ls__spec parsed;
    ls__module *root = NULL;
    LS_TRY(ls__spec_parse(&parsed, spec, options->default_vocab));
    ls__sync *sync = calloc(1, sizeof *sync);
    if (!sync)
        return ls__fail(LS_ERR_MEMORY, "model: out of memory");
    ls_status status = build(&root, &parsed, options, sync);
    if (status == LS_OK)
        status = ls__model_adopt(model, options->device, root);
    else
        ls__module_destroy(root);
    if (status != LS_OK) {
        free(sync);
        return ls__fail_context(status, "model %s", parsed.text);
    }
    (*model)->sync = sync;
    describe(*model, &parsed);
    return LS_OK;
}

void ls_model_destroy(ls_model *model) {
    if (!model)
        return;
    ls__module_destroy(model->root);
    free(model->parameters);
    free(model->by_name);
    free(model->sync);
    XXH64_freeState(model->hash_state);
    free(model);
}

static ls_status check_images(const ls_model *model, const ls_tensor *input) {
    char shape[128];
    if (input->dtype != LS_F32)
        return ls__fail(LS_ERR_ARGUMENT, "model %s: input is %s, want images in F32",
                        model->spec.text, ls_dtype_name(input->dtype));
    if (input->dims == 0 || input->count == 0 ||
        input->count / input->shape[0] != model->input_elements)
        return ls__fail(LS_ERR_ARGUMENT,
                        "model %s: input has shape %s, want a batch of samples of %zu elements",
                        model->spec.text,
                        ls__shape_text(input->shape, input->dims, shape, sizeof shape),
                        model->input_elements);
    return LS_OK;
}

static ls_status check_tokens(const ls_model *model, const ls_tensor *input) {
    char shape[128];
    if (input->dtype != LS_I32)
        return ls__fail(LS_ERR_ARGUMENT, "model %s: input is %s, want tokens in I32",
                        model->spec.text, ls_dtype_name(input->dtype));
    if (input->dims != 2 || input->count == 0 || input->shape[1] > model->context)
        return ls__fail(
            LS_ERR_ARGUMENT,
            "model %s: input has shape %s, want (batch, time) with time from 1 to the context %zu",
            model->spec.text, ls__shape_text(input->shape, input->dims, shape, sizeof shape),
            model->context);
    return LS_OK;
}

static bool check_input(ls_step *step, const ls_model *model, const ls_tensor *input,
                        const char *call) {
    ls_status status;
    if (!step) {
        ls__fail(LS_ERR_ARGUMENT, "%s: step is NULL", call);
        return false;
    }
    if (!model)
        status = ls__fail(LS_ERR_ARGUMENT, "%s: model is NULL", call);
    else if (!input)
        status = ls__fail(LS_ERR_ARGUMENT, "model %s: input is NULL", model->spec.text);
    else
        status = model->context ? check_tokens(model, input) : check_images(model, input);
    if (status != LS_OK)
        ls__step_fail(step, status);
    return status == LS_OK;
}

ls_tensor *ls_model_forward(ls_step *step, ls_model *model, ls_tensor *input) {
    if (!check_input(step, model, input, "ls_model_forward"))
        return NULL;
    return ls__module_forward(step, model->root, input);
}

ls_tensor *ls_model_loss(ls_step *step, ls_model *model, ls_tensor *input, ls_tensor *targets,
                         size_t *correct) {
    if (!check_input(step, model, input, "ls_model_loss"))
        return NULL;
    if (model->spec.kind == LS__GPT)
        return ls__gpt_loss(step, model->root, input, targets, correct);
    ls_tensor *logits = ls__module_forward(step, model->root, input);
    ls_tensor *loss = ls_cross_entropy(step, logits, targets);
    if (correct && loss && ls_count_correct(step, logits, targets, correct) != LS_OK)
        return NULL;
    return loss;
}

const char *ls_model_spec(const ls_model *model) {
    return model ? model->spec.text : NULL;
}

size_t ls_model_parameter_count(const ls_model *model) {
    return model ? model->parameter_count : 0;
}

ls_parameter *ls_model_parameter(ls_model *model, size_t i) {
    return model ? i < model->parameter_count ? model->parameters[i] : NULL : NULL;
}

size_t ls_model_element_count(const ls_model *model) {
    return model ? model->element_count : 0;
}

size_t ls_model_context(const ls_model *model) {
    return model ? model->context : 0;
}

size_t ls_model_classes(const ls_model *model) {
    return model ? model->classes : 0;
}

size_t ls_model_input_elements(const ls_model *model) {
    return model ? model->input_elements : 0;
}
