/* Causal attention against the obvious f64 loops. Tolerance: f32 sums of some hundred terms of size
 * 1. */
#include "device_support.h"

#include "base/half.h"

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

/* --- factors rounded to bf16 --- */

static bool has_bf16(fixture *f) {
    const char *lacks = f->one->table->lacks(f->one, LS_BF16);
    if (lacks)
        print_message("no attention in bf16: that needs %s\n", lacks);
    return !lacks;
}

/* Two devices of one and two threads, both of LOCKSTEP_CPU's level: the fixture's second one has none of
 * the instructions. */
static void two_devices(ls_device **devices) {
    for (int i = 0; i < 2; i++)
        assert_int_equal(ls_device_cpu(&devices[i], i + 1), LS_OK);
}

/* Within 1 % of the largest element, and not the bits of f32. */
static void expect_near(const float *got, const float *want, size_t count, const char *what) {
    double largest = 0, worst = 0;
    for (size_t i = 0; i < count; i++) {
        assert_false(isnan(got[i]));
        largest = fmax(largest, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
    }
    if (!(worst <= 0.01 * largest))
        fail_msg("%s: off by %.3g of %.3g", what, worst, largest);
    if (worst == 0)
        fail_msg("%s: equal to f32 to the bit: was it computed in bf16?", what);
}

static float *rounded(fixture *f, const float *x, size_t count) {
    float *y = copy_of(f, x, count);
    uint16_t *half = array(f, count * sizeof *half);
    ls__f32_to_bf16(half, y, count);
    ls__bf16_to_f32(y, half, count);
    return y;
}

static void check_bf16(fixture *f, ls_device *const *devices, const ls__attention *s,
                       bool accumulate) {
    size_t count = s->batch * s->time * s->heads * s->head_size;
    size_t rows = devices[0]->table->attention_saved_bytes(devices[0], LS_F32, s) / sizeof(float);
    assert_int_equal(devices[0]->table->attention_saved_bytes(devices[0], LS_BF16, s),
                     rows * sizeof(float));
    float *qkv = uniform(f, 3 * count, -1, 1), *dy = uniform(f, count, -1, 1);
    float *start = destination(f, 3 * count, accumulate), *saved = destination(f, rows, false);
    float *y32 = destination(f, count, false), *dx32 = copy_of(f, start, 3 * count);
    float *y[2], *dx[2];
    const ls__device_table *t = devices[0]->table;
    assert_int_equal(t->attention_forward(devices[0], LS_F32, s, qkv, y32, saved), LS_OK);
    assert_int_equal(
        t->attention_backward(devices[0], LS_F32, s, qkv, y32, saved, dy, dx32, accumulate), LS_OK);
    for (int i = 0; i < 2; i++) {
        y[i] = destination(f, count, false);
        dx[i] = copy_of(f, start, 3 * count);
        float *unsaved = destination(f, count, false), *again = copy_of(f, start, 3 * count);
        ls_device *d = devices[i];
        assert_int_equal(t->attention_forward(d, LS_BF16, s, qkv, y[i], saved), LS_OK);
        assert_int_equal(t->attention_forward(d, LS_BF16, s, qkv, unsaved, NULL), LS_OK);
        expect_equal_bits(y[i], unsaved, count * sizeof *unsaved, "bf16, nothing saved");
        for (int run = 0; run < 2; run++)
            assert_int_equal(t->attention_backward(d, LS_BF16, s, qkv, y[i], saved, dy,
                                                   run ? again : dx[i], accumulate),
                             LS_OK);
        expect_equal_bits(dx[i], again, 3 * count * sizeof *again, "bf16 backward, second run");
    }
    expect_near(y[0], y32, count, "attention in bf16");
    expect_near(dx[0], dx32, 3 * count, "attention backward in bf16");
    expect_equal_bits(y[0], y[1], count * sizeof *y32, "bf16, threads");
    expect_equal_bits(dx[0], dx[1], 3 * count * sizeof *dx32, "bf16 backward, threads");
}

/* The head size changes between shapes, and so do the plans; times around the ends of blocks. */
static void test_bf16(void **state) {
    fixture *f = *state;
    if (!has_bf16(f))
        skip();
    static const ls__attention shapes[] = {
        {1, 1, 1, 1},    {2, 5, 3, 4},    {1, 64, 2, 64},  {2, 65, 2, 7},
        {1, 130, 3, 64}, {1, 256, 2, 64}, {1, 130, 3, 16}, {1, 70, 2, 96},
    };
    ls_device *devices[2];
    two_devices(devices);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            check_bf16(f, devices, &shapes[i], accumulate);
    for (int i = 0; i < 2; i++)
        ls_device_destroy(devices[i]);
}

/* The first query sees one key: its probability is 1, so y is v, rounded. Of two equal keys both are 1/2:
 * y is the mean of the rounded v. So it is for all keys, where q is 0, but for the rounding of 1/n. */
static void test_bf16_exact(void **state) {
    fixture *f = *state;
    if (!has_bf16(f))
        skip();
    enum { TIME = 130, SIZE = 64 };
    const ls__attention s = {1, TIME, 1, SIZE};
    float *qkv = uniform(f, (size_t)TIME * 3 * SIZE, -1, 1);
    float *y = destination(f, (size_t)TIME * SIZE, false);
    for (size_t t = 0; t < TIME; t++)
        memset(qkv + at(&s, 0, t, 0), 0, SIZE * sizeof *qkv);
    float *half = rounded(f, qkv, (size_t)TIME * 3 * SIZE);
    assert_int_equal(f->one->table->attention_forward(f->one, LS_BF16, &s, qkv, y, NULL), LS_OK);
    for (size_t d = 0; d < SIZE; d++) {
        double sum = 0;
        for (size_t t = 0; t < TIME; t++) {
            float part = 1.0F / (float)(t + 1), p = *rounded(f, &part, 1);
            sum += (double)half[at(&s, 0, t, 2) + d];
            double want = (double)p * sum;
            assert_true(fabs((double)y[t * SIZE + d] - want) < 1e-5);
        }
    }
}

/* Without the instructions: an error, no other result. */
static void test_bf16_lacking(void **state) {
    fixture *f = *state;
    const ls__attention s = {1, 3, 1, 4};
    float *qkv = uniform(f, 36, -1, 1), *y = destination(f, 12, false);
    assert_int_equal(f->two->table->attention_forward(f->two, LS_BF16, &s, qkv, y, NULL),
                     LS_ERR_UNSUPPORTED);
    assert_int_equal(f->two->table->attention_forward(f->two, LS_F16, &s, qkv, y, NULL),
                     LS_ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        kernel_test(test_attention),  kernel_test(test_causal),       kernel_test(test_bf16),
        kernel_test(test_bf16_exact), kernel_test(test_bf16_lacking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
