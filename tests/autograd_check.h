/* Checks an operation against an obvious reference in double: its value, and its gradient against
 * central differences of the reference. The loss is sum(w * y) with fixed random w.
 *
 * Tolerance: the largest difference is at most 1e-4 of the largest element of what is compared (f32
 * sums of a few hundred terms of size 1 are good to about 1e-6; the differences to about 1e-9). */
#ifndef LS_TESTS_AUTOGRAD_CHECK_H
#define LS_TESTS_AUTOGRAD_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "autograd/tape.h"

#include <lockstep/random.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tables of checks leave out what is zero. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

enum { CHECK_INPUTS = 5 };
static const double check_tolerance = 1e-4;

struct check {
    const char *name;
    ls_tensor *(*build)(ls_step *step, const struct check *c, ls_tensor **in);
    void (*reference)(const struct check *c, const double *const *in, double *y);
    size_t inputs;
    struct {
        size_t dims, shape[LS_MAX_DIMS];
    } in[CHECK_INPUTS], out;
    size_t n[6];         /* what else the operation takes */
    const int32_t *ints; /* indices or targets */
    bool positive;       /* inputs from (0.5, 2) instead of the normal distribution */
};

static inline void check_status(ls_status status) {
    if (status != LS_OK)
        fail_msg("%s: %s", ls_status_name(status), ls_error_text());
}

static inline size_t check_count(const size_t *shape, size_t dims) {
    size_t count = 1;
    for (size_t d = 0; d < dims; d++)
        count *= shape[d];
    return count;
}

static inline float *check_random(uint64_t stream, size_t count, bool positive) {
    float *x = malloc((count + 4) * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < count; i += 4) {
        float four[4];
        if (positive)
            ls_random_uniform4(7, stream, i, four);
        else
            ls_random_normal4(7, stream, i, four);
        for (size_t j = 0; j < 4; j++)
            x[i + j] = positive ? 0.5F + 1.5F * four[j] : four[j];
    }
    return x;
}

static inline void check_near(const char *name, const char *what, const float *got,
                              const double *want, size_t count) {
    double scale = 1e-2; /* or 1e-6, where everything is about 0 */
    for (size_t i = 0; i < count; i++)
        scale = fmax(scale, fabs(want[i]));
    for (size_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - want[i]) <= check_tolerance * scale))
            fail_msg("%s: %s[%zu] is %.9g, want %.9g (largest %.3g)", name, what, i, (double)got[i],
                     want[i], scale);
}

/* A device whose memory starts as NaN, so that reading what nobody wrote shows. */
static inline ls_status check_alloc_nan(ls_device *device, size_t bytes, void **memory);
static ls__device_table check_table;
static const ls__device_table *check_original;

static inline ls_status check_alloc_nan(ls_device *device, size_t bytes, void **memory) {
    LS_TRY(check_original->alloc(device, bytes, memory));
    memset(*memory, 0xFF, bytes);
    return LS_OK;
}

static inline ls_device *check_device(void) {
    ls_device *device = NULL;
    check_status(ls_device_cpu(&device, 1));
    check_original = device->table;
    check_table = *device->table;
    check_table.alloc = check_alloc_nan;
    device->table = &check_table;
    return device;
}

static inline void check_device_destroy(ls_device *device) {
    device->table = check_original;
    ls_device_destroy(device);
}

struct check_run {
    const struct check *c;
    ls_device *device;
    float *in[CHECK_INPUTS], *w; /* float inputs, and the weight of each output */
    size_t count[CHECK_INPUTS], out_count;
    double *y;                  /* the reference's */
    double *grad[CHECK_INPUTS]; /* of sum(w * y) */
};

static inline double check_loss(const struct check_run *r, const double *const *in, double *y) {
    double loss = 0;
    r->c->reference(r->c, in, y);
    for (size_t i = 0; i < r->out_count; i++)
        loss += (double)r->w[i] * y[i];
    return loss;
}

