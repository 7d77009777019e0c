/* norm=sync: batch norm over the batch of all ranks, however it is divided, is that of one process over the
 * whole batch, in values, gradients and running statistics. */
#include "nn/model.h"
#include "ranks.h"

#include <lockstep/lockstep.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { PIXELS = 28 * 28, BATCH = 10, STEPS = 2 };

typedef struct run {
    const char *spec;
    bool last_is_empty; /* the last rank has no samples */
    float *values;      /* all parameters of rank 0, in memory the parent maps */
} run;

static void make_samples(uint64_t s, size_t first, size_t count, float *x, int32_t *y) {
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < PIXELS; k += 4)
            ls_random_normal4(s, first + i, k, x + i * PIXELS + k);
        for (size_t k = 0; k < PIXELS; k++) /* every sample has a level of its own */
            x[i * PIXELS + k] += (float)(first + i);
        y[i] = (int32_t)((first + i + s) % 10);
    }
}

static ls_tensor *forward(ls_model *model, ls_step *step, uint64_t s, size_t first, size_t count,
                          float *x, int32_t *y) {
    make_samples(s, first, count, x, y);
    CHECK_OK(ls_step_begin(step, &(ls_step_mode){.training = true}));
    ls_tensor *input = ls_tensor_wrap(step, x, LS_F32, (size_t[]){count, PIXELS}, 2);
    ls_tensor *target = ls_tensor_wrap(step, y, LS_I32, &count, 1);
    return ls_model_loss(step, model, input, target, NULL);
}

typedef struct setup {
    ls_device *device;
    ls_model *model;
    ls_step *step;
    ls_ddp *ddp;
    ls_optimizer *optimizer;
} setup;

static void open_setup(setup *t, ls_job *job, const char *spec) {
    CHECK_OK(ls_device_cpu(&t->device, 1));
    const ls_model_options options = {.device = t->device, .seed = 1};
    CHECK_OK(ls_model_create(&t->model, spec, &options));
    CHECK_OK(ls_step_create(&t->step, &(ls_step_options){.device = t->device}));
    CHECK_OK(ls_ddp_create(&t->ddp, t->model, ls_job_world(job), NULL));
    CHECK_OK(ls_optimizer_create(&t->optimizer, t->model, &(ls_optimizer_options){.kind = LS_SGD}));
}

static void close_setup(setup *t) {
    ls_optimizer_destroy(t->optimizer);
    ls_ddp_destroy(t->ddp);
    ls_step_destroy(t->step);
    ls_model_destroy(t->model);
    ls_device_destroy(t->device);
}

static void body(int rank, ls_job *job, void *context) {
    const run *r = context;
    static float x[BATCH * PIXELS];
    int32_t y[BATCH];
    setup t;
    open_setup(&t, job, r->spec);
    size_t parts = (size_t)(ls_group_size(ls_job_world(job)) - r->last_is_empty);
    size_t first = BATCH, count = 0;
    if ((size_t)rank < parts) {
        first = (size_t)rank * BATCH / parts;
        count = ((size_t)rank + 1) * BATCH / parts - first;
    }
    for (uint64_t s = 0; s < STEPS; s++) {
        CHECK_OK(ls_ddp_begin(t.ddp, (double)count));
        if (count > 0)
            CHECK_OK(
                ls_ddp_backward(t.ddp, t.step, forward(t.model, t.step, s, first, count, x, y)));
        CHECK_OK(ls_ddp_wait(t.ddp, NULL));
        CHECK_OK(ls_optimizer_step(t.optimizer, 0.01, NULL));
    }
    CHECK_OK(ls_ddp_verify(t.ddp));
    float *to = r->values;
    for (size_t i = 0; rank == 0 && i < ls_model_parameter_count(t.model); i++) {
        const ls_tensor *value = &ls_model_parameter(t.model, i)->value;
        memcpy(to, value->data, value->count * sizeof *to);
        to += value->count;
    }
    close_setup(&t);
}

/* Largest difference of two results of `count` numbers, in units of 1e-6 (1 + their size). */
static double distance(const float *a, const float *b, size_t count) {
    double most = 0;
    for (size_t i = 0; i < count; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]) / (1e-6 * (1 + fabs((double)a[i]))));
    return most;
}

