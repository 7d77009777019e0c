/* Votes: skipped, finished and failed ranks are everybody's decision, and nobody hangs. */
#include "autograd/checkpoint.h"
#include "nn/parameter.h"
#include "trainer.h"

#include <lockstep/dp.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The four samples of this rank in step s, reduced in one shard. */
static void compute(trainer *t, int rank, uint64_t s) {
    float x[4 * INPUTS];
    int32_t y[4];
    CHECK_OK(ls_ddp_begin(t->ddp, 4));
    CHECK_OK(ls_ddp_backward(t->ddp, t->step, forward(t, s, 4 * (size_t)rank, 4, x, y)));
}

static void update(trainer *t) {
    CHECK_OK(ls_ddp_wait(t->ddp, NULL));
    CHECK_OK(ls_optimizer_step(t->optimizer, 0.1, NULL));
}

/* --- skip --- */

static void body_skip(int rank, ls_job *job, void *context) {
    (void)context;
    trainer t;
    open_trainer(&t, job, SPEC, 1, 0);
    compute(&t, rank, 0);
    update(&t);
    uint64_t before = ls_model_hash(t.model);
    /* rank 1 meets a bad sample before its backward, in the next step rank 2 after it */
    CHECK_OK(ls_ddp_begin(t.ddp, 4));
    float x[4 * INPUTS];
    int32_t y[4];
    if (rank == 1)
        CHECK_OK(ls_ddp_vote(t.ddp, LS_VOTE_SKIP, "sample 17 has no label"));
    else
        CHECK_OK(ls_ddp_backward(t.ddp, t.step, forward(&t, 1, 4 * (size_t)rank, 4, x, y)));
    update(&t);
    const ls_ddp_tally *tally = ls_ddp_votes(t.ddp);
    CHECK(ls_model_hash(t.model) == before);
    CHECK(!tally->update && tally->skip == 1 && tally->first == 1 && tally->skipped_steps == 1);
    CHECK(strcmp(tally->reason, "sample 17 has no label") == 0 && isnan(ls_ddp_loss(t.ddp)));
    compute(&t, rank, 1);
    if (rank == 2)
        CHECK_OK(ls_ddp_vote(t.ddp, LS_VOTE_SKIP, NULL));
    update(&t);
    CHECK(ls_model_hash(t.model) == before);
    CHECK(tally->first == 2 && tally->reason[0] == '\0' && tally->skipped_steps == 2);
    /* and the step after that is an ordinary one */
    compute(&t, rank, 1);
    update(&t);
    CHECK(ls_model_hash(t.model) != before && tally->update && tally->first == -1);
    CHECK_OK(ls_ddp_verify(t.ddp));
    close_trainer(&t);
}

static void test_skip(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, "shm", body_skip, NULL), 0);
    assert_int_equal(ranks_run(3, "tcp", body_skip, NULL), 0);
}

/* A skipped step leaves momentum and the updates after it as if it had not been. */
static void body_skip_leaves_state(int rank, ls_job *job, void *context) {
    uint64_t *hash = context;
    trainer t;
    open_trainer(&t, job, SPEC, 1, 0);
    for (uint64_t s = 0; s < 3; s++) {
        if (s == 2 && hash[0]) { /* the second run has one more step in the middle */
            compute(&t, rank, 9);
            CHECK_OK(ls_ddp_vote(t.ddp, rank == 0 ? LS_VOTE_SKIP : LS_VOTE_OK, NULL));
            update(&t);
        }
        compute(&t, rank, s);
        update(&t);
    }
    if (rank == 0)
        hash[hash[0] != 0] = ls_model_hash(t.model);
    close_trainer(&t);
}

static void test_skip_leaves_state(void **state) {
    (void)state;
    uint64_t *hash = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(hash, MAP_FAILED);
    for (int run = 0; run < 2; run++)
        assert_int_equal(ranks_run(2, "shm", body_skip_leaves_state, hash), 0);
    assert_int_not_equal(hash[0], 0);
    assert_int_equal(hash[0], hash[1]);
    munmap(hash, 4096);
}

/* --- finished: ranks with different numbers of batches --- */

