#include "autograd/tape.h"

#include "autograd/profile.h"
#include <stdlib.h>
#include <string.h>

/* What one step knows about a parameter it used. It is here and not in the parameter, so that a step
 * that is given up, or two steps over one model, leave nothing behind that could be counted twice. */
struct slot {
    ls_parameter *parameter;
    size_t uses;    /* recorded */
    size_t left;    /* of them, still to come in ls_backward */
    size_t seen;    /* of them, passed by ls__tape_ready_order */
    bool written;   /* a contribution is in: the next one adds */
    size_t samples; /* statistics: that the contributions are of */
};

struct ls__tape {
    ls__node *last;
    struct slot *slots; /* in the order of first use */
    size_t count, capacity;
    bool walked; /* ls_backward was called */
    bool inner;  /* recording or walking an inner tape: uses are not counted */
};

ls_status ls__tape_create(ls__tape **tape) {
    *tape = calloc(1, sizeof **tape);
    return *tape ? LS_OK
                 : ls__fail(LS_ERR_MEMORY, "tape: no memory for its %zu bytes", sizeof **tape);
}

void ls__tape_destroy(ls__tape *tape) {
    if (!tape)
        return;
    free(tape->slots);
    free(tape);
}

void ls__tape_reset(ls__tape *tape) {
    tape->last = NULL;
    tape->count = 0;
    tape->walked = tape->inner = false;
}

/* --- parameters of this step --- */

static bool is_weight(const ls_tensor *tensor) {
    return tensor && tensor->parameter && tensor->parameter->role == LS_WEIGHT;
}

static bool wants_gradient(const ls_tensor *tensor) {
    return tensor && (tensor->parameter ? is_weight(tensor) : tensor->need_grad);
}

static struct slot *find_slot(ls__tape *tape, const ls_parameter *parameter) {
    if (parameter->slot < tape->count && tape->slots[parameter->slot].parameter == parameter)
        return &tape->slots[parameter->slot];
    for (size_t i = 0; i < tape->count; i++)
        if (tape->slots[i].parameter == parameter)
            return &tape->slots[i];
    return NULL;
}

static ls_status find_or_add_slot(ls__tape *tape, ls_parameter *parameter, struct slot **slot) {
    *slot = find_slot(tape, parameter);
    if (*slot)
        return LS_OK;
    if (tape->count == tape->capacity) {
        size_t capacity = tape->capacity ? 2 * tape->capacity : 64;
        struct slot *grown = realloc(tape->slots, capacity * sizeof *grown);
        if (!grown)
            return ls__fail(LS_ERR_MEMORY, "tape: no memory for %zu parameters", capacity);
        tape->slots = grown;
        tape->capacity = capacity;
    }
    parameter->slot = tape->count++;
    *slot = &tape->slots[parameter->slot];
    **slot = (struct slot){.parameter = parameter};
    return LS_OK;
}

static ls_status ensure_storage(ls_device *device, ls_parameter *parameter) {
    if (parameter->gradient)
        return LS_OK;
    void *memory = NULL;
    LS_TRY(device->table->alloc(device, parameter->value.count * sizeof(float), &memory));
    parameter->gradient = memory;
    parameter->owns_gradient = true;
    return LS_OK;
}

ls_status ls__parameter_settle_gradient(ls_parameter *parameter) {
    float factor = parameter->gradient_factor;
    parameter->gradient_factor = 1;
    parameter->squares_known = false;
    if (factor == 1 || !parameter->gradient)
        return LS_OK;
    parameter->gradient_writes++;
    return parameter->device->table->affine(parameter->device, LS_F32, parameter->value.count,
                                            factor, 0, parameter->gradient, parameter->gradient,
                                            false);
}

/* --- recording --- */

bool ls__tape_wants(const ls_step *step, ls_tensor *const *inputs, size_t count) {
    for (size_t i = 0; step->training && !step->unrecorded && i < count; i++)
        if (wants_gradient(inputs[i]))
            return true;
    return false;
}

void *ls__tape_record(ls_step *step, const char *name, ls__backward_fn backward, ls_tensor *output,
                      ls_tensor *const *inputs, size_t input_count, size_t node_bytes) {
    ls__node *node = ls__step_alloc_record(step, node_bytes);
    ls_tensor **kept = ls__step_alloc_record(step, input_count * sizeof(void *));
    if (!node || !kept)
        return NULL;
    for (size_t i = 0; i < input_count; i++)
        kept[i] = inputs[i];
    for (size_t i = 0; i < input_count && !step->tape->inner; i++) {
        if (!is_weight(kept[i]))
            continue;
        struct slot *slot = NULL;
        ls_status status = find_or_add_slot(step->tape, kept[i]->parameter, &slot);
        if (status != LS_OK)
            return ls__step_fail(step, status);
        slot->uses++;
    }
    node->name = name;
    node->backward = backward;
    node->output = output;
    node->inputs = kept;
    node->input_count = input_count;
    node->previous = step->tape->last;
    step->tape->last = node;
    output->need_grad = true;
    ls__profile_add_node(step->profile, node, LS__PASS_FORWARD);
    return node;
}

