/* Causal attention against the obvious f64 loops. Tolerance: f32 sums of some hundred terms of size
 * 1. */
#include "device_support.h"

static const ls__attention SHAPES[] = {
    {1, 1, 1, 1}, {2, 5, 3, 4}, {1, 64, 2, 32}, {2, 65, 2, 7}, {1, 150, 3, 16}, {3, 1, 2, 8},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

/* Offset of q (part 0), k (1) or v (2) of one head at one time. */
static size_t at(const ls__attention *s, size_t item, size_t t, size_t part) {
    size_t channels = s->heads * s->head_size;
    return ((item / s->heads * s->time + t) * 3 + part) * channels + item % s->heads * s->head_size;
}

static size_t y_at(const ls__attention *s, size_t item, size_t t) {
    return (item / s->heads * s->time + t) * s->heads * s->head_size +
           item % s->heads * s->head_size;
}

/* p (time): the probabilities of query t */
static void probabilities(const ls__attention *s, const float *qkv, size_t item, size_t t,
                          double *p) {
    double sum = 0, most = -INFINITY;
    for (size_t j = 0; j <= t; j++) {
        p[j] = 0;
        for (size_t d = 0; d < s->head_size; d++)
            p[j] += (double)qkv[at(s, item, t, 0) + d] * (double)qkv[at(s, item, j, 1) + d];
        p[j] /= sqrt((double)s->head_size);
        most = fmax(most, p[j]);
    }
    for (size_t j = 0; j <= t; j++)
        sum += exp(p[j] - most);
    for (size_t j = 0; j <= t; j++)
        p[j] = exp(p[j] - most) / sum;
}

static void forward_reference(const ls__attention *s, const float *qkv, double *p, double *y) {
    for (size_t item = 0; item < s->batch * s->heads; item++) {
        for (size_t t = 0; t < s->time; t++) {
            probabilities(s, qkv, item, t, p);
            for (size_t j = 0; j <= t; j++)
                for (size_t d = 0; d < s->head_size; d++)
                    y[y_at(s, item, t) + d] += p[j] * (double)qkv[at(s, item, j, 2) + d];
        }
    }
}

/* p and dp: (time) */
static void backward_reference(const ls__attention *s, const float *qkv, const float *dy, double *p,
                               double *dp, double *dqkv) {
    double scale = 1 / sqrt((double)s->head_size);
    for (size_t item = 0; item < s->batch * s->heads; item++) {
        for (size_t t = 0; t < s->time; t++) {
            double sum = 0;
            probabilities(s, qkv, item, t, p);
            for (size_t j = 0; j <= t; j++) {
                dp[j] = 0;
                for (size_t d = 0; d < s->head_size; d++) {
                    double g = (double)dy[y_at(s, item, t) + d];
                    dp[j] += g * (double)qkv[at(s, item, j, 2) + d];
                    dqkv[at(s, item, j, 2) + d] += p[j] * g;
                }
                sum += dp[j] * p[j];
            }
            for (size_t j = 0; j <= t; j++) {
                double ds = p[j] * (dp[j] - sum) * scale;
                for (size_t d = 0; d < s->head_size; d++) {
                    dqkv[at(s, item, t, 0) + d] += ds * (double)qkv[at(s, item, j, 1) + d];
                    dqkv[at(s, item, j, 1) + d] += ds * (double)qkv[at(s, item, t, 0) + d];
                }
            }
        }
    }
}

static void check_attention(fixture *f, const ls__attention *s, bool accumulate) {
    size_t count = s->batch * s->time * s->heads * s->head_size;
    float *qkv = uniform(f, 3 * count, -2, 2), *dy = uniform(f, count, -1, 1);
    float *start = destination(f, 3 * count, accumulate);
    double *y = reference(f, NULL, count, false), *p = reference(f, NULL, 2 * s->time, false);
    double *dqkv = reference(f, start, 3 * count, accumulate);
    forward_reference(s, qkv, p, y);
    backward_reference(s, qkv, dy, p, p + s->time, dqkv);
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        const ls__device_table *t = device->table;
        size_t saved_count = t->attention_saved_bytes(device, LS_F32, s) / sizeof(float);
        float *saved = destination(f, saved_count, false);
        float *got = destination(f, count, false), *unsaved = destination(f, count, false);
        assert_int_equal(t->attention_forward(device, LS_F32, s, qkv, got, saved), LS_OK);
        expect_close(got, y, count, 1e-5, "attention");
        assert_int_equal(t->attention_forward(device, LS_F32, s, qkv, unsaved, NULL), LS_OK);
        expect_equal_bits(got, unsaved, count * sizeof *got, "attention, nothing saved");
        float *dx = copy_of(f, start, 3 * count), *again = copy_of(f, start, 3 * count);
        assert_int_equal(
            t->attention_backward(device, LS_F32, s, qkv, got, saved, dy, dx, accumulate), LS_OK);
        expect_close(dx, dqkv, 3 * count, 2e-5, "attention backward");
        t->attention_backward(device, LS_F32, s, qkv, got, saved, dy, again, accumulate);
        expect_equal_bits(dx, again, 3 * count * sizeof *dx, "attention backward, second run");
    }
}

static void test_attention(void **state) {
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        check_attention(*state, &SHAPES[i], false);
        check_attention(*state, &SHAPES[i], true);
    }
}

/* Later positions have no influence on earlier ones. */
static void test_causal(void **state) {
    fixture *f = *state;
    ls__attention s = {1, 130, 1, 8};
    float *qkv = uniform(f, 130 * 24, -1, 1), *y = destination(f, 130 * 8, false);
    float *changed = copy_of(f, qkv, 130 * 24), *y_changed = destination(f, 130 * 8, false);
    for (size_t i = 70 * 24; i < 130 * 24; i++)
        changed[i] = 3;
    f->one->table->attention_forward(f->one, LS_F32, &s, qkv, y, NULL);
    f->one->table->attention_forward(f->one, LS_F32, &s, changed, y_changed, NULL);
    expect_equal_bits(y, y_changed, (size_t)70 * 8 * sizeof *y, "the past");
}

int main(void) {
    const struct CMUnitTest tests[] = {kernel_test(test_attention), kernel_test(test_causal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
