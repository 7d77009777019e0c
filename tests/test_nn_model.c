/* Models: names and shapes, initial values, the hash, checks of the input, dropout. */
#include "nn_support.h"

static void names_and_shapes(void **state) {
    (void)state;
    static const struct {
        const char *spec, *list;
        size_t elements, context, classes, input;
    } rows[] = {
        {"mlp:6,5,4", "fc1.weight(5, 6) fc1.bias(5) fc2.weight(4, 5) fc2.bias(4) ", 59, 0, 4, 6},
        {"cnn",
         "conv1.weight(32, 1, 3, 3) conv1.bias(32) conv2.weight(64, 32, 3, 3) conv2.bias(64) "
         "fc1.weight(128, 9216) fc1.bias(128) fc2.weight(10, 128) fc2.bias(10) ",
         1199882, 0, 10, 784},
        {"gpt:layers=1,heads=2,width=4,context=3,vocab=7",
         "wte.weight(7, 4) wpe.weight(3, 4) h.0.ln_1.weight(4) h.0.ln_1.bias(4) "
         "h.0.attn.c_attn.weight(4, 12) h.0.attn.c_attn.bias(12) h.0.attn.c_proj.weight(4, 4) "
         "h.0.attn.c_proj.bias(4) h.0.ln_2.weight(4) h.0.ln_2.bias(4) h.0.mlp.c_fc.weight(4, 16) "
         "h.0.mlp.c_fc.bias(16) h.0.mlp.c_proj.weight(16, 4) h.0.mlp.c_proj.bias(4) "
         "ln_f.weight(4) ln_f.bias(4) ",
         7 * 4 + 3 * 4 + 12 * 16 + 13 * 4 + 2 * 4, 3, 7, 0},
    };
    ls_device *device = new_device();
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char list[1024] = "", shape[160];
        ls_model *model = new_model(device, rows[r].spec, 1);
        for (size_t i = 0; i < ls_model_parameter_count(model); i++) {
            ls_parameter *p = ls_model_parameter(model, i);
            ls_tensor *value = ls_parameter_value(p);
            size_t used = strlen(list);
            snprintf(
                list + used, sizeof list - used, "%s%s ", ls_parameter_name(p),
                ls__shape_text(ls_tensor_shape(value), ls_tensor_dims(value), shape, sizeof shape));
            assert_int_equal(ls_parameter_role(p), LS_WEIGHT);
            assert_non_null(ls_parameter_gradient(p));
        }
        assert_string_equal(list, rows[r].list);
        assert_string_equal(ls_model_spec(model), rows[r].spec);
        assert_int_equal(ls_model_element_count(model), rows[r].elements);
        assert_int_equal(ls_model_context(model), rows[r].context);
        assert_int_equal(ls_model_classes(model), rows[r].classes);
        assert_int_equal(ls_model_input_elements(model), rows[r].input);
        assert_null(ls_model_parameter(model, ls_model_parameter_count(model)));
        ls_model_destroy(model);
    }
    ls_device_destroy(device);
}

/* Initial values and hashes as an independent implementation of their definitions gives them. Uniform
 * ones are exact; normal ones go through log and cos, which may round otherwise by a last bit. */
static void initial_values_and_hashes_are_as_defined(void **state) {
    (void)state;
    static const char *const files[] = {"model_mlp.safetensors", "model_cnn.safetensors",
                                        "model_gpt.safetensors"};
    ls_device *device = new_device();
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        ls_safetensors *file = open_reference(files[f]);
        uint64_t seed = strtoull(ls_safetensors_metadata(file, "seed"), NULL, 10);
        ls_model *model = new_model(device, ls_safetensors_metadata(file, "spec"), seed);
        assert_parameters(model, file, "init", f == 2 ? 1e-8 : 0);
        const char *hash = ls_safetensors_metadata(file, "hash");
        if (f == 0)
            assert_int_equal(ls_model_hash(model), strtoull(hash, NULL, 16));
        ls_model_destroy(model);
        ls_safetensors_close(file);
    }
    ls_device_destroy(device);
}

