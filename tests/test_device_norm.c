/* Layer and batch normalisation, softmax, reductions: f64 references, both ways of writing, equal
 * bits for one and two threads. Tolerances: f32 sums of up to some thousand numbers of size 1. */
#include "device_support.h"

static const size_t LAYERS[][2] = {{1, 1}, {1, 5}, {3, 16}, {7, 33}, {130, 128}, {300, 519}};
enum { LAYER_COUNT = sizeof LAYERS / sizeof *LAYERS };

static void layer_reference(size_t columns, const float *x, double epsilon, double *mean,
                            double *rstd) {
    double sum = 0, squares = 0;
    for (size_t j = 0; j < columns; j++)
        sum += (double)x[j];
    *mean = sum / (double)columns;
    for (size_t j = 0; j < columns; j++)
        squares += ((double)x[j] - *mean) * ((double)x[j] - *mean);
    *rstd = 1 / sqrt(squares / (double)columns + epsilon);
}

static void check_layer_forward(fixture *f, size_t rows, size_t columns) {
    size_t count = rows * columns;
    float *x = uniform(f, count, 2, 4), *w = uniform(f, columns, -1, 1);
    float *b = uniform(f, columns, -1, 1), *y[2], *mean[2], *rstd[2];
    double *want = reference(f, NULL, count, false), *want_mean = reference(f, NULL, rows, false);
    double *want_rstd = reference(f, NULL, rows, false);
    for (size_t r = 0; r < rows; r++) {
        layer_reference(columns, x + r * columns, 1e-2, want_mean + r, want_rstd + r);
        for (size_t j = 0; j < columns; j++)
            want[r * columns + j] =
                ((double)x[r * columns + j] - want_mean[r]) * want_rstd[r] * (double)w[j] +
                (double)b[j];
    }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        y[i] = destination(f, count, false);
        mean[i] = destination(f, rows, false);
        rstd[i] = destination(f, rows, false);
        assert_int_equal(device->table->layer_norm_forward(device, LS_F32, rows, columns, x, w, b,
                                                           1e-2F, y[i], mean[i], rstd[i]),
                         LS_OK);
        expect_close(y[i], want, count, 5e-6, "layer_norm");
        expect_close(mean[i], want_mean, rows, 1e-6, "layer_norm mean");
        expect_close(rstd[i], want_rstd, rows, 2e-6, "layer_norm rstd");
    }
    expect_equal_bits(y[0], y[1], count * sizeof(float), "layer_norm, threads");
}

static void check_layer_backward(fixture *f, size_t rows, size_t columns, bool accumulate,
                                 bool only_weight) {
    size_t count = rows * columns;
    float *x = uniform(f, count, 2, 4), *w = uniform(f, columns, -1, 1);
    float *dy = uniform(f, count, -1, 1);
    float *mean = filled(f, rows, 0), *rstd = filled(f, rows, 0);
    float *dx0 = destination(f, count, accumulate), *dw0 = destination(f, columns, !accumulate);
    float *db0 = destination(f, columns, accumulate), *ds0 = destination(f, columns, !accumulate);
    double *dx = reference(f, dx0, count, accumulate),
           *dw = reference(f, dw0, columns, !accumulate);
    double *db = reference(f, db0, columns, accumulate);
    double *ds = reference(f, ds0, columns, !accumulate);
    for (size_t r = 0; r < rows; r++) {
        double m, s, sum = 0, products = 0;
        layer_reference(columns, x + r * columns, 1e-2, &m, &s);
        mean[r] = (float)m;
        rstd[r] = (float)s;
        for (size_t j = 0; j < columns; j++) {
            size_t i = r * columns + j;
            double n = ((double)x[i] - m) * s, g = (double)dy[i] * (double)w[j];
            sum += g;
            products += g * n;
            dw[j] += (double)dy[i] * n;
            db[j] += (double)dy[i];
        }
        for (size_t j = 0; j < columns; j++) {
            size_t i = r * columns + j;
            double n = ((double)x[i] - m) * s, g = (double)dy[i] * (double)w[j];
            dx[i] += s * (g - sum / (double)columns - n * products / (double)columns);
            ds[j] += dx[i];
        }
    }
    float *got_x[2], *got_w[2], *got_b[2], *got_s[2];
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        got_s[i] = copy_of(f, ds0, columns);
        got_x[i] = copy_of(f, dx0, count);
        got_w[i] = copy_of(f, dw0, columns);
        got_b[i] = copy_of(f, db0, columns);
        assert_int_equal(device->table->layer_norm_backward(
                             device, LS_F32, rows, columns, x, w, mean, rstd, dy,
                             only_weight ? NULL : got_x[i], accumulate, got_w[i], !accumulate,
                             only_weight ? NULL : got_b[i], accumulate,
                             only_weight ? NULL : got_s[i], !accumulate),
                         LS_OK);
        expect_close(got_w[i], dw, columns, 1e-5, "layer_norm dweight");
        if (only_weight)
            continue;
        expect_close(got_x[i], dx, count, 1e-5, "layer_norm dx");
        expect_close(got_b[i], db, columns, 1e-5, "layer_norm dbias");
        expect_close(got_s[i], ds, columns, 2e-5, "layer_norm, sums of dx");
    }
    expect_equal_bits(got_s[0], got_s[1], columns * sizeof(float), "layer_norm sums, threads");
    expect_equal_bits(got_x[0], got_x[1], count * sizeof(float), "layer_norm dx, threads");
    expect_equal_bits(got_w[0], got_w[1], columns * sizeof(float), "layer_norm dweight, threads");
    expect_equal_bits(got_b[0], got_b[1], columns * sizeof(float), "layer_norm dbias, threads");
}

