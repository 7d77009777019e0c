/* A global batch is a global batch: token weights with padding, ranks that only have padding, uneven shares,
 * statistics by the samples they were made of. N ranks are one process. */
#include "nn/parameter.h"
#include "trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* --- a language model on texts of different lengths --- */

enum { TEXTS = 8, TIME = 8, VOCAB = 11, STEPS = 2 };
static const char GPT[] = "gpt:layers=1,heads=2,width=16,context=8,vocab=11";

/* Text i of step s has 1 + (3 i + s) % 8 targets; behind them stands padding, ours or PyTorch's. The last
 * quarter of the texts of step 1 is padding altogether. */
static void make_texts(uint64_t s, size_t first, size_t count, int32_t *tokens, int32_t *targets) {
    for (size_t i = first; i < first + count; i++) {
        size_t length = s == 1 && i >= TEXTS * 3 / 4 ? 0 : 1 + (3 * i + s) % TIME;
        for (size_t k = 0; k < TIME; k++) {
            tokens[(i - first) * TIME + k] = (int32_t)((i * 7 + k * k + s) % VOCAB);
            targets[(i - first) * TIME + k] = k < length ? (int32_t)((i + 3 * k) % VOCAB)
                                              : i % 2    ? -1
                                                         : -100;
        }
    }
}

static ls_tensor *text_loss(trainer *t, size_t count, int32_t *tokens, int32_t *targets) {
    const size_t shape[] = {count, TIME};
    CHECK_OK(ls_step_begin(t->step, &(ls_step_mode){.training = true}));
    ls_tensor *x = ls_tensor_wrap(t->step, tokens, LS_I32, shape, 2);
    ls_tensor *y = ls_tensor_wrap(t->step, targets, LS_I32, shape, 2);
    ls_tensor *loss = ls_model_loss(t->step, t->model, x, y, NULL);
    /* the other way to the same number, which knows padding as well */
    ls_tensor *logits = ls_model_forward(t->step, t->model, x);
    double other = ls_tensor_item(ls_cross_entropy(t->step, logits, y));
    CHECK_OK(ls_step_status(t->step));
    CHECK(fabs(other - ls_tensor_item(loss)) < 1e-4);
    return loss;
}

typedef struct tokens {
    size_t shards;
    uint64_t *hash; /* of rank 0, mapped by the parent */
} tokens;

static void check_close(ls_model *a, ls_model *b) {
    for (size_t i = 0; i < ls_model_parameter_count(a); i++) {
        const ls_tensor *one = &ls_model_parameter(a, i)->value;
        const float *p = one->data, *q = ls_model_parameter(b, i)->value.data;
        for (size_t k = 0; k < one->count; k++)
            CHECK(fabsf(p[k] - q[k]) < 5e-6F * (1 + fabsf(p[k])));
    }
}

/* All texts in one backward, without a ddp; the mean over all targets that count. */
static void train_alone(trainer *t, double *losses) {
    int32_t x[TEXTS * TIME], y[TEXTS * TIME];
    for (uint64_t s = 0; s < STEPS; s++) {
        make_texts(s, 0, TEXTS, x, y);
        float share = 1 / (float)ls_count_targets(y, TEXTS * TIME);
        ls_tensor *loss = ls_scale(t->step, text_loss(t, TEXTS, x, y), share);
        losses[s] = ls_tensor_item(loss);
        CHECK_OK(ls_backward(t->step, loss, NULL, NULL));
        CHECK_OK(ls_optimizer_step(t->optimizer, 0.1, NULL));
    }
}

static void body_tokens(int rank, ls_job *job, void *context) {
    const tokens *c = context;
    int32_t x[TEXTS * TIME], y[TEXTS * TIME];
    double losses[STEPS];
    trainer t, alone = {0};
    open_trainer(&t, job, GPT, 5, c->shards);
    const ls_model_options options = {.device = t.device, .seed = 5};
    CHECK_OK(ls_model_create(&alone.model, GPT, &options));
    const ls_optimizer_options sgd = {.kind = LS_SGD, .momentum = 0.9};
    CHECK_OK(ls_optimizer_create(&alone.optimizer, alone.model, &sgd));
    alone.step = t.step;
    train_alone(&alone, losses);
    size_t first, count;
    ls_ddp_shards(t.ddp, &first, &count);
    size_t begin = first * TEXTS / c->shards, end = (first + count) * TEXTS / c->shards;
    for (uint64_t s = 0; s < STEPS; s++) {
        make_texts(s, begin, end - begin, x, y);
        CHECK_OK(ls_ddp_begin(t.ddp, (double)ls_count_targets(y, (end - begin) * TIME)));
        for (size_t k = first; k < first + count; k++) {
            size_t from = k * TEXTS / c->shards, texts = (k + 1) * TEXTS / c->shards - from;
            make_texts(s, from, texts, x, y);
            CHECK_OK(ls_ddp_backward(t.ddp, t.step, text_loss(&t, texts, x, y)));
        }
        CHECK_OK(ls_ddp_wait(t.ddp, NULL));
        CHECK(fabs(ls_ddp_loss(t.ddp) - losses[s]) < 1e-5);
        CHECK_OK(ls_optimizer_step(t.optimizer, 0.1, NULL));
    }
    check_close(alone.model, t.model);
    if (rank == 0)
        *c->hash = ls_model_hash(t.model);
    ls_optimizer_destroy(alone.optimizer);
    ls_model_destroy(alone.model);
    close_trainer(&t);
}

