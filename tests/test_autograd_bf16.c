/* Operations in bf16 against the same in f32, and weights that change in every way they can. */
#include "nn_support.h"

#include "autograd/checkpoint.h"

#include <lockstep/ddp.h>
#include <lockstep/random.h>
#include <unistd.h>

/* A factor is off by at most 2^-9 of itself. So is a sum of products by 2^-8 of the sum of their sizes; of
 * independent terms much less. Compared with the largest element, 1 % is what is promised. */
static const double BOUND = 0.01;

static ls_device *device;

static int setup(void **state) {
    (void)state;
    device = new_device();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    ls_device_destroy(device);
    return 0;
}

static ls_step *new_step(void) {
    ls_step *step;
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device, .seed = 3}));
    return step;
}

static void begin(ls_step *step, ls_dtype compute, bool recompute) {
    const ls_step_mode mode = {.training = true, .compute = compute, .recompute = recompute};
    assert_ok(ls_step_begin(step, &mode));
}

static float *normal(uint64_t stream, size_t count) {
    float *values = malloc((count + 4) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < count; i += 4)
        ls_random_normal4(5, stream, i / 4, values + i);
    return values;
}

static void near(const char *what, const float *got, const float *want, size_t count,
                 double bound) {
    double largest = 0, worst = 0;
    for (size_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        if (isnan(got[i]))
            fail_msg("%s: element %zu is NaN", what, i);
    }
    if (!(worst <= bound * largest))
        fail_msg("%s: off by %.3g of %.3g", what, worst, largest);
    if (worst == 0)
        fail_msg("%s: equal to f32 to the bit: was it computed in bf16?", what);
}

/* --- one operation --- */

typedef ls_tensor *build_fn(ls_step *step, ls_tensor **in);
enum { INPUTS = 3 };
struct operation {
    const char *name;
    build_fn *build;
    size_t dims[INPUTS], shape[INPUTS][3], count;
};

static size_t elements_of(const struct operation *o, size_t i) {
    size_t count = 1;
    for (size_t d = 0; d < o->dims[i]; d++)
        count *= o->shape[i][d];
    return count;
}

/* Value and gradients of sum(y^2) / 2 in `compute`: one array each. Returns the elements of y. */
static size_t run_operation(const struct operation *o, float *const *values, ls_dtype compute,
                            float **results) {
    ls_step *step = new_step();
    begin(step, compute, false);
    ls_tensor *in[INPUTS] = {NULL};
    for (size_t i = 0; i < o->count; i++) {
        in[i] = ls_tensor_wrap(step, values[i], LS_F32, o->shape[i], o->dims[i]);
        ls_tensor_need_grad(in[i]);
    }
    ls_tensor *y = o->build(step, in);
    ls_tensor *loss = ls_scale(step, ls_sum(step, ls_mul(step, y, y)), 0.5F);
    assert_ok(ls_backward(step, loss, NULL, NULL));
    for (size_t i = 0; i <= o->count; i++) {
        ls_tensor *t = i == 0 ? y : ls_tensor_grad(in[i - 1]);
        assert_non_null(t);
        size_t bytes = ls_tensor_count(t) * sizeof(float);
        results[i] = malloc(bytes);
        memcpy(results[i], ls_tensor_data(t), bytes);
    }
    size_t count = ls_tensor_count(y);
    ls_step_destroy(step);
    return count;
}

static void check_operation(const struct operation *o) {
    float *values[INPUTS], *f32[INPUTS + 1], *bf16[INPUTS + 1];
    for (size_t i = 0; i < o->count; i++)
        values[i] = normal(100 + i, elements_of(o, i));
    run_operation(o, values, LS_F32, f32);
    size_t y = run_operation(o, values, LS_BF16, bf16);
    for (size_t i = 0; i <= o->count; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s, %s %zu", o->name, i ? "gradient" : "value", i);
        size_t count = i ? elements_of(o, i - 1) : y;
        near(what, bf16[i], f32[i], count, BOUND);
    }
    for (size_t i = 0; i <= o->count; i++) {
        free(f32[i]);
        free(bf16[i]);
        if (i < o->count)
            free(values[i]);
    }
}

static ls_tensor *build_linear(ls_step *step, ls_tensor **in) {
    return ls_linear(step, in[0], in[1], in[2]);
}

static ls_tensor *build_linear_io(ls_step *step, ls_tensor **in) {
    return ls_linear_io(step, in[0], in[1], in[2]);
}

