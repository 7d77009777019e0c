/* Convolution and pooling against the obvious loops. */
#include "device_support.h"

#include <omp.h>

/* Tolerance: sums of up to some thousand products of numbers below 1 in f32. */
static const double TOLERANCE = 2e-5;

static const ls__conv2d CONVS[] = {
    /* batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w, out_h, out_w, stride, pad */
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0},       {2, 1, 28, 28, 32, 3, 3, 26, 26, 1, 0},
    {2, 32, 13, 11, 64, 3, 3, 11, 9, 1, 0},  {3, 5, 9, 7, 6, 3, 2, 5, 4, 2, 1},
    {2, 8, 8, 8, 16, 1, 1, 4, 4, 2, 0},      {1, 3, 10, 10, 7, 5, 5, 10, 10, 1, 2},
    {3, 16, 12, 12, 16, 3, 3, 12, 12, 1, 1}, {1, 2, 7, 8, 3, 3, 3, 3, 3, 2, 0},
};
enum { CONV_COUNT = sizeof CONVS / sizeof *CONVS };

typedef struct sizes {
    size_t x, w, y;
} sizes;

static sizes sizes_of(const ls__conv2d *s) {
    return (sizes){s->batch * s->in_channels * s->in_h * s->in_w,
                   s->out_channels * s->in_channels * s->kernel_h * s->kernel_w,
                   s->batch * s->out_channels * s->out_h * s->out_w};
}

/* Calls `term` for each triple of offsets (x, w, y) that a convolution multiplies and adds. */
typedef void term(void *context, size_t x, size_t w, size_t y);

static void row_terms(const ls__conv2d *s, size_t x, size_t w, size_t y, size_t oy, size_t ox,
                      term *visit, void *context) {
    for (size_t ky = 0; ky < s->kernel_h; ky++) {
        for (size_t kx = 0; kx < s->kernel_w; kx++) {
            size_t iy = oy * s->stride + ky - s->padding, ix = ox * s->stride + kx - s->padding;
            if (iy < s->in_h && ix < s->in_w) /* below 0 wraps to above */
                visit(context, x + iy * s->in_w + ix, w + ky * s->kernel_w + kx, y);
        }
    }
}

static void conv_terms(const ls__conv2d *s, term *visit, void *context) {
    for (size_t y = 0; y < sizes_of(s).y; y++) {
        size_t ox = y % s->out_w, oy = y / s->out_w % s->out_h;
        size_t out = y / (s->out_w * s->out_h) % s->out_channels;
        size_t image = y / (s->out_w * s->out_h * s->out_channels);
        for (size_t in = 0; in < s->in_channels; in++)
            row_terms(s, (image * s->in_channels + in) * s->in_h * s->in_w,
                      (out * s->in_channels + in) * s->kernel_h * s->kernel_w, y, oy, ox, visit,
                      context);
    }
}

typedef struct operands {
    const float *x, *w, *dy;
    double *y, *dx, *dw;
} operands;

static void forward_term(void *context, size_t x, size_t w, size_t y) {
    operands *o = context;
    o->y[y] += (double)o->x[x] * (double)o->w[w];
}

static void data_term(void *context, size_t x, size_t w, size_t y) {
    operands *o = context;
    o->dx[x] += (double)o->dy[y] * (double)o->w[w];
}

static void weights_term(void *context, size_t x, size_t w, size_t y) {
    operands *o = context;
    o->dw[w] += (double)o->dy[y] * (double)o->x[x];
}

