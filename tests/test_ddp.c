/* Data parallelism: tree order over shards, equal bits at any world size, refusals, replicas. */
#include "autograd/tape.h"
#include "nn/parameter.h"
#include "trainer.h"

#include <lockstep/lockstep.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

/* --- the sum over shards has the order of the tree --- */

static void tree_sum(float *const *gradients, size_t n, size_t count, float *sum) {
    if (n == 1) {
        memcpy(sum, gradients[0], count * sizeof *sum);
        return;
    }
    size_t left = 1;
    while (2 * left < n)
        left *= 2;
    float *right = malloc(count * sizeof *right);
    tree_sum(gradients, left, count, sum);
    tree_sum(gradients + left, n - left, count, right);
    for (size_t i = 0; i < count; i++)
        sum[i] += right[i];
    free(right);
}

static void body_tree(int rank, ls_job *job, void *context) {
    (void)rank;
    size_t shards = *(const size_t *)context;
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    trainer plain, t;
    CHECK_OK(ls_device_cpu(&plain.device, 1));
    const ls_model_options options = {.device = plain.device, .seed = 1};
    CHECK_OK(ls_model_create(&plain.model, SPEC, &options));
    const ls_step_options step = {.device = plain.device};
    CHECK_OK(ls_step_create(&plain.step, &step));
    size_t parameters = ls_model_parameter_count(plain.model);
    float *kept[32][16];
    CHECK(parameters <= 16 && shards <= 32);
    for (size_t k = 0; k < shards; k++) {
        size_t first, count;
        shard_range(k, shards, BATCH, &first, &count);
        ls_tensor *loss = forward(&plain, 0, first, count, x, y);
        CHECK_OK(ls_backward(plain.step, loss, NULL, NULL));
        for (size_t p = 0; p < parameters; p++) {
            ls_parameter *parameter = ls_model_parameter(plain.model, p);
            size_t bytes = parameter->value.count * sizeof(float);
            kept[k][p] = malloc(bytes);
            memcpy(kept[k][p], ls_parameter_gradient(parameter), bytes);
        }
    }
    open_trainer(&t, job, SPEC, 1, shards);
    CHECK_OK(ls_ddp_begin(t.ddp, BATCH));
    for (size_t k = 0; k < shards; k++) {
        size_t first, count;
        shard_range(k, shards, BATCH, &first, &count);
        CHECK_OK(ls_ddp_backward(t.ddp, t.step, forward(&t, 0, first, count, x, y)));
    }
    CHECK_OK(ls_ddp_wait(t.ddp, NULL));
    for (size_t p = 0; p < parameters; p++) {
        float *gradients[32];
        size_t count = ls_model_parameter(plain.model, p)->value.count;
        for (size_t k = 0; k < shards; k++)
            gradients[k] = kept[k][p];
        float *want = malloc(count * sizeof *want);
        tree_sum(gradients, shards, count, want);
        for (size_t i = 0; i < count; i++)
            want[i] *= (float)(1.0 / BATCH);
        CHECK(memcmp(want, ls_parameter_gradient(ls_model_parameter(t.model, p)),
                     count * sizeof *want) == 0);
        free(want);
        for (size_t k = 0; k < shards; k++)
            free(kept[k][p]);
    }
    close_trainer(&t);
    ls_step_destroy(plain.step);
    ls_model_destroy(plain.model);
    ls_device_destroy(plain.device);
}

static void test_tree_order(void **state) {
    (void)state;
    for (size_t shards = 1; shards <= 12; shards++)
        assert_int_equal(ranks_run(1, "shm", body_tree, &shards), 0);
}

/* --- the same bits at any number of ranks --- */

typedef struct bits {
    size_t shards, batch;
    uint64_t *hash; /* shared with the parent */
} bits;

