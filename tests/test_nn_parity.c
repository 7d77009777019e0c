/* Whole training runs against stored results: ten steps of each model by PyTorch in f64
 * (scripts/reference/models.py), and GPT-2 and MNIST checkpoints whose results others computed.
 *
 * Tolerances. Stored values come from f64 with the same f32 start, so what differs is the rounding of
 * f32 arithmetic. Each bound is five to ten times what was measured, which is about what PyTorch in f32
 * is off by. Parameters are 0.1 to 1 large. Adam divides by the root of the average square, so that an
 * element whose gradient is as small as its rounding still moves by the learning rate: epsilon is 1e-6
 * in the stored runs with Adam, where one first gradient was 1e-8. */
#include "nn_support.h"

#include <jansson.h>
#ifdef LOCKSTEP_WITH_ZLIB
#include <zlib.h>
#endif

/* One training run: what the stored file says, and how to repeat it. */
struct run {
    const char *file;
    ls_optimizer_options optimizer;
    double rate, loss_tolerance, parameter_tolerance;
    double norm_tolerance; /* of the gradient's norm; 0: ten times the loss's */
};

/* The batch of one step, wrapped. */
static ls_tensor *batch_of(ls_step *step, const ls_safetensors *file, const char *name, size_t s) {
    const ls_safetensors_entry *entry = entry_of(file, name);
    ls_dtype dtype = strcmp(entry->dtype, "F32") == 0 ? LS_F32 : LS_I32;
    size_t bytes = entry->bytes / entry->shape[0];
    ls_tensor *tensor = ls_tensor_new(step, dtype, entry->shape + 1, entry->dims - 1);
    assert_non_null(tensor);
    memcpy(ls_tensor_data(tensor), (const char *)entry->data + s % entry->shape[0] * bytes, bytes);
    return tensor;
}

/* Mean cross-entropy, as PyTorch's, and its gradients. */
static double train_step(ls_step *step, ls_model *model, const ls_safetensors *file, size_t s) {
    const ls_step_mode mode = {.training = true};
    assert_ok(ls_step_begin(step, &mode));
    ls_tensor *x = batch_of(step, file, "inputs", s), *y = batch_of(step, file, "targets", s);
    ls_tensor *logits = model->classes ? ls_model_forward(step, model, x)
                                       : ls__module_forward(step, model->root, x);
    ls_tensor *loss = ls_cross_entropy(step, logits, y);
    loss = ls_scale(step, loss, 1.0F / (float)ls_tensor_count(y));
    assert_ok(ls_backward(step, loss, NULL, NULL));
    return ls_tensor_item(loss);
}

static void repeat_run(ls_device *device, ls_model *model, const ls_safetensors *file,
                       const struct run *run) {
    const ls_safetensors_entry *losses = entry_of(file, "losses"), *norms = entry_of(file, "norms");
    ls_step *step;
    ls_optimizer *optimizer;
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device}));
    assert_ok(ls_optimizer_create(&optimizer, model, &run->optimizer));
    for (size_t s = 0; s < entry_count(losses); s++) {
        double norm, loss = train_step(step, model, file, s);
        if (!(fabs(loss - entry_at(losses, s)) <= run->loss_tolerance))
            fail_msg("%s step %zu: loss %.9g, want %.9g", run->file, s, loss, entry_at(losses, s));
        assert_ok(ls_optimizer_step(optimizer, run->rate, &norm));
        double off = run->norm_tolerance > 0 ? run->norm_tolerance : 10 * run->loss_tolerance;
        if (!(fabs(norm - entry_at(norms, s)) <= off))
            fail_msg("%s step %zu: norm %.9g, want %.9g", run->file, s, norm, entry_at(norms, s));
    }
    ls_optimizer_destroy(optimizer);
    ls_step_destroy(step);
}

/* The gradient of a key's bias is zero: softmax does not see what is added to all its scores. What
 * rounding leaves of it is noise that Adam makes steps of. */
static void restore_key_biases(ls_model *model, const ls_safetensors *file, const char *prefix) {
    for (size_t i = 0; i < ls_model_parameter_count(model); i++) {
        ls_parameter *p = ls_model_parameter(model, i);
        const char *name = ls_parameter_name(p);
        size_t c = p->value.count / 3;
        char stored[160];
        if (!strstr(name, ".attn.c_attn.bias"))
            continue;
        snprintf(stored, sizeof stored, "%s%s", prefix, name);
        for (size_t e = c; e < 2 * c; e++)
            values_of(p)[e] = (float)entry_at(entry_of(file, stored), e);
    }
}