static void values_depend_on_seed_and_name_only(void **state) {
    (void)state;
    ls_device *device = new_device();
    ls_model *a = new_model(device, "mlp:6,5,4", 3), *b = new_model(device, "mlp:6,5,4,2", 3);
    ls_model *c = new_model(device, "mlp:6,5,4", 4);
    for (size_t i = 0; i < ls_model_parameter_count(a); i++) {
        ls_parameter *p = ls_model_parameter(a, i);
        const char *name = ls_parameter_name(p);
        size_t bytes = ls_tensor_count(ls_parameter_value(p)) * sizeof(float);
        assert_memory_equal(values_of(p), values_of(find_parameter(b, name)), bytes);
        assert_memory_not_equal(values_of(p), values_of(find_parameter(c, name)), bytes);
    }
    assert_memory_not_equal(values_of(find_parameter(a, "fc1.bias")),
                            values_of(find_parameter(a, "fc2.bias")), 4 * sizeof(float));
    ls_model_destroy(a);
    ls_model_destroy(b);
    ls_model_destroy(c);
    ls_device_destroy(device);
}

static void hash_sees_every_bit(void **state) {
    (void)state;
    ls_device *device = new_device();
    ls_model *a = new_model(device, "mlp:6,5,4", 3), *b = new_model(device, "mlp:6,5,4", 3);
    uint64_t hash = ls_model_hash(a);
    assert_int_equal(hash, ls_model_hash(b));
    assert_int_equal(hash, ls_model_hash(a));
    uint32_t *bits = (uint32_t *)values_of(find_parameter(b, "fc2.bias"));
    bits[3] ^= 1;
    assert_int_not_equal(hash, ls_model_hash(b));
    bits[3] ^= 1;
    assert_int_equal(hash, ls_model_hash(b));
    ls_model_destroy(a);
    ls_model_destroy(b);
    ls_device_destroy(device);
}

static void expect_refusal(ls_step *step, ls_model *model, ls_dtype dtype, size_t rows,
                           size_t columns, const char *part) {
    assert_ok(ls_step_begin(step, NULL));
    ls_tensor *input = ls_tensor_new(step, dtype, (size_t[]){rows, columns}, 2);
    assert_non_null(input);
    assert_null(ls_model_forward(step, model, input));
    assert_int_equal(ls_step_status(step), LS_ERR_ARGUMENT);
    assert_message(part);
}

static void wrong_inputs_are_refused(void **state) {
    (void)state;
    ls_device *device = new_device();
    ls_step *step;
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device}));
    ls_model *mlp = new_model(device, "mlp:6,5,4", 3);
    ls_model *gpt = new_model(device, "gpt:layers=1,heads=1,width=2,context=3,vocab=4", 3);
    expect_refusal(step, mlp, LS_F32, 2, 7,
                   "model mlp:6,5,4: input has shape (2, 7), want a batch of samples of 6");
    expect_refusal(step, mlp, LS_I32, 2, 6, "input is I32, want images in F32");
    expect_refusal(step, gpt, LS_F32, 2, 3, "input is F32, want tokens in I32");
    expect_refusal(step, gpt, LS_I32, 2, 4, "input has shape (2, 4), want (batch, time)");
    expect_refusal(step, gpt, LS_I32, 2, 4, "context 3");
    assert_null(ls_model_forward(step, mlp, NULL));
    ls_model_destroy(mlp);
    ls_model_destroy(gpt);
    ls_step_destroy(step);
    ls_device_destroy(device);
}

/* Logits of one forward, copied out: (count) floats. */
static void run_forward(ls_step *step, ls_model *model, const ls_step_mode *mode, int32_t *tokens,
                        size_t time, float *logits) {
    assert_ok(ls_step_begin(step, mode));
    ls_tensor *input = ls_tensor_wrap(step, tokens, LS_I32, (size_t[]){2, time}, 2);
    ls_tensor *y = ls_model_forward(step, model, input);
    if (!y)
        fail_msg("forward: %s", ls_step_status(step) == LS_OK ? "?" : ls_error_text());
    memcpy(logits, ls_tensor_data(y), ls_tensor_count(y) * sizeof(float));
}