static void body_bits(int rank, ls_job *job, void *context) {
    const bits *b = context;
    trainer t;
    open_trainer(&t, job, SPEC, 7, b->shards);
    for (uint64_t s = 0; s < 4; s++)
        run_step(&t, s, b->shards, b->batch);
    CHECK_OK(ls_ddp_verify(t.ddp));
    double loss = ls_ddp_loss(t.ddp);
    if (rank == 0) {
        b->hash[0] = ls_model_hash(t.model);
        memcpy(&b->hash[1], &loss, sizeof loss);
    }
    close_trainer(&t);
}

static void compare_worlds(size_t shards, size_t batch, const int *worlds, size_t count) {
    uint64_t *hash = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(hash, MAP_FAILED);
    bits b = {shards, batch, hash};
    uint64_t want[2] = {0};
    for (size_t i = 0; i < count; i++) {
        hash[0] = hash[1] = 0;
        assert_int_equal(ranks_run(worlds[i], "shm", body_bits, &b), 0);
        if (i == 0)
            memcpy(want, hash, sizeof want);
        assert_memory_equal(want, hash, sizeof want);
        assert_int_not_equal(hash[0], 0);
    }
    munmap(hash, 4096);
}

static void test_bits_do_not_depend_on_ranks(void **state) {
    (void)state;
    compare_worlds(8, BATCH, (const int[]){1, 2, 4, 8}, 4);
    compare_worlds(12, BATCH, (const int[]){3, 6, 12}, 3);
}

static void test_shards_without_samples(void **state) {
    (void)state;
    /* 3 samples in 8 shards: shards, and at 4 and 8 ranks whole ranks, have none */
    compare_worlds(8, 3, (const int[]){1, 2, 4, 8}, 4);
}

static void test_uneven_shards(void **state) {
    (void)state;
    /* 4 shards on 3 ranks: legal, and the same bits on every run */
    compare_worlds(4, BATCH, (const int[]){3, 3}, 2);
}

/* --- refusals --- */

static void body_refusal(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    trainer t;
    open_trainer(&t, job, SPEC, 1, 0);
    uint64_t before = ls_model_hash(t.model);
    /* nothing computed, computed but not reduced, reduction open: all refused, nothing changed */
    CHECK(ls_optimizer_step(t.optimizer, 0.1, NULL) == LS_ERR_NOT_REDUCED);
    CHECK_OK(ls_backward(t.step, forward(&t, 0, 0, 4, x, y), NULL, NULL));
    CHECK(ls_optimizer_step(t.optimizer, 0.1, NULL) == LS_ERR_NOT_REDUCED);
    CHECK_OK(ls_ddp_begin(t.ddp, 4));
    CHECK(ls_ddp_begin(t.ddp, 4) == LS_ERR_STATE);
    CHECK(ls_ddp_verify(t.ddp) == LS_ERR_STATE);
    CHECK_OK(ls_ddp_backward(t.ddp, t.step, forward(&t, 0, 0, 4, x, y)));
    CHECK(ls_optimizer_step(t.optimizer, 0.1, NULL) == LS_ERR_NOT_REDUCED);
    CHECK(ls_ddp_backward(t.ddp, t.step, forward(&t, 0, 0, 4, x, y)) == LS_ERR_STATE);
    CHECK(ls_model_hash(t.model) == before);
    CHECK_OK(ls_ddp_wait(t.ddp, NULL));
    CHECK_OK(ls_optimizer_step(t.optimizer, 0.1, NULL));
    CHECK(ls_model_hash(t.model) != before);
    /* the same gradients do not count twice */
    CHECK(ls_optimizer_step(t.optimizer, 0.1, NULL) == LS_ERR_NOT_REDUCED);
    CHECK(ls_ddp_wait(t.ddp, NULL) == LS_ERR_STATE);
    CHECK(ls_ddp_backward(t.ddp, t.step, forward(&t, 0, 0, 4, x, y)) == LS_ERR_STATE);
    /* a second ddp on the same model */
    ls_ddp *second;
    CHECK(ls_ddp_create(&second, t.model, ls_job_world(job), NULL) == LS_ERR_STATE && !second);
    /* the steps after a refusal still work */
    CHECK_OK(ls_ddp_begin(t.ddp, 4));
    CHECK_OK(ls_ddp_backward(t.ddp, t.step, forward(&t, 1, 0, 4, x, y)));
    CHECK_OK(ls_ddp_wait(t.ddp, NULL));
    CHECK_OK(ls_optimizer_step(t.optimizer, 0.1, NULL));
    /* without its ddp the model trains alone again */
    ls_ddp_destroy(t.ddp);
    t.ddp = NULL;
    CHECK_OK(ls_backward(t.step, forward(&t, 2, 0, 4, x, y), NULL, NULL));
    CHECK_OK(ls_optimizer_step(t.optimizer, 0.1, NULL));
    close_trainer(&t);
}