static void repeat_stored(const struct run *run) {
    ls_device *device = new_device();
    ls_safetensors *file = open_reference(run->file);
    uint64_t seed = strtoull(ls_safetensors_metadata(file, "seed"), NULL, 10);
    ls_model *model = new_model(device, ls_safetensors_metadata(file, "spec"), seed);
    repeat_run(device, model, file, run);
    restore_key_biases(model, file, "final/");
    assert_parameters(model, file, "final", run->parameter_tolerance);
    ls_model_destroy(model);
    ls_safetensors_close(file);
    ls_device_destroy(device);
}

static void mlp_with_nesterov_sgd(void **state) {
    (void)state;
    repeat_stored(&(struct run){
        .file = "model_mlp.safetensors",
        .optimizer = {.kind = LS_SGD,
                      .momentum = 0.9,
                      .nesterov = true,
                      .weight_decay = 0.01,
                      .decay_all = true},
        .rate = 0.1,
        .loss_tolerance = 1e-6,
        .parameter_tolerance = 3e-7,
    });
}

static void cnn_with_adam(void **state) {
    (void)state;
    repeat_stored(&(struct run){
        .file = "model_cnn.safetensors",
        .optimizer = {.kind = LS_ADAM, .epsilon = 1e-6},
        .rate = 1e-3,
        .loss_tolerance = 2e-5,
        .parameter_tolerance = 5e-6,
    });
}

static void gpt_with_adamw_and_clipping(void **state) {
    (void)state;
    repeat_stored(&(struct run){
        .file = "model_gpt.safetensors",
        .optimizer =
            {.kind = LS_ADAMW, .beta2 = 0.99, .epsilon = 1e-6, .weight_decay = 0.1, .clip = 1},
        .rate = 1e-2,
        .loss_tolerance = 2e-6,
        .parameter_tolerance = 1e-5,
    });
}

/* --- a net with batch normalisation, which no spec names yet: conv1, bn1, relu, conv2, bn2, relu, max
 * pool 2, fc --- */

enum { CONV1, BN1, CONV2, BN2, FC };

static ls_tensor *bn_net_forward(ls_step *step, ls__module *net, ls_tensor *x) {
    for (size_t i = CONV1; i < FC; i += 2) {
        x = ls__module_forward(step, net->children[i], x);
        x = ls_relu(step, ls__module_forward(step, net->children[i + 1], x));
    }
    x = ls_max_pool2d(step, x, (ls_pool2d_options){.kernel = 2});
    x = ls_reshape(step, x, (size_t[]){x ? x->shape[0] : 1, 24}, 2);
    return ls__module_forward(step, net->children[FC], x);
}

static ls_model *new_bn_net(ls_device *device, uint64_t seed) {
    const ls__builder builder = {.device = device, .seed = seed};
    const ls__conv2d_layer_options conv1 = {.in = 1, .out = 4, .kernel = 3, .no_bias = true};
    const ls__conv2d_layer_options conv2 = {.in = 4, .out = 6, .kernel = 3, .no_bias = true};
    const ls__linear_options fc = {
        .in = 24, .out = 5, .weight = ls__init_fan_in(24), .bias = ls__init_fan_in(24)};
    ls__module *root, *m;
    ls_model *model;
    assert_ok(ls__module_create(&root, NULL, "", sizeof *root, bn_net_forward));
    assert_ok(ls__conv2d_create(&m, root, "conv1", &builder, &conv1));
    assert_ok(ls__batch_norm_create(&m, root, "bn1", &builder, 4, false));
    assert_ok(ls__conv2d_create(&m, root, "conv2", &builder, &conv2));
    assert_ok(ls__batch_norm_create(&m, root, "bn2", &builder, 6, false));
    assert_ok(ls__linear_create(&m, root, "fc", &builder, &fc));
    assert_ok(ls__model_adopt(&model, device, root));
    return model;
}

/* Not training: the running statistics decide. */
static void assert_evaluation(ls_device *device, ls_model *model, const ls_safetensors *file,
                              double tolerance) {
    ls_step *step;
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device}));
    assert_ok(ls_step_begin(step, NULL));
    ls_tensor *y = ls__module_forward(step, model->root, batch_of(step, file, "inputs", 0));
    assert_non_null(y);
    assert_close("evaluation", ls_tensor_data(y), 1, entry_of(file, "evaluation"), tolerance);
    ls_step_destroy(step);
}

