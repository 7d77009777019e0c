/* Local SGD on 1 to 4 real ranks: weights and the optimizer's state are, to the bit, the averages of what
 * replicas make that one process trains one after the other, each with its rank's shards; before `start`
 * they are those of data parallelism; uneven weights count. */
#include "trainer.h"

#include "nn/parameter.h"
#include "optim/state.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 9, MOST = 4, TENSORS = 64 };

typedef struct plan {
    uint64_t every, start;
    size_t batch; /* shards are the ranks */
} plan;

static void open_parts(trainer *t) {
    CHECK_OK(ls_device_cpu(&t->device, 1));
    const ls_model_options options = {.device = t->device, .seed = 7};
    CHECK_OK(ls_model_create(&t->model, SPEC, &options));
    const ls_step_options step = {.device = t->device, .seed = 3};
    CHECK_OK(ls_step_create(&t->step, &step));
    const ls_optimizer_options adam = {.kind = LS_ADAMW};
    CHECK_OK(ls_optimizer_create(&t->optimizer, t->model, &adam));
}

/* A step of rank `rank` of `ranks`, alone. */
static double local_step(trainer *t, uint64_t s, size_t rank, size_t world_size, size_t batch) {
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    size_t first, count;
    shard_range(rank, world_size, batch, &first, &count);
    CHECK_OK(ls_ddp_begin(t->ddp, (double)count));
    CHECK_OK(ls_ddp_backward(t->ddp, t->step, forward(t, s, first, count, x, y)));
    CHECK_OK(ls_ddp_wait(t->ddp, NULL));
    CHECK_OK(ls_optimizer_step(t->optimizer, 0.01, NULL));
    return (double)count;
}

/* All that a replica holds: weights, then what the optimizer keeps for them. */
static size_t list_tensors(trainer *t, float *data[TENSORS], size_t count[TENSORS]) {
    size_t n = 0;
    for (size_t i = 0; i < ls__optimizer_state_count(t->optimizer); i++) {
        ls__optimizer_state s = ls__optimizer_state_get(t->optimizer, i);
        float *all[] = {s.parameter->value.data, s.first, s.second};
        CHECK(*s.steps <= STEPS);
        for (size_t k = 0; k < 3; k++) {
            data[n] = all[k];
            count[n++] = s.parameter->value.count;
        }
    }
    return n;
}

static float tree(const float *values, int n) {
    int m = 1;
    if (n == 1)
        return values[0];
    while (2 * m < n)
        m *= 2;
    return tree(values, m) + tree(values + m, n - m);
}

/* The replicas of all ranks become their average. */
static void average(trainer *replica, int world_size, size_t batch, uint64_t steps) {
    float *data[MOST][TENSORS], values[MOST];
    size_t count[TENSORS], n = 0, first, share;
    bool equal = batch % (size_t)world_size == 0;
    for (int r = 0; r < world_size; r++)
        n = list_tensors(&replica[r], data[r], count);
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < count[i]; e++) {
            for (int r = 0; r < world_size; r++) {
                shard_range((size_t)r, (size_t)world_size, batch, &first, &share);
                values[r] = equal ? data[r][i][e] : data[r][i][e] * (float)(share * steps);
            }
            double weight = equal ? world_size : (double)(batch * steps);
            float mean = tree(values, world_size) * (float)(1 / weight);
            for (int r = 0; r < world_size; r++)
                data[r][i][e] = mean;
        }
    for (int r = 0; r < world_size; r++)
        for (size_t i = 0; i < ls_model_parameter_count(replica[r].model); i++)
            ls__parameter_changed(ls_model_parameter(replica[r].model, i));
}

/* With no start: replicas of all ranks, trained here one after the other. */
static void train_serially(ls_group *world, const plan *p, trainer *replica) {
    int world_size = ls_group_size(world);
    ls_group *self;
    CHECK_OK(ls_group_split(world, ls_group_rank(world), 0, &self));
    for (int r = 0; r < world_size; r++) {
        open_parts(&replica[r]);
        CHECK_OK(ls_ddp_create(&replica[r].ddp, replica[r].model, self, NULL));
    }
    for (uint64_t s = 0; s < STEPS; s++) {
        for (int r = 0; r < world_size; r++)
            local_step(&replica[r], s, (size_t)r, (size_t)world_size, p->batch);
        if ((s + 1) % p->every == 0 || s + 1 == STEPS)
            average(replica, world_size, p->batch, p->every);
    }
}

static void compare(trainer *got, trainer *want) {
    float *a[TENSORS], *b[TENSORS];
    size_t count[TENSORS], n = list_tensors(got, a, count);
    CHECK(list_tensors(want, b, count) == n);
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < count[i]; e++)
            CHECK(a[i][e] == b[i][e]);
}