/* Rank r has r + 1 batches of two samples. The batches of one step, whoever has them, are that step's. */
static void body_finished(int rank, ls_job *job, void *context) {
    const bool *last_word = context; /* finished is said with the last batch, and not after it */
    trainer t;
    float x[BATCH * INPUTS];
    int32_t y[BATCH];
    open_trainer(&t, job, SPEC, 1, 0);
    const ls_ddp_tally *tally = ls_ddp_votes(t.ddp);
    int world = ls_group_size(ls_job_world(job)), batches = rank + 1, steps = 0;
    do {
        bool have = steps < batches;
        CHECK_OK(ls_ddp_begin(t.ddp, have ? 2 : 0));
        if (have)
            CHECK_OK(ls_ddp_backward(t.ddp, t.step,
                                     forward(&t, (uint64_t)steps, 2 * (size_t)rank, 2, x, y)));
        if (steps + *last_word >= batches)
            CHECK_OK(ls_ddp_vote(t.ddp, LS_VOTE_FINISHED, NULL));
        update(&t);
        CHECK(tally->finished == (steps + *last_word < world ? steps + *last_word : world));
        CHECK(tally->update == (steps < world));
        steps++;
    } while (tally->finished < world);
    CHECK(steps == world + !*last_word);
    CHECK_OK(ls_ddp_verify(t.ddp));
    /* one process over the same samples: step s has those of ranks s, s+1, ... */
    ls_model *alone;
    const ls_model_options options = {.device = t.device, .seed = 1};
    CHECK_OK(ls_model_create(&alone, SPEC, &options));
    const ls_optimizer_options sgd = {.kind = LS_SGD, .momentum = 0.9};
    ls_optimizer *optimizer;
    CHECK_OK(ls_optimizer_create(&optimizer, alone, &sgd));
    trainer one = {.device = t.device, .model = alone, .step = t.step};
    for (int s = 0; s < world; s++) {
        size_t count = 2 * (size_t)(world - s);
        ls_tensor *loss = forward(&one, (uint64_t)s, 2 * (size_t)s, count, x, y);
        CHECK_OK(ls_backward(t.step, ls_scale(t.step, loss, 1 / (float)count), NULL, NULL));
        CHECK_OK(ls_optimizer_step(optimizer, 0.1, NULL));
    }
    for (size_t i = 0; i < ls_model_parameter_count(alone); i++) {
        const ls_tensor *a = &ls_model_parameter(alone, i)->value;
        const ls_tensor *b = &ls_model_parameter(t.model, i)->value;
        for (size_t k = 0; k < a->count; k++)
            CHECK(fabsf(((float *)a->data)[k] - ((float *)b->data)[k]) < 1e-5F);
    }
    ls_optimizer_destroy(optimizer);
    ls_model_destroy(alone);
    close_trainer(&t);
}

static void test_uneven_data(void **state) {
    (void)state;
    for (int last_word = 0; last_word < 2; last_word++) {
        bool context = last_word;
        assert_int_equal(ranks_run(3, "shm", body_finished, &context), 0);
        assert_int_equal(ranks_run(1, "shm", body_finished, &context), 0);
    }
    assert_int_equal(ranks_run(3, "tcp", body_finished, &(bool){false}), 0);
}

/* --- failed --- */

static void body_failed(int rank, ls_job *job, void *context) {
    (void)context;
    trainer t;
    open_trainer(&t, job, SPEC, 1, 0);
    compute(&t, rank, 0);
    if (rank >= 1)
        CHECK_OK(ls_ddp_vote(t.ddp, LS_VOTE_FAILED, rank == 1 ? "the disk is gone" : "me too"));
    CHECK(ls_ddp_wait(t.ddp, NULL) == LS_ERR_PEER);
    CHECK(strstr(ls_error_text(), "rank 1") && strstr(ls_error_text(), "the disk is gone"));
    CHECK(ls_ddp_votes(t.ddp)->failed == 2);
    CHECK(ls_optimizer_step(t.optimizer, 0.1, NULL) == LS_ERR_NOT_REDUCED);
    CHECK(ls_ddp_begin(t.ddp, 4) == LS_ERR_PEER);
    close_trainer(&t);
}

static void test_failed(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, "shm", body_failed, NULL), 0);
    assert_int_equal(ranks_run(3, "tcp", body_failed, NULL), 0);
}

/* A backward that fails on one rank, in the middle of a reduction that has begun, is a vote too. */
static ls_tensor *fails_again(ls_step *step, void *context, ls_tensor *x) {
    int *calls = context;
    if ((*calls)++ > 0)
        return ls__step_fail(step, ls__fail(LS_ERR_MEMORY, "no memory for the blocks"));
    return ls_scale(step, x, 2);
}