static void test_tokens_and_padding(void **state) {
    (void)state;
    uint64_t *hash = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(hash, MAP_FAILED);
    uint64_t first = 0;
    for (int world = 1; world <= 4; world *= 2) {
        tokens c = {4, hash};
        assert_int_equal(ranks_run(world, "shm", body_tokens, &c), 0);
        if (world == 1)
            first = *hash;
        assert_int_equal(*hash, first);
    }
    assert_int_not_equal(first, 0);
    tokens uneven = {3, hash}; /* 2, 3 and 3 texts */
    assert_int_equal(ranks_run(3, "tcp", body_tokens, &uneven), 0);
    munmap(hash, 4096);
}

/* --- statistics are averages over the samples they were made of --- */

enum { WIDTH = 6, SAMPLES = 8 };

static ls_tensor *net_forward(ls_step *step, ls__module *net, ls_tensor *x) {
    return ls__module_forward(step, net->children[0], x);
}

static ls_model *new_net(ls_device *device) {
    const ls__builder builder = {.device = device, .seed = 5};
    ls__module *root, *m;
    ls_model *model;
    CHECK_OK(ls__module_create(&root, NULL, "", sizeof *root, net_forward));
    CHECK_OK(ls__batch_norm_create(&m, root, "bn", &builder, WIDTH, false));
    CHECK_OK(ls__model_adopt(&model, device, root));
    return model;
}

/* Rows first .. first + count - 1 of the batch. */
static ls_tensor *rows(ls_step *step, float *x, size_t first, size_t count) {
    for (size_t i = 0; i < count * WIDTH; i++)
        x[i] = (float)((first * WIDTH + i) * 7 % 13);
    return ls_tensor_wrap(step, x, LS_F32, (size_t[]){count, WIDTH}, 2);
}

/* Two ranks with three and five samples; each shows its samples in two forwards (the first one, then the
 * others) before its backward, and counts eleven "tokens" a sample. */
static void body_statistics(int rank, ls_job *job, void *context) {
    (void)context;
    float x[SAMPLES * WIDTH], z[SAMPLES * WIDTH];
    ls_device *device;
    ls_step *step;
    ls_ddp *ddp;
    ls_optimizer *optimizer;
    CHECK_OK(ls_device_cpu(&device, 1));
    ls_model *model = new_net(device);
    CHECK_OK(ls_step_create(&step, &(ls_step_options){.device = device}));
    CHECK_OK(ls_ddp_create(&ddp, model, ls_job_world(job), NULL));
    CHECK_OK(ls_optimizer_create(&optimizer, model, &(ls_optimizer_options){.kind = LS_SGD}));
    size_t first = rank == 0 ? 0 : 3, count = rank == 0 ? 3 : 5;
    CHECK_OK(ls_ddp_begin(ddp, 11 * (double)count));
    CHECK_OK(ls_step_begin(step, &(ls_step_mode){.training = true}));
    ls_tensor *one = ls__module_forward(step, model->root, rows(step, x, first, 1));
    ls_tensor *more = ls__module_forward(step, model->root, rows(step, z, first + 1, count - 1));
    ls_tensor *loss = ls_add(step, ls_sum(step, one), ls_sum(step, more));
    CHECK_OK(ls_ddp_backward(ddp, step, loss));
    CHECK_OK(ls_ddp_wait(ddp, NULL));
    CHECK_OK(ls_optimizer_step(optimizer, 0.1, NULL));
    const float *mean = ls_model_parameter(model, 2)->value.data;
    rows(step, x, 0, SAMPLES);
    for (size_t c = 0; c < WIDTH; c++) {
        double want = 0;
        for (size_t i = 0; i < SAMPLES; i++)
            want += 0.1 * (double)x[i * WIDTH + c] / SAMPLES;
        CHECK(fabs((double)mean[c] - want) < 1e-6);
    }
    ls_optimizer_destroy(optimizer);
    ls_ddp_destroy(ddp);
    ls_step_destroy(step);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void test_statistics_count_samples(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_statistics, NULL), 0);
}

/* The forward of the second shard, before the backward of the first, would overwrite its statistics. */
static void body_forwards_ahead(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    float x[2 * WIDTH], z[2 * WIDTH];
    ls_device *device;
    ls_step *step[2];
    ls_ddp *ddp;
    CHECK_OK(ls_device_cpu(&device, 1));
    ls_model *model = new_net(device);
    for (size_t k = 0; k < 2; k++)
        CHECK_OK(ls_step_create(&step[k], &(ls_step_options){.device = device}));
    CHECK_OK(ls_ddp_create(&ddp, model, ls_job_world(job), &(ls_ddp_options){.shards = 2}));
    CHECK_OK(ls_ddp_begin(ddp, 4));
    ls_tensor *loss[2];
    for (size_t k = 0; k < 2; k++) {
        CHECK_OK(ls_step_begin(step[k], &(ls_step_mode){.training = true}));
        ls_tensor *input = rows(step[k], k ? z : x, 2 * k, 2);
        loss[k] = ls_sum(step[k], ls__module_forward(step[k], model->root, input));
    }
    CHECK(ls_ddp_backward(ddp, step[0], loss[0]) == LS_ERR_STATE);
    CHECK(strstr(ls_error_text(), "bn.running_mean") && strstr(ls_error_text(), "another step"));
    CHECK(ls_ddp_wait(ddp, NULL) == LS_ERR_PEER);
    ls_ddp_destroy(ddp);
    for (size_t k = 0; k < 2; k++)
        ls_step_destroy(step[k]);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void test_forwards_ahead_are_refused(void **state) {
    (void)state;
    assert_int_equal(ranks_run(1, "shm", body_forwards_ahead, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_and_padding),
        cmocka_unit_test(test_statistics_count_samples),
        cmocka_unit_test(test_forwards_ahead_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