static inline void check_prepare(struct check_run *r, const struct check *c, ls_device *device) {
    *r = (struct check_run){.c = c, .device = device};
    double *in[CHECK_INPUTS] = {NULL};
    r->out_count = check_count(c->out.shape, c->out.dims);
    r->w = check_random(100, r->out_count, false);
    r->y = malloc(r->out_count * sizeof *r->y);
    double *y = malloc(r->out_count * sizeof *y);
    assert_true(r->y && y);
    for (size_t i = 0; i < c->inputs; i++) {
        r->count[i] = check_count(c->in[i].shape, c->in[i].dims);
        r->in[i] = check_random(i, r->count[i], c->positive);
        in[i] = malloc(r->count[i] * sizeof *in[i]);
        assert_non_null(in[i]);
        for (size_t j = 0; j < r->count[i]; j++)
            in[i][j] = (double)r->in[i][j];
    }
    check_loss(r, (const double *const *)in, r->y);
    const double h = 1e-5;
    for (size_t i = 0; i < c->inputs; i++) {
        r->grad[i] = malloc(r->count[i] * sizeof *r->grad[i]);
        assert_non_null(r->grad[i]);
        for (size_t j = 0; j < r->count[i]; j++) {
            double x = in[i][j];
            in[i][j] = x + h;
            double above = check_loss(r, (const double *const *)in, y);
            in[i][j] = x - h;
            double below = check_loss(r, (const double *const *)in, y);
            in[i][j] = x;
            r->grad[i][j] = (above - below) / (2 * h);
        }
    }
    for (size_t i = 0; i < c->inputs; i++)
        free(in[i]);
    free(y);
}

static inline void check_finish(struct check_run *r) {
    for (size_t i = 0; i < r->c->inputs; i++) {
        free(r->in[i]);
        free(r->grad[i]);
    }
    free(r->w);
    free(r->y);
}

/* sum(w * y) of one more build */
static inline ls_tensor *check_build(const struct check_run *r, ls_step *step, ls_tensor **in) {
    const struct check *c = r->c;
    ls_tensor *y = c->build(step, c, in);
    check_status(ls_step_status(step));
    assert_non_null(y);
    if (y->dims != c->out.dims || memcmp(y->shape, c->out.shape, y->dims * sizeof(size_t)) != 0) {
        char text[LS__SHAPE_TEXT];
        fail_msg("%s: the result is %s", c->name, ls__tensor_text(y, text));
    }
    check_near(c->name, "y", ls_tensor_data(y), r->y, r->out_count);
    ls_tensor *w = ls_tensor_wrap(step, r->w, LS_F32, c->out.shape, c->out.dims);
    ls_tensor *loss = ls_sum(step, ls_mul(step, y, w));
    check_status(ls_step_status(step));
    return loss;
}

static inline void check_gradient(const struct check_run *r, size_t i, const float *got,
                                  double times) {
    double *want = malloc(r->count[i] * sizeof *want);
    char what[48];
    assert_non_null(want);
    snprintf(what, sizeof what, "gradient of input %zu", i);
    for (size_t j = 0; j < r->count[i]; j++)
        want[j] = times * r->grad[i][j];
    check_near(r->c->name, what, got, want, r->count[i]);
    free(want);
}

/* Tensors; `wanted` is a bit mask of those that need a gradient. `uses` builds add up. */
static inline void check_tensors(const struct check_run *r, unsigned wanted, size_t uses) {
    const struct check *c = r->c;
    ls_step *step = NULL;
    check_status(ls_step_create(&step, &(ls_step_options){.device = r->device}));
    check_status(ls_step_begin(step, &(ls_step_mode){.training = true}));
    ls_tensor *in[CHECK_INPUTS] = {NULL};
    for (size_t i = 0; i < c->inputs; i++) {
        in[i] = ls_tensor_wrap(step, r->in[i], LS_F32, c->in[i].shape, c->in[i].dims);
        if (wanted >> i & 1)
            ls_tensor_need_grad(in[i]);
    }
    ls_tensor *loss = check_build(r, step, in);
    for (size_t u = 1; u < uses; u++)
        loss = ls_add(step, loss, check_build(r, step, in));
    check_status(ls_backward(step, loss, NULL, NULL));
    for (size_t i = 0; i < c->inputs; i++) {
        ls_tensor *grad = ls_tensor_grad(in[i]);
        if (wanted >> i & 1) {
            assert_non_null(grad);
            assert_true(ls__tensor_same_shape(grad, in[i]));
            check_gradient(r, i, ls_tensor_data(grad), (double)uses);
        } else {
            assert_null(grad);
        }
    }
    ls_step_destroy(step);
}