static void body_backward_fails(int rank, ls_job *job, void *context) {
    const bool *skips = context;
    trainer t;
    float x[2 * INPUTS];
    int32_t y[2];
    int calls = 0;
    open_trainer(&t, job, SPEC, 1, 0);
    uint64_t before = ls_model_hash(t.model);
    CHECK_OK(ls_ddp_begin(t.ddp, 2));
    make_samples(0, 2 * (size_t)rank, 2, x, y);
    const ls_step_mode mode = {.training = true};
    CHECK_OK(ls_step_begin(t.step, &mode));
    const size_t shape[] = {2, INPUTS};
    ls_tensor *input = ls_tensor_wrap(t.step, x, LS_F32, shape, 2);
    ls_tensor_need_grad(input);
    if (rank == 1)
        input = ls__checkpoint(t.step, fails_again, &calls, input, NULL, 0);
    ls_tensor *target = ls_tensor_wrap(t.step, y, LS_I32, shape, 1);
    ls_tensor *loss = ls_cross_entropy(t.step, ls_model_forward(t.step, t.model, input), target);
    ls_status status = ls_ddp_backward(t.ddp, t.step, loss);
    CHECK(status == (rank == 1 ? LS_ERR_MEMORY : LS_OK));
    if (rank == 1) {
        CHECK(ls_ddp_skip(t.ddp) == LS_ERR_STATE);
        CHECK(ls_ddp_vote(t.ddp, LS_VOTE_OK, NULL) == LS_ERR_STATE);
    }
    if (rank == 1 && *skips)
        CHECK_OK(ls_ddp_vote(t.ddp, LS_VOTE_SKIP, "out of memory"));
    status = ls_ddp_wait(t.ddp, NULL);
    if (*skips) {
        CHECK_OK(status);
        CHECK_OK(ls_optimizer_step(t.optimizer, 0.1, NULL));
        CHECK(strcmp(ls_ddp_votes(t.ddp)->reason, "out of memory") == 0);
        CHECK(ls_model_hash(t.model) == before);
        compute(&t, rank, 1);
        update(&t);
        CHECK(ls_model_hash(t.model) != before);
    } else {
        CHECK(status == LS_ERR_PEER && strstr(ls_error_text(), "rank 1"));
        CHECK(strstr(ls_error_text(), "no memory for the blocks"));
    }
    close_trainer(&t);
}

static void test_backward_fails_on_one_rank(void **state) {
    (void)state;
    for (int skips = 0; skips < 2; skips++)
        assert_int_equal(ranks_run(3, "shm", body_backward_fails, &(bool){skips}), 0);
}

/* So is a forward that fails, in the first step (the buckets are not ordered yet) or a later one; what this
 * rank did not compute must not be averaged as zeros. */
static void body_forward_fails(int rank, ls_job *job, void *context) {
    const int *at = context; /* 0 or 1: the step; 2: the loss is none, in step 1 */
    trainer t;
    float x[4 * INPUTS];
    int32_t y[4];
    open_trainer(&t, job, SPEC, 1, 0);
    if (*at > 0) {
        compute(&t, rank, 0);
        update(&t);
    }
    uint64_t before = ls_model_hash(t.model);
    CHECK_OK(ls_ddp_begin(t.ddp, 4));
    ls_tensor *loss = forward(&t, 1, 4 * (size_t)rank, 4, x, y);
    if (rank == 0 && *at < 2)
        (void)ls__step_fail(t.step, ls__fail(LS_ERR_MEMORY, "no memory for the activations"));
    ls_status status = ls_ddp_backward(t.ddp, t.step, rank == 0 && *at == 2 ? NULL : loss);
    CHECK(status == (rank > 0 ? LS_OK : *at < 2 ? LS_ERR_MEMORY : LS_ERR_ARGUMENT));
    CHECK(ls_ddp_wait(t.ddp, NULL) == LS_ERR_PEER);
    CHECK(strstr(ls_error_text(), "rank 0"));
    CHECK(strstr(ls_error_text(), *at < 2 ? "no memory for the activations" : "one f32 number"));
    CHECK(ls_ddp_votes(t.ddp)->failed == 1 && ls_model_hash(t.model) == before);
    close_trainer(&t);
}