static void batch_norm_net_with_sgd(void **state) {
    (void)state;
    const struct run run = {
        .file = "model_bn.safetensors",
        .optimizer = {.kind = LS_SGD, .momentum = 0.9},
        .rate = 0.1,
        .loss_tolerance = 2e-6,
        .parameter_tolerance = 2e-6,
    };
    ls_device *device = new_device();
    ls_safetensors *file = open_reference(run.file);
    uint64_t seed = strtoull(ls_safetensors_metadata(file, "seed"), NULL, 10);
    ls_model *model = new_bn_net(device, seed);
    assert_parameters(model, file, "init", 0);
    repeat_run(device, model, file, &run);
    assert_parameters(model, file, "final", run.parameter_tolerance);

    assert_evaluation(device, model, file, 5e-6);
    ls_model_destroy(model);
    ls_safetensors_close(file);
    ls_device_destroy(device);
}

/* Of the 10^5 values that reach a relu some lie so near to 0 that rounding decides, and each that falls
 * to the other side changes the gradient by a step: small learning rate, wide bounds. */
static void resnet_with_sgd(void **state) {
    (void)state;
    const struct run run = {
        .file = "model_resnet.safetensors",
        .optimizer = {.kind = LS_SGD, .momentum = 0.9},
        .rate = 1e-3,
        .loss_tolerance = 5e-5,
        .parameter_tolerance = 5e-4,
        .norm_tolerance = 0.1,
    };
    ls_device *device = new_device();
    ls_safetensors *file = open_reference(run.file);
    uint64_t seed = strtoull(ls_safetensors_metadata(file, "seed"), NULL, 10);
    ls_model *model = new_model(device, ls_safetensors_metadata(file, "spec"), seed);
    assert_parameters(model, file, "init", 0);
    repeat_run(device, model, file, &run);
    assert_parameters(model, file, "final", run.parameter_tolerance);
    assert_evaluation(device, model, file, 1e-3);
    ls_model_destroy(model);
    ls_safetensors_close(file);
    ls_device_destroy(device);
}

/* --- stored GPT-2 checkpoints --- */

static json_t *load_expected(const char *name) {
    const char *path = shared_data(name);
    json_error_t error;
    json_t *json = path ? json_load_file(path, 0, &error) : NULL;
    if (path && !json)
        fail_msg("%s: %s", name, error.text);
    return json;
}

static ls_safetensors *open_shared(const char *name) {
    ls_safetensors *file;
    assert_ok(ls_safetensors_open(&file, shared_data(name)));
    return file;
}

/* A JSON array of rows of integers, flattened. */
static size_t flatten(const json_t *rows, int32_t *out) {
    size_t n = 0, i, j;
    json_t *row, *value;
    json_array_foreach(rows, i, row) {
        json_array_foreach(row, j, value) {
            out[n++] = (int32_t)json_integer_value(value);
        }
    }
    return n;
}

static double real_of(const json_t *json, const char *key) {
    return json_number_value(json_object_get(json, key));
}

enum { REF_ROWS = 2, REF_TIME = 16, REF_VOCAB = 65 };

/* One forward and backward of the mean loss on the stored batch. */
static double ref_step(ls_step *step, ls_model *model, int32_t *ids, int32_t *targets,
                       ls_tensor **logits) {
    const size_t shape[2] = {REF_ROWS, REF_TIME};
    assert_ok(ls_step_begin(step, &(ls_step_mode){.training = true}));
    *logits = ls_model_forward(step, model, ls_tensor_wrap(step, ids, LS_I32, shape, 2));
    ls_tensor *y = ls_tensor_wrap(step, targets, LS_I32, shape, 2);
    ls_tensor *loss = ls_cross_entropy(step, *logits, y);
    loss = ls_scale(step, loss, 1.0F / (REF_ROWS * REF_TIME));
    assert_ok(ls_backward(step, loss, NULL, NULL));
    return ls_tensor_item(loss);
}

static void check_ref_logits(const json_t *expected, const float *logits) {
    const json_t *rows = json_object_get(expected, "logits");
    for (size_t i = 0; i < (size_t)REF_ROWS * REF_TIME * REF_VOCAB; i++) {
        const json_t *row = json_array_get(rows, i / (REF_TIME * REF_VOCAB));
        const json_t *time = json_array_get(row, i / REF_VOCAB % REF_TIME);
        double want = json_number_value(json_array_get(time, i % REF_VOCAB));
        assert_true(fabs((double)logits[i] - want) <= 1e-5); /* logits up to about 5 */
    }
}