static inline ls_status check_count_ready(void *context, ls_parameter *parameter) {
    assert_true(parameter->present);
    ++*(size_t *)context;
    return LS_OK;
}

/* The inputs as weights: gradients land in their storage, whatever was there before. */
static inline void check_parameters(const struct check_run *r) {
    const struct check *c = r->c;
    ls_step *step = NULL;
    check_status(ls_step_create(&step, &(ls_step_options){.device = r->device}));
    struct ls_parameter p[CHECK_INPUTS] = {0};
    for (size_t i = 0; i < c->inputs; i++) {
        p[i] = (struct ls_parameter){.name = (char *)"p", .role = LS_WEIGHT};
        p[i].value = (ls_tensor){.dtype = LS_F32, .dims = c->in[i].dims, .count = r->count[i]};
        memcpy(p[i].value.shape, c->in[i].shape, sizeof p[i].value.shape);
        p[i].value.data = r->in[i];
        p[i].value.parameter = &p[i];
        p[i].gradient = malloc(r->count[i] * sizeof(float));
        assert_non_null(p[i].gradient);
        memset(p[i].gradient, 0xFF, r->count[i] * sizeof(float));
    }
    for (size_t uses = 1; uses <= 2; uses++) {
        check_status(ls_step_begin(step, &(ls_step_mode){.training = true}));
        ls_tensor *in[CHECK_INPUTS] = {NULL};
        for (size_t i = 0; i < c->inputs; i++)
            in[i] = &p[i].value;
        ls_tensor *loss = check_build(r, step, in);
        if (uses == 2)
            loss = ls_add(step, loss, check_build(r, step, in));
        size_t ready = 0;
        check_status(ls_backward(step, loss, check_count_ready, &ready));
        assert_int_equal(ready, c->inputs);
        for (size_t i = 0; i < c->inputs; i++)
            check_gradient(r, i, p[i].gradient, (double)uses);
    }
    for (size_t i = 0; i < c->inputs; i++)
        free(p[i].gradient);
    ls_step_destroy(step);
}

/* Not training: the same value, and nothing is recorded. */
static inline void check_inference(const struct check_run *r) {
    const struct check *c = r->c;
    ls_step *step = NULL;
    check_status(ls_step_create(&step, &(ls_step_options){.device = r->device}));
    check_status(ls_step_begin(step, NULL));
    ls_tensor *in[CHECK_INPUTS] = {NULL};
    for (size_t i = 0; i < c->inputs; i++) {
        in[i] = ls_tensor_wrap(step, r->in[i], LS_F32, c->in[i].shape, c->in[i].dims);
        ls_tensor_need_grad(in[i]);
    }
    ls_tensor *loss = check_build(r, step, in);
    assert_false(loss->need_grad);
    assert_int_equal(ls_backward(step, loss, NULL, NULL), LS_ERR_STATE);
    ls_step_destroy(step);
}

static inline void check_all(const struct check *checks, size_t count, bool inference) {
    ls_device *device = check_device();
    for (size_t k = 0; k < count; k++) {
        struct check_run r;
        check_prepare(&r, &checks[k], device);
        unsigned all = (1U << r.c->inputs) - 1;
        check_tensors(&r, all, 1);
        check_tensors(&r, all, 3);
        for (size_t i = 0; r.c->inputs > 1 && i < r.c->inputs; i++)
            check_tensors(&r, 1U << i, 2);
        check_parameters(&r);
        if (inference)
            check_inference(&r);
        check_finish(&r);
    }
    check_device_destroy(device);
}

#define CHECK_ALL(checks) check_all(checks, sizeof(checks) / sizeof *(checks), true)

#endif