static void test_optimizer_refuses(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_refusal, NULL), 0);
}

static void body_wrong_shards(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    trainer t;
    CHECK_OK(ls_device_cpu(&t.device, 1));
    const ls_model_options options = {.device = t.device, .seed = 1};
    CHECK_OK(ls_model_create(&t.model, SPEC, &options));
    const ls_ddp_options ddp = {.shards = 1};
    CHECK(ls_ddp_create(&t.ddp, t.model, ls_job_world(job), &ddp) == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_text(), "1 shards for 2 ranks"));
    for (int i = 0; i < 2; i++) {
        const ls_ddp_options huge = {.shards = i ? LS_DDP_MAX_SHARDS + 1 : SIZE_MAX};
        CHECK(ls_ddp_create(&t.ddp, t.model, ls_job_world(job), &huge) == LS_ERR_ARGUMENT);
        CHECK(strstr(ls_error_text(), "shards, want at most 1048576"));
    }
    const ls_ddp_options most = {.shards = LS_DDP_MAX_SHARDS};
    CHECK_OK(ls_ddp_create(&t.ddp, t.model, ls_job_world(job), &most));
    CHECK_OK(ls_ddp_begin(t.ddp, 1));
    CHECK(ls_ddp_backward(t.ddp, NULL, NULL) == LS_ERR_ARGUMENT);
    CHECK(strcmp(ls_error_text(), "ls_ddp_backward: step is NULL") == 0);
    ls_ddp_destroy(t.ddp);
    ls_model_destroy(t.model);
    ls_device_destroy(t.device);
}

static void test_wrong_shards(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_wrong_shards, NULL), 0);
}

/* A newcomer's cleanup: the job first. */
static void body_job_first(int rank, ls_job *job, void *context) {
    (void)rank;
    const bool in_step = *(bool *)context;
    trainer t;
    CHECK_OK(ls_job_init(&job, NULL));
    open_trainer(&t, job, SPEC, 1, 4);
    run_step(&t, 0, 4, BATCH);
    if (in_step)
        CHECK_OK(ls_ddp_begin(t.ddp, 1));
    ls_job_finish(job);
    if (!in_step) {
        CHECK(ls_ddp_verify(t.ddp) == LS_ERR_STATE);
        CHECK(strstr(ls_error_text(), "group world has ended"));
        CHECK_OK(ls_ddp_begin(t.ddp, 1));
    }
    CHECK(ls_ddp_skip(t.ddp) == LS_ERR_STATE);
    ls_ddp_destroy(t.ddp);
    t.ddp = NULL;
    float x[4 * INPUTS];
    int32_t y[4]; /* the model trains alone again */
    CHECK_OK(ls_backward(t.step, forward(&t, 2, 0, 4, x, y), NULL, NULL));
    CHECK_OK(ls_optimizer_step(t.optimizer, 0.1, NULL));
    close_trainer(&t);
}

static void test_job_finished_first(void **state) {
    (void)state;
    for (int size = 1; size <= 2; size++)
        for (int in_step = 0; in_step < 2; in_step++)
            assert_int_equal(ranks_run_no_job(size, "shm", body_job_first, &(bool){in_step}), 0);
}

