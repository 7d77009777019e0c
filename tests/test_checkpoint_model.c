/* Saving and loading models: bits come back, a file that does not fit changes nothing and the message
 * names the first difference, other libraries' GPT-2 files are taken. */
#include "checkpoint/safetensors.h"
#include "nn_support.h"

#define GPT "gpt:layers=1,heads=2,width=4,context=3,vocab=5"

static void saved_bits_come_back(void **state) {
    (void)state;
    static const char *const specs[] = {"mlp:6,5,4", GPT, "cnn:dropout=0"};
    ls_device *device = new_device();
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        ls_model *a = new_model(device, specs[i], 1), *b = new_model(device, specs[i], 2);
        const char *path = in_folder("model.safetensors");
        assert_ok(ls_model_save(a, path));
        assert_int_not_equal(ls_model_hash(a), ls_model_hash(b));
        assert_ok(ls_model_load(b, path));
        assert_int_equal(ls_model_hash(a), ls_model_hash(b));
        ls_safetensors *file;
        assert_ok(ls_safetensors_open(&file, path));
        assert_string_equal(ls_safetensors_metadata(file, "lockstep.model"), specs[i]);
        assert_non_null(ls_safetensors_metadata(file, "lockstep.version"));
        ls_safetensors_close(file);
        ls_model_destroy(a);
        ls_model_destroy(b);
    }
    ls_device_destroy(device);
}

/* Loading `path` fails with this text, and nothing has changed. */
static void expect_load_failure(ls_model *model, const char *path, ls_status status,
                                const char *part) {
    uint64_t hash = ls_model_hash(model);
    assert_int_equal(ls_model_load(model, path), status);
    assert_message(part);
    assert_message(path);
    assert_int_equal(ls_model_hash(model), hash);
}

static void files_of_other_models_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *file, *model, *part;
    } rows[] = {
        {"mlp:6,5,4", "mlp:6,5,3", "tensor fc2.bias has shape (4), model mlp:6,5,3 wants (3)"},
        {"mlp:6,5,4", "mlp:6,5,4,2", "no tensor fc3.bias, which model mlp:6,5,4,2 has"},
        {"mlp:6,5,4,2", "mlp:6,5,4",
         "tensor fc3.bias is not in model mlp:6,5,4; the file was saved from mlp:6,5,4,2"},
        {"mlp:6,5,4", GPT, "tensor fc1.bias is not in model gpt:"},
        {"gpt:layers=1,heads=1,width=4,context=3,vocab=5", GPT, "with 1 heads, model gpt:"},
    };
    ls_device *device = new_device();
    const char *path = in_folder("other.safetensors");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_model *saved = new_model(device, rows[i].file, 1);
        ls_model *model = new_model(device, rows[i].model, 2);
        assert_ok(ls_model_save(saved, path));
        expect_load_failure(model, path, LS_ERR_FORMAT, rows[i].part);
        ls_model_destroy(saved);
        ls_model_destroy(model);
    }
    ls_device_destroy(device);
}