/* The same x and the same weight twice: the second contribution to each gradient adds. */
static ls_tensor *build_twice(ls_step *step, ls_tensor **in) {
    return ls_add(step, ls_linear(step, in[0], in[1], in[2]),
                  ls_scale(step, ls_linear_io(step, in[0], in[1], in[2]), 0.5F));
}

static void test_linear(void **state) {
    (void)state;
    const struct operation operations[] = {
        {"linear", build_linear, {2, 2, 1}, {{24, 70}, {50, 70}, {50}}, 3},
        {"linear without bias", build_linear, {3, 2}, {{2, 9, 33}, {65, 33}}, 2},
        {"linear_io", build_linear_io, {3, 2, 1}, {{2, 12, 70}, {70, 50}, {50}}, 3},
        {"twice", build_twice, {2, 2, 1}, {{24, 40}, {40, 40}, {40}}, 3},
    };
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        check_operation(&operations[i]);
}

static ls_tensor *build_matmul(ls_step *step, ls_tensor **in) {
    return ls_matmul(step, in[0], in[1]);
}

static void test_matmul(void **state) {
    (void)state;
    const struct operation operations[] = {
        {"matmul", build_matmul, {2, 2}, {{30, 70}, {70, 41}}, 2},
        {"matmul of a batch", build_matmul, {3, 3}, {{3, 30, 33}, {3, 33, 65}}, 2},
    };
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        check_operation(&operations[i]);
}

static ls_tensor *build_attention(ls_step *step, ls_tensor **in) {
    return ls_causal_attention(step, in[0], 3);
}

static void test_attention(void **state) {
    (void)state;
    const struct operation attention = {"causal_attention", build_attention, {3}, {{2, 70, 72}}, 1};
    check_operation(&attention);
}

/* What a checkpoint's function rounds of its input is forgotten with what else it made. */
static ls_tensor *inner_linear(ls_step *step, void *weight, ls_tensor *x) {
    return ls_linear(step, x, weight, NULL);
}

static void run_checkpoint(bool checkpoint, float *x, float *w, float *result) {
    enum { N = 24 };
    ls_step *step = new_step();
    begin(step, LS_BF16, false);
    const size_t shape[] = {N, N};
    ls_tensor *in = ls_tensor_wrap(step, x, LS_F32, shape, 2);
    ls_tensor *weight = ls_tensor_wrap(step, w, LS_F32, shape, 2);
    ls_tensor_need_grad(in);
    ls_tensor_need_grad(weight);
    ls_tensor *y = checkpoint ? ls__checkpoint(step, inner_linear, weight, in, &weight, 1)
                              : inner_linear(step, weight, in);
    for (int i = 0; i < 8; i++) /* takes the memory that was rewound */
        y = ls_scale(step, y, -1);
    y = ls_add(step, y, ls_linear(step, in, weight, NULL));
    ls_tensor *loss = ls_sum(step, ls_mul(step, y, y));
    assert_ok(ls_backward(step, loss, NULL, NULL));
    memcpy(result, ls_tensor_data(ls_tensor_grad(in)), N * N * sizeof *result);
    memcpy(result + N * N, ls_tensor_data(ls_tensor_grad(weight)), N * N * sizeof *result);
    ls_step_destroy(step);
}

static void test_checkpoint(void **state) {
    (void)state;
    float *x = normal(1, 576), *w = normal(2, 576), want[2 * 576], got[2 * 576];
    run_checkpoint(false, x, w, want);
    run_checkpoint(true, x, w, got);
    assert_memory_equal(got, want, sizeof got);
    free(x);
    free(w);
}

/* --- the output layer with its loss --- */

enum { ROWS = 37, WIDTH = 48 };
struct loss_run {
    double loss;
    size_t correct;
    float *dx, *dw;
};

static struct loss_run run_loss(ls_dtype compute, bool recompute, size_t classes, float *x,
                                float *w, int32_t *targets) {
    ls_step *step = new_step();
    begin(step, compute, recompute);
    ls_tensor *in = ls_tensor_wrap(step, x, LS_F32, (size_t[]){ROWS, WIDTH}, 2);
    ls_tensor *weight = ls_tensor_wrap(step, w, LS_F32, (size_t[]){classes, WIDTH}, 2);
    ls_tensor_need_grad(in);
    ls_tensor_need_grad(weight);
    struct loss_run r = {.dx = malloc(ROWS * WIDTH * sizeof(float)),
                         .dw = malloc(classes * WIDTH * sizeof(float))};
    ls_tensor *loss = ls_linear_cross_entropy(
        step, in, weight, ls_tensor_wrap(step, targets, LS_I32, (size_t[]){ROWS}, 1), &r.correct);
    assert_ok(ls_backward(step, ls_scale(step, loss, 0.5F), NULL, NULL));
    r.loss = ls_tensor_item(loss);
    memcpy(r.dx, ls_tensor_data(ls_tensor_grad(in)), ROWS * WIDTH * sizeof(float));
    memcpy(r.dw, ls_tensor_data(ls_tensor_grad(weight)), classes * WIDTH * sizeof(float));
    ls_step_destroy(step);
    return r;
}