/* --- replicas --- */

static void body_different_lists(int rank, ls_job *job, void *context) {
    (void)context;
    ls_device *device;
    ls_model *model;
    ls_ddp *ddp;
    CHECK_OK(ls_device_cpu(&device, 1));
    const ls_model_options options = {.device = device, .seed = 1};
    CHECK_OK(ls_model_create(&model, rank == 1 ? "mlp:12,9,8,5" : "mlp:12,9,7,5", &options));
    CHECK(ls_ddp_create(&ddp, model, ls_job_world(job), NULL) == LS_ERR_MISMATCH && !ddp);
    CHECK(strstr(ls_error_text(), "fc2.weight"));
    CHECK(strstr(ls_error_text(), "rank 1"));
    CHECK(strstr(ls_error_text(), "[7, 9]") && strstr(ls_error_text(), "[8, 9]"));
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void test_different_parameter_lists(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_different_lists, NULL), 0);
    assert_int_equal(ranks_run(3, "tcp", body_different_lists, NULL), 0);
}

/* Options that all ranks must give alike: named on all of them, before anything begins. */
static void body_different_options(int rank, ls_job *job, void *context) {
    (void)context;
    const struct {
        const char *said;
        ls_ddp_options options[2]; /* of the last rank, of the others */
    } all[] = {
        {"shards is 4 on rank 0 and 6 on rank", {{.shards = 6}, {.shards = 4}}},
        {"shards is 8 on rank 0 and 1 on rank", {{.shards = 1}, {.shards = 8}}},
        {"watch_every is 5 on rank 0 and 4 on rank", {{.watch_every = 4}, {.watch_every = 5}}},
        {"watch_every is 100 on rank 0 and 0 on rank", {{.no_watch = true}, {.no_watch = false}}},
        {"skip_broadcast is 0 on rank 0 and 1", {{.skip_broadcast = true}, {.no_watch = false}}},
    };
    ls_device *device;
    ls_model *model;
    CHECK_OK(ls_device_cpu(&device, 1));
    const ls_model_options options = {.device = device, .seed = 1};
    CHECK_OK(ls_model_create(&model, SPEC, &options));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        ls_ddp *ddp;
        bool other = rank < ls_job_world_size(job) - 1;
        CHECK(ls_ddp_create(&ddp, model, ls_job_world(job), &all[i].options[other]) ==
                  LS_ERR_MISMATCH &&
              !ddp);
        CHECK(strstr(ls_error_text(), all[i].said));
    }
    for (uint64_t field = 0; field < 4; field++) {
        const uint64_t more = rank == 1;
        ls_local_sgd_options local = {.every = 2, .start = 3, .done = 1, .ddp.shards = 4};
        local.every += field == 0 ? more : 0;
        local.start += field == 1 ? more : 0;
        local.done += field == 2 ? more : 0;
        local.ddp.shards += field == 3 ? more : 0;
        ls_local_sgd *l;
        CHECK(ls_local_sgd_create(&l, model, ls_job_world(job), &local) == LS_ERR_MISMATCH && !l);
        static const char *const names[] = {"every is 2", "start is 3", "done is 1", "shards is 4"};
        CHECK(strstr(ls_error_text(), names[field]));
    }
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void test_different_options(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_different_options, NULL), 0);
    assert_int_equal(ranks_run(3, "tcp", body_different_options, NULL), 0);
}

