/* Optimizers over all weights of a model. One step has two halves: first everything is looked at
 * (were the gradients reduced, is their norm finite), then everything is changed, so that a refusal
 * leaves weights, state and statistics as they were. */
#include "nn/model.h"
#include "optim/state.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* State of one weight; memory on the device, NULL where the kind needs none. */
typedef struct state {
    ls_parameter *parameter;
    float *first, *second; /* sgd: momentum; adam: running averages of gradient and its square */
    uint64_t steps;        /* updates so far: a weight without gradient does not take part in one */
} state;

struct ls_optimizer {
    ls_optimizer_options options;
    ls_model *model;
    ls_device *device;
    state *states; /* one for each weight, in the order of the model's parameters */
    size_t count;
    double *squares;  /* (blocks of the largest parameter) */
    uint64_t steps;   /* calls of ls_optimizer_step that changed something */
    uint64_t skipped; /* that met a NaN or an infinity and were to go on */
};

/* Share of this batch in the running statistics, as PyTorch's momentum = 0.1 */
static const double STATISTIC_SHARE = 0.1;

static ls_status check_option(const char *name, double value, double below) {
    if (isfinite(value) && value >= 0 && value < below)
        return LS_OK;
    if (isfinite(below))
        return ls__fail(LS_ERR_ARGUMENT, "optimizer: %s is %g, want 0 <= %s < %g", name, value,
                        name, below);
    return ls__fail(LS_ERR_ARGUMENT, "optimizer: %s is %g, want a finite number >= 0", name, value);
}

static ls_status check_options(const ls_optimizer_options *o) {
    if (o->kind != LS_SGD && o->kind != LS_ADAM && o->kind != LS_ADAMW)
        return ls__fail(LS_ERR_ARGUMENT, "optimizer: kind is %d, want LS_SGD, LS_ADAM or LS_ADAMW",
                        (int)o->kind);
    LS_TRY(check_option("momentum", o->momentum, 1));
    LS_TRY(check_option("beta1", o->beta1, 1));
    LS_TRY(check_option("beta2", o->beta2, 1));
    LS_TRY(check_option("epsilon", o->epsilon, INFINITY));
    LS_TRY(check_option("weight_decay", o->weight_decay, INFINITY));
    LS_TRY(check_option("clip", o->clip, INFINITY));
    if (o->kind == LS_SGD && o->nesterov && o->momentum == 0)
        return ls__fail(LS_ERR_ARGUMENT, "optimizer: nesterov wants a momentum > 0");
    return LS_OK;
}

static ls_status alloc_zeroed(ls_device *device, size_t count, float **memory) {
    void *m = NULL;
    LS_TRY(device->table->alloc(device, count * sizeof(float), &m));
    *memory = m;
    return device->table->zero(device, m, count * sizeof(float));
}

/* A weight that is frozen has no state until it is trained for the first time. */
static ls_status ensure_state(const ls_optimizer *optimizer, state *s) {
    const ls_optimizer_options *o = &optimizer->options;
    size_t elements = s->parameter->value.count;
    if (!s->first && (o->kind != LS_SGD || o->momentum > 0))
        LS_TRY(alloc_zeroed(optimizer->device, elements, &s->first));
    if (!s->second && o->kind != LS_SGD)
        LS_TRY(alloc_zeroed(optimizer->device, elements, &s->second));
    return LS_OK;
}

static ls_status create_states(ls_optimizer *optimizer) {
    ls_model *model = optimizer->model;
    optimizer->states = calloc(model->parameter_count, sizeof(state));
    if (!optimizer->states)
        return ls__fail(LS_ERR_MEMORY, "optimizer: out of memory");
    size_t blocks = 1;
    for (size_t i = 0; i < model->parameter_count; i++) {
        const size_t these = ls__squares_blocks(model->parameters[i]->value.count);
        blocks = these > blocks ? these : blocks;
    }
    optimizer->squares = calloc(blocks, sizeof *optimizer->squares);
    if (!optimizer->squares)
        return ls__fail(LS_ERR_MEMORY, "optimizer: out of memory");
    for (size_t i = 0; i < model->parameter_count; i++) {
        ls_parameter *parameter = model->parameters[i];
        if (parameter->role == LS_STATISTIC)
            continue;
        state *s = &optimizer->states[optimizer->count++];
        s->parameter = parameter;
        if (parameter->role == LS_WEIGHT)
            LS_TRY(ensure_state(optimizer, s));
    }
    return LS_OK;
}

