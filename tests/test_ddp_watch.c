/* The drift watch: one bit on one rank is seen in the next step that looks, and named on all ranks. */
#include "optim/state.h"
#include "trainer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* One step over four samples a rank; the status of its wait. */
static ls_status step_once(trainer *t, int rank, double weight) {
    float x[4 * INPUTS];
    int32_t y[4];
    CHECK_OK(ls_ddp_begin(t->ddp, weight));
    CHECK_OK(ls_ddp_backward(t->ddp, t->step, forward(t, 0, 4 * (size_t)rank, 4, x, y)));
    ls_status status = ls_ddp_wait(t->ddp, NULL);
    if (status == LS_OK)
        CHECK_OK(ls_optimizer_step(t->optimizer, 1e-3, NULL));
    return status;
}

static void flip_lowest_bit(float *value) {
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    bits ^= 1;
    memcpy(value, &bits, sizeof bits);
}

typedef struct plant {
    bool in_state; /* else in a weight */
    int rank;      /* where */
    int step;      /* before which */
    const char *tensor;
} plant;

static void body_plant(int rank, ls_job *job, void *context) {
    const plant *p = context;
    trainer t;
    char text[32];
    open_trainer(&t, job, SPEC, 1, 0);
    for (int s = 1; s <= 2 * WATCH; s++) {
        if (s == p->step && rank == p->rank && p->in_state)
            flip_lowest_bit(ls__optimizer_state_get(t.optimizer, 2).first + 3);
        else if (s == p->step && rank == p->rank)
            flip_lowest_bit((float *)ls_model_parameter(t.model, 2)->value.data + 3);
        if (s < 2 * WATCH) {
            CHECK_OK(step_once(&t, rank, 4));
            continue;
        }
        CHECK(step_once(&t, rank, 4) == LS_ERR_MISMATCH);
        snprintf(text, sizeof text, "on rank %d is not", p->rank);
        CHECK(strstr(ls_error_text(), text) && strstr(ls_error_text(), p->tensor));
        CHECK(strstr(ls_error_text(), "before update 6"));
    }
    CHECK(ls_optimizer_step(t.optimizer, 1e-3, NULL) == LS_ERR_NOT_REDUCED);
    CHECK(ls_ddp_begin(t.ddp, 4) == LS_ERR_MISMATCH);
    close_trainer(&t);
}

static void test_one_bit(void **state) {
    (void)state;
    const plant plants[] = {
        {.rank = 2, .step = WATCH + 1, .tensor = "replicas differ: fc2.weight on"},
        {.rank = 0, .step = 2 * WATCH, .tensor = "replicas differ: fc2.weight on"},
        {.rank = 1,
         .step = 2 * WATCH,
         .in_state = true,
         .tensor = "replicas differ: momentum_buffer of fc2.weight on"},
    };
    for (size_t i = 0; i < sizeof plants / sizeof *plants; i++) {
        plant p = plants[i];
        assert_int_equal(ranks_run(3, "shm", body_plant, &p), 0);
        assert_int_equal(ranks_run(4, "tcp", body_plant, &p), 0);
    }
}

/* Equal replicas raise no alarm: neither a weight far from 1 nor a rank without data blurs the hashes. */
static void body_calm(int rank, ls_job *job, void *context) {
    (void)context;
    static const double weights[] = {4, 1e-30, 3e-7, 12345678901.0, 1e30, 1.0 / 3, 0, 7};
    trainer t;
    open_trainer(&t, job, SPEC, 1, 0);
    for (int round = 0; round < WATCH; round++)
        for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
            CHECK_OK(ls_ddp_begin(t.ddp, rank == 3 ? 0 : weights[i]));
            CHECK_OK(ls_ddp_wait(t.ddp, NULL));
        }
    CHECK_OK(ls_ddp_verify(t.ddp));
    close_trainer(&t);
}

static void test_no_false_alarm(void **state) {
    (void)state;
    assert_int_equal(ranks_run(5, "shm", body_calm, NULL), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_bit),
        cmocka_unit_test(test_no_false_alarm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