/* f32 against exact gradients of norm 6.8. */
static void check_ref_gradients(ls_model *model) {
    ls_safetensors *file = open_shared("checkpoints/ref_gpt2/grads.safetensors");
    for (size_t i = 0; i < ls_model_parameter_count(model); i++) {
        ls_parameter *p = ls_model_parameter(model, i);
        char name[160];
        snprintf(name, sizeof name, "transformer.%s", ls_parameter_name(p));
        assert_close(name, ls_parameter_gradient(p), 1, entry_of(file, name), 1e-6);
    }
    ls_safetensors_close(file);
}

static void check_ref_parameters(ls_model *model) {
    ls_safetensors *file = open_shared("checkpoints/ref_gpt2/params_after_5_steps.safetensors");
    restore_key_biases(model, file, "transformer.");
    for (size_t i = 0; i < ls_model_parameter_count(model); i++) {
        ls_parameter *p = ls_model_parameter(model, i);
        char name[160];
        snprintf(name, sizeof name, "transformer.%s", ls_parameter_name(p));
        assert_close(name, values_of(p), 1, entry_of(file, name), 3e-6);
    }
    ls_safetensors_close(file);
}

static void gpt2_with_exact_gradients(void **state) {
    (void)state;
    json_t *expected = load_expected("checkpoints/ref_gpt2/expected.json");
    if (!expected)
        skip();
    const json_t *adamw = json_object_get(expected, "adamw");
    const json_t *losses = json_object_get(adamw, "loss_before_each_step");
    const json_t *norms = json_object_get(adamw, "grad_norm_at_each_step");
    const ls_optimizer_options options = {
        .kind = LS_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
    int32_t ids[REF_ROWS * REF_TIME], targets[REF_ROWS * REF_TIME];
    assert_int_equal(flatten(json_object_get(expected, "ids"), ids), REF_ROWS * REF_TIME);
    flatten(json_object_get(expected, "targets"), targets);
    ls_device *device = new_device();
    ls_model *model = new_model(device, "gpt:layers=2,heads=3,width=24,context=16,vocab=65", 1);
    ls_step *step;
    ls_optimizer *optimizer;
    ls_tensor *logits;
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device}));
    assert_ok(ls_optimizer_create(&optimizer, model, &options));
    assert_ok(ls_model_load(model, shared_data("checkpoints/ref_gpt2/model.safetensors")));
    for (size_t s = 0; s < json_array_size(losses); s++) {
        double norm, loss = ref_step(step, model, ids, targets, &logits);
        assert_true(fabs(loss - json_number_value(json_array_get(losses, s))) <= 5e-6);
        if (s == 0) {
            check_ref_logits(expected, ls_tensor_data(logits));
            check_ref_gradients(model);
        }
        assert_ok(ls_optimizer_step(optimizer, 0.01, &norm));
        assert_true(fabs(norm - json_number_value(json_array_get(norms, s))) <= 2e-5);
    }
    check_ref_parameters(model);
    double last = ref_step(step, model, ids, targets, &logits);
    assert_true(fabs(last - real_of(adamw, "loss_after_5_steps")) <= 5e-6);
    ls_optimizer_destroy(optimizer);
    ls_step_destroy(step);
    ls_model_destroy(model);
    ls_device_destroy(device);
    json_decref(expected);
}

/* A file as the transformers library writes it: GPT-2's full vocabulary, width 2. */
static void gpt2_file_of_transformers(void **state) {
    (void)state;
    enum { TIME = 12, VOCAB = 50257 };
    static const size_t columns[4] = {0, 100, 15496, 50256};
    json_t *expected = load_expected("checkpoints/fake_gpt2/expected.json");
    if (!expected)
        skip();
    int32_t ids[TIME], targets[TIME];
    flatten(json_object_get(expected, "ids"), ids);
    flatten(json_object_get(expected, "targets"), targets);
    ls_device *device = new_device();
    ls_model *model = new_model(device, "gpt:layers=1,heads=1,width=2,context=1024,vocab=50257", 1);
    ls_step *step;
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device}));
    assert_ok(ls_model_load(model, shared_data("checkpoints/fake_gpt2/model.safetensors")));
    assert_ok(ls_step_begin(step, NULL));
    ls_tensor *logits =
        ls_model_forward(step, model, ls_tensor_wrap(step, ids, LS_I32, (size_t[]){1, TIME}, 2));
    ls_tensor *loss = ls_cross_entropy(
        step, logits, ls_tensor_wrap(step, targets, LS_I32, (size_t[]){1, TIME}, 2));
    assert_ok(ls_step_status(step));
    assert_true(fabs(ls_tensor_item(loss) / TIME - real_of(expected, "mean_cross_entropy")) < 1e-5);
    const json_t *rows = json_object_get(expected, "logits_at_ids_0_100_15496_50256");
    const float *y = ls_tensor_data(logits);
    for (size_t t = 0; t < TIME; t++)
        for (size_t c = 0; c < 4; c++) {
            double want = json_number_value(json_array_get(json_array_get(rows, t), c));
            /* layer norm over two channels: x - mean cancels, and 1e-5 in the root matters */
            assert_true(fabs((double)y[t * VOCAB + columns[c]] - want) <= 2e-6);
        }
    ls_step_destroy(step);
    ls_model_destroy(model);
    ls_device_destroy(device);
    json_decref(expected);
}