ls_status ls_optimizer_create(ls_optimizer **optimizer, ls_model *model,
                              const ls_optimizer_options *options) {
    if (optimizer)
        *optimizer = NULL;
    if (!optimizer || !model || !options)
        return ls__fail(LS_ERR_ARGUMENT, "ls_optimizer_create: an argument is NULL");
    LS_TRY(check_options(options));
    ls_optimizer *o = calloc(1, sizeof *o);
    if (!o)
        return ls__fail(LS_ERR_MEMORY, "optimizer: out of memory");
    o->options = *options;
    o->model = model;
    o->device = model->device;
    if (o->options.beta1 == 0)
        o->options.beta1 = 0.9;
    if (o->options.beta2 == 0)
        o->options.beta2 = 0.999;
    if (o->options.epsilon == 0)
        o->options.epsilon = 1e-8;
    ls_status status = create_states(o);
    if (status != LS_OK) {
        ls_optimizer_destroy(o);
        return status;
    }
    model->optimizer = o;
    *optimizer = o;
    return LS_OK;
}

void ls_optimizer_destroy(ls_optimizer *optimizer) {
    if (!optimizer)
        return;
    const ls__device_table *table = optimizer->device->table;
    for (size_t i = 0; i < optimizer->count; i++) {
        if (optimizer->states[i].first)
            table->free(optimizer->device, optimizer->states[i].first);
        if (optimizer->states[i].second)
            table->free(optimizer->device, optimizer->states[i].second);
    }
    if (optimizer->model->optimizer == optimizer)
        optimizer->model->optimizer = NULL;
    free(optimizer->states);
    free(optimizer->squares);
    free(optimizer);
}

size_t ls__optimizer_state_count(const ls_optimizer *optimizer) {
    return optimizer->count;
}

ls_status ls__optimizer_ensure_states(ls_optimizer *optimizer) {
    for (size_t i = 0; i < optimizer->count; i++)
        if (optimizer->states[i].parameter->role == LS_WEIGHT)
            LS_TRY(ensure_state(optimizer, &optimizer->states[i]));
    return LS_OK;
}

ls__optimizer_state ls__optimizer_state_get(ls_optimizer *optimizer, size_t i) {
    state *s = &optimizer->states[i];
    bool sgd = optimizer->options.kind == LS_SGD;
    return (ls__optimizer_state){
        .parameter = s->parameter,
        .first_name = sgd ? "momentum_buffer" : "exp_avg",
        .second_name = "exp_avg_sq",
        .first = s->first,
        .second = s->second,
        .steps = &s->steps,
    };
}

uint64_t *ls__optimizer_steps(ls_optimizer *optimizer) {
    return &optimizer->steps;
}

/* All of a ddp's gradients reduced, or none managed and at least one there. */
static ls_status check_reduced(const ls_optimizer *optimizer) {
    const ls_model *model = optimizer->model;
    bool ready = false;
    for (size_t i = 0; i < model->parameter_count; i++) {
        const ls_parameter *p = model->parameters[i];
        if (p->role == LS_FROZEN)
            continue;
        if (p->managed && !p->reduced)
            return ls__fail(LS_ERR_NOT_REDUCED,
                            "optimizer step %" PRIu64 ": the gradient of %s was not reduced since "
                            "the last step: call ls_ddp_begin, ls_ddp_backward for each shard and "
                            "ls_ddp_wait first; nothing was changed",
                            optimizer->steps, p->name);
        ready = ready || p->managed || p->present;
    }
    if (!ready)
        return ls__fail(LS_ERR_STATE,
                        "optimizer step %" PRIu64 ": no weight has a gradient: call ls_backward "
                        "first",
                        optimizer->steps);
    return LS_OK;
}

/* The norm of all gradients together, added up in the order of the parameters. A NaN or an infinity
 * in any of them, or in a statistic, is an error here, where nothing has been spoilt yet; reduced
 * gradients are equal on all ranks, and so is the error. */
static ls_status square_gradient(const ls_optimizer *optimizer, const ls_parameter *p,
                                 double *squares) {
    *squares = p->squares;
    if (p->squares_known && !p->gradient_exposed)
        return LS_OK;
    LS_TRY(optimizer->device->table->squares(optimizer->device, p->value.count, p->gradient_factor,
                                             p->gradient, optimizer->squares));
    *squares = ls__squares_total(optimizer->squares, p->value.count);
    return LS_OK;
}

static ls_status measure_norm(const ls_optimizer *optimizer, double *norm) {
    const ls_model *model = optimizer->model;
    double total = 0;
    for (size_t i = 0; i < model->parameter_count; i++) {
        const ls_parameter *p = model->parameters[i];
        double squares = 0;
        if (p->role == LS_FROZEN || !p->present)
            continue;
        LS_TRY(square_gradient(optimizer, p, &squares));
        if (!isfinite(squares))
            return ls__fail(LS_ERR_RANGE,
                            "optimizer step %" PRIu64 ": the %s of %s holds a NaN or an infinity; "
                            "nothing was changed. Lower the learning rate, clip, or look at the "
                            "data",
                            optimizer->steps, p->role == LS_WEIGHT ? "gradient" : "batch value",
                            p->name);
        if (p->role == LS_WEIGHT)
            total += squares;
    }
    *norm = sqrt(total);
    return LS_OK;
}

