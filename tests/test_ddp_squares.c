/* The norm's pass over the gradients is shared by the ranks, and its bits are those of one process; who writes to
 * gradients has the norm of what he wrote. */
#include "autograd/tape.h"
#include "trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* 270 000 weights in tensors of many blocks, of part of one, and of a few elements */
#define WIDE "mlp:12,700,365,5"
enum { STEPS = 3, SHARDS = 8 };

typedef struct outcome {
    double norm[STEPS];
    uint64_t hash;
} outcome;

static void open_wide(trainer *t, ls_job *job) {
    open_trainer(t, job, WIDE, 1, SHARDS);
    ls_optimizer_destroy(t->optimizer);
    const ls_optimizer_options clipped = {.kind = LS_ADAMW, .clip = 0.5};
    CHECK_OK(ls_optimizer_create(&t->optimizer, t->model, &clipped));
}

static void reduce(trainer *t, uint64_t s) {
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    size_t first, count;
    ls_ddp_shards(t->ddp, &first, &count);
    CHECK_OK(ls_ddp_begin(t->ddp, (double)(BATCH / SHARDS * count)));
    for (size_t k = 0; k < count; k++) {
        size_t sample, samples;
        shard_range(first + k, SHARDS, BATCH, &sample, &samples);
        CHECK_OK(ls_ddp_backward(t->ddp, t->step, forward(t, s, sample, samples, x, y)));
    }
    CHECK_OK(ls_ddp_wait(t->ddp, NULL));
}

static int known(const trainer *t) {
    int n = 0;
    for (size_t i = 0; i < ls_model_parameter_count(t->model); i++)
        n += ls_model_parameter(t->model, i)->squares_known;
    return n;
}

static void body_steps(int rank, ls_job *job, void *context) {
    const char *transport = context;
    trainer t;
    outcome o;
    open_wide(&t, job);
    const bool shares = ls_group_size(ls_job_world(job)) > 1 && strcmp(transport, "shm") == 0;
    for (uint64_t s = 0; s < STEPS; s++) {
        reduce(&t, s);
        CHECK(known(&t) == (shares ? (int)ls_model_parameter_count(t.model) : 0));
        CHECK_OK(ls_optimizer_step(t.optimizer, 0.01, &o.norm[s]));
        CHECK(known(&t) == 0);
    }
    o.hash = ls_model_hash(t.model);
    memcpy(my_report->text, &o, sizeof o);
    (void)rank;
    close_trainer(&t);
}

static outcome run(int size, const char *transport) {
    ranks r = {
        .size = size, .transport = transport, .body = body_steps, .context = (void *)transport};
    outcome first, other;
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    memcpy(&first, r.report[0].text, sizeof first);
    for (int rank = 1; rank < size; rank++) {
        memcpy(&other, r.report[rank].text, sizeof other);
        assert_memory_equal(&first, &other, sizeof first);
    }
    ranks_free(&r);
    return first;
}

static void test_bits(void **state) {
    (void)state;
    const outcome one = run(1, "shm");
    assert_true(one.norm[0] > 0);
    for (int size = 2; size <= 8; size *= 2) {
        const outcome many = run(size, "shm");
        assert_memory_equal(&one, &many, sizeof one);
    }
    const outcome apart = run(2, "tcp");
    assert_memory_equal(&one, &apart, sizeof one);
}

/* Every rank writes to the gradients itself: through an address of this step, and of an earlier one. */
static void body_written(int rank, ls_job *job, void *context) {
    (void)context;
    trainer t;
    open_wide(&t, job);
    ls_parameter *p = ls_model_parameter(t.model, 0);
    const size_t count = ls_tensor_count(ls_parameter_value(p));
    double norm = 0;
    for (uint64_t s = 0; s < STEPS; s++) {
        reduce(&t, s);
        float *gradient = s < 2 ? ls_parameter_gradient(p) : p->gradient;
        CHECK(gradient);
        for (size_t i = 0; i < count; i++)
            gradient[i] = 1000;
        CHECK_OK(ls_optimizer_step(t.optimizer, 0.01, &norm));
        CHECK(norm > 1000 * sqrt((double)count) * 0.99 && norm < 1000 * sqrt((double)count) * 1.5);
    }
    (void)rank;
    close_trainer(&t);
}

static void test_written(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_written, NULL), 0);
}

/* What is no number is found in whichever rank's part it lies, by all ranks. */
static void body_nan(int rank, ls_job *job, void *context) {
    (void)context;
    (void)rank;
    trainer t;
    open_wide(&t, job);
    for (size_t i = 0; i < ls_model_parameter_count(t.model); i++) {
        ls_parameter *p = ls_model_parameter(t.model, i);
        const uint64_t before = ls_model_hash(t.model);
        reduce(&t, i);
        p->squares = p->squares_known ? NAN : 0; /* as the sum over a gradient with one in it */
        CHECK(ls_optimizer_step(t.optimizer, 0.01, NULL) == LS_ERR_RANGE);
        CHECK(strstr(ls_error_text(), ls_parameter_name(p)));
        CHECK(ls_model_hash(t.model) == before);
    }
    close_trainer(&t);
}

static void test_nan(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, "shm", body_nan, NULL), 0);
}

/* What is trained changes: the parts stay, with nothing in those of what is frozen. */
static void body_freeze(int rank, ls_job *job, void *context) {
    (void)context;
    (void)rank;
    trainer t;
    open_wide(&t, job);
    for (uint64_t s = 0; s < 6; s++) {
        CHECK_OK(ls_ddp_set_trainable(t.ddp, ls_parameter_name(ls_model_parameter(t.model, 0)),
                                      s % 2 != 0));
        reduce(&t, s);
        for (size_t i = 0; i < ls_model_parameter_count(t.model); i++) {
            ls_parameter *p = ls_model_parameter(t.model, i);
            CHECK(p->squares_known == (i > 0 || s % 2 != 0));
            if (!p->squares_known)
                continue;
            double *sums = calloc(ls__squares_blocks(p->value.count), sizeof *sums);
            CHECK_OK(t.device->table->squares(t.device, p->value.count, p->gradient_factor,
                                              p->gradient, sums));
            CHECK(p->squares > 0 && p->squares == ls__squares_total(sums, p->value.count));
            free(sums);
        }
        CHECK_OK(ls_optimizer_step(t.optimizer, 0.01, NULL));
    }
    close_trainer(&t);
}

static void test_freeze(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, "shm", body_freeze, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_freeze),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
