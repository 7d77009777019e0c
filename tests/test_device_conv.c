/* Convolution and pooling against the obvious loops. */
#include "device_support.h"

#include <omp.h>

/* Tolerance: sums of up to some thousand products of numbers below 1 in f32. */
static const double TOLERANCE = 2e-5;

static const ls__conv2d CONVS[] = {
    /* batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w, out_h, out_w, stride, pad, relu */
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, false},
    {2, 1, 28, 28, 32, 3, 3, 26, 26, 1, 0, false},
    {2, 32, 13, 11, 64, 3, 3, 11, 9, 1, 0, false},
    {3, 5, 9, 7, 6, 3, 2, 5, 4, 2, 1, false},
    {2, 8, 8, 8, 16, 1, 1, 4, 4, 2, 0, false},
    {1, 3, 10, 10, 7, 5, 5, 10, 10, 1, 2, false},
    {3, 16, 12, 12, 16, 3, 3, 12, 12, 1, 1, false},
    {1, 2, 7, 8, 3, 3, 3, 3, 3, 2, 0, false},
    {2, 7, 40, 40, 19, 3, 3, 40, 40, 1, 1, false},
    {2, 3, 5, 6, 9, 5, 5, 7, 8, 1, 3, false},
    /* channels in whole vectors: oneDNN's own convolutions, all passes or two of them */
    {3, 16, 9, 8, 32, 3, 3, 9, 8, 1, 1, false},
    {2, 32, 8, 12, 48, 5, 3, 6, 12, 1, 1, false},
    {3, 32, 10, 11, 16, 3, 3, 5, 6, 2, 1, false},
    {2, 16, 4, 4, 64, 3, 3, 4, 4, 1, 1, false},
    /* short rows and many weights: oneDNN's older kernel, and where it has none */
    {1, 256, 4, 4, 256, 3, 3, 4, 4, 1, 1, false},
    {2, 256, 1, 1, 128, 5, 5, 1, 1, 1, 2, false},
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

/* Each of `batch` matrices (rows, columns) transposed: from channels first to last and back. */
static float *swapped(fixture *f, const float *values, size_t batch, size_t rows, size_t columns) {
    float *to = array(f, batch * rows * columns * sizeof *to);
    for (size_t i = 0; i < batch * rows * columns; i++) {
        size_t image = i / (rows * columns), row = i / columns % rows, column = i % columns;
        to[(image * columns + column) * rows + row] = values[i];
    }
    return to;
}

static float *x_last(fixture *f, const ls__conv2d *s, const float *x) {
    return swapped(f, x, s->batch, s->in_channels, s->in_h * s->in_w);
}
static float *x_first(fixture *f, const ls__conv2d *s, const float *x) {
    return swapped(f, x, s->batch, s->in_h * s->in_w, s->in_channels);
}
static float *y_last(fixture *f, const ls__conv2d *s, const float *y) {
    return swapped(f, y, s->batch, s->out_channels, s->out_h * s->out_w);
}
static float *y_first(fixture *f, const ls__conv2d *s, const float *y) {
    return swapped(f, y, s->batch, s->out_h * s->out_w, s->out_channels);
}

static void check_forward(fixture *f, ls_device *device, const ls__conv2d *shape, bool bias,
                          bool relu) {
    ls__conv2d with = *shape, *s = &with;
    with.relu = relu;
    sizes n = sizes_of(s);
    float *b = uniform(f, s->out_channels, -1, 1);
    operands o = {.x = uniform(f, n.x, -1, 1), .w = uniform(f, n.w, -1, 1)};
    const float *x = x_last(f, s, o.x);
    o.y = reference(f, NULL, n.y, false);
    for (size_t y = 0; y < n.y && bias; y++)
        o.y[y] = (double)b[y / (s->out_h * s->out_w) % s->out_channels];
    conv_terms(s, forward_term, &o);
    for (size_t y = 0; y < n.y && relu; y++)
        o.y[y] = fmax(o.y[y], 0);
    float *got = destination(f, n.y, false), *again = destination(f, n.y, false);
    assert_int_equal(device->table->conv2d_forward(device, LS_F32, s, x, o.w, bias ? b : NULL, got),
                     LS_OK);
    expect_close(y_first(f, s, got), o.y, n.y, TOLERANCE, "conv2d");
    device->table->conv2d_forward(device, LS_F32, s, x, o.w, bias ? b : NULL, again);
    expect_equal_bits(got, again, n.y * sizeof *got, "conv2d, second run");
}

static void test_conv2d_forward(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < CONV_COUNT; i++) {
        check_forward(f, f->one, &CONVS[i], true, false);
        check_forward(f, f->one, &CONVS[i], true, true);
        check_forward(f, f->two, &CONVS[i], false, false);
        check_forward(f, f->two, &CONVS[i], false, true);
    }
}

