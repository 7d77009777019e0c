/* Dropout: a sample's mask follows from its number, not from its row, batch or rank. */
#include "autograd_check.h"

enum { SAMPLES = 6, COLUMNS = 50 };
static const float keep_scale = 1 / (1 - 0.4F);

struct fixture {
    ls_device *device;
    ls_step *step;
};

static int set_up(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->device = check_device();
    check_status(ls_step_create(&f->step, &(ls_step_options){.device = f->device, .seed = 99}));
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *f = *state;
    ls_step_destroy(f->step);
    check_device_destroy(f->device);
    free(f);
    return 0;
}

/* Dropout of ones (samples * rows_each, columns); the result is copied to `y`. */
static void masks(struct fixture *f, const uint64_t *samples, size_t count, size_t rows_each,
                  size_t columns, float p, uint64_t purpose, float *y) {
    check_status(ls_step_begin(
        f->step, &(ls_step_mode){.training = true, .samples = samples, .sample_count = count}));
    ls_tensor *x = ls_tensor_new(f->step, LS_F32, (size_t[]){count * rows_each, columns}, 2);
    assert_non_null(x);
    for (size_t i = 0; i < x->count; i++)
        ((float *)x->data)[i] = 1;
    ls_tensor *dropped = ls_dropout(f->step, x, p, purpose);
    check_status(ls_step_status(f->step));
    memcpy(y, dropped->data, x->count * sizeof *y);
}

static void test_mask_follows_the_sample(void **state) {
    struct fixture *f = *state;
    const uint64_t numbers[] = {1000, 3, 77, 5000000000, 12, 0};
    float whole[SAMPLES][COLUMNS], part[2][COLUMNS], folded[SAMPLES][COLUMNS];
    masks(f, numbers, SAMPLES, 1, COLUMNS, 0.4F, 5, whole[0]);
    for (size_t s = 0; s < SAMPLES; s++) {
        for (size_t i = 0; i < COLUMNS; i++)
            assert_true(whole[s][i] == 0 || fabsf(whole[s][i] - keep_scale) < 1e-6F);
        for (size_t t = 0; t < s; t++)
            assert_memory_not_equal(whole[s], whole[t], sizeof whole[s]);
    }
    /* another batch, another row */
    masks(f, (uint64_t[]){12, 3}, 2, 1, COLUMNS, 0.4F, 5, part[0]);
    assert_memory_equal(part[0], whole[4], sizeof part[0]);
    assert_memory_equal(part[1], whole[1], sizeof part[1]);
    /* a sample of several rows, as (B*T, C) */
    masks(f, numbers, SAMPLES, 5, COLUMNS / 5, 0.4F, 5, folded[0]);
    assert_memory_equal(folded, whole, sizeof whole);
    /* another purpose */
    masks(f, (uint64_t[]){12, 3}, 2, 1, COLUMNS, 0.4F, 6, part[0]);
    assert_memory_not_equal(part[0], whole[4], sizeof part[0]);
}

static void test_samples_are_counted_where_none_are_given(void **state) {
    struct fixture *f = *state;
    float given[3][COLUMNS], counted[3][COLUMNS];
    masks(f, (uint64_t[]){0, 1, 2}, 3, 1, COLUMNS, 0.4F, 5, given[0]);
    masks(f, NULL, 3, 1, COLUMNS, 0.4F, 5, counted[0]);
    assert_memory_equal(given, counted, sizeof given);
}

/* 100000 draws: the rate is within 5 standard deviations. */
static void test_keep_rate(void **state) {
    struct fixture *f = *state;
    static float y[100 * 1000];
    static const float rates[] = {0.1F, 0.5F, 0.9F};
    for (size_t k = 0; k < 3; k++) {
        size_t kept = 0;
        double sum = 0;
        masks(f, NULL, 100, 1, 1000, rates[k], 1, y);
        for (size_t i = 0; i < 100 * 1000; i++) {
            kept += y[i] != 0;
            sum += (double)y[i];
        }
        double p = (double)rates[k], deviation = sqrt(p * (1 - p) * 1e5);
        assert_true(fabs((double)kept - (1 - p) * 1e5) < 5 * deviation);
        assert_true(fabs(sum - 1e5) < 5 * deviation / (1 - p)); /* the mean stays */
    }
}