#ifdef LOCKSTEP_WITH_ZLIB
/* `bytes` bytes of a gzipped file, behind its first `skipped`. */
static unsigned char *read_gz(const char *name, size_t skipped, size_t bytes) {
    unsigned char *data = malloc(skipped + bytes);
    gzFile file = gzopen(shared_data(name), "rb");
    assert_true(data && file);
    assert_int_equal(gzread(file, data, (unsigned)(skipped + bytes)), skipped + bytes);
    gzclose(file);
    memmove(data, data + skipped, bytes);
    return data;
}

/* A trained perceptron, in a file with other names, counts as many right as its makers found. */
static void mnist_perceptron_counts_right(void **state) {
    (void)state;
    enum { COUNT = 10000, BATCH = 1000, PIXELS = 784 };
    static const char *const stored[] = {"0.0", "1.0", "2.0", "3"};
    if (!shared_data("checkpoints/mnist_mlp/model.safetensors"))
        skip();
    ls_device *device = new_device();
    ls_model *model = new_model(device, "mlp:784,512,128,32,10", 1);
    ls_safetensors *file = open_shared("checkpoints/mnist_mlp/model.safetensors");
    for (size_t i = 0; i < ls_model_parameter_count(model); i++) {
        ls_parameter *p = ls_model_parameter(model, i);
        char name[64];
        snprintf(name, sizeof name, "%s.%s", stored[i / 2], i % 2 ? "bias" : "weight");
        const ls_safetensors_entry *entry = entry_of(file, name);
        assert_int_equal(entry->bytes, p->value.count * sizeof(float));
        memcpy(values_of(p), entry->data, entry->bytes);
    }
    unsigned char *pixels = read_gz("images/mnist/t10k-images-idx3-ubyte.gz", 16, COUNT * PIXELS);
    unsigned char *labels = read_gz("images/mnist/t10k-labels-idx1-ubyte.gz", 8, COUNT);
    size_t correct = 0;
    double loss = 0;
    ls_step *step;
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device}));
    for (size_t at = 0; at < COUNT; at += BATCH) {
        assert_ok(ls_step_begin(step, NULL));
        ls_tensor *x = ls_tensor_new(step, LS_F32, (size_t[]){BATCH, 1, 28, 28}, 4);
        ls_tensor *y = ls_tensor_new(step, LS_I32, (size_t[]){BATCH}, 1);
        for (size_t i = 0; i < (size_t)BATCH * PIXELS; i++)
            ((float *)ls_tensor_data(x))[i] = (float)pixels[at * PIXELS + i] / 255;
        for (size_t i = 0; i < BATCH; i++)
            ((int32_t *)ls_tensor_data(y))[i] = labels[at + i];
        ls_tensor *logits = ls_model_forward(step, model, x);
        size_t n = 0;
        assert_ok(ls_count_correct(step, logits, y, &n));
        correct += n;
        loss += ls_tensor_item(ls_cross_entropy(step, logits, y));
    }
    assert_int_equal(correct, 9849);
    assert_true(fabs(loss / COUNT - 0.3905516935779947) < 1e-5);
    free(pixels);
    free(labels);
    ls_step_destroy(step);
    ls_safetensors_close(file);
    ls_model_destroy(model);
    ls_device_destroy(device);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp_with_nesterov_sgd),
        cmocka_unit_test(cnn_with_adam),
        cmocka_unit_test(gpt_with_adamw_and_clipping),
        cmocka_unit_test(batch_norm_net_with_sgd),
        cmocka_unit_test(resnet_with_sgd),
        cmocka_unit_test(gpt2_with_exact_gradients),
        cmocka_unit_test(gpt2_file_of_transformers),
#ifdef LOCKSTEP_WITH_ZLIB
        cmocka_unit_test(mnist_perceptron_counts_right),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