/* Which gradients are asked for, and which of them are added to what is there. */
typedef struct wanted {
    bool dx, dw, db, add_dx, add_dw, add_db;
} wanted;

static void check_backward(fixture *f, ls_device *device, const ls__conv2d *shape, bool relu,
                           wanted q) {
    ls__conv2d with = *shape, *s = &with;
    with.relu = relu;
    sizes n = sizes_of(s);
    operands o = {.x = uniform(f, n.x, -1, 1), .w = uniform(f, n.w, -1, 1)};
    float *y = uniform(f, n.y, -1, 1), *dy = uniform(f, n.y, -1, 1), *behind = copy_of(f, dy, n.y);
    for (size_t i = 0; i < n.y && relu; i++) /* y need not be the convolution's: its sign counts */
        behind[i] = y[i] > 0 ? dy[i] : 0;
    o.dy = behind;
    float *dx0 = destination(f, n.x, q.add_dx), *dw0 = destination(f, n.w, q.add_dw);
    float *db0 = destination(f, s->out_channels, q.add_db);
    o.dx = reference(f, dx0, n.x, q.add_dx);
    o.dw = reference(f, dw0, n.w, q.add_dw);
    double *db = reference(f, db0, s->out_channels, q.add_db);
    conv_terms(s, data_term, &o);
    conv_terms(s, weights_term, &o);
    for (size_t i = 0; i < n.y; i++)
        db[i / (s->out_h * s->out_w) % s->out_channels] += (double)behind[i];
    const float *x = x_last(f, s, o.x);
    y = y_last(f, s, y);
    dy = y_last(f, s, dy);
    float *got_x[2], *got_w[2], *got_b[2];
    for (int i = 0; i < 2; i++) {
        got_x[i] = x_last(f, s, dx0);
        got_w[i] = copy_of(f, dw0, n.w);
        got_b[i] = copy_of(f, db0, s->out_channels);
        assert_int_equal(device->table->conv2d_backward(
                             device, LS_F32, s, x, o.w, y, dy, q.dx ? got_x[i] : NULL, q.add_dx,
                             q.dw ? got_w[i] : NULL, q.add_dw, q.db ? got_b[i] : NULL, q.add_db),
                         LS_OK);
    }
    if (q.dx)
        expect_close(x_first(f, s, got_x[0]), o.dx, n.x, TOLERANCE, "conv2d backward data");
    if (q.dw)
        expect_close(got_w[0], o.dw, n.w, TOLERANCE, "conv2d backward weights");
    if (q.db)
        expect_close(got_b[0], db, s->out_channels, TOLERANCE, "conv2d backward bias");
    expect_equal_bits(got_x[0], got_x[1], n.x * sizeof(float), "conv2d dx, second run");
    expect_equal_bits(got_w[0], got_w[1], n.w * sizeof(float), "conv2d dw, second run");
    expect_equal_bits(got_b[0], got_b[1], s->out_channels * sizeof(float), "dbias, second run");
}

static void test_conv2d_backward(void **state) {
    fixture *f = *state;
    for (size_t i = 0; i < CONV_COUNT; i++) {
        for (int relu = 0; relu < 2; relu++) {
            check_backward(f, f->one, &CONVS[i], relu, (wanted){true, true, true, false, true, 0});
            check_backward(f, f->two, &CONVS[i], relu, (wanted){true, true, true, true, false, 1});
            check_backward(f, f->two, &CONVS[i], relu, (wanted){.dx = true, .add_dx = i % 2});
            check_backward(f, f->one, &CONVS[i], relu, (wanted){.dw = true, .add_dw = i % 2});
            check_backward(f, f->one, &CONVS[i], relu, (wanted){.db = true, .add_db = i % 2});
        }
    }
}

/* Extents that nobody chose, from the fixture's random numbers; channels of three in four are whole vectors. */
static ls__conv2d random_conv(fixture *f) {
    const float *r = uniform(f, 10, 0, 1);
    size_t channels = r[0] < 0.75F ? 16 : 1;
    ls__conv2d s = {
        .batch = 1 + (size_t)(3 * r[1]),
        .in_channels = channels * (1 + (size_t)(3 * r[2])),
        .out_channels = channels * (1 + (size_t)(3 * r[3])),
        .kernel_h = 1 + (size_t)(5 * r[4]),
        .kernel_w = 1 + (size_t)(5 * r[5]),
        .stride = 1 + (size_t)(3 * r[6]),
    };
    s.padding = (size_t)((float)s.kernel_h * r[7]);
    s.in_h = s.kernel_h + (size_t)(11 * r[8]);
    s.in_w = s.kernel_w + (size_t)(11 * r[9]);
    s.out_h = (s.in_h + 2 * s.padding - s.kernel_h) / s.stride + 1;
    s.out_w = (s.in_w + 2 * s.padding - s.kernel_w) / s.stride + 1;
    return s;
}

