/* DataParallel: replicate, scatter, compute on all, gather, and the update of replica 0 (the caller's).
 *
 * Replica 0 is the ddp's model, on the caller's thread; every other one has a thread that sleeps between steps.
 * Per step and other replica, replica 0 sends P + X bytes (parameters; its inputs stay on the host and are
 * wrapped, so on a CPU X is not copied) and receives P, all of it while nothing is computed. Memory: each other
 * replica holds parameters, gradients and activations; replica 0 also the optimizer's state and the sums of
 * complete subtrees (shards.c). */
#include <lockstep/dp.h>

#include "autograd/tape.h"
#include "base/clock.h"
#include "parallel/ddp.h"
#include "tensor/tensor.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

/* One of the others. */
typedef struct replica {
    ls_dp *dp;
    ls_device *device;
    ls_model *model;
    ls_step *step;
    pthread_t thread;
    bool runs;
    const ls_dp_shard *shard; /* work to do; NULL: none. Under the lock */
    float loss;               /* of the shard */
    ls_status status;
    char text[512]; /* why */
} replica;

struct ls_dp {
    ls_ddp *ddp;
    ls_model *model; /* replica 0 */
    replica *others; /* replicas 1 .. count */
    size_t count;
    ls_step_mode mode; /* of the present step; samples are each shard's */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t busy; /* others that compute */
    bool stop;
};

/* --- one replica's forward and backward --- */

static ls_status forward(ls_model *model, ls_step *step, const ls_step_mode *common,
                         const ls_dp_shard *shard, ls_tensor **loss) {
    ls_step_mode mode = *common;
    mode.samples = shard->samples;
    mode.sample_count = shard->count;
    LS_TRY(ls_step_begin(step, &mode));
    ls_tensor *x = ls_tensor_wrap(step, shard->input, shard->tokens ? LS_I32 : LS_F32,
                                  shard->input_shape, shard->input_dims);
    ls_tensor *y =
        ls_tensor_wrap(step, shard->target, LS_I32, shard->target_shape, shard->target_dims);
    *loss = ls_model_loss(step, model, x, y, NULL);
    return ls_step_status(step);
}

static ls_status compute(replica *r, const ls_dp_shard *shard) {
    ls_tensor *loss;
    LS_TRY(forward(r->model, r->step, &r->dp->mode, shard, &loss));
    r->loss = (float)ls_tensor_item(loss);
    return ls_backward(r->step, loss, NULL, NULL);
}

static void *run(void *argument) {
    replica *r = argument;
    ls_dp *dp = r->dp;
    pthread_mutex_lock(&dp->lock);
    while (!dp->stop) {
        const ls_dp_shard *shard = r->shard;
        if (!shard) {
            pthread_cond_wait(&dp->changed, &dp->lock);
            continue;
        }
        pthread_mutex_unlock(&dp->lock);
        r->status = compute(r, shard);
        if (r->status != LS_OK)
            snprintf(r->text, sizeof r->text, "%s", ls_error_text());
        pthread_mutex_lock(&dp->lock);
        r->shard = NULL;
        if (--dp->busy == 0)
            pthread_cond_broadcast(&dp->changed);
    }
    pthread_mutex_unlock(&dp->lock);
    return NULL;
}

/* --- creation --- */

static ls_status check(const ls_ddp *ddp, const ls_model *model, size_t replicas) {
    if (!ddp || !model)
        return ls__fail(LS_ERR_ARGUMENT, "ls_dp_create: %s is NULL", ddp ? "model" : "ddp");
    if (ddp->model != model || ls_group_size(ddp->group) != 1 || ddp->shards != replicas)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_dp_create: wants a ddp of this model over a group of one with a shard "
                        "for each of %zu replicas; it has %d ranks and %zu shards",
                        replicas, ls_group_size(ddp->group), ddp->shards);
    if (replicas > 1 && model->sync && model->sync->layers > 0)
        return ls__fail(LS_ERR_UNSUPPORTED,
                        "ls_dp_create: batch norm with norm=sync wants ranks, not the replicas of "
                        "one process; take ddp");
    return LS_OK;
}

/* The thread takes no signals: they are the caller's. */
static ls_status start(replica *r) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&r->thread, NULL, run, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return ls__fail_errno(LS_ERR_SYSTEM, error, "ls_dp_create: cannot start a thread");
    r->runs = true;
    return LS_OK;
}

static ls_status create_replica(replica *r, ls_dp *dp) {
    r->dp = dp;
    LS_TRY(ls_device_cpu(&r->device, ls_device_threads(dp->model->device)));
    const ls_model_options model = {.device = r->device};
    LS_TRY(ls_model_create(&r->model, ls_model_spec(dp->model), &model));
    return start(r);
}

ls_status ls_dp_create(ls_dp **out, ls_ddp *ddp, ls_model *model, size_t replicas) {
    if (!out)
        return ls__fail(LS_ERR_ARGUMENT, "ls_dp_create: dp is NULL");
    *out = NULL;
    LS_TRY(check(ddp, model, replicas));
    ls_dp *dp = calloc(1, sizeof *dp);
    if (!dp)
        return ls__fail(LS_ERR_MEMORY, "ls_dp_create: no memory");
    pthread_mutex_init(&dp->lock, NULL);
    pthread_cond_init(&dp->changed, NULL);
    dp->ddp = ddp;
    dp->model = model;
    dp->count = replicas - 1;
    dp->others = calloc(replicas, sizeof *dp->others);
    ls_status status = LS_OK;
    if (!dp->others)
        status = ls__fail(LS_ERR_MEMORY, "ls_dp_create: no memory for %zu replicas", replicas);
    for (size_t i = 0; status == LS_OK && i < dp->count; i++)
        status = create_replica(&dp->others[i], dp);
    if (status != LS_OK) {
        ls_dp_destroy(dp);
        return status;
    }
    *out = dp;
    return LS_OK;
}