static void test_forward_fails_on_one_rank(void **state) {
    (void)state;
    for (int at = 0; at < 3; at++)
        assert_int_equal(ranks_run(3, "shm", body_forward_fails, &at), 0);
}

/* So is a replica of a process that fails: any of them, in any step. */
static void body_replica_fails(int rank, ls_job *job, void *context) {
    const int *which = context;
    enum { REPLICAS = 3, EACH = 4 };
    (void)rank;
    trainer t;
    ls_dp *dp;
    float x[REPLICAS * EACH * INPUTS];
    int32_t y[REPLICAS * EACH];
    const size_t shape[] = {EACH, INPUTS}, wrong[] = {EACH - 1};
    const ls_step_mode mode = {.training = true};
    open_trainer(&t, job, SPEC, 1, REPLICAS);
    CHECK_OK(ls_dp_create(&dp, t.ddp, t.model, REPLICAS));
    uint64_t before = ls_model_hash(t.model);
    for (int s = 0; s < 4; s++) { /* every second one fails: left out by a vote, then told */
        ls_dp_shard shards[REPLICAS];
        make_samples((uint64_t)s, 0, (size_t)REPLICAS * EACH, x, y);
        for (int r = 0; r < REPLICAS; r++)
            shards[r] = (ls_dp_shard){.input = x + (size_t)r * EACH * INPUTS,
                                      .target = y + (size_t)r * EACH,
                                      .input_shape = shape,
                                      .input_dims = 2,
                                      .target_shape = s % 2 == 0 && r == *which ? wrong : shape,
                                      .target_dims = 1,
                                      .count = EACH};
        CHECK_OK(ls_ddp_begin(t.ddp, REPLICAS * EACH));
        ls_status status = ls_dp_backward(dp, t.step, &mode, shards, NULL);
        CHECK(status == (s % 2 == 0 ? LS_ERR_ARGUMENT : LS_OK));
        if (s == 0)
            CHECK_OK(ls_ddp_vote(t.ddp, LS_VOTE_SKIP, NULL));
        if (s == 2)
            break;
        update(&t);
        CHECK((ls_model_hash(t.model) == before) == (s == 0));
    }
    char name[16];
    snprintf(name, sizeof name, "replica %d: ", *which);
    CHECK(ls_ddp_wait(t.ddp, NULL) == LS_ERR_PEER && strstr(ls_error_text(), name));
    ls_dp_destroy(dp);
    close_trainer(&t);
}

static void test_replica_fails(void **state) {
    (void)state;
    for (int which = 0; which < 3; which++)
        assert_int_equal(ranks_run(1, "shm", body_replica_fails, &which), 0);
}

/* --- numbers that are none --- */

static void body_nonfinite(int rank, ls_job *job, void *context) {
    const bool *skips = context;
    trainer t;
    float x[4 * INPUTS];
    int32_t y[4];
    open_trainer(&t, job, SPEC, 1, 0);
    ls_optimizer_destroy(t.optimizer);
    const ls_optimizer_options adam = {.kind = LS_ADAMW, .skip_nonfinite = *skips};
    CHECK_OK(ls_optimizer_create(&t.optimizer, t.model, &adam));
    compute(&t, rank, 0);
    update(&t);
    uint64_t before = ls_model_hash(t.model);
    CHECK_OK(ls_ddp_begin(t.ddp, 4));
    ls_tensor *loss = forward(&t, 1, 4 * (size_t)rank, 4, x, y);
    if (rank == 2)
        loss = ls_scale(t.step, loss, INFINITY);
    CHECK_OK(ls_ddp_backward(t.ddp, t.step, loss));
    CHECK_OK(ls_ddp_wait(t.ddp, NULL));
    CHECK(ls_ddp_votes(t.ddp)->nonfinite == 1 && ls_ddp_votes(t.ddp)->first_nonfinite == 2);
    double norm = 0;
    CHECK(ls_optimizer_step(t.optimizer, 0.1, &norm) == (*skips ? LS_OK : LS_ERR_RANGE));
    CHECK(ls_optimizer_skipped(t.optimizer) == *skips && (!*skips || isnan(norm)));
    CHECK(strstr(ls_error_text(), "a NaN or an infinity") && ls_model_hash(t.model) == before);
    compute(&t, rank, 1);
    update(&t);
    CHECK(ls_model_hash(t.model) != before && ls_optimizer_skipped(t.optimizer) == *skips);
    CHECK_OK(ls_ddp_verify(t.ddp));
    close_trainer(&t);
}