static void missing_and_broken_files_change_nothing(void **state) {
    (void)state;
    ls_device *device = new_device();
    ls_model *model = new_model(device, "mlp:6,5,4", 2);
    expect_load_failure(model, in_folder("absent.safetensors"), LS_ERR_IO, "absent");
    const char *path = in_folder("cut.safetensors");
    assert_ok(ls_model_save(model, path));
    assert_int_equal(truncate(path, 300), 0);
    expect_load_failure(model, path, LS_ERR_FORMAT, "cut");
    assert_int_equal(ls_model_load(NULL, path), LS_ERR_ARGUMENT);
    assert_int_equal(ls_model_load(model, NULL), LS_ERR_ARGUMENT);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void unwritable_places_leave_nothing(void **state) {
    (void)state;
    ls_device *device = new_device();
    ls_model *model = new_model(device, "mlp:6,5,4", 2);
    assert_int_equal(ls_model_save(model, in_folder("no/such/folder.safetensors")), LS_ERR_IO);
    assert_message("no/such/folder.safetensors");
    assert_int_equal(ls_model_save(model, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_model_save(NULL, "x"), LS_ERR_ARGUMENT);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

/* Writes a gpt the way other libraries do: names prefixed, `extra` entries more. */
static void write_foreign(ls_model *model, const char *path, bool prefix,
                          const ls_safetensors_entry *extra, size_t extra_count) {
    static char names[64][64];
    ls_safetensors_entry entries[64];
    size_t n = 0;
    for (; n < ls_model_parameter_count(model); n++) {
        ls_parameter *p = ls_model_parameter(model, n);
        snprintf(names[n], sizeof names[n], "%s%s", prefix ? "transformer." : "", p->name);
        entries[n] = (ls_safetensors_entry){
            .name = names[n],
            .dtype = "F32",
            .dims = p->value.dims,
            .shape = p->value.shape,
            .data = p->value.data,
            .bytes = p->value.count * sizeof(float),
        };
    }
    for (size_t i = 0; i < extra_count; i++)
        entries[n++] = extra[i];
    assert_ok(ls__safetensors_write(path, entries, n, NULL, NULL, 0));
}

static void foreign_gpt2_files_are_taken(void **state) {
    (void)state;
    static const size_t mask_shape[4] = {1, 1, 3, 3};
    static const float mask[9] = {1, 0, 0, 1, 1, 0, 1, 1, 1}, low = -1e4F;
    ls_device *device = new_device();
    ls_model *a = new_model(device, GPT, 1), *b = new_model(device, GPT, 2);
    ls_parameter *wte = find_parameter(a, "wte.weight");
    const char *path = in_folder("foreign.safetensors");
    for (int prefix = 0; prefix < 2; prefix++) {
        const ls_safetensors_entry extra[3] = {
            {prefix ? "transformer.h.0.attn.bias" : "h.0.attn.bias", "F32", 4, mask_shape, mask,
             sizeof mask},
            {prefix ? "transformer.h.0.attn.masked_bias" : "h.0.attn.masked_bias", "F32", 0,
             mask_shape, &low, sizeof low},
            {"lm_head.weight", "F32", 2, wte->value.shape, wte->value.data,
             wte->value.count * sizeof(float)},
        };
        write_foreign(a, path, prefix, extra, 3);
        values_of(find_parameter(b, "ln_f.bias"))[0] = 7;
        assert_ok(ls_model_load(b, path));
        assert_int_equal(ls_model_hash(a), ls_model_hash(b));
    }
    ls_model_destroy(a);
    ls_model_destroy(b);
    ls_device_destroy(device);
}

static void foreign_files_that_do_not_fit_are_refused(void **state) {
    (void)state;
    ls_device *device = new_device();
    ls_model *a = new_model(device, GPT, 1), *b = new_model(device, GPT, 2);
    ls_parameter *wte = find_parameter(a, "wte.weight");
    float head[5 * 4];
    memcpy(head, wte->value.data, sizeof head);
    head[19] += 1;
    ls_safetensors_entry extra = {"lm_head.weight", "F32", 2, wte->value.shape, head, sizeof head};
    const char *path = in_folder("untied.safetensors");
    write_foreign(a, path, true, &extra, 1);
    expect_load_failure(b, path, LS_ERR_FORMAT,
                        "lm_head.weight differs from transformer.wte.weight");
    extra.name = "wte.weight";
    write_foreign(a, path, true, &extra, 1);
    expect_load_failure(b, path, LS_ERR_FORMAT, "are the same parameter");
    extra.name = "lm_head.weight";
    extra.dtype = "I32";
    write_foreign(a, path, true, &extra, 1);
    expect_load_failure(b, path, LS_ERR_FORMAT, "lm_head.weight is I32, model");
    ls_model_destroy(a);
    ls_model_destroy(b);
    ls_device_destroy(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_bits_come_back),
        cmocka_unit_test(files_of_other_models_are_refused),
        cmocka_unit_test(missing_and_broken_files_change_nothing),
        cmocka_unit_test(unwritable_places_leave_nothing),
        cmocka_unit_test(foreign_gpt2_files_are_taken),
        cmocka_unit_test(foreign_files_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
