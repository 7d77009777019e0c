/* Running statistics under data parallelism: from the first step on they are those of the whole batch,
 * whatever the ranks, and equal to the bit at any world size. */
#include "nn/model.h"
#include "ranks.h"

#include <lockstep/lockstep.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { INPUTS = 8, HIDDEN = 6, CLASSES = 5, BATCH = 24, SHARDS = 4, STEPS = 3 };

/* (B, INPUTS) -> fc1, bn, relu, fc2 -> (B, CLASSES) */
static ls_tensor *net_forward(ls_step *step, ls__module *net, ls_tensor *x) {
    x = ls__module_forward(step, net->children[0], x);
    x = ls_relu(step, ls__module_forward(step, net->children[1], x));
    return ls__module_forward(step, net->children[2], x);
}

static ls_model *new_net(ls_device *device) {
    const ls__builder builder = {.device = device, .seed = 5};
    ls__linear_options fc = {
        .in = INPUTS,
        .out = HIDDEN,
        .weight = ls__init_fan_in(INPUTS),
        .bias = ls__init_fan_in(INPUTS),
    };
    ls__module *root, *m;
    ls_model *model;
    CHECK_OK(ls__module_create(&root, NULL, "", sizeof *root, net_forward));
    CHECK_OK(ls__linear_create(&m, root, "fc1", &builder, &fc));
    CHECK_OK(ls__batch_norm_create(&m, root, "bn", &builder, HIDDEN, false));
    fc.in = HIDDEN;
    fc.out = CLASSES;
    CHECK_OK(ls__linear_create(&m, root, "fc2", &builder, &fc));
    CHECK_OK(ls__model_adopt(&model, device, root));
    return model;
}

static ls_parameter *find(ls_model *model, const char *name) {
    for (size_t i = 0; i < ls_model_parameter_count(model); i++)
        if (strcmp(ls_parameter_name(ls_model_parameter(model, i)), name) == 0)
            return ls_model_parameter(model, i);
    return NULL;
}

static void make_samples(uint64_t s, size_t first, size_t count, float *x, int32_t *y) {
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < INPUTS; k += 4)
            ls_random_normal4(s, first + i, k, x + i * INPUTS + k);
        y[i] = (int32_t)((first + i + s) % CLASSES);
    }
}

/* 0.1 times the average of fc1's outputs over the first batch; equal shards, so shards' averages
 * average to it. */
static void expected_means(ls_model *model, double *means) {
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    const float *weight = ls_tensor_data(ls_parameter_value(find(model, "fc1.weight")));
    const float *bias = ls_tensor_data(ls_parameter_value(find(model, "fc1.bias")));
    make_samples(0, 0, BATCH, x, y);
    for (size_t h = 0; h < HIDDEN; h++) {
        means[h] = 0.1 * (double)bias[h];
        for (size_t i = 0; i < BATCH * INPUTS; i++)
            means[h] += 0.1 * (double)x[i] * (double)weight[h * INPUTS + i % INPUTS] / BATCH;
    }
}

static void run_step(ls_model *model, ls_step *step, ls_ddp *ddp, uint64_t s) {
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    size_t first, count, rows = BATCH / SHARDS;
    ls_ddp_shards(ddp, &first, &count);
    CHECK_OK(ls_ddp_begin(ddp, (double)(count * rows)));
    for (size_t k = first; k < first + count; k++) {
        make_samples(s, k * rows, rows, x, y);
        CHECK_OK(ls_step_begin(step, &(ls_step_mode){.training = true}));
        ls_tensor *input = ls_tensor_wrap(step, x, LS_F32, (size_t[]){rows, INPUTS}, 2);
        ls_tensor *target = ls_tensor_wrap(step, y, LS_I32, &rows, 1);
        ls_tensor *logits = ls__module_forward(step, model->root, input);
        CHECK_OK(ls_ddp_backward(ddp, step, ls_cross_entropy(step, logits, target)));
    }
    CHECK_OK(ls_ddp_wait(ddp, NULL));
}

/* context: where rank 0 leaves the hash, in memory all ranks map */
static void body(int rank, ls_job *job, void *context) {
    double means[HIDDEN];
    ls_device *device;
    CHECK_OK(ls_device_cpu(&device, 1));
    ls_model *model = new_net(device);
    ls_step *step;
    ls_ddp *ddp;
    ls_optimizer *optimizer;
    CHECK_OK(ls_step_create(&step, &(ls_step_options){.device = device}));
    CHECK_OK(ls_ddp_create(&ddp, model, ls_job_world(job), &(ls_ddp_options){.shards = SHARDS}));
    CHECK_OK(ls_optimizer_create(&optimizer, model, &(ls_optimizer_options){.momentum = 0.9}));
    expected_means(model, means);
    for (uint64_t s = 0; s < STEPS; s++) {
        run_step(model, step, ddp, s);
        CHECK_OK(ls_optimizer_step(optimizer, 0.1, NULL));
        const float *mean = ls_tensor_data(ls_parameter_value(find(model, "bn.running_mean")));
        const float *variance = ls_tensor_data(ls_parameter_value(find(model, "bn.running_var")));
        for (size_t h = 0; h < HIDDEN; h++) {
            CHECK(s > 0 || fabs((double)mean[h] - means[h]) < 1e-6);
            CHECK(variance[h] > 0.5F && variance[h] != 1);
        }
    }
    CHECK_OK(ls_ddp_verify(ddp));
    if (rank == 0)
        *(uint64_t *)context = ls_model_hash(model);
    ls_optimizer_destroy(optimizer);
    ls_ddp_destroy(ddp);
    ls_step_destroy(step);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void statistics_do_not_depend_on_the_ranks(void **state) {
    (void)state;
    uint64_t *hash =
        mmap(NULL, sizeof *hash, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(hash != MAP_FAILED);
    uint64_t first = 0;
    for (int world = 1; world <= SHARDS; world *= 2) {
        *hash = 0;
        assert_int_equal(ranks_run(world, ranks_transport(), body, hash), 0);
        if (world == 1)
            first = *hash;
        assert_int_not_equal(*hash, 0);
        assert_int_equal(*hash, first);
    }
    munmap(hash, sizeof *hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_do_not_depend_on_the_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