static void body_broadcast(int rank, ls_job *job, void *context) {
    (void)context;
    trainer t, zero;
    open_trainer(&t, job, SPEC, 100 + (uint64_t)rank, 0);
    CHECK_OK(ls_device_cpu(&zero.device, 1));
    const ls_model_options options = {.device = zero.device, .seed = 100};
    CHECK_OK(ls_model_create(&zero.model, SPEC, &options));
    CHECK(ls_model_hash(t.model) == ls_model_hash(zero.model));
    CHECK_OK(ls_ddp_verify(t.ddp));
    /* rank 2 goes its own way in one number: all ranks are told where */
    if (rank == 2)
        ((float *)ls_tensor_data(ls_parameter_value(ls_model_parameter(t.model, 3))))[1] += 1;
    CHECK(ls_ddp_verify(t.ddp) == LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_text(), ls_parameter_name(ls_model_parameter(t.model, 3))));
    CHECK(strstr(ls_error_text(), "rank 2"));
    ls_model_destroy(zero.model);
    ls_device_destroy(zero.device);
    close_trainer(&t);
}

static void test_replicas(void **state) {
    (void)state;
    assert_int_equal(ranks_run(4, "shm", body_broadcast, NULL), 0);
}

/* --- batch statistics travel like gradients --- */

enum { CHANNELS = 3, ROWS = 16 };

static void body_statistics(int rank, ls_job *job, void *context) {
    bits *b = context;
    size_t shards = b->shards;
    ls_device *device;
    ls_step *step;
    CHECK_OK(ls_device_cpu(&device, 1));
    const size_t shape[] = {CHANNELS};
    ls_parameter *p[4];
    static const char *const names[] = {"weight", "bias", "running_mean", "running_var"};
    for (size_t i = 0; i < 4; i++)
        CHECK_OK(ls__parameter_create(&p[i], device, names[i], i < 2 ? LS_WEIGHT : LS_STATISTIC,
                                      shape, 1, 1, (ls__init){LS__CONSTANT, i == 0 || i == 3}));
    ls_model model = {.device = device, .parameters = p, .by_name = p, .parameter_count = 4};
    const ls_step_options step_options = {.device = device};
    CHECK_OK(ls_step_create(&step, &step_options));
    ls_ddp *ddp;
    const ls_ddp_options ddp_options = {.shards = shards};
    CHECK_OK(ls_ddp_create(&ddp, &model, ls_job_world(job), &ddp_options));
    ls_optimizer *optimizer;
    const ls_optimizer_options sgd = {.kind = LS_SGD};
    CHECK_OK(ls_optimizer_create(&optimizer, &model, &sgd));
    float x[ROWS * CHANNELS];
    for (size_t i = 0; i < ROWS * CHANNELS; i++)
        x[i] = (float)(i * i % 17);
    for (int s = 0; s < 2; s++) {
        size_t first, local;
        ls_ddp_shards(ddp, &first, &local);
        size_t rows = ROWS / shards;
        CHECK_OK(ls_ddp_begin(ddp, (double)(rows * local)));
        for (size_t k = first; k < first + local; k++) {
            const ls_step_mode mode = {.training = true};
            CHECK_OK(ls_step_begin(step, &mode));
            const size_t x_shape[] = {rows, CHANNELS};
            ls_tensor *input = ls_tensor_wrap(step, x + k * rows * CHANNELS, LS_F32, x_shape, 2);
            ls_batch_norm_state bn = {.running_mean = p[2]->value.data,
                                      .running_var = p[3]->value.data};
            CHECK_OK(ls__tape_statistic(step, p[2], rows, &bn.batch_mean, &bn.add));
            CHECK_OK(ls__tape_statistic(step, p[3], rows, &bn.batch_var, &bn.add));
            ls_tensor *y = ls_batch_norm(step, input, &p[0]->value, &p[1]->value, bn, 1e-5f);
            CHECK_OK(ls_ddp_backward(ddp, step, ls_sum(step, ls_mul(step, y, y))));
        }
        CHECK_OK(ls_ddp_wait(ddp, NULL));
        CHECK_OK(ls_optimizer_step(optimizer, 0.01, NULL));
    }
    /* every shard has the same weight, so the running mean moves by a tenth of the column's mean, twice */
    for (size_t c = 0; c < CHANNELS; c++) {
        double mean = 0;
        for (size_t r = 0; r < ROWS; r++)
            mean += (double)x[r * CHANNELS + c] / ROWS;
        double seen = (double)((float *)p[2]->value.data)[c], want = mean * (1 - 0.81);
        CHECK(seen > want - 1e-5 * mean && seen < want + 1e-5 * mean);
    }
    if (rank == 0)
        for (size_t i = 0; i < 4; i++)
            memcpy((char *)b->hash + i * sizeof(float) * CHANNELS, p[i]->value.data,
                   sizeof(float) * CHANNELS);
    ls_optimizer_destroy(optimizer);
    ls_ddp_destroy(ddp);
    ls_step_destroy(step);
    for (size_t i = 0; i < 4; i++)
        ls__parameter_destroy(p[i]);
    ls_device_destroy(device);
}

