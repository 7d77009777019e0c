/* embedding, attention and the losses, against loops. */
#include "autograd_check.h"

/* The integer tensor of a check: shape of the output, or of the first input, without its last dimension. */
static ls_tensor *ints_of(ls_step *step, const struct check *c, const size_t *shape, size_t dims) {
    return ls_tensor_wrap(step, (void *)(uintptr_t)c->ints, LS_I32, shape, dims - 1);
}

static ls_tensor *build_embedding(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_embedding(step, in[0], ints_of(step, c, c->out.shape, c->out.dims));
}

static void embedding(const struct check *c, const double *const *in, double *y) {
    size_t columns = c->in[0].shape[1];
    for (size_t i = 0; i < check_count(c->out.shape, c->out.dims); i++)
        y[i] = in[0][(size_t)c->ints[i / columns] * columns + i % columns];
}

static void test_embedding(void **state) {
    (void)state;
    static const int32_t indices[] = {3, 0, 3, 1, 4, 3};
    static const struct check checks[] = {
        {"embedding", build_embedding, embedding, 1, {{2, {5, 4}}}, {3, {2, 3, 4}}, {0}, indices},
        {"embedding row", build_embedding, embedding, 1, {{2, {7, 3}}}, {2, {6, 3}}, {0}, indices},
        {"embedding of one", build_embedding, embedding, 1, {{2, {5, 1}}}, {1, {1}}, {0}, indices},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_attention(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_causal_attention(step, in[0], c->n[0]);
}

/* n: heads */
static void attention(const struct check *c, const double *const *in, double *y) {
    size_t time = c->out.shape[1], channels = c->out.shape[2], size = channels / c->n[0];
    for (size_t b = 0; b < c->out.shape[0]; b++)
        for (size_t t = 0; t < time; t++)
            for (size_t h = 0; h < c->n[0]; h++) {
                const double *batch = in[0] + b * time * 3 * channels + h * size;
                double score[16], sum = 0, *to = y + (b * time + t) * channels + h * size;
                for (size_t s = 0; s <= t; s++) {
                    score[s] = 0;
                    for (size_t i = 0; i < size; i++)
                        score[s] += batch[t * 3 * channels + i] *
                                    batch[s * 3 * channels + channels + i] / sqrt((double)size);
                    sum += exp(score[s]);
                }
                for (size_t i = 0; i < size; i++) {
                    to[i] = 0;
                    for (size_t s = 0; s <= t; s++)
                        to[i] += exp(score[s]) / sum * batch[s * 3 * channels + 2 * channels + i];
                }
            }
}

static void test_attention(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"attention", build_attention, attention, 1, {{3, {2, 5, 12}}}, {3, {2, 5, 4}}, {2}},
        {"attention one head",
         build_attention,
         attention,
         1,
         {{3, {1, 9, 15}}},
         {3, {1, 9, 5}},
         {1}},
        {"attention heads of 1",
         build_attention,
         attention,
         1,
         {{3, {1, 4, 9}}},
         {3, {1, 4, 3}},
         {3}},
        {"attention time 1", build_attention, attention, 1, {{3, {3, 1, 12}}}, {3, {3, 1, 4}}, {2}},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_cross_entropy(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_cross_entropy(step, in[0], ints_of(step, c, c->in[0].shape, c->in[0].dims));
}

static void cross_entropy(const struct check *c, const double *const *in, double *y) {
    size_t columns = c->in[0].shape[c->in[0].dims - 1];
    *y = 0;
    for (size_t r = 0; r < check_count(c->in[0].shape, c->in[0].dims - 1); r++) {
        double sum = 0;
        if (c->ints[r] == -1)
            continue;
        for (size_t i = 0; i < columns; i++)
            sum += exp(in[0][r * columns + i]);
        *y += log(sum) - in[0][r * columns + (size_t)c->ints[r]];
    }
}

static void test_cross_entropy(void **state) {
    (void)state;
    static const int32_t targets[] = {3, 0, 2, 1, 4, 3}, padded[] = {-1, 2, 0, -1, 6, -1};
    static const struct check checks[] = {
        {"cross_entropy",
         build_cross_entropy,
         cross_entropy,
         1,
         {{2, {6, 5}}},
         {0, {0}},
         {0},
         targets},
        {"cross_entropy padded",
         build_cross_entropy,
         cross_entropy,
         1,
         {{3, {2, 3, 7}}},
         {0, {0}},
         {0},
         padded},
        {"cross_entropy row",
         build_cross_entropy,
         cross_entropy,
         1,
         {{1, {5}}},
         {0, {0}},
         {0},
         targets},
    };
    CHECK_ALL(checks);
}

static ls_tensor *build_linear_cross_entropy(ls_step *step, const struct check *c, ls_tensor **in) {
    return ls_linear_cross_entropy(step, in[0], in[1],
                                   ints_of(step, c, c->in[0].shape, c->in[0].dims), NULL);
}

static void linear_cross_entropy(const struct check *c, const double *const *in, double *y) {
    size_t columns = c->in[1].shape[1], classes = c->in[1].shape[0];
    *y = 0;
    for (size_t r = 0; r < check_count(c->in[0].shape, c->in[0].dims - 1); r++) {
        double sum = 0, logit = 0, at_target = 0;
        if (c->ints[r] == -1)
            continue;
        for (size_t v = 0; v < classes; v++, sum += exp(logit)) {
            logit = 0;
            for (size_t i = 0; i < columns; i++)
                logit += in[0][r * columns + i] * in[1][v * columns + i];
            if (v == (size_t)c->ints[r])
                at_target = logit;
        }
        *y += log(sum) - at_target;
    }
}

static void test_linear_cross_entropy(void **state) {
    (void)state;
    static const int32_t targets[] = {3, 0, 2, 1, 4, 3}, padded[] = {-1, 2, 0, -1, 6, -1};
    static const int32_t far[] = {2500, 0};
    static const struct check checks[] = {
        {"linear_cross_entropy",
         build_linear_cross_entropy,
         linear_cross_entropy,
         2,
         {{2, {6, 4}}, {2, {5, 4}}},
         {0, {0}},
         {0},
         targets},
        {"linear_cross_entropy padded",
         build_linear_cross_entropy,
         linear_cross_entropy,
         2,
         {{3, {2, 3, 3}}, {2, {7, 3}}},
         {0, {0}},
         {0},
         padded},
        {"linear_cross_entropy, two blocks",
         build_linear_cross_entropy,
         linear_cross_entropy,
         2,
         {{2, {2, 1}}, {2, {2501, 1}}},
         {0, {0}},
         {0},
         far},
    };
    CHECK_ALL(checks);
}

/* Against the two operations it stands for, in more than two blocks; hits are counted alike. */
static void test_linear_cross_entropy_in_blocks(void **state) {
    (void)state;
    enum { ROWS = 40, IN = 8, CLASSES = 4100 };
    ls_device *device = check_device();
    ls_step *step = NULL;
    check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
    float *x = check_random(1, (size_t)ROWS * IN, false);
    float *w = check_random(2, (size_t)CLASSES * IN, false);
    float *dw_before = malloc((size_t)CLASSES * IN * sizeof(float));
    assert_non_null(dw_before);
    double loss[2], want[ROWS * IN];
    size_t correct[2];
    int32_t targets[ROWS];
    for (int r = 0; r < ROWS; r++)
        targets[r] = r % 7 == 0 ? -1 : r * 2048 % CLASSES - (r % 3 == 0 && r > 0);
    /* Rows that hit: each class's weight is its own target's x. */
    for (int r = 1; r < ROWS; r += 2)
        for (int i = 0; i < IN && targets[r] >= 0; i++)
            w[(size_t)targets[r] * IN + (size_t)i] = 9 * x[r * IN + i];
    for (int fused = 0; fused < 2; fused++) {
        check_status(ls_step_begin(step, &(ls_step_mode){.training = true}));
        ls_tensor *tx = ls_tensor_wrap(step, x, LS_F32, (size_t[]){ROWS, IN}, 2);
        ls_tensor *tw = ls_tensor_wrap(step, w, LS_F32, (size_t[]){CLASSES, IN}, 2);
        ls_tensor *ty = ls_tensor_wrap(step, targets, LS_I32, (size_t[]){ROWS}, 1), *l;
        ls_tensor_need_grad(tx);
        ls_tensor_need_grad(tw);
        if (fused) {
            l = ls_linear_cross_entropy(step, tx, tw, ty, &correct[1]);
        } else {
            ls_tensor *logits = ls_linear(step, tx, tw, NULL);
            l = ls_cross_entropy(step, logits, ty);
            check_status(ls_count_correct(step, logits, ty, &correct[0]));
        }
        check_status(ls_backward(step, l, NULL, NULL));
        loss[fused] = ls_tensor_item(l);
        float *dx = ls_tensor_data(ls_tensor_grad(tx)), *dw = ls_tensor_data(ls_tensor_grad(tw));
        for (size_t i = 0; fused && i < (size_t)CLASSES * IN; i++)
            assert_true(fabsf(dw[i] - dw_before[i]) < 1e-4F);
        if (fused)
            check_near("blocks", "dx", dx, want, (size_t)ROWS * IN);
        for (size_t i = 0; i < (size_t)ROWS * IN; i++)
            want[i] = (double)dx[i];
        memcpy(dw_before, dw, (size_t)CLASSES * IN * sizeof(float));
    }
    assert_true(fabs(loss[1] - loss[0]) < 1e-5 * fabs(loss[0]));
    assert_int_equal(correct[1], correct[0]);
    assert_in_range(correct[1], 5, ROWS);
    free(x);
    free(w);
    free(dw_before);
    ls_step_destroy(step);
    check_device_destroy(device);
}

static void test_linear_cross_entropy_refuses_targets(void **state) {
    (void)state;
    ls_device *device = check_device();
    ls_step *step = NULL;
    float x[2] = {1, 2}, w[3] = {1, 2, 3};
    int32_t targets[2] = {0, 3};
    check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
    check_status(ls_step_begin(step, NULL));
    ls_tensor *tx = ls_tensor_wrap(step, x, LS_F32, (size_t[]){2, 1}, 2);
    ls_tensor *tw = ls_tensor_wrap(step, w, LS_F32, (size_t[]){3, 1}, 2);
    ls_tensor *ty = ls_tensor_wrap(step, targets, LS_I32, (size_t[]){2}, 1);
    assert_null(ls_linear_cross_entropy(step, tx, tw, ty, NULL));
    assert_int_equal(ls_step_status(step), LS_ERR_RANGE);
    assert_non_null(strstr(ls_error_text(), "target 3 in row 1, want 0 to 2"));
    check_status(ls_step_begin(step, NULL));
    tx = ls_tensor_wrap(step, x, LS_F32, (size_t[]){1, 2}, 2);
    tw = ls_tensor_wrap(step, w, LS_F32, (size_t[]){3, 1}, 2);
    ty = ls_tensor_wrap(step, targets, LS_I32, (size_t[]){1}, 1);
    assert_null(ls_linear_cross_entropy(step, tx, tw, ty, NULL));
    assert_int_equal(ls_step_status(step), LS_ERR_ARGUMENT);
    ls_step_destroy(step);
    check_device_destroy(device);
}

static ls_tensor *build_squared_error(ls_step *step, const struct check *c, ls_tensor **in) {
    (void)c;
    return ls_squared_error(step, in[0], in[1]);
}

static void squared_error(const struct check *c, const double *const *in, double *y) {
    *y = 0;
    for (size_t i = 0; i < check_count(c->in[0].shape, c->in[0].dims); i++)
        *y += pow(in[0][i] - in[1][i], 2);
}

static void test_squared_error(void **state) {
    (void)state;
    static const struct check checks[] = {
        {"squared_error",
         build_squared_error,
         squared_error,
         2,
         {{2, {5, 7}}, {2, {5, 7}}},
         {0, {0}}},
        {"squared_error scalar",
         build_squared_error,
         squared_error,
         2,
         {{0, {0}}, {0, {0}}},
         {0, {0}}},
    };
    CHECK_ALL(checks);
}

static void test_count_correct(void **state) {
    (void)state;
    ls_device *device = check_device();
    ls_step *step = NULL;
    check_status(ls_step_create(&step, &(ls_step_options){.device = device}));
    check_status(ls_step_begin(step, NULL));
    float logits[] = {0, 2, 1, /**/ 5, 1, 5, /**/ 5, 1, 5, /**/ 0, 0, 1, /**/ -3, -2, -4};
    int32_t targets[] = {1, 0, 2, -1,
                         1}; /* right, first of equals, second of equals, padding, right */
    size_t correct = 99;
    check_status(ls_count_correct(step, ls_tensor_wrap(step, logits, LS_F32, (size_t[]){5, 3}, 2),
                                  ls_tensor_wrap(step, targets, LS_I32, (size_t[]){5}, 1),
                                  &correct));
    assert_int_equal(correct, 3);
    ls_step_destroy(step);
    check_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_squared_error),
        cmocka_unit_test(test_count_correct),
        cmocka_unit_test(test_linear_cross_entropy),
        cmocka_unit_test(test_linear_cross_entropy_in_blocks),
        cmocka_unit_test(test_linear_cross_entropy_refuses_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
