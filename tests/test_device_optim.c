/* Fused optimizer updates against torch.optim's formulas in f64, over several steps. Tolerance: a
 * few roundings of f32 a step. */
#include "device_support.h"

enum { STEPS = 4 };
static const size_t COUNTS[] = {1, 15, 1025, 40003};

static void check_sgd(fixture *f, size_t count, ls__sgd o) {
    float *start = uniform(f, count, -1, 1), *w[2], *m[2];
    double *want = reference(f, start, count, true), *buffer = reference(f, NULL, count, false);
    for (int i = 0; i < 2; i++) {
        w[i] = copy_of(f, start, count);
        m[i] = filled(f, count, NAN);
    }
    for (int step = 0; step < STEPS; step++) {
        float *g = uniform(f, count, -2, 2);
        o.first = step == 0;
        for (size_t j = 0; j < count; j++) {
            double d = (double)g[j] * (double)o.grad_scale + (double)o.weight_decay * want[j];
            buffer[j] = o.first ? d : (double)o.momentum * buffer[j] + d;
            if (o.nesterov)
                d += (double)o.momentum * buffer[j];
            else if (o.momentum != 0)
                d = buffer[j];
            want[j] -= (double)o.rate * d;
        }
        for (int i = 0; i < 2; i++) {
            ls_device *device = i ? f->two : f->one;
            assert_int_equal(
                device->table->sgd(device, count, &o, w[i], g, o.momentum != 0 ? m[i] : NULL),
                LS_OK);
            expect_close(w[i], want, count, 2e-6, "sgd");
            if (o.momentum != 0)
                expect_close(m[i], buffer, count, 2e-6, "sgd momentum");
        }
    }
    expect_equal_bits(w[0], w[1], count * sizeof(float), "sgd, threads");
}

static void test_sgd(void **state) {
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        check_sgd(*state, COUNTS[i], (ls__sgd){.rate = 0.1F, .grad_scale = 1});
        check_sgd(*state, COUNTS[i],
                  (ls__sgd){.rate = 0.1F, .weight_decay = 0.3F, .grad_scale = 0.5F});
        check_sgd(*state, COUNTS[i],
                  (ls__sgd){.rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.3F, .grad_scale = 1});
        check_sgd(*state, COUNTS[i],
                  (ls__sgd){.rate = 0.1F,
                            .momentum = 0.9F,
                            .weight_decay = 0.3F,
                            .grad_scale = 2,
                            .nesterov = true});
    }
}

static void check_adam(fixture *f, size_t count, bool decoupled, float weight_decay) {
    ls__adam o = {.rate = 0.01F,
                  .beta1 = 0.9F,
                  .beta2 = 0.99F,
                  .epsilon = 1e-6F,
                  .weight_decay = weight_decay,
                  .grad_scale = 0.5F,
                  .decoupled = decoupled};
    float *start = uniform(f, count, -1, 1), *w[2], *m[2], *v[2];
    double *want = reference(f, start, count, true), *first = reference(f, NULL, count, false);
    double *second = reference(f, NULL, count, false), b1 = (double)o.beta1, b2 = (double)o.beta2;
    for (int i = 0; i < 2; i++) {
        w[i] = copy_of(f, start, count);
        m[i] = filled(f, count, 0);
        v[i] = filled(f, count, 0);
    }
    for (int step = 1; step <= STEPS; step++) {
        float *g = uniform(f, count, -2, 2);
        double c1 = 1 - pow(b1, step), c2 = 1 - pow(b2, step), rate = (double)o.rate;
        o.correction1 = (float)c1;
        o.correction2 = (float)c2;
        for (size_t j = 0; j < count; j++) {
            double d = (double)g[j] * (double)o.grad_scale;
            if (decoupled)
                want[j] *= 1 - rate * (double)o.weight_decay;
            else
                d += (double)o.weight_decay * want[j];
            first[j] = b1 * first[j] + (1 - b1) * d;
            second[j] = b2 * second[j] + (1 - b2) * d * d;
            double denominator = sqrt(second[j]) / sqrt(c2) + (double)o.epsilon;
            want[j] -= rate / c1 * first[j] / denominator;
        }
        for (int i = 0; i < 2; i++) {
            ls_device *device = i ? f->two : f->one;
            assert_int_equal(device->table->adam(device, count, &o, w[i], g, m[i], v[i]), LS_OK);
            expect_close(w[i], want, count, 2e-6, "adam");
            expect_close(m[i], first, count, 1e-6, "adam first moment");
            expect_close(v[i], second, count, 1e-6, "adam second moment");
        }
    }
    expect_equal_bits(w[0], w[1], count * sizeof(float), "adam, threads");
}

static void test_adam(void **state) {
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        check_adam(*state, COUNTS[i], false, 0);
        check_adam(*state, COUNTS[i], false, 0.3F);
        check_adam(*state, COUNTS[i], true, 0.3F);
    }
}

/* Gradients of zero from the first step on: no division by zero, nothing moves. */
static void test_adam_zero_gradient(void **state) {
    fixture *f = *state;
    ls__adam o = {.rate = 1,
                  .beta1 = 0.9F,
                  .beta2 = 0.99F,
                  .epsilon = 1e-8F,
                  .grad_scale = 1,
                  .correction1 = 0.1F,
                  .correction2 = 0.01F};
    float *w = filled(f, 40, 3), *g = filled(f, 40, 0), *m = filled(f, 40, 0),
          *v = filled(f, 40, 0);
    assert_int_equal(f->one->table->adam(f->one, 40, &o, w, g, m, v), LS_OK);
    for (int i = 0; i < 40; i++)
        assert_true(w[i] == 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        kernel_test(test_sgd),
        kernel_test(test_adam),
        kernel_test(test_adam_zero_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