/* A residual branch in the same pass: the bits of the sum, and of the norm of it. */
static void check_residual(fixture *f, size_t rows, size_t columns, bool with_bias) {
    size_t count = rows * columns;
    float *x = uniform(f, count, 2, 4), *branch = uniform(f, count, -1, 1);
    float *branch_bias = with_bias ? uniform(f, columns, -1, 1) : NULL;
    float *w = uniform(f, columns, -1, 1), *b = uniform(f, columns, -1, 1);
    float *want = destination(f, count, false), *want_y = destination(f, count, false);
    float *want_mean = destination(f, rows, false), *want_rstd = destination(f, rows, false);
    for (size_t i = 0; i < count; i++)
        want[i] = x[i] + (with_bias ? branch[i] + branch_bias[i % columns] : branch[i]);
    assert_int_equal(f->one->table->layer_norm_forward(f->one, LS_F32, rows, columns, want, w, b,
                                                       1e-2F, want_y, want_mean, want_rstd),
                     LS_OK);
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        float *sum = destination(f, count, false), *y = destination(f, count, false);
        float *mean = destination(f, rows, false), *rstd = destination(f, rows, false);
        assert_int_equal(
            device->table->residual_sum(device, LS_F32, rows, columns, x, branch, branch_bias, sum),
            LS_OK);
        expect_equal_bits(sum, want, count * sizeof(float), "residual_sum");
        sum = destination(f, count, false);
        assert_int_equal(device->table->residual_norm_forward(device, LS_F32, rows, columns, x,
                                                              branch, branch_bias, w, b, 1e-2F, sum,
                                                              y, mean, rstd),
                         LS_OK);
        expect_equal_bits(sum, want, count * sizeof(float), "residual_norm, sum");
        expect_equal_bits(y, want_y, count * sizeof(float), "residual_norm");
        expect_equal_bits(mean, want_mean, rows * sizeof(float), "residual_norm, mean");
        expect_equal_bits(rstd, want_rstd, rows * sizeof(float), "residual_norm, rstd");
    }
}

static void test_residual(void **state) {
    for (size_t i = 0; i < LAYER_COUNT; i++) {
        check_residual(*state, LAYERS[i][0], LAYERS[i][1], true);
        check_residual(*state, LAYERS[i][0], LAYERS[i][1], false);
    }
}

static void test_layer_norm(void **state) {
    for (size_t i = 0; i < LAYER_COUNT; i++) {
        check_layer_forward(*state, LAYERS[i][0], LAYERS[i][1]);
        check_layer_backward(*state, LAYERS[i][0], LAYERS[i][1], false, false);
        check_layer_backward(*state, LAYERS[i][0], LAYERS[i][1], true, false);
        check_layer_backward(*state, LAYERS[i][0], LAYERS[i][1], false, true);
    }
}

/* --- batch normalisation --- */

#define BATCH(r, c, follows)                                                                       \
    { .rows = r, .channels = c, .epsilon = 1e-2F, .relu = follows }
static const ls__batch_norm BATCHES[] = {
    BATCH(2, 1, false),   BATCH(5, 3, true),     BATCH(36, 7, true),
    BATCH(900, 5, false), BATCH(33, 70, true),   BATCH(2704, 8, true),
    BATCH(600, 48, true), BATCH(3, 9000, false), BATCH(200, 128, true),
};
enum { BATCH_COUNT = sizeof BATCHES / sizeof *BATCHES };