static void gpt_dropout_acts_in_training_only(void **state) {
    (void)state;
    enum { COUNT = 2 * 3 * 5 };
    float plain[COUNT], evaluated[COUNT], trained[COUNT], again[COUNT];
    int32_t tokens[6] = {0, 1, 2, 3, 4, 0};
    const uint64_t samples[2] = {5, 9};
    const ls_step_mode training = {.training = true, .samples = samples, .sample_count = 2};
    ls_device *device = new_device();
    ls_step *step;
    assert_ok(ls_step_create(&step, &(ls_step_options){.device = device, .seed = 1}));
    ls_model *a = new_model(device, "gpt:layers=2,heads=1,width=8,context=3,vocab=5", 3);
    ls_model *b =
        new_model(device, "gpt:layers=2,heads=1,width=8,context=3,vocab=5,dropout=0.5", 3);
    run_forward(step, a, NULL, tokens, 3, plain);
    run_forward(step, b, NULL, tokens, 3, evaluated);
    assert_memory_equal(plain, evaluated, sizeof plain);
    run_forward(step, b, &training, tokens, 3, trained);
    assert_memory_not_equal(plain, trained, sizeof plain);
    run_forward(step, b, &training, tokens, 3, again);
    assert_memory_equal(trained, again, sizeof trained);
    ls_model_destroy(a);
    ls_model_destroy(b);
    ls_step_destroy(step);
    ls_device_destroy(device);
}

/* A reducer takes the gradient's storage over, and gives it back. */
static void gradient_storage_moves(void **state) {
    (void)state;
    float outside[20];
    ls_device *device = new_device();
    ls_model *model = new_model(device, "mlp:4,5", 1);
    ls_parameter *p = find_parameter(model, "fc1.weight");
    for (size_t i = 0; i < 20; i++)
        assert_true(p->gradient[i] == 0);
    ls__parameter_set_gradient(p, outside);
    assert_ptr_equal(ls_parameter_gradient(p), outside);
    assert_true(p->managed && !p->owns_gradient);
    assert_ok(ls__parameter_own_gradient(p));
    assert_ptr_not_equal(ls_parameter_gradient(p), outside);
    assert_true(!p->managed && p->owns_gradient && p->gradient[19] == 0);
    ls__parameter_set_gradient(p, outside); /* and the model does not free what is not its own */
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void creation_checks_its_arguments(void **state) {
    (void)state;
    ls_model *model;
    ls_device *device = new_device();
    assert_int_equal(ls_model_create(&model, "cnn", NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_model_create(&model, "cnn", &(ls_model_options){0}), LS_ERR_ARGUMENT);
    assert_int_equal(ls_model_create(&model, "foo", &(ls_model_options){.device = device}),
                     LS_ERR_ARGUMENT);
    ls_model_destroy(NULL);
    ls_device_destroy(device);
}

/* --- the n-th allocation of device memory fails --- */

static const ls__device_table *real_table;
static size_t allocations_left;

static ls_status failing_alloc(ls_device *device, size_t bytes, void **memory) {
    if (allocations_left == 0)
        return ls__fail(LS_ERR_MEMORY, "no %zu bytes", bytes);
    allocations_left--;
    return real_table->alloc(device, bytes, memory);
}

/* Under the address sanitizer this shows as well that nothing leaks and nothing is freed twice. */
static void failing_allocations_are_reported(void **state) {
    (void)state;
    const ls_optimizer_options adam = {.kind = LS_ADAM};
    ls_device *device = new_device();
    ls__device_table table = *device->table;
    real_table = device->table;
    table.alloc = failing_alloc;
    device->table = &table;
    size_t n = 0;
    for (bool done = false; !done; n++) {
        ls_model *model = NULL;
        ls_optimizer *optimizer = NULL;
        allocations_left = n;
        ls_status status =
            ls_model_create(&model, "mlp:4,3,2", &(ls_model_options){.device = device});
        if (status == LS_OK)
            status = ls_optimizer_create(&optimizer, model, &adam);
        done = status == LS_OK;
        if (!done)
            assert_int_equal(status, LS_ERR_MEMORY);
        if (!model)
            assert_message("model mlp:4,3,2: parameter fc");
        ls_optimizer_destroy(optimizer);
        ls_model_destroy(model);
    }
    assert_int_equal(n, 4 * 2 + 4 * 2 +
                            1); /* value and gradient, then two averages, of four weights */
    device->table = real_table;
    ls_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_shapes),
        cmocka_unit_test(initial_values_and_hashes_are_as_defined),
        cmocka_unit_test(values_depend_on_seed_and_name_only),
        cmocka_unit_test(hash_sees_every_bit),
        cmocka_unit_test(wrong_inputs_are_refused),
        cmocka_unit_test(gpt_dropout_acts_in_training_only),
        cmocka_unit_test(gradient_storage_moves),
        cmocka_unit_test(failing_allocations_are_reported),
        cmocka_unit_test(creation_checks_its_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