ls_tensor *ls__tape_finish(ls_step *step, const char *name, ls__backward_fn backward,
                           ls_tensor *output, ls_tensor *const *inputs, size_t input_count) {
    if (ls__tape_wants(step, inputs, input_count) &&
        !ls__tape_record(step, name, backward, output, inputs, input_count, sizeof(ls__node)))
        return NULL;
    return output;
}

ls_status ls__tape_statistic(ls_step *step, ls_parameter *parameter, size_t samples,
                             float **destination, bool *add) {
    struct slot *slot = NULL;
    *destination = NULL;
    *add = false;
    if (step->tape->inner)
        return LS_OK;
    LS_TRY(ensure_storage(step->device, parameter));
    LS_TRY(find_or_add_slot(step->tape, parameter, &slot));
    *add = slot->written;
    slot->written = true;
    slot->samples += samples;
    parameter->samples = slot->samples;
    parameter->writer = step->tape;
    *destination = parameter->gradient;
    return LS_OK;
}

size_t ls__tape_statistic_samples(const ls_step *step, const ls_parameter *parameter) {
    const struct slot *slot = find_slot(step->tape, parameter);
    return slot ? slot->samples : 0;
}

/* --- gradients of results: memory that goes round while the tape is walked --- */

static ls_status new_gradient(ls_step *step, const ls_tensor *tensor, ls_tensor **gradient) {
    *gradient = ls__tensor_like(step, tensor);
    if (!*gradient || !((*gradient)->holders = ls__step_alloc_record(step, sizeof(size_t))))
        return step->status;
    *(*gradient)->holders = 1;
    return LS_OK;
}

void ls__tape_drop_gradient(ls_step *step, ls_tensor *tensor) {
    ls_tensor *gradient = tensor->grad;
    tensor->grad = NULL;
    if (--*gradient->holders == 0 && !gradient->twin)
        ls__step_release(step, gradient->data, gradient->count * ls_dtype_size(gradient->dtype));
}

/* Makes tensor->grad one that may be written. */
static ls_status stop_sharing(ls_step *step, ls_tensor *tensor) {
    ls_tensor *own;
    if (*tensor->grad->holders == 1)
        return LS_OK;
    LS_TRY(new_gradient(step, tensor, &own));
    own->layout = tensor->grad->layout;
    LS_TRY(step->device->table->copy(step->device, own->data, tensor->grad->data,
                                     own->count * ls_dtype_size(own->dtype)));
    ls__tape_drop_gradient(step, tensor);
    tensor->grad = own;
    return LS_OK;
}

/* tensor->grad stands on the memory of dy, which has as many elements. */
static ls_status share_gradient(ls_step *step, ls_tensor *tensor, const ls_tensor *dy) {
    ls_tensor *shared = ls__step_alloc_record(step, sizeof *shared);
    if (!shared)
        return step->status;
    *shared = *tensor;
    shared->need_grad = shared->keep_grad = false;
    shared->grad = NULL;
    shared->data = dy->data;
    shared->twin = NULL;
    shared->half = NULL;
    shared->exposed = NULL;
    shared->layout = dy->layout;
    shared->holders = dy->holders;
    ++*shared->holders;
    tensor->grad = shared;
    return LS_OK;
}

ls_status ls__tape_pass_gradient(ls_step *step, const ls__node *node, ls_tensor *input) {
    const ls_tensor *dy = node->output->grad;
    if (input && !input->parameter && input->need_grad && !input->grad &&
        input->layout == dy->layout)
        return share_gradient(step, input, dy);
    ls__gradient to;
    LS_TRY(ls__tape_gradient_in(step, input, dy->layout, &to));
    if (to.data)
        LS_TRY(step->device->table->affine(step->device, dy->dtype, dy->count, 1.0F, 0.0F, dy->data,
                                           to.data, to.accumulate));
    return ls__tape_gradient_done(step, &to);
}

/* --- walking back --- */

ls_status ls__tape_gradient(ls_step *step, ls_tensor *tensor, void **destination,
                            bool *accumulate) {
    *destination = NULL;
    *accumulate = false;
    if (!wants_gradient(tensor))
        return LS_OK;
    if (tensor->parameter) {
        struct slot *slot = find_slot(step->tape, tensor->parameter);
        if (!slot)
            return ls__fail(LS_ERR_STATE, "backward: no use of weight %s was recorded",
                            tensor->parameter->name);
        LS_TRY(ensure_storage(step->device, tensor->parameter));
        *destination = tensor->parameter->gradient;
        *accumulate = slot->written;
        slot->written = true;
        tensor->parameter->gradient_writes++;
        return LS_OK;
    }
    *accumulate = tensor->grad != NULL;
    LS_TRY(tensor->grad ? stop_sharing(step, tensor) : new_gradient(step, tensor, &tensor->grad));
    *destination = tensor->grad->data;
    return LS_OK;
}