static void batch_reference(const ls__batch_norm *s, size_t c, const float *x, double *mean,
                            double *variance) {
    double sum = 0, squares = 0, n = (double)s->rows;
    for (size_t r = 0; r < s->rows; r++)
        sum += (double)x[r * s->channels + c];
    *mean = sum / n;
    for (size_t r = 0; r < s->rows; r++) {
        double d = (double)x[r * s->channels + c] - *mean;
        squares += d * d;
    }
    *variance = squares / n;
}

static void check_batch_forward(fixture *f, const ls__batch_norm *s, bool training,
                                bool with_residual) {
    size_t count = s->rows * s->channels, channels = s->channels;
    float *x = uniform(f, count, 2, 4), *w = uniform(f, channels, -1, 1);
    float *b = uniform(f, channels, -1, 1), *y[2], *rstd[2], *mean[2], *variance[2];
    float *residual = with_residual ? uniform(f, count, -2, 2) : NULL;
    float *given_mean = uniform(f, channels, 2, 4), *given_variance = uniform(f, channels, 0, 1);
    double *want = reference(f, NULL, count, false), *m = reference(f, NULL, channels, false);
    double *v = reference(f, NULL, channels, false), *r = reference(f, NULL, channels, false);
    for (size_t c = 0; c < channels; c++) {
        m[c] = (double)given_mean[c];
        v[c] = (double)given_variance[c];
        if (training)
            batch_reference(s, c, x, &m[c], &v[c]);
        r[c] = 1 / sqrt(v[c] + (double)s->epsilon);
    }
    for (size_t i = 0; i < count; i++) {
        size_t c = i % channels;
        want[i] = ((double)x[i] - m[c]) * r[c] * (double)w[c] + (double)b[c];
        want[i] += residual ? (double)residual[i] : 0;
        want[i] = s->relu ? fmax(want[i], 0) : want[i];
    }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        y[i] = destination(f, count, false);
        rstd[i] = destination(f, channels, false);
        mean[i] = training ? destination(f, channels, false) : given_mean;
        variance[i] = training ? destination(f, channels, false) : given_variance;
        assert_int_equal(device->table->batch_norm_forward(device, LS_F32, s, training, x, w, b,
                                                           residual, y[i], mean[i], variance[i],
                                                           rstd[i]),
                         LS_OK);
        expect_close(y[i], want, count, 1e-5, "batch_norm");
        expect_close(mean[i], m, channels, 1e-6, "batch_norm mean");
        expect_close(variance[i], v, channels, 2e-6, "batch_norm variance");
        expect_close(rstd[i], r, channels, 5e-6, "batch_norm rstd");
    }
    expect_equal_bits(y[0], y[1], count * sizeof(float), "batch_norm, threads");
}

static void check_batch_backward(fixture *f, const ls__batch_norm *s, bool training,
                                 bool accumulate, bool only_x) {
    size_t count = s->rows * s->channels, channels = s->channels;
    float *x = uniform(f, count, 2, 4), *w = uniform(f, channels, -1, 1);
    float *dy = uniform(f, count, -1, 1), *mean = filled(f, channels, 0);
    float *y = uniform(f, count, -1, 1); /* need not be forward's: its sign counts */
    float *rstd = filled(f, channels, 0), *dx0 = destination(f, count, accumulate);
    float *dr0 = destination(f, count, !accumulate);
    float *dw0 = destination(f, channels, !accumulate), *db0 = destination(f, channels, accumulate);
    double *dx = reference(f, dx0, count, accumulate), n = (double)s->rows;
    double *dr = reference(f, dr0, count, !accumulate), *d = reference(f, dy, count, true);
    double *dw = reference(f, dw0, channels, !accumulate);
    double *db = reference(f, db0, channels, accumulate);
    double *sum = reference(f, NULL, channels, false),
           *products = reference(f, NULL, channels, false);
    for (size_t c = 0; c < channels; c++) {
        double m, v;
        batch_reference(s, c, x, &m, &v);
        mean[c] = (float)m;
        rstd[c] = (float)(1 / sqrt(v + (double)s->epsilon));
    }
    for (size_t i = 0; i < count; i++) {
        size_t c = i % channels;
        d[i] = s->relu && y[i] <= 0 ? 0 : d[i];
        dr[i] += d[i];
        sum[c] += d[i];
        products[c] += d[i] * ((double)x[i] - (double)mean[c]) * (double)rstd[c];
    }
    for (size_t c = 0; c < channels; c++) {
        dw[c] += products[c];
        db[c] += sum[c];
    }
    for (size_t i = 0; i < count; i++) {
        size_t c = i % channels;
        double normal = ((double)x[i] - (double)mean[c]) * (double)rstd[c];
        double through = training ? sum[c] / n + normal * products[c] / n : 0;
        dx[i] += (double)w[c] * (double)rstd[c] * (d[i] - through);
    }
    float *got_x[2], *got_w[2], *got_b[2], *got_r[2];
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        got_x[i] = copy_of(f, dx0, count);
        got_r[i] = copy_of(f, dr0, count);
        got_w[i] = copy_of(f, dw0, channels);
        got_b[i] = copy_of(f, db0, channels);
        assert_int_equal(device->table->batch_norm_backward(device, LS_F32, s, training, x, w, mean,
                                                            rstd, y, dy, got_x[i], accumulate,
                                                            only_x ? NULL : got_r[i], !accumulate,
                                                            only_x ? NULL : got_w[i], !accumulate,
                                                            only_x ? NULL : got_b[i], accumulate),
                         LS_OK);
        expect_close(got_x[i], dx, count, 2e-5, "batch_norm dx");
        if (only_x)
            continue;
        expect_close(got_r[i], dr, count, 1e-6, "batch_norm dresidual");
        expect_close(got_w[i], dw, channels, 2e-5, "batch_norm dweight");
        expect_close(got_b[i], db, channels, 2e-5, "batch_norm dbias");
    }
    expect_equal_bits(got_x[0], got_x[1], count * sizeof(float), "batch_norm dx, threads");
    expect_equal_bits(got_w[0], got_w[1], channels * sizeof(float), "batch_norm dw, threads");
}

