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
            double d = (double)g[j] * (double)(o.grad_factor * o.grad_scale) +
                       (double)o.weight_decay * want[j];
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

static double sum_of_squares(ls_device *device, size_t count, float factor, const float *x) {
    static double sums[64];
    assert_true(ls__squares_blocks(count) <= sizeof sums / sizeof *sums);
    assert_int_equal(device->table->squares(device, count, factor, x, sums), LS_OK);
    return ls__squares_total(sums, count);
}

static void test_sgd(void **state) {
    for (size_t i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        check_sgd(*state, COUNTS[i], (ls__sgd){.rate = 0.1F, .grad_factor = 1, .grad_scale = 1});
        check_sgd(
            *state, COUNTS[i],
            (ls__sgd){.rate = 0.1F, .weight_decay = 0.3F, .grad_factor = 1, .grad_scale = 0.5F});
        check_sgd(*state, COUNTS[i],
                  (ls__sgd){.rate = 0.1F,
                            .momentum = 0.9F,
                            .weight_decay = 0.3F,
                            .grad_factor = 0.5F,
                            .grad_scale = 1});
        check_sgd(*state, COUNTS[i],
                  (ls__sgd){.rate = 0.1F,
                            .momentum = 0.9F,
                            .weight_decay = 0.3F,
                            .grad_factor = 0.25F,
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
                  .grad_factor = 2,
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
            double d = (double)g[j] * (double)(o.grad_factor * o.grad_scale);
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
                  .grad_factor = 1,
                  .grad_scale = 1,
                  .correction1 = 0.1F,
                  .correction2 = 0.01F};
    float *w = filled(f, 40, 3), *g = filled(f, 40, 0), *m = filled(f, 40, 0),
          *v = filled(f, 40, 0);
    assert_int_equal(f->one->table->adam(f->one, 40, &o, w, g, m, v), LS_OK);
    for (int i = 0; i < 40; i++)
        assert_true(w[i] == 3);
}

/* A factor that is passed to a kernel gives the bits of gradients that were multiplied before: so a sum
 * may stay a sum until the optimizer reads it. */
static void test_factor(void **state) {
    fixture *f = *state;
    enum { COUNT = 4099 };
    const float factor = 1.0F / 3, scale = 0.7F;
    float *sum = uniform(f, COUNT, -2, 2), *mean = array(f, COUNT * sizeof *mean);
    for (size_t i = 0; i < COUNT; i++)
        mean[i] = sum[i] * factor;
    float *start = uniform(f, COUNT, -1, 1), *w[2], *a[2], *b[2];
    double norm[2];
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        const float *g = i ? mean : sum, this_factor = i ? 1 : factor;
        ls__sgd sgd = {.rate = 0.1F, .momentum = 0.9F, .weight_decay = 0.1F};
        ls__adam adam = {.rate = 0.1F, .beta1 = 0.9F, .beta2 = 0.99F, .epsilon = 1e-8F};
        sgd.grad_factor = adam.grad_factor = this_factor;
        sgd.grad_scale = adam.grad_scale = scale;
        adam.correction1 = 0.1F;
        adam.correction2 = 0.01F;
        w[i] = copy_of(f, start, COUNT);
        a[i] = filled(f, COUNT, 0.5F);
        b[i] = filled(f, COUNT, 0.25F);
        assert_int_equal(device->table->sgd(device, COUNT, &sgd, w[i], g, a[i]), LS_OK);
        assert_int_equal(device->table->adam(device, COUNT, &adam, w[i], g, a[i], b[i]), LS_OK);
        norm[i] = sum_of_squares(device, COUNT, this_factor, g);
    }
    expect_equal_bits(w[0], w[1], COUNT * sizeof(float), "weights, factor");
    expect_equal_bits(a[0], a[1], COUNT * sizeof(float), "first moment, factor");
    expect_equal_bits(b[0], b[1], COUNT * sizeof(float), "second moment, factor");
    expect_equal_bits(&norm[0], &norm[1], sizeof *norm, "norm, factor");
}

static void test_sum_of_squares(void **state) {
    fixture *f = *state;
    static const size_t counts[] = {0, 1, 7, 17, 4095, 4096, 4097, 100003};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        float *x = uniform(f, counts[i], -1, 1);
        double want = 0, sums[2];
        for (size_t j = 0; j < counts[i]; j++)
            want += (double)x[j] * (double)x[j];
        for (int k = 0; k < 2; k++) {
            ls_device *device = k ? f->two : f->one;
            sums[k] = sum_of_squares(device, counts[i], 2, x);
            assert_true(fabs(sums[k] - 4 * want) <= 1e-12 * want);
        }
        expect_equal_bits(&sums[0], &sums[1], sizeof *sums, "sum_of_squares, threads");
    }
    float large[] = {1e30F, INFINITY}, nan = NAN;
    double sum = sum_of_squares(f->one, 1, 1, large);
    assert_true(sum > 0.99e60 && sum < 1.01e60);
    sum = sum_of_squares(f->one, 2, 1, large);
    assert_true(isinf(sum));
    sum = sum_of_squares(f->one, 1, 1, &nan);
    assert_true(isnan(sum));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        kernel_test(test_sgd),
        kernel_test(test_adam),
        kernel_test(test_adam_zero_gradient),
        kernel_test(test_factor),
        kernel_test(test_sum_of_squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