static void check_forward(fixture *f, ls_device *device, const ls__conv2d *s, bool bias) {
    sizes n = sizes_of(s);
    float *b = uniform(f, s->out_channels, -1, 1);
    operands o = {.x = uniform(f, n.x, -1, 1), .w = uniform(f, n.w, -1, 1)};
    o.y = reference(f, NULL, n.y, false);
    for (size_t y = 0; y < n.y && bias; y++)
        o.y[y] = (double)b[y / (s->out_h * s->out_w) % s->out_channels];
    conv_terms(s, forward_term, &o);
    float *got = destination(f, n.y, false), *again = destination(f, n.y, false);
    assert_int_equal(
        device->table->conv2d_forward(device, LS_F32, s, o.x, o.w, bias ? b : NULL, got), LS_OK);
    expect_close(got, o.y, n.y, TOLERANCE, "conv2d");
    device->table->conv2d_forward(device, LS_F32, s, o.x, o.w, bias ? b : NULL, again);
    expect_equal_bits(got, again, n.y * sizeof *got, "conv2d, second run");
}

static void test_conv2d_forward(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < CONV_COUNT; i++) {
        check_forward(f, f->one, &CONVS[i], true);
        check_forward(f, f->two, &CONVS[i], false);
    }
}

static void check_backward_data(fixture *f, ls_device *device, const ls__conv2d *s,
                                bool accumulate) {
    sizes n = sizes_of(s);
    float *got = destination(f, n.x, accumulate), *again = copy_of(f, got, n.x);
    operands o = {.dy = uniform(f, n.y, -1, 1), .w = uniform(f, n.w, -1, 1)};
    o.dx = reference(f, got, n.x, accumulate);
    conv_terms(s, data_term, &o);
    assert_int_equal(
        device->table->conv2d_backward_data(device, LS_F32, s, o.dy, o.w, got, accumulate), LS_OK);
    expect_close(got, o.dx, n.x, TOLERANCE, "conv2d backward data");
    device->table->conv2d_backward_data(device, LS_F32, s, o.dy, o.w, again, accumulate);
    expect_equal_bits(got, again, n.x * sizeof *got, "conv2d backward data, second run");
}

static void test_conv2d_backward_data(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < CONV_COUNT; i++) {
        check_backward_data(f, f->one, &CONVS[i], false);
        check_backward_data(f, f->two, &CONVS[i], true);
    }
}

static void check_backward_weights(fixture *f, ls_device *device, const ls__conv2d *s, bool bias,
                                   bool accumulate_dw, bool accumulate_dbias) {
    sizes n = sizes_of(s);
    float *dw = destination(f, n.w, accumulate_dw), *again = copy_of(f, dw, n.w);
    float *db = destination(f, s->out_channels, accumulate_dbias);
    float *db_again = copy_of(f, db, s->out_channels);
    operands o = {.x = uniform(f, n.x, -1, 1), .dy = uniform(f, n.y, -1, 1)};
    o.dw = reference(f, dw, n.w, accumulate_dw);
    double *want_db = reference(f, db, s->out_channels, accumulate_dbias);
    for (size_t y = 0; y < n.y; y++)
        want_db[y / (s->out_h * s->out_w) % s->out_channels] += (double)o.dy[y];
    conv_terms(s, weights_term, &o);
    assert_int_equal(device->table->conv2d_backward_weights(device, LS_F32, s, o.x, o.dy, dw,
                                                            accumulate_dw, bias ? db : NULL,
                                                            accumulate_dbias),
                     LS_OK);
    expect_close(dw, o.dw, n.w, TOLERANCE, "conv2d backward weights");
    if (bias)
        expect_close(db, want_db, s->out_channels, TOLERANCE, "conv2d backward bias");
    device->table->conv2d_backward_weights(device, LS_F32, s, o.x, o.dy, again, accumulate_dw,
                                           bias ? db_again : NULL, accumulate_dbias);
    expect_equal_bits(dw, again, n.w * sizeof *dw, "conv2d backward weights, second run");
}

static void test_conv2d_backward_weights(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < CONV_COUNT; i++) {
        check_backward_weights(f, f->one, &CONVS[i], true, false, true);
        check_backward_weights(f, f->one, &CONVS[i], true, true, false);
        check_backward_weights(f, f->two, &CONVS[i], false, i % 2, false);
    }
}

/* Another device with as many threads gives the same bits, whatever ran in between, and the calling
 * thread's OpenMP setting is left as it was. */