static void test_batch_norm(void **state) {
    for (size_t i = 0; i < BATCH_COUNT; i++) {
        for (int training = 0; training < 2; training++) {
            check_batch_forward(*state, &BATCHES[i], training, false);
            check_batch_forward(*state, &BATCHES[i], training, true);
            check_batch_backward(*state, &BATCHES[i], training, false, false);
            check_batch_backward(*state, &BATCHES[i], training, true, false);
            check_batch_backward(*state, &BATCHES[i], training, false, true);
        }
    }
}

/* --- softmax --- */

static void softmax_reference(size_t columns, const float *x, bool logarithm, double *y) {
    double most = -INFINITY, sum = 0;
    for (size_t j = 0; j < columns; j++)
        most = fmax(most, (double)x[j]);
    for (size_t j = 0; j < columns; j++)
        sum += exp((double)x[j] - most);
    for (size_t j = 0; j < columns; j++)
        y[j] = logarithm ? (double)x[j] - most - log(sum) : exp((double)x[j] - most) / sum;
}

static void check_softmax(fixture *f, size_t rows, size_t columns, bool logarithm,
                          bool accumulate) {
    size_t count = rows * columns;
    float *x = uniform(f, count, 80, 100), *dy = uniform(f, count, -1, 1), *y[2], *dx[2];
    float *start = destination(f, count, accumulate);
    double *want = reference(f, NULL, count, false),
           *want_dx = reference(f, start, count, accumulate);
    for (size_t r = 0; r < rows; r++) {
        double *p = want + r * columns, sum = 0;
        softmax_reference(columns, x + r * columns, logarithm, p);
        for (size_t j = 0; j < columns; j++)
            sum += (double)dy[r * columns + j] * (logarithm ? 1 : p[j]);
        for (size_t j = 0; j < columns; j++) {
            double d = (double)dy[r * columns + j];
            want_dx[r * columns + j] += logarithm ? d - exp(p[j]) * sum : p[j] * (d - sum);
        }
    }
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        y[i] = destination(f, count, false);
        dx[i] = copy_of(f, start, count);
        assert_int_equal(
            device->table->softmax_forward(device, LS_F32, logarithm, rows, columns, x, y[i]),
            LS_OK);
        expect_close(y[i], want, count, 2e-6, "softmax");
        assert_int_equal(device->table->softmax_backward(device, LS_F32, logarithm, rows, columns,
                                                         y[i], dy, dx[i], accumulate),
                         LS_OK);
        expect_close(dx[i], want_dx, count, 1e-5, "softmax backward");
    }
    expect_equal_bits(y[0], y[1], count * sizeof(float), "softmax, threads");
    expect_equal_bits(dx[0], dx[1], count * sizeof(float), "softmax backward, threads");
}