static void free_loss(struct loss_run *r) {
    free(r->dx);
    free(r->dw);
}

/* One block of classes, several, a last one of a single class; padding; a row that is nearly certain. */
static void check_loss(size_t classes) {
    float *x = normal(7, ROWS * WIDTH), *w = normal(8, classes * WIDTH);
    int32_t targets[ROWS];
    for (size_t i = 0; i < ROWS; i++)
        targets[i] = i % 9 == 4 ? -1 : (int32_t)(i * 7919 % classes);
    for (size_t i = 0; i < WIDTH; i++) /* row 0 points along its target's weights */
        x[i] = 1.5F * w[(size_t)targets[0] * WIDTH + i];
    for (size_t i = 0; i < classes * WIDTH; i++)
        w[i] *= 0.3F;
    struct loss_run f32 = run_loss(LS_F32, false, classes, x, w, targets);
    struct loss_run bf16 = run_loss(LS_BF16, false, classes, x, w, targets);
    struct loss_run again = run_loss(LS_BF16, true, classes, x, w, targets);
    if (!(fabs(bf16.loss - f32.loss) <= 2e-3 * f32.loss) || bf16.loss == f32.loss)
        fail_msg("%zu classes: loss %.9g, in f32 %.9g", classes, bf16.loss, f32.loss);
    near("linear_cross_entropy, dx", bf16.dx, f32.dx, ROWS * WIDTH, BOUND);
    near("linear_cross_entropy, dw", bf16.dw, f32.dw, classes * WIDTH, BOUND);
    assert_true(bf16.loss == again.loss);
    assert_memory_equal(bf16.dx, again.dx, ROWS * WIDTH * sizeof(float));
    assert_memory_equal(bf16.dw, again.dw, classes * WIDTH * sizeof(float));
    for (size_t i = 0; i < WIDTH; i++)
        assert_true(bf16.dx[4 * WIDTH + i] == 0); /* padding */
    free_loss(&f32);
    free_loss(&bf16);
    free_loss(&again);
    free(x);
    free(w);
}

static void test_linear_cross_entropy(void **state) {
    (void)state;
    const size_t classes[] = {65, 1000, 2048, 2049, 5000};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        check_loss(classes[i]);
}

/* --- whole models: ten steps against f32 --- */

static const char MLP[] = "mlp:12,16,4";
static const char GPT[] = "gpt:layers=2,heads=2,width=32,context=16,vocab=50";

static double train(const char *spec, ls_dtype compute, bool recompute, uint64_t *hash,
                    double *first) {
    static float x[8 * 12];
    static int32_t tokens[8 * 16], y[8 * 16];
    bool gpt = spec == GPT;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)(i * 37 % 101) / 50 - 1;
    for (size_t i = 0; i < sizeof y / sizeof *y; i++) {
        tokens[i] = (int32_t)(i * 7 % 50);
        y[i] = (int32_t)((gpt ? (i + 1) * 7 % 50 : i % 4));
    }
    ls_step *step = new_step();
    ls_model *model = new_model(device, spec, 4);
    ls_optimizer *optimizer;
    assert_ok(ls_optimizer_create(&optimizer, model,
                                  &(ls_optimizer_options){.kind = gpt ? LS_ADAMW : LS_SGD}));
    double loss = 0;
    for (int i = 0; i < 10; i++) {
        begin(step, compute, recompute);
        ls_tensor *in = ls_tensor_wrap(step, gpt ? (void *)tokens : x, gpt ? LS_I32 : LS_F32,
                                       (size_t[]){8, gpt ? 16 : 12}, 2);
        ls_tensor *out = ls_tensor_wrap(step, y, LS_I32, (size_t[]){8, 16}, gpt ? 2 : 1);
        ls_tensor *sum = ls_model_loss(step, model, in, out, NULL);
        ls_tensor *mean = ls_scale(step, sum, 1.0F / (gpt ? 128 : 8));
        assert_ok(ls_backward(step, mean, NULL, NULL));
        loss = ls_tensor_item(mean);
        if (i == 0)
            *first = loss;
        assert_ok(ls_optimizer_step(optimizer, gpt ? 3e-3 : 0.1, NULL));
    }
    *hash = ls_model_hash(model);
    ls_optimizer_destroy(optimizer);
    ls_model_destroy(model);
    ls_step_destroy(step);
    return loss;
}