void ls_dp_destroy(ls_dp *dp) {
    if (!dp)
        return;
    pthread_mutex_lock(&dp->lock);
    dp->stop = true;
    pthread_cond_broadcast(&dp->changed);
    pthread_mutex_unlock(&dp->lock);
    for (size_t i = 0; dp->others && i < dp->count; i++) {
        replica *r = &dp->others[i];
        if (r->runs)
            pthread_join(r->thread, NULL);
        ls_step_destroy(r->step);
        ls_model_destroy(r->model);
        ls_device_destroy(r->device);
    }
    free(dp->others);
    pthread_mutex_destroy(&dp->lock);
    pthread_cond_destroy(&dp->changed);
    free(dp);
}

/* --- a step --- */

/* Every parameter of replica 0, statistics too, to another one. */
static ls_status replicate(ls_dp *dp, replica *r, uint64_t *bytes) {
    for (size_t i = 0; i < dp->model->parameter_count; i++) {
        const ls_tensor *from = &dp->model->parameters[i]->value;
        ls_parameter *to = r->model->parameters[i];
        if (to->role != dp->model->parameters[i]->role)
            return ls__fail(LS_ERR_UNSUPPORTED,
                            "ls_dp_backward: %s was frozen or unfrozen, which the replicas of one "
                            "process do not follow; take ddp",
                            to->name);
        size_t size = from->count * sizeof(float);
        LS_TRY(r->device->table->copy(r->device, to->value.data, from->data, size));
        ls__parameter_changed(to);
        to->present = false;
        *bytes += size;
    }
    return LS_OK;
}

/* Starts all others that have something to do. */
static void start_others(ls_dp *dp, const ls_dp_shard *shards) {
    pthread_mutex_lock(&dp->lock);
    for (size_t i = 0; i < dp->count; i++) {
        dp->others[i].status = LS_OK;
        dp->others[i].shard = shards[i + 1].count > 0 ? &shards[i + 1] : NULL;
        dp->busy += shards[i + 1].count > 0;
    }
    pthread_cond_broadcast(&dp->changed);
    pthread_mutex_unlock(&dp->lock);
}

static void wait_for_others(ls_dp *dp) {
    pthread_mutex_lock(&dp->lock);
    while (dp->busy > 0)
        pthread_cond_wait(&dp->changed, &dp->lock);
    pthread_mutex_unlock(&dp->lock);
}

/* What another replica computed becomes the ddp's next shard. */
static ls_status gather(ls_dp *dp, const replica *r, uint64_t *bytes) {
    ls_ddp *ddp = dp->ddp;
    for (size_t i = 0; i < ddp->parameter_count; i++) {
        const ls_parameter *from = r->model->parameters[i];
        size_t size = from->value.count * sizeof(float);
        if (!from->present)
            continue;
        LS_TRY(ddp->device->table->copy(ddp->device, ls__ddp_entry_slot(ddp, i), from->gradient,
                                        size));
        LS_TRY(ls__ddp_entry_done(ddp, i));
        *bytes += size;
    }
    LS_TRY(ls__ddp_take_loss(ddp, r->model, r->step, r->loss));
    return ls__ddp_close_shard(ddp);
}

static ls_status run_step(ls_dp *dp, ls_step *step, const ls_dp_shard *shards,
                          ls_dp_report *report) {
    uint64_t begin = ls__now_ns();
    for (size_t i = 0; i < dp->count; i++) {
        const ls_step_options options = {.device = dp->others[i].device, .seed = step->seed};
        if (!dp->others[i].step)
            LS_TRY(ls_step_create(&dp->others[i].step, &options));
        LS_TRY(replicate(dp, &dp->others[i], &report->sent_bytes));
    }
    uint64_t replicated = ls__now_ns();
    start_others(dp, shards);
    ls_tensor *loss = NULL;
    ls_status status = LS_OK;
    if (shards[0].count > 0)
        status = forward(dp->model, step, &dp->mode, &shards[0], &loss);
    if (status == LS_OK)
        status = loss ? ls_ddp_backward(dp->ddp, step, loss) : ls_ddp_skip(dp->ddp);
    wait_for_others(dp);
    if (status != LS_OK)
        return ls__fail_context(status, "replica 0");
    uint64_t computed = ls__now_ns();
    for (size_t i = 0; i < dp->count; i++) {
        const replica *r = &dp->others[i];
        if (r->status != LS_OK)
            return ls__fail(r->status, "replica %zu: %s", i + 1, r->text);
        LS_TRY(shards[i + 1].count > 0 ? gather(dp, r, &report->received_bytes)
                                       : ls_ddp_skip(dp->ddp));
    }
    report->replicate_ns = replicated - begin;
    report->compute_ns = computed - replicated;
    report->gather_ns = ls__now_ns() - computed;
    return LS_OK;
}

ls_status ls_dp_backward(ls_dp *dp, ls_step *step, const ls_step_mode *mode,
                         const ls_dp_shard *shards, ls_dp_report *report) {
    if (!dp || !step || !mode || !shards)
        return ls__fail(LS_ERR_ARGUMENT, "ls_dp_backward: an argument is NULL");
    if (!dp->ddp->in_step || dp->ddp->next != 0)
        return ls__fail(LS_ERR_STATE, "ls_dp_backward: call ls_ddp_begin first, and this once");
    ls_dp_report own = {0};
    dp->mode = *mode;
    ls_status status = run_step(dp, step, shards, &own);
    if (report)
        *report = own;
    return ls__ddp_lose_shards(dp->ddp, status);
}