bool ls__tape_claim_gradient(ls_step *step, const ls_tensor *weight, ls__claim *claim) {
    ls_parameter *p = weight->parameter;
    const struct slot *slot = p ? find_slot(step->tape, p) : NULL;
    if (!is_weight(weight) || !p->gradient || p->present || p->gradient_exposed ||
        step->tape->inner || (slot && slot->written))
        return false;
    *claim = (ls__claim){.gradient = p->gradient, .writes = ++p->gradient_writes};
    return true;
}

bool ls__tape_keep_claimed(ls_step *step, const ls_tensor *weight, const ls__claim *claim) {
    if (!claim->gradient)
        return true;
    ls_parameter *p = weight->parameter;
    struct slot *slot = find_slot(step->tape, p);
    if (!slot || p->gradient_writes != claim->writes || p->gradient_exposed)
        return false;
    slot->written = true;
    return true;
}

ls_status ls__tape_gradient_over(ls_step *step, const ls__node *node, ls_tensor *tensor,
                                 void **destination, bool *accumulate) {
    const ls_tensor *dy = node->output->grad;
    if (!tensor || tensor->parameter || !tensor->need_grad || tensor->grad ||
        tensor->layout != dy->layout || dy->twin || *dy->holders != 1 || node->output->keep_grad)
        return ls__tape_gradient(step, tensor, destination, accumulate);
    *accumulate = false;
    *destination = dy->data;
    return share_gradient(step, tensor, dy);
}

ls_status ls__tape_gradient_in(ls_step *step, ls_tensor *tensor, ls__layout layout,
                               ls__gradient *gradient) {
    *gradient = (ls__gradient){.tensor = tensor, .layout = layout};
    LS_TRY(ls__tape_gradient(step, tensor, &gradient->data, &gradient->accumulate));
    if (!gradient->data || ls__tensor_one_layout(tensor))
        return LS_OK;
    if ((tensor->parameter ? LS__PLAIN : tensor->grad->layout) == layout)
        return LS_OK;
    gradient->target = gradient->data;
    gradient->accumulate_target = gradient->accumulate;
    gradient->accumulate = false;
    gradient->data = ls__step_alloc(step, tensor->count * ls_dtype_size(tensor->dtype));
    return gradient->data ? LS_OK : step->status;
}

ls_status ls__tape_gradient_done(ls_step *step, const ls__gradient *gradient) {
    if (!gradient->target)
        return LS_OK;
    return ls__tensor_convert(gradient->tensor, step->device, gradient->data,
                              gradient->layout == LS__PLAIN ? LS__CHANNELS_LAST : LS__PLAIN,
                              gradient->target, gradient->accumulate_target);
}

ls_status ls__tape_scalar_gradient(ls_step *step, const ls__node *node, float *value) {
    return step->device->table->copy(step->device, value, node->output->grad->data, sizeof *value);
}

static ls_status report(ls_parameter *parameter, ls_gradient_ready_fn ready, void *context) {
    parameter->present = true;
    return ready ? ready(context, parameter) : LS_OK;
}

/* Statistics were complete when forward ended. */
static ls_status report_statistics(ls__tape *tape, ls_gradient_ready_fn ready, void *context) {
    for (size_t i = 0; i < tape->count; i++) {
        ls_parameter *p = tape->slots[i].parameter;
        if (p->role != LS_STATISTIC)
            continue;
        if (p->writer != tape)
            return ls__fail(LS_ERR_STATE,
                            "backward: %s was written by the forward of another step since this "
                            "one's: run the backward of each step before the next step's forward",
                            p->name);
        LS_TRY(report(p, ready, context));
    }
    return LS_OK;
}

/* loss->grad = 1 */
static ls_status seed_gradient(ls_step *step, ls_tensor *loss) {
    const ls__device_table *table = step->device->table;
    void *one;
    bool accumulate;
    LS_TRY(ls__tape_gradient(step, loss, &one, &accumulate));
    if (!one) /* no weight had part in it */
        return LS_OK;
    LS_TRY(table->zero(step->device, one, sizeof(float)));
    return table->affine(step->device, LS_F32, 1, 1.0F, 1.0F, one, one, false);
}