/* Bounds: 2e-3 of the loss at the start, where only rounding differs; after ten steps 2e-2. */
static void test_ten_steps(void **state) {
    (void)state;
    const char *specs[] = {MLP, GPT};
    for (size_t i = 0; i < 2; i++) {
        double first, want_first, again_first;
        uint64_t hash, f32_hash, again_hash, recomputed_hash;
        double got = train(specs[i], LS_BF16, false, &hash, &first);
        double want = train(specs[i], LS_F32, false, &f32_hash, &want_first);
        train(specs[i], LS_BF16, false, &again_hash, &again_first);
        train(specs[i], LS_BF16, true, &recomputed_hash, &again_first);
        assert_true(want < 0.95 * want_first);
        if (!(fabs(first - want_first) <= 2e-3 * want_first) || !(fabs(got - want) <= 2e-2 * want))
            fail_msg("%s: losses %.6g and %.6g, in f32 %.6g and %.6g", specs[i], first, got,
                     want_first, want);
        assert_true(hash != f32_hash);
        assert_true(hash == again_hash);
        assert_true(hash == recomputed_hash);
    }
}

/* --- weights that change --- */

/* The loss of a fixed batch. */
static double loss_of(ls_step *step, ls_model *model) {
    static float x[5 * 12];
    static int32_t y[5] = {0, 1, 2, 3, 1};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)i / 30 - 1;
    begin(step, LS_BF16, false);
    ls_tensor *input = ls_tensor_wrap(step, x, LS_F32, (size_t[]){5, 12}, 2);
    ls_tensor *loss =
        ls_model_loss(step, model, input, ls_tensor_wrap(step, y, LS_I32, (size_t[]){5}, 1), NULL);
    assert_ok(ls_step_status(step));
    return ls_tensor_item(loss);
}

/* A model of these values that never packed anything before. */
static void expect_fresh(ls_step *step, ls_model *model, const char *how) {
    char path[] = "/tmp/lockstep-bf16-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_ok(ls_model_save(model, path));
    ls_model *fresh = new_model(device, MLP, 99);
    assert_ok(ls_model_load(fresh, path));
    unlink(path);
    assert_int_equal(ls_model_hash(fresh), ls_model_hash(model));
    double want = loss_of(step, fresh), got = loss_of(step, model);
    if (got != want)
        fail_msg("%s: the loss is %.9g, of the same weights %.9g: stale", how, got, want);
    ls_model_destroy(fresh);
}

static void train_once(ls_step *step, ls_model *model, ls_optimizer *optimizer) {
    begin(step, LS_BF16, false);
    loss_of(step, model);
    float x[12] = {1, 2, 3};
    int32_t y[1] = {2};
    begin(step, LS_BF16, false);
    ls_tensor *loss =
        ls_model_loss(step, model, ls_tensor_wrap(step, x, LS_F32, (size_t[]){1, 12}, 2),
                      ls_tensor_wrap(step, y, LS_I32, (size_t[]){1}, 1), NULL);
    assert_ok(ls_backward(step, loss, NULL, NULL));
    assert_ok(ls_optimizer_step(optimizer, 0.5, NULL));
}

static void test_optimizer_is_seen(void **state) {
    (void)state;
    const ls_optimizer_kind kinds[] = {LS_SGD, LS_ADAM, LS_ADAMW};
    for (size_t i = 0; i < 3; i++) {
        ls_step *step = new_step();
        ls_model *model = new_model(device, MLP, 1);
        ls_optimizer *optimizer;
        assert_ok(
            ls_optimizer_create(&optimizer, model, &(ls_optimizer_options){.kind = kinds[i]}));
        double before = loss_of(step, model);
        train_once(step, model, optimizer);
        expect_fresh(step, model, "optimizer");
        assert_true(loss_of(step, model) != before);
        ls_optimizer_destroy(optimizer);
        ls_model_destroy(model);
        ls_step_destroy(step);
    }
}

static void test_load_is_seen(void **state) {
    (void)state;
    char path[] = "/tmp/lockstep-bf16-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    ls_step *step = new_step();
    ls_model *model = new_model(device, MLP, 1), *other = new_model(device, MLP, 2);
    double before = loss_of(step, model), want = loss_of(step, other);
    assert_true(before != want);
    assert_ok(ls_model_save(other, path));
    assert_ok(ls_model_load(model, path));
    unlink(path);
    assert_true(loss_of(step, model) == want);
    ls_model_destroy(model);
    ls_model_destroy(other);
    ls_step_destroy(step);
}