/* Trains with local SGD; averages at the end. */
static void train_locally(trainer *t, ls_group *world, const plan *p) {
    size_t rank = (size_t)ls_group_rank(world), world_size = (size_t)ls_group_size(world);
    open_parts(t);
    ls_local_sgd *local;
    const ls_local_sgd_options options = {.every = p->every, .start = p->start};
    CHECK_OK(ls_local_sgd_create(&local, t->model, world, &options));
    ls_local_sgd_sync sync;
    for (uint64_t s = 0; s < STEPS; s++) {
        CHECK(ls_local_sgd_is_local(local) == (s >= p->start));
        t->ddp = ls_local_sgd_ddp(local);
        double weight = local_step(t, s, rank, world_size, p->batch), loss = ls_ddp_loss(t->ddp);
        CHECK_OK(ls_local_sgd_step(local, weight, loss, &sync));
        bool due = s >= p->start && (s + 1 - p->start) % p->every == 0;
        CHECK(sync.averaged == due);
        CHECK(!due || (sync.weight == (double)(p->batch * p->every) && sync.loss > 0));
    }
    CHECK_OK(ls_local_sgd_average(local, &sync));
    CHECK(sync.averaged == ((STEPS - p->start) % p->every != 0));
    CHECK_OK(ls_local_sgd_average(local, &sync));
    CHECK(!sync.averaged);
    ls_local_sgd_destroy(local);
    t->ddp = NULL;
}

static void local_body(int rank, ls_job *job, void *context) {
    (void)rank;
    const plan *p = context;
    ls_group *world = ls_job_world(job);
    trainer got, want[MOST];
    train_locally(&got, world, p);
    train_serially(world, p, want);
    compare(&got, &want[0]);
    for (int r = 0; r < ls_group_size(world); r++)
        close_trainer(&want[r]);
    close_trainer(&got);
}

static void run(ranks_body body, plan p) {
    for (int world = 1; world <= MOST; world++)
        assert_int_equal(ranks_run(world, "shm", body, &p), 0);
}

static void test_averages_of_local_training(void **state) {
    (void)state;
    run(local_body, (plan){.every = 1, .batch = 24});
    run(local_body, (plan){.every = 4, .batch = 24});
}

static void test_uneven_weights_count(void **state) {
    (void)state;
    run(local_body, (plan){.every = 3, .batch = 23});
}

/* Up to `start` it is data parallelism: all steps. */
static void start_body(int rank, ls_job *job, void *context) {
    const plan *p = context;
    ls_group *world = ls_job_world(job);
    trainer got, want;
    train_locally(&got, world, p);
    open_parts(&want);
    CHECK_OK(ls_ddp_create(&want.ddp, want.model, world, NULL));
    for (uint64_t s = 0; s < STEPS; s++)
        local_step(&want, s, (size_t)rank, (size_t)ls_group_size(world), p->batch);
    compare(&got, &want);
    close_trainer(&want);
    close_trainer(&got);
}

static void test_start_reduces_gradients(void **state) {
    (void)state;
    run(start_body, (plan){.every = 5, .start = STEPS, .batch = 24});
}

/* Half and half: replicas are equal in the end (an average compares them), and not those of either. */
static void post_body(int rank, ls_job *job, void *context) {
    (void)rank;
    trainer t;
    train_locally(&t, ls_job_world(job), context);
    float *data[TENSORS];
    size_t count[TENSORS];
    list_tensors(&t, data, count);
    CHECK(isfinite(data[0][0]));
    close_trainer(&t);
}

static void test_post_local(void **state) {
    (void)state;
    run(post_body, (plan){.every = 2, .start = 4, .batch = 22});
}