static void test_two_devices(void **state) {
    fixture *f = *state;
    ls_device *other;
    assert_int_equal(ls_device_cpu(&other, 2), LS_OK);
    const ls__conv2d *s = &CONVS[2];
    sizes n = sizes_of(s);
    float *x = uniform(f, n.x, -1, 1), *w = uniform(f, n.w, -1, 1), *y[3], *product[3];
    ls_device *devices[] = {f->two, f->one, other};
    int before = omp_get_max_threads();
    for (int i = 0; i < 3; i++) {
        ls_device *device = devices[i];
        y[i] = destination(f, n.y, false);
        product[i] = destination(f, 64 * 64, false);
        assert_int_equal(device->table->conv2d_forward(device, LS_F32, s, x, w, NULL, y[i]), LS_OK);
        assert_int_equal(device->table->gemm(device, LS_F32, false, true, 64, 64, 40, 1, x, 40, w,
                                             40, 0, product[i], 64),
                         LS_OK);
    }
    assert_int_equal(omp_get_max_threads(), before);
    expect_equal_bits(y[0], y[2], n.y * sizeof(float), "conv2d, two devices");
    expect_equal_bits(product[0], product[2], sizeof(float) * 64 * 64, "gemm, two devices");
    ls_device_destroy(other);
}

/* More shapes than the device remembers: it forgets and makes them again. */
static void test_many_shapes(void **state) {
    fixture *f = *state;
    for (size_t width = 1; width <= 520; width++) {
        ls__conv2d s = {1, 1, 1, width, 1, 1, 1, 1, width, 1, 0};
        float *x = uniform(f, width, -1, 1), *y = destination(f, width, false), two = 2;
        assert_int_equal(f->one->table->conv2d_forward(f->one, LS_F32, &s, x, &two, NULL, y),
                         LS_OK);
        assert_true(y[width - 1] == 2 * x[width - 1]);
    }
}

/* --- pooling --- */

static const ls__pool2d POOLS[] = {
    /* average, batch, channels, in_h, in_w, out_h, out_w, kernel, stride, padding */
    {false, 1, 1, 1, 1, 1, 1, 1, 1, 0},    {false, 2, 3, 24, 24, 12, 12, 2, 2, 0},
    {false, 2, 2, 9, 7, 4, 3, 3, 2, 0},    {false, 1, 2, 8, 11, 8, 11, 3, 1, 1},
    {false, 1, 3, 13, 40, 5, 14, 3, 3, 1}, {false, 60, 8, 12, 10, 6, 5, 2, 2, 0},
};
enum { POOL_COUNT = sizeof POOLS / sizeof *POOLS };

/* The obvious loops; returns the chosen offset of maximum, and the value. */
static double pool_window(const ls__pool2d *s, const float *x, size_t oy, size_t ox,
                          int32_t *where) {
    double most = -INFINITY, sum = 0;
    *where = -1;
    for (size_t k = 0; k < s->kernel * s->kernel; k++) {
        size_t iy = oy * s->stride + k / s->kernel - s->padding;
        size_t ix = ox * s->stride + k % s->kernel - s->padding;
        if (iy >= s->in_h || ix >= s->in_w)
            continue;
        double value = (double)x[iy * s->in_w + ix];
        sum += value;
        if (*where < 0 || value > most) {
            most = value;
            *where = (int32_t)(iy * s->in_w + ix);
        }
    }
    return s->average ? sum / (double)(s->kernel * s->kernel) : most;
}