static void test_gradient_has_the_same_mask(void **state) {
    struct fixture *f = *state;
    check_status(ls_step_begin(f->step, &(ls_step_mode){.training = true, .sample_count = 4}));
    float *data = check_random(3, 4 * COLUMNS, true), *w = check_random(4, 4 * COLUMNS, true);
    ls_tensor *x = ls_tensor_wrap(f->step, data, LS_F32, (size_t[]){4, COLUMNS}, 2);
    ls_tensor_need_grad(x);
    ls_tensor *y = ls_dropout(f->step, x, 0.4F, 8);
    ls_tensor *weights = ls_tensor_wrap(f->step, w, LS_F32, (size_t[]){4, COLUMNS}, 2);
    /* x itself comes in first, so that dropout's part is added */
    ls_tensor *loss = ls_sum(f->step, ls_add(f->step, ls_mul(f->step, y, weights), x));
    check_status(ls_backward(f->step, loss, NULL, NULL));
    const float *grad = ls_tensor_data(ls_tensor_grad(x)), *out = y->data;
    for (size_t i = 0; i < 4 * COLUMNS; i++) {
        float want = 1 + (out[i] != 0 ? keep_scale * w[i] : 0);
        assert_true(fabsf(grad[i] - want) < 1e-5F);
        assert_true(out[i] == 0 || fabsf(out[i] - keep_scale * data[i]) < 1e-5F);
    }
    free(data);
    free(w);
}

static void test_returns_x_where_nothing_is_dropped(void **state) {
    struct fixture *f = *state;
    float data[2] = {1, 2};
    check_status(ls_step_begin(f->step, NULL)); /* not training: samples need not be known */
    ls_tensor *x = ls_tensor_wrap(f->step, data, LS_F32, (size_t[]){2}, 1);
    assert_ptr_equal(ls_dropout(f->step, x, 0.5F, 1), x);
    check_status(ls_step_begin(f->step, &(ls_step_mode){.training = true}));
    x = ls_tensor_wrap(f->step, data, LS_F32, (size_t[]){2}, 1);
    assert_ptr_equal(ls_dropout(f->step, x, 0, 1), x);
    check_status(ls_step_status(f->step));
}

static void assert_refused(struct fixture *f, size_t samples, float p, ls_status want,
                           const char *text) {
    float data[4] = {1, 2, 3, 4};
    check_status(
        ls_step_begin(f->step, &(ls_step_mode){.training = true, .sample_count = samples}));
    ls_tensor *x = ls_tensor_wrap(f->step, data, LS_F32, (size_t[]){4}, 1);
    assert_null(ls_dropout(f->step, x, p, 1));
    assert_int_equal(ls_step_status(f->step), want);
    if (!strstr(ls_error_text(), text))
        fail_msg("the text is \"%s\", want \"%s\" in it", ls_error_text(), text);
}

static void test_refusals(void **state) {
    struct fixture *f = *state;
    assert_refused(f, 0, 0.5F, LS_ERR_STATE, "does not know its samples");
    assert_refused(f, 3, 0.5F, LS_ERR_ARGUMENT, "x (4) is not a multiple of the step's 3 samples");
    assert_refused(f, 4, 1.0F, LS_ERR_ARGUMENT, "p is 1");
    assert_refused(f, 4, -0.5F, LS_ERR_ARGUMENT, "p is -0.5");
    assert_refused(f, 4, NAN, LS_ERR_ARGUMENT, "p is nan");
}

#define WITH_FIXTURE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_FIXTURE(test_mask_follows_the_sample),
        WITH_FIXTURE(test_samples_are_counted_where_none_are_given),
        WITH_FIXTURE(test_keep_rate),
        WITH_FIXTURE(test_gradient_has_the_same_mask),
        WITH_FIXTURE(test_returns_x_where_nothing_is_dropped),
        WITH_FIXTURE(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