/* A weight that is unfrozen later has a state on ranks that made an update of it, and none on others. */
static void unfreeze_body(int rank, ls_job *job, void *context) {
    (void)context;
    trainer t;
    CHECK_OK(ls_device_cpu(&t.device, 1));
    const ls_model_options options = {.device = t.device, .seed = 7};
    CHECK_OK(ls_model_create(&t.model, SPEC, &options));
    const ls_step_options step = {.device = t.device, .seed = 3};
    CHECK_OK(ls_step_create(&t.step, &step));
    CHECK_OK(ls_model_set_trainable(t.model, "fc2", false));
    CHECK_OK(ls_optimizer_create(&t.optimizer, t.model, &(ls_optimizer_options){.kind = LS_ADAMW}));
    ls_local_sgd *local;
    const ls_local_sgd_options two = {.every = 2};
    CHECK_OK(ls_local_sgd_create(&local, t.model, ls_job_world(job), &two));
    t.ddp = ls_local_sgd_ddp(local);
    CHECK_OK(ls_ddp_set_trainable(t.ddp, "fc2", true));
    ls_local_sgd_sync sync;
    for (uint64_t s = 0; s < two.every; s++) {
        float x[4 * INPUTS];
        int32_t y[4];
        double weight = rank == 1 ? 0 : 4; /* rank 1 has no data */
        CHECK_OK(ls_ddp_begin(t.ddp, weight));
        if (weight > 0)
            CHECK_OK(ls_ddp_backward(t.ddp, t.step, forward(&t, s, 4 * (size_t)rank, 4, x, y)));
        CHECK_OK(ls_ddp_wait(t.ddp, NULL));
        CHECK_OK(ls_optimizer_step(t.optimizer, 0.01, NULL));
        CHECK_OK(ls_local_sgd_step(local, weight, ls_ddp_loss(t.ddp), &sync));
    }
    CHECK(sync.averaged && sync.weight == 16);
    ls_local_sgd_destroy(local);
    t.ddp = NULL;
    close_trainer(&t);
}

static void test_unfrozen_and_without_data(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, "shm", unfreeze_body, NULL), 0);
}

static void refuse_body(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    trainer t;
    open_parts(&t);
    ls_local_sgd *local;
    CHECK(ls_local_sgd_create(&local, t.model, ls_job_world(job), &(ls_local_sgd_options){0}) ==
          LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_text(), "every 0"));
    const ls_local_sgd_options huge = {.every = 1, .ddp.shards = SIZE_MAX};
    CHECK(ls_local_sgd_create(&local, t.model, ls_job_world(job), &huge) == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_text(), "at most 1048576 shards"));
    CHECK_OK(ls_local_sgd_create(&local, t.model, ls_job_world(job),
                                 &(ls_local_sgd_options){.every = 1}));
    const double wrong[] = {NAN, -1, INFINITY};
    for (size_t i = 0; i < 3; i++) {
        CHECK(ls_local_sgd_step(local, wrong[i], 1, NULL) == LS_ERR_ARGUMENT);
        CHECK(strstr(ls_error_text(), "ls_local_sgd_step: weight is "));
    }
    ls_local_sgd_sync sync; /* they were no steps */
    CHECK_OK(ls_local_sgd_step(local, 2, 3, &sync));
    CHECK(sync.averaged && sync.weight == 2 && sync.loss == 3);
    ls_local_sgd_destroy(local);
    ls_reducer_hook *hook; /* its memory belongs to the tensors it was attached to */
    CHECK_OK(ls_hook_create(&hook, "powersgd:rank=1"));
    const ls_ddp_options options = {.reducer.hook = hook};
    CHECK_OK(ls_ddp_create(&t.ddp, t.model, ls_job_world(job), &options));
    CHECK(ls_ddp_set_trainable(t.ddp, "fc1", false) == LS_ERR_STATE);
    CHECK(strstr(ls_error_text(), "hook"));
    close_trainer(&t);
}

static void test_refusals(void **state) {
    (void)state;
    assert_int_equal(ranks_run(1, "shm", refuse_body, NULL), 0);
    assert_int_equal(ls_local_sgd_step(NULL, 1, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_local_sgd_average(NULL, NULL), LS_ERR_ARGUMENT);
    assert_null(ls_local_sgd_ddp(NULL));
}

static void job_first_body(int rank, ls_job *job, void *context) {
    (void)rank;
    trainer t;
    ls_local_sgd *local;
    CHECK_OK(ls_job_init(&job, NULL));
    open_parts(&t);
    const ls_local_sgd_options options = {.every = 2, .start = *(uint64_t *)context};
    CHECK_OK(ls_local_sgd_create(&local, t.model, ls_job_world(job), &options));
    CHECK_OK(ls_local_sgd_step(local, 1, 1, NULL));
    ls_job_finish(job);
    if (options.start <= 1) {
        CHECK(ls_local_sgd_step(local, 1, 1, NULL) == (options.start == 0 ? LS_ERR_STATE : LS_OK));
    }
    ls_local_sgd_destroy(local);
    t.ddp = NULL;
    close_trainer(&t);
}

static void test_job_finished_first(void **state) {
    (void)state;
    for (uint64_t start = 0; start < 3; start++)
        assert_int_equal(ranks_run_no_job(2, "shm", job_first_body, &start), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_averages_of_local_training),
        cmocka_unit_test(test_uneven_weights_count),
        cmocka_unit_test(test_start_reduces_gradients),
        cmocka_unit_test(test_post_local),
        cmocka_unit_test(test_unfrozen_and_without_data),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_job_finished_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