/* Uses in a branch that nothing flowed into count down as well: what is left decides. */
static ls_status walk(ls_step *step, ls_gradient_ready_fn ready, void *context) {
    ls__tape *tape = step->tape;
    for (ls__node *node = tape->last; node; node = node->previous) {
        if (node->output->grad) {
            ls_status status = node->backward(step, node);
            if (status != LS_OK)
                return ls__fail_context(status, "backward of %s", node->name);
            ls__profile_add_node(step->profile, node, LS__PASS_BACKWARD);
            if (!node->output->keep_grad)
                ls__tape_drop_gradient(step, node->output);
        }
        for (size_t i = 0; i < node->input_count && !tape->inner; i++) {
            if (!is_weight(node->inputs[i]))
                continue;
            struct slot *slot = find_slot(tape, node->inputs[i]->parameter);
            if (--slot->left == 0 && slot->written)
                LS_TRY(report(slot->parameter, ready, context));
        }
        if (ready)
            ls__profile_add(step->profile, "gradients ready", LS__PASS_BACKWARD, 0, 0);
    }
    return LS_OK;
}

void ls__tape_begin_inner(ls_step *step, ls__tape_inner *inner) {
    inner->outer_last = step->tape->last;
    step->tape->last = NULL;
    step->tape->inner = true;
}

ls_status ls__tape_walk_inner(ls_step *step, ls_tensor *y, const ls_tensor *outer) {
    LS_TRY(share_gradient(step, y, outer->grad));
    return walk(step, NULL, NULL);
}

void ls__tape_end_inner(ls_step *step, const ls__tape_inner *inner) {
    step->tape->last = inner->outer_last;
    step->tape->inner = false;
}

static ls_status check_backward(const ls_step *step, const ls_tensor *loss) {
    if (!step)
        return ls__fail(LS_ERR_ARGUMENT, "backward: step is NULL");
    LS_TRY(ls_step_status(step));
    if (!step->training)
        return ls__fail(LS_ERR_STATE,
                        "backward: the step is not training, so no tape was recorded: "
                        "set training in ls_step_begin's mode");
    if (step->tape->walked)
        return ls__fail(LS_ERR_STATE, "backward: called twice in one step; add the losses instead");
    if (!loss)
        return ls__fail(LS_ERR_ARGUMENT, "backward: loss is NULL");
    char text[LS__SHAPE_TEXT];
    if (loss->count != 1 || loss->dtype != LS_F32)
        return ls__fail(LS_ERR_ARGUMENT, "backward: loss is %s %s, want one F32 element",
                        ls_dtype_name(loss->dtype), ls__tensor_text(loss, text));
    if (loss->parameter)
        return ls__fail(LS_ERR_ARGUMENT, "backward: loss is parameter %s, want a result",
                        loss->parameter->name);
    return LS_OK;
}

ls_status ls_backward(ls_step *step, ls_tensor *loss, ls_gradient_ready_fn ready, void *context) {
    LS_TRY(check_backward(step, loss));
    ls__tape *tape = step->tape;
    tape->walked = true;
    for (size_t i = 0; i < tape->count; i++)
        tape->slots[i].left = tape->slots[i].uses;
    loss->keep_grad = true;
    ls_status status = report_statistics(tape, ready, context);
    if (status == LS_OK)
        status = seed_gradient(step, loss);
    if (status == LS_OK)
        status = walk(step, ready, context);
    if (status != LS_OK)
        ls__step_fail(step, status);
    return status;
}

size_t ls__tape_ready_order(ls_step *step, ls_parameter **order, size_t capacity) {
    ls__tape *tape = step->tape;
    size_t n = 0;
    for (size_t i = 0; i < tape->count; i++) {
        struct slot *slot = &tape->slots[i];
        slot->seen = 0;
        if (slot->parameter->role == LS_STATISTIC && n++ < capacity)
            order[n - 1] = slot->parameter;
    }
    for (ls__node *node = tape->last; node; node = node->previous)
        for (size_t i = 0; i < node->input_count; i++) {
            if (!is_weight(node->inputs[i]))
                continue;
            struct slot *slot = find_slot(tape, node->inputs[i]->parameter);
            if (++slot->seen == slot->uses && n++ < capacity)
                order[n - 1] = slot->parameter;
        }
    return n;
}

ls_tensor *ls_tensor_grad(ls_tensor *tensor) {
    if (!tensor || !tensor->parameter)
        return tensor ? tensor->grad : NULL;
    ls_parameter *parameter = tensor->parameter;
    if (parameter->role != LS_WEIGHT || !parameter->present ||
        ls__parameter_settle_gradient(parameter) != LS_OK)
        return NULL;
    parameter->gradient_exposed = true;
    parameter->gradient_view = parameter->value;
    parameter->gradient_view.parameter = NULL;
    parameter->gradient_view.exposed = NULL;
    parameter->gradient_view.data = parameter->gradient;
    return &parameter->gradient_view;
}