static void test_conv2d_random(void **state) {
    enum { SHAPES = 150 };
    fixture *f = *state;
    for (int i = 0; i < SHAPES; i++) {
        ls__conv2d s = random_conv(f);
        check_forward(f, f->one, &s, i % 3 == 0, i % 2);
        check_backward(f, f->one, &s, i % 2, (wanted){true, true, true, i % 4 == 0, i % 5 == 0, 0});
    }
}

/* Behind relu NaN stays NaN, forward, and lets its gradient through. */
static void test_relu_keeps_nan(void **state) {
    fixture *f = *state;
    ls__conv2d s = {1, 1, 1, 2, 1, 1, 1, 1, 2, 1, 0, true};
    float x[2] = {NAN, -1}, w = 1, y[2], dy[2] = {2, 3}, dw, db;
    assert_int_equal(f->one->table->conv2d_forward(f->one, LS_F32, &s, x, &w, NULL, y), LS_OK);
    assert_true(isnan(y[0]) && y[1] == 0);
    assert_int_equal(f->one->table->conv2d_backward(f->one, LS_F32, &s, x, &w, y, dy, NULL, false,
                                                    &dw, false, &db, false),
                     LS_OK);
    assert_true(db == 2);
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

/* --- pooling --- */

static const ls__pool2d POOLS[] = {
    /* average, batch, channels, in_h, in_w, out_h, out_w, kernel, stride, padding */
    {false, 1, 1, 1, 1, 1, 1, 1, 1, 0},    {false, 2, 3, 24, 24, 12, 12, 2, 2, 0},
    {false, 2, 2, 9, 7, 4, 3, 3, 2, 0},    {false, 1, 2, 8, 11, 8, 11, 3, 1, 1},
    {false, 1, 3, 13, 40, 5, 14, 3, 3, 1}, {false, 60, 8, 12, 10, 6, 5, 2, 2, 0},
    {false, 2, 19, 8, 6, 4, 3, 2, 2, 0},   {false, 2, 16, 7, 9, 3, 4, 3, 2, 1},
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
    size_t pixels_in = s->in_h * s->in_w, pixels = s->out_h * s->out_w;
    x = swapped(f, x, s->batch, s->channels, pixels_in);
    dy = swapped(f, dy, s->batch, s->channels, pixels);
    for (int i = 0; i < 2; i++) {
        ls_device *device = i ? f->two : f->one;
        y[i] = destination(f, out, false);
        dx[i] = swapped(f, start, s->batch, s->channels, pixels_in);
        where[i] = array(f, out * sizeof *where[i]);
        assert_int_equal(
            device->table->pool2d_forward(device, LS_F32, s, x, y[i], s->average ? NULL : where[i]),
            LS_OK);
        expect_close(swapped(f, y[i], s->batch, pixels, s->channels), want, out,
                     s->average ? 1e-6 : 0, "pool2d");
        if (!s->average)
            assert_memory_equal(swapped(f, (float *)where[i], s->batch, pixels, s->channels),
                                want_where, out * sizeof *where[i]);
        assert_int_equal(device->table->pool2d_backward(device, LS_F32, s, dy,
                                                        s->average ? NULL : where[i], dx[i],
                                                        accumulate),
                         LS_OK);
        expect_close(swapped(f, dx[i], s->batch, pixels_in, s->channels), want_dx, in, 1e-6,
                     "pool2d backward");
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

/* NaN is larger than everything, and a window of -inf has a maximum too: with one channel, and with as
 * many as are compared at once. */
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

    float many[12 * 8], best[3 * 8];
    int32_t at[3 * 8];
    s.channels = 8;
    for (size_t i = 0; i < 12 * (size_t)8; i++)
        many[i] = x[i / 8];
    assert_int_equal(f->one->table->pool2d_forward(f->one, LS_F32, &s, many, best, at), LS_OK);
    for (size_t i = 0; i < 3 * (size_t)8; i++) {
        assert_true(best[i] == y[i / 8] || (isnan(best[i]) && isnan(y[i / 8])));
        assert_int_equal(at[i], where[i / 8]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        kernel_test(test_conv2d_forward),   kernel_test(test_conv2d_backward),
        kernel_test(test_conv2d_random),    kernel_test(test_relu_keeps_nan),
        kernel_test(test_two_devices),      kernel_test(test_pool2d),
        kernel_test(test_max_pool_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