static void test_nonfinite(void **state) {
    (void)state;
    for (int skips = 0; skips < 2; skips++)
        assert_int_equal(ranks_run(3, "shm", body_nonfinite, &(bool){skips}), 0);
}

/* Weights far from 1 do not blur the votes. */
static void body_weights(int rank, ls_job *job, void *context) {
    (void)context;
    static const double weights[] = {1e-30, 3e-7, 1, 12345678901.0, 1e30, 0};
    trainer t;
    open_trainer(&t, job, SPEC, 1, 0);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        CHECK_OK(ls_ddp_begin(t.ddp, weights[i]));
        CHECK_OK(ls_ddp_vote(t.ddp, rank == 2 ? LS_VOTE_SKIP : LS_VOTE_FINISHED, "no"));
        CHECK_OK(ls_ddp_wait(t.ddp, NULL));
        const ls_ddp_tally *tally = ls_ddp_votes(t.ddp);
        CHECK(tally->ranks == 3 && tally->skip == 1 && tally->first == 2 && tally->finished == 2);
        CHECK(strcmp(tally->reason, "no") == 0 && !tally->update);
    }
    CHECK(ls_ddp_begin(t.ddp, NAN) == LS_ERR_ARGUMENT);
    CHECK(ls_ddp_begin(t.ddp, -1) == LS_ERR_ARGUMENT);
    if (rank == 1) /* a slip of one rank, which it can make good */
        CHECK(ls_ddp_begin(t.ddp, 1e-31) == LS_ERR_ARGUMENT &&
              ls_ddp_begin(t.ddp, 1e31) == LS_ERR_ARGUMENT);
    CHECK(ls_ddp_vote(t.ddp, LS_VOTE_SKIP, NULL) == LS_ERR_STATE);
    CHECK_OK(ls_ddp_begin(t.ddp, 1));
    CHECK(ls_ddp_vote(t.ddp, (ls_vote)4, NULL) == LS_ERR_ARGUMENT);
    CHECK_OK(ls_ddp_wait(t.ddp, NULL));
    close_trainer(&t);
}

static void test_weights(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, "shm", body_weights, NULL), 0);
}

/* --- loss scales --- */

static void body_scales(int rank, ls_job *job, void *context) {
    const double *scale = context;
    trainer t;
    open_trainer(&t, job, SPEC, 1, 0);
    CHECK_OK(ls_ddp_set_loss_scale(t.ddp, 1024)); /* one that all have */
    compute(&t, rank, 0);
    update(&t);
    CHECK_OK(ls_ddp_set_loss_scale(t.ddp, rank == 1 ? scale[1] : scale[0]));
    compute(&t, rank, 1);
    ranks_note(ls_ddp_wait(t.ddp, NULL));
    CHECK(ls_ddp_begin(t.ddp, 4) == LS_ERR_MISMATCH);
    close_trainer(&t);
}

static void test_scales_differ(void **state) {
    (void)state;
    const double scales[][2] = {{1024, 2048}, {3, 3.0000000000000004}};
    const char *const words[] = {"rank 1 scales its loss by 2048, rank 0 by 1024",
                                 "rank 1 scales its loss by 3.0000000000000004, rank 0 by 3;"};
    for (int i = 0; i < 2; i++) {
        ranks r = {
            .size = 3, .transport = "shm", .body = body_scales, .context = (void *)scales[i]};
        ranks_start(&r);
        assert_int_equal(ranks_wait(&r), 0);
        for (int rank = 0; rank < 3; rank++) {
            assert_int_equal(r.report[rank].status, LS_ERR_MISMATCH);
            if (!strstr(r.report[rank].text, words[i]))
                fail_msg("%s", r.report[rank].text);
        }
        ranks_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skip),
        cmocka_unit_test(test_skip_leaves_state),
        cmocka_unit_test(test_uneven_data),
        cmocka_unit_test(test_failed),
        cmocka_unit_test(test_backward_fails_on_one_rank),
        cmocka_unit_test(test_forward_fails_on_one_rank),
        cmocka_unit_test(test_replica_fails),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_scales_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
