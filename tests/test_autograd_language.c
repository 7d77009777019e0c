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
        cmocka_unit_test(test_embedding),     cmocka_unit_test(test_attention),
        cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_squared_error),
        cmocka_unit_test(test_count_correct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