static void test_statistics(void **state) {
    (void)state;
    char want[4 * CHANNELS * sizeof(float)];
    uint64_t *values = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(values, MAP_FAILED);
    bits b = {4, ROWS, values};
    for (int world = 1; world <= 4; world *= 2) {
        memset(values, 0, sizeof want);
        assert_int_equal(ranks_run(world, "shm", body_statistics, &b), 0);
        if (world == 1)
            memcpy(want, values, sizeof want);
        assert_memory_equal(want, values, sizeof want);
    }
    munmap(values, 4096);
}

/* --- what rank 0 alone asks, to log it, is no operation that the others would have to join --- */

typedef struct looks {
    bool rank_0_asks;
    uint64_t hash;
} looks;

/* All that can be asked between steps without the word "Collective" in ddp.h and model.h. */
static void ask(trainer *t) {
    const struct timespec slow_disk = {.tv_nsec = 20000000};
    size_t first, count;
    ls_ddp_shards(t->ddp, &first, &count);
    CHECK(count >= 1 && ls_ddp_loss(t->ddp) > 0);
    CHECK(ls_ddp_votes(t->ddp)->ranks >= 1 && ls_ddp_votes(t->ddp)->update);
    CHECK(ls_ddp_hook_states(t->ddp) == 0);
    (void)ls_ddp_step_times(t->ddp);
    (void)ls_ddp_bits_note(t->ddp);
    CHECK(ls_model_hash(t->model) != 0);
    CHECK(ls_parameter_gradient(ls_model_parameter(t->model, 0)));
    nanosleep(&slow_disk, NULL);
}

static void body_looks(int rank, ls_job *job, void *context) {
    looks *c = context;
    trainer t;
    open_trainer(&t, job, SPEC, 1, 4);
    for (uint64_t s = 0; s < 4; s++) {
        run_step(&t, s, 4, BATCH);
        if (rank == 0 && c->rank_0_asks)
            ask(&t);
    }
    CHECK_OK(ls_ddp_verify(t.ddp));
    if (rank == 0)
        c->hash = ls_model_hash(t.model);
    close_trainer(&t);
}

static void test_only_rank_0_asks(void **state) {
    (void)state;
    looks *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(c, MAP_FAILED);
    uint64_t hash[2];
    for (int asks = 0; asks < 2; asks++) {
        *c = (looks){.rank_0_asks = asks};
        assert_int_equal(ranks_run(2, "shm", body_looks, c), 0);
        hash[asks] = c->hash;
    }
    munmap(c, sizeof *c);
    assert_int_not_equal(hash[0], 0);
    assert_int_equal(hash[0], hash[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_order),
        cmocka_unit_test(test_bits_do_not_depend_on_ranks),
        cmocka_unit_test(test_shards_without_samples),
        cmocka_unit_test(test_uneven_shards),
        cmocka_unit_test(test_optimizer_refuses),
        cmocka_unit_test(test_wrong_shards),
        cmocka_unit_test(test_job_finished_first),
        cmocka_unit_test(test_different_parameter_lists),
        cmocka_unit_test(test_different_options),
        cmocka_unit_test(test_replicas),
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_only_rank_0_asks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