static void test_softmax(void **state) {
    for (size_t i = 0; i < LAYER_COUNT; i++)
        for (int k = 0; k < 4; k++)
            check_softmax(*state, LAYERS[i][0], LAYERS[i][1], k & 1, k & 2);
}

/* --- reductions --- */

static const size_t REDUCTIONS[][3] = {
    {1, 1, 1},     {3, 7, 1},   {1, 10007, 1}, {5, 3, 4},   {1, 300, 65},
    {2, 129, 200}, {64, 33, 3}, {400, 50, 1},  {1, 4, 513},
};
enum { REDUCTION_COUNT = sizeof REDUCTIONS / sizeof *REDUCTIONS };

static void check_sum(fixture *f, const size_t s[3], bool accumulate) {
    size_t outer = s[0], n = s[1], inner = s[2], count = outer * n * inner;
    float *x = uniform(f, count, -1, 1), *y0 = destination(f, outer * inner, accumulate);
    float *dx0 = destination(f, count, accumulate), *dy = uniform(f, outer * inner, -1, 1);
    double *want = reference(f, y0, outer * inner, accumulate);
    double *want_dx = reference(f, dx0, count, accumulate);
    for (size_t i = 0; i < count; i++) {
        size_t to = i / (n * inner) * inner + i % inner;
        want[to] += 0.25 * (double)x[i];
        want_dx[i] += 0.25 * (double)dy[to];
    }
    float *y[2], *dx[2];
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        y[i] = copy_of(f, y0, outer * inner);
        dx[i] = copy_of(f, dx0, count);
        assert_int_equal(
            device->table->sum(device, LS_F32, outer, n, inner, 0.25F, x, y[i], accumulate), LS_OK);
        expect_close(y[i], want, outer * inner, 5e-6, "sum");
        assert_int_equal(
            device->table->repeat(device, LS_F32, outer, n, inner, 0.25F, dy, dx[i], accumulate),
            LS_OK);
        expect_close(dx[i], want_dx, count, 1e-6, "repeat");
    }
    expect_equal_bits(y[0], y[1], outer * inner * sizeof(float), "sum, threads");
}

static void check_max(fixture *f, const size_t s[3], bool accumulate) {
    size_t outer = s[0], n = s[1], inner = s[2], count = outer * n * inner;
    float *x = uniform(f, count, -3, 3), *dx0 = destination(f, count, accumulate);
    float *dy = uniform(f, outer * inner, -1, 1);
    for (size_t i = 0; i < count; i++)
        x[i] = roundf(x[i]);
    double *want_dx = reference(f, dx0, count, accumulate);
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        float *y = destination(f, outer * inner, false), *dx = copy_of(f, dx0, count);
        int32_t *where = array(f, outer * inner * sizeof *where);
        assert_int_equal(device->table->max(device, LS_F32, outer, n, inner, x, y, where), LS_OK);
        for (size_t o = 0; o < outer * inner; o++) {
            const float *run = x + o / inner * n * inner + o % inner;
            size_t best = 0;
            for (size_t j = 1; j < n; j++)
                if (run[j * inner] > run[best * inner])
                    best = j;
            assert_int_equal(where[o], best);
            assert_true(y[o] == run[best * inner]);
            if (i == 0)
                want_dx[o / inner * n * inner + best * inner + o % inner] += (double)dy[o];
        }
        assert_int_equal(
            device->table->max_backward(device, LS_F32, outer, n, inner, where, dy, dx, accumulate),
            LS_OK);
        expect_close(dx, want_dx, count, 1e-6, "max backward");
    }
}

static void test_reductions(void **state) {
    for (size_t i = 0; i < REDUCTION_COUNT; i++) {
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            check_sum(*state, REDUCTIONS[i], accumulate);
            check_max(*state, REDUCTIONS[i], accumulate);
        }
    }
}

static void test_max_special(void **state) {
    fixture *f = *state;
    float x[] = {1, NAN, 5, NAN, -INFINITY, -INFINITY, -INFINITY, -INFINITY}, y[2];
    int32_t where[2];
    assert_int_equal(f->one->table->max(f->one, LS_F32, 2, 4, 1, x, y, where), LS_OK);
    assert_true(isnan(y[0]));
    assert_int_equal(where[0], 1);
    assert_true(y[1] == -INFINITY);
    assert_int_equal(where[1], 0);
    assert_int_equal(f->one->table->max(f->one, LS_F32, 1, 0, 1, x, y, where), LS_ERR_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        kernel_test(test_layer_norm), kernel_test(test_residual),   kernel_test(test_batch_norm),
        kernel_test(test_softmax),    kernel_test(test_reductions), kernel_test(test_max_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