static void test_equals_one_process(void **state) {
    (void)state;
    enum { COUNT = 9 * 32 + 9 * 32 * 64 + 4 * (32 + 64) + 9216 * 128 + 128 + 1280 + 10 };
    size_t bytes = 2 * COUNT * sizeof(float);
    float *want = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(want, MAP_FAILED);
    run one = {.spec = "cnn:dropout=0,norm=batch", .values = want};
    assert_int_equal(ranks_run(1, "shm", body, &one), 0);
    run many = {.spec = "cnn:dropout=0,norm=sync", .values = want + COUNT};
    for (int world = 1; world <= 4; world++) {
        many.last_is_empty = world > 2;
        memset(many.values, 0, COUNT * sizeof(float));
        assert_int_equal(ranks_run(world, world == 3 ? "tcp" : "shm", body, &many), 0);
        assert_true(distance(want, many.values, COUNT) < 20);
    }
    /* and that is not what shards on their own give: samples differ in their level */
    many = (run){.spec = "cnn:dropout=0,norm=batch", .values = want + COUNT};
    assert_int_equal(ranks_run(2, "shm", body, &many), 0);
    assert_true(distance(want, many.values, COUNT) > 2000);
    munmap(want, bytes);
}

/* --- what cannot be is refused by name --- */

static void body_refusals(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    ls_device *device;
    ls_model *model;
    ls_ddp *ddp;
    CHECK_OK(ls_device_cpu(&device, 1));
    const ls_model_options options = {.device = device, .seed = 1};
    CHECK_OK(ls_model_create(&model, "resnet18:width=4,norm=sync", &options));
    CHECK(strstr(ls_model_spec(model), "norm=sync"));
    const ls_ddp_options shards = {.shards = 4};
    CHECK(ls_ddp_create(&ddp, model, ls_job_world(job), &shards) == LS_ERR_UNSUPPORTED);
    CHECK(strstr(ls_error_text(), "4 shards on 2 ranks") && strstr(ls_error_text(), "norm=sync"));
    const ls_ddp_options progress = {.reducer.progress = LS_PROGRESS_INLINE};
    CHECK(ls_ddp_create(&ddp, model, ls_job_world(job), &progress) == LS_ERR_UNSUPPORTED);
    CHECK(strstr(ls_error_text(), "inline"));
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void test_refusals(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_refusals, NULL), 0);
}

/* One rank runs the model twice where the others do it once. */
static void body_different_forwards(int rank, ls_job *job, void *context) {
    (void)context;
    static float x[BATCH * PIXELS];
    int32_t y[BATCH];
    setup t;
    open_setup(&t, job, "cnn:dropout=0,norm=sync");
    /* outside of a step there is nobody to compute with */
    CHECK(!forward(t.model, t.step, 0, 0, 2, x, y));
    CHECK(strstr(ls_error_text(), "outside of a step"));
    ls_status status = LS_OK;
    for (uint64_t s = 0; s < 2 && status == LS_OK; s++) {
        CHECK_OK(ls_ddp_begin(t.ddp, 2));
        ls_tensor *loss = forward(t.model, t.step, s, 2 * (size_t)rank, 2, x, y);
        CHECK_OK(ls_step_status(t.step));
        if (s == 1 && rank == 1) {
            ls_tensor *input = ls_tensor_wrap(t.step, x, LS_F32, (size_t[]){2, PIXELS}, 2);
            ls_model_forward(t.step, t.model, input);
            status = ls_step_status(t.step);
        }
        if (status == LS_OK)
            status = ls_ddp_backward(t.ddp, t.step, loss);
        if (status == LS_OK)
            status = ls_ddp_wait(t.ddp, NULL);
        CHECK(s == 1 || status == LS_OK);
    }
    CHECK(status == LS_ERR_MISMATCH && strstr(ls_error_text(), "norm=sync"));
    close_setup(&t);
}

static void test_different_forwards(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, "shm", body_different_forwards, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_one_process),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_different_forwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