static ls_status update_sgd(const ls_optimizer *optimizer, state *s, double rate, double scale) {
    const ls_optimizer_options *o = &optimizer->options;
    ls_parameter *p = s->parameter;
    const ls__sgd sgd = {
        .rate = (float)rate,
        .momentum = (float)o->momentum,
        .weight_decay = p->decay || o->decay_all ? (float)o->weight_decay : 0,
        .grad_factor = p->gradient_factor,
        .grad_scale = (float)scale,
        .nesterov = o->nesterov,
        .first = s->steps == 1,
    };
    return optimizer->device->table->sgd(optimizer->device, p->value.count, &sgd, p->value.data,
                                         p->gradient, s->first);
}

static ls_status update_adam(const ls_optimizer *optimizer, state *s, double rate, double scale) {
    const ls_optimizer_options *o = &optimizer->options;
    ls_parameter *p = s->parameter;
    /* The corrections fit the betas as the kernel has them: 1 - 0.999 is 1.3e-5 smaller in f32, and
     * with corrections from the exact beta all steps would be too long by half of that. */
    double beta1 = (double)(float)o->beta1, beta2 = (double)(float)o->beta2;
    const ls__adam adam = {
        .rate = (float)rate,
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .epsilon = (float)o->epsilon,
        .weight_decay = p->decay || o->decay_all ? (float)o->weight_decay : 0,
        .grad_factor = p->gradient_factor,
        .grad_scale = (float)scale,
        .correction1 = (float)(1 - pow(beta1, (double)s->steps)),
        .correction2 = (float)(1 - pow(beta2, (double)s->steps)),
        .decoupled = o->kind == LS_ADAMW,
    };
    return optimizer->device->table->adam(optimizer->device, p->value.count, &adam, p->value.data,
                                          p->gradient, s->first, s->second);
}

/* running = 0.9 * running + 0.1 * this batch's */
static ls_status fold_statistic(const ls_optimizer *optimizer, ls_parameter *p) {
    const ls__device_table *table = optimizer->device->table;
    double samples = p->managed ? 1 : (double)p->samples;
    LS_TRY(ls__parameter_settle_gradient(p));
    float keep = (float)(1 - STATISTIC_SHARE), share = (float)(STATISTIC_SHARE / samples);
    ls__parameter_changed(p);
    LS_TRY(table->affine(optimizer->device, LS_F32, p->value.count, keep, 0, p->value.data,
                         p->value.data, false));
    return table->affine(optimizer->device, LS_F32, p->value.count, share, 0, p->gradient,
                         p->value.data, true);
}

/* The gradients have been seen: they do not count again. Returns whether there were any. */
static bool consume_gradients(const ls_model *model) {
    bool any = false;
    for (size_t i = 0; i < model->parameter_count; i++) {
        ls_parameter *p = model->parameters[i];
        any |= p->present;
        p->reduced = p->present = p->squares_known = false;
    }
    return any;
}

uint64_t ls_optimizer_skipped(const ls_optimizer *optimizer) {
    return optimizer ? optimizer->skipped : 0;
}

ls_status ls_optimizer_step(ls_optimizer *optimizer, double learning_rate, double *norm) {
    if (!optimizer)
        return ls__fail(LS_ERR_ARGUMENT, "ls_optimizer_step: optimizer is NULL");
    double total = 0, scale = 1;
    ls_model *model = optimizer->model;
    LS_TRY(check_option("learning rate", learning_rate, INFINITY));
    LS_TRY(check_reduced(optimizer));
    ls_status finite = measure_norm(optimizer, &total);
    if (finite == LS_ERR_RANGE && optimizer->options.skip_nonfinite) {
        optimizer->skipped++;
        consume_gradients(model);
        total = NAN;
        finite = LS_OK;
    }
    LS_TRY(finite);
    for (size_t i = 0; i < optimizer->count; i++)
        if (optimizer->states[i].parameter->present)
            LS_TRY(ensure_state(optimizer, &optimizer->states[i]));
    if (norm)
        *norm = total;
    if (optimizer->options.clip > 0) /* as torch.nn.utils.clip_grad_norm_ */
        scale = fmin(1, optimizer->options.clip / (total + 1e-6));
    for (size_t i = 0; i < optimizer->count; i++) {
        state *s = &optimizer->states[i];
        if (!s->parameter->present)
            continue;
        s->steps++;
        ls__parameter_changed(s->parameter);
        LS_TRY(optimizer->options.kind == LS_SGD ? update_sgd(optimizer, s, learning_rate, scale)
                                                 : update_adam(optimizer, s, learning_rate, scale));
    }
    for (size_t i = 0; i < model->parameter_count; i++) {
        ls_parameter *p = model->parameters[i];
        if (p->role == LS_STATISTIC && p->present)
            LS_TRY(fold_statistic(optimizer, p));
    }
    optimizer->steps += consume_gradients(model);
    return LS_OK;
}