static void pool_windows_back(const ls__pool2d *s, const float *dy, const int32_t *where,
                              double *dx) {
    for (size_t o = 0; o < s->batch * s->channels * s->out_h * s->out_w; o++) {
        size_t ox = o % s->out_w, oy = o / s->out_w % s->out_h, plane = o / (s->out_w * s->out_h);
        double *to = dx + plane * s->in_h * s->in_w;
        for (size_t k = 0; k < s->kernel * s->kernel; k++) {
            size_t iy = oy * s->stride + k / s->kernel - s->padding;
            size_t ix = ox * s->stride + k % s->kernel - s->padding;
            if (iy >= s->in_h || ix >= s->in_w)
                continue;
            if (s->average)
                to[iy * s->in_w + ix] += (double)dy[o] / (double)(s->kernel * s->kernel);
            else if (where[o] == (int32_t)(iy * s->in_w + ix))
                to[iy * s->in_w + ix] += (double)dy[o];
        }
    }
}

static void check_pool(fixture *f, const ls__pool2d *s, bool accumulate) {
    size_t planes = s->batch * s->channels, in = planes * s->in_h * s->in_w;
    size_t out = planes * s->out_h * s->out_w;
    float *x = uniform(f, in, -4, 4);
    for (size_t i = 0; i < in; i++)
        x[i] = roundf(x[i]); /* many equal ones */
    double *want = reference(f, NULL, out, false);
    int32_t *want_where = array(f, out * sizeof *want_where);
    for (size_t o = 0; o < out; o++)
        want[o] = pool_window(s, x + o / (s->out_w * s->out_h) * s->in_h * s->in_w,
                              o / s->out_w % s->out_h, o % s->out_w, &want_where[o]);
    float *dy = uniform(f, out, -1, 1), *dx[2], *y[2];
    int32_t *where[2];
    float *start = destination(f, in, accumulate);
    double *want_dx = reference(f, start, in, accumulate);
    pool_windows_back(s, dy, want_where, want_dx);
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        y[i] = destination(f, out, false);
        dx[i] = copy_of(f, start, in);
        where[i] = array(f, out * sizeof *where[i]);
        assert_int_equal(
            device->table->pool2d_forward(device, LS_F32, s, x, y[i], s->average ? NULL : where[i]),
            LS_OK);
        expect_close(y[i], want, out, s->average ? 1e-6 : 0, "pool2d");
        if (!s->average)
            assert_memory_equal(where[i], want_where, out * sizeof *where[i]);
        assert_int_equal(device->table->pool2d_backward(device, LS_F32, s, dy,
                                                        s->average ? NULL : where[i], dx[i],
                                                        accumulate),
                         LS_OK);
        expect_close(dx[i], want_dx, in, 1e-6, "pool2d backward");
    }
    expect_equal_bits(y[0], y[1], out * sizeof(float), "pool2d, threads");
    expect_equal_bits(dx[0], dx[1], in * sizeof(float), "pool2d backward, threads");
}

static void test_pool2d(void **state) {
    for (size_t i = 0; i < POOL_COUNT; i++) {
        ls__pool2d average = POOLS[i];
        average.average = true;
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            check_pool(*state, &POOLS[i], accumulate);
            check_pool(*state, &average, accumulate);
        }
    }
}

/* NaN is larger than everything, and a window of -inf has a maximum too. */
static void test_max_pool_special(void **state) {
    fixture *f = *state;
    ls__pool2d s = {false, 1, 1, 2, 6, 1, 3, 2, 2, 0};
    float x[12] = {1, NAN, -INFINITY, -INFINITY, 3, 3, NAN, 9, -INFINITY, -INFINITY, 3, 3}, y[3];
    int32_t where[3];
    assert_int_equal(f->one->table->pool2d_forward(f->one, LS_F32, &s, x, y, where), LS_OK);
    assert_true(isnan(y[0]));
    assert_int_equal(where[0], 1);
    assert_true(y[1] == -INFINITY);
    assert_int_equal(where[1], 2);
    assert_true(y[2] == 3);
    assert_int_equal(where[2], 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        kernel_test(test_conv2d_forward),
        kernel_test(test_conv2d_backward_data),
        kernel_test(test_conv2d_backward_weights),
        kernel_test(test_two_devices),
        kernel_test(test_many_shapes),
        kernel_test(test_pool2d),
        kernel_test(test_max_pool_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