/* Whoever has the address may write at any time, also long after asking for it. */
static void test_writing_is_seen(void **state) {
    (void)state;
    ls_step *step = new_step();
    ls_model *model = new_model(device, MLP, 1);
    loss_of(step, model);
    float *weight = ls_tensor_data(ls_parameter_value(ls_model_parameter(model, 0)));
    for (int i = 0; i < 3; i++) {
        weight[i] += 1;
        expect_fresh(step, model, "written through ls_tensor_data");
    }
    /* a view of the value shares its memory */
    begin(step, LS_BF16, false);
    ls_parameter *second = ls_model_parameter(model, 2);
    ls_tensor *view = ls_reshape(step, ls_parameter_value(second), (size_t[]){64}, 1);
    float *through = ls_tensor_data(view);
    loss_of(step, model);
    through[5] = 3;
    expect_fresh(step, model, "written through a view");
    ls_model_destroy(model);
    ls_step_destroy(step);
}

/* Weights that stay are packed once: the proof that the above is not so because nothing is kept. */
static size_t packs;
static const ls__device_table *original;
static ls_status counted_pack(ls_device *d, const ls__packing *packing, const float *b,
                              void *packed) {
    packs++;
    return original->pack(d, packing, b, packed);
}

static void test_packed_once(void **state) {
    (void)state;
    ls_device *counting = new_device();
    original = counting->table;
    ls__device_table table = *original;
    table.pack = counted_pack;
    counting->table = &table;
    ls_device *before = device;
    device = counting;
    ls_step *step = new_step();
    ls_model *model = new_model(device, MLP, 1);
    ls_optimizer *optimizer;
    assert_ok(ls_optimizer_create(&optimizer, model, &(ls_optimizer_options){.kind = LS_SGD}));
    packs = 0;
    loss_of(step, model);
    assert_int_equal(packs, 2); /* two layers, forward */
    loss_of(step, model);
    assert_int_equal(packs, 2);
    train_once(step, model, optimizer); /* dx of the second layer */
    assert_int_equal(packs, 3);
    loss_of(step, model);
    loss_of(step, model);
    assert_int_equal(packs, 5);
    ls_tensor_data(ls_parameter_value(ls_model_parameter(model, 0)));
    loss_of(step, model);
    loss_of(step, model);
    assert_int_equal(packs, 7); /* the first layer's every time from now on */
    ls_optimizer_destroy(optimizer);
    ls_model_destroy(model);
    ls_step_destroy(step);
    counting->table = original;
    ls_device_destroy(counting);
    device = before;
}

/* A model that a ddp takes gets rank 0's weights. */
static void test_broadcast_is_seen(void **state) {
    (void)state;
    ls_step *step = new_step();
    ls_model *model = new_model(device, MLP, 1);
    ls_job *job;
    ls_ddp *ddp;
    loss_of(step, model);
    uint64_t version = ls_model_parameter(model, 0)->version;
    assert_ok(ls_job_init(&job, NULL));
    assert_ok(ls_ddp_create(&ddp, model, ls_job_world(job), NULL));
    assert_true(ls_model_parameter(model, 0)->version > version);
    expect_fresh(step, model, "broadcast");
    ls_ddp_destroy(ddp);
    ls_job_finish(job);
    ls_model_destroy(model);
    ls_step_destroy(step);
}

static void test_unsupported(void **state) {
    (void)state;
    ls_step *step = new_step();
    assert_int_equal(ls_step_begin(step, &(ls_step_mode){.compute = LS_F16}), LS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ls_error_text(), "F16"));
    assert_ok(ls_step_begin(step, NULL));
    ls_step_destroy(step);
}

#define bf16_test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    setup(NULL);
    const char *lacks = ls_device_lacks(device, LS_BF16);
    if (lacks)
        print_message("no products in bf16: that needs %s\n", lacks);
    teardown(NULL);
    if (lacks)
        return 77;
    const struct CMUnitTest tests[] = {
        bf16_test(test_linear),       bf16_test(test_checkpoint),
        bf16_test(test_matmul),       bf16_test(test_linear_cross_entropy),
        bf16_test(test_ten_steps),    bf16_test(test_optimizer_is_seen),
        bf16_test(test_load_is_seen), bf16_test(test_writing_is_seen),
        bf16_test(test_packed_once),  bf16_test(test_broadcast_is_seen),
        bf16_test(test_unsupported),  bf16_test(test_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
