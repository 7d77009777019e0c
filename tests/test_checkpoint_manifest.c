/* The manifest of a checkpoint: what is written comes back; what anybody may have written is refused with the
 * reason. */
#include "data_files.h"

#include "checkpoint/manifest.h"
#include <jansson.h>
#include <math.h>
#include <xxhash.h>

static char *good_text(void) {
    ls__manifest_part parts[2] = {{0, 100, 1}, {100, 28, 0xfedcba9876543210}};
    ls__manifest_file file = {
        .name = (char[]){"model.safetensors"}, .bytes = 128, .parts = parts, .part_count = 2};
    char *names[] = {(char[]){"--lr"}}, *values[] = {(char[]){"0.1"}};
    const ls__manifest m = {.progress = {.step = 7,
                                         .epoch = 1,
                                         .position = 64,
                                         .seed = 9,
                                         .shards = 4,
                                         .train_loss = 1.0 / 3,
                                         .val_loss = NAN,
                                         .best_loss = 1e-17},
                            .world_size = 2,
                            .files = &file,
                            .file_count = 1,
                            .fact_names = names,
                            .fact_values = values,
                            .fact_count = 1};
    return ls__manifest_text(&m);
}

static void what_is_written_comes_back(void **state) {
    (void)state;
    char *text = good_text();
    ls__manifest m;
    assert_non_null(text);
    assert_int_equal(ls__manifest_parse(&m, text, strlen(text), "m.json"), LS_OK);
    assert_int_equal(m.progress.step, 7);
    assert_int_equal(m.progress.position, 64);
    assert_int_equal(m.progress.shards, 4);
    assert_true(m.progress.train_loss == 1.0 / 3 && isnan(m.progress.val_loss));
    assert_true(m.progress.best_loss == 1e-17);
    assert_int_equal(m.world_size, 2);
    assert_int_equal(m.files[0].part_count, 2);
    assert_true(m.files[0].parts[1].hash == 0xfedcba9876543210);
    assert_string_equal(m.fact_values[0], "0.1");
    ls__manifest_free(&m);
    free(text);
}

static void every_changed_digit_is_noticed(void **state) {
    (void)state;
    char *text = good_text();
    size_t size = strlen(text), changed = 0;
    json_t *root = json_loads(text, 0, NULL);
    for (size_t i = 0; i < size; i++) {
        char before = text[i];
        if (before < '0' || before > '8')
            continue;
        text[i]++;
        /* the last digit of a loss may round to the same number */
        json_t *other = json_loads(text, 0, NULL);
        if (!json_equal(root, other)) {
            ls__manifest m;
            assert_int_equal(ls__manifest_parse(&m, text, size, "m.json"), LS_ERR_FORMAT);
            changed++;
        }
        json_decref(other);
        text[i] = before;
    }
    assert_true(changed > 40);
    json_decref(root);
    /* every cut is refused too */
    for (size_t cut = 0; cut < size; cut++) {
        ls__manifest m;
        assert_int_equal(ls__manifest_parse(&m, text, cut, "m.json"), LS_ERR_FORMAT);
    }
    free(text);
}

/* `value` (JSON) at `key` of the file's entry or, with file false, of the manifest; checksum made right. */
static void refused(bool file, const char *key, const char *value, const char *message) {
    char *good = good_text();
    json_t *root = json_loads(good, 0, NULL), *object = root;
    if (file)
        object = json_array_get(json_object_get(root, "files"), 0);
    json_t *made = json_loads(value, JSON_DECODE_ANY, NULL);
    assert_non_null(made);
    json_object_set_new(object, key, made);
    json_object_del(root, "xxh64");
    char *plain = json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17)),
         hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH64(plain, strlen(plain), 0));
    json_object_set_new(root, "xxh64", json_string(hash));
    char *text = json_dumps(root, JSON_REAL_PRECISION(17));
    ls__manifest m;
    ls_status status = ls__manifest_parse(&m, text, strlen(text), "m.json");
    if (status != LS_ERR_FORMAT)
        fail_msg("%s = %s: %s", key, value, ls_status_name(status));
    if (!strstr(ls_error_text(), message))
        fail_msg("%s = %s: message is %s", key, value, ls_error_text());
    free(text);
    free(plain);
    free(good);
    json_decref(root);
}

static void hostile_ones_are_refused(void **state) {
    (void)state;
    refused(false, "format", "\"other\"", "\"format\" is not");
    refused(false, "version", "2", "version is 2, this lockstep reads 1");
    refused(false, "step", "-1", "\"step\" is no whole number");
    refused(false, "step", "1.5", "\"step\" is no whole number");
    refused(false, "epoch", "\"1\"", "\"epoch\" is no whole number");
    refused(false, "val_loss", "\"low\"", "\"val_loss\" is neither");
    refused(false, "facts", "[]", "\"facts\" is no object");
    refused(false, "facts", "{\"a\": 1}", "fact \"a\" is no text");
    refused(false, "files", "[]", "\"files\" is no list of 1 to 64");
    refused(false, "files", "{}", "\"files\" is no list of 1 to 64");
    refused(true, "name", "\"../../etc/passwd\"", "want a plain name");
    refused(true, "name", "\"/etc/passwd\"", "want a plain name");
    refused(true, "name", "\"..\"", "want a plain name");
    refused(true, "name", "\"\"", "want a plain name");
    refused(true, "name", "\"manifest.json\"", "want a plain name");
    refused(true, "bytes", "129", "its parts end at byte 128 of 129");
    refused(true, "bytes", "9223372036854775807", "its parts end at byte 128");
    refused(true, "bytes", "100", "want it to follow on byte 100 of 100");
    refused(true, "parts", "1", "has no \"parts\"");
    refused(true, "parts", "[{\"offset\": 1, \"bytes\": 127, \"xxh64\": \"0000000000000000\"}]",
            "want it to follow on byte 0");
    refused(true, "parts", "[{\"offset\": 0, \"bytes\": 0, \"xxh64\": \"0000000000000000\"}]",
            "part 0 is 0 bytes");
    refused(true, "parts", "[{\"offset\": 0, \"bytes\": 128, \"xxh64\": \"00\"}]", "of 16 digits");
}

static void deep_and_large_ones_are_refused(void **state) {
    (void)state;
    ls__manifest m;
    size_t size = (size_t)LS__MANIFEST_MAX_BYTES + 1;
    char *text = malloc(size);
    memset(text, '[', size);
    assert_int_equal(ls__manifest_parse(&m, text, size, "m.json"), LS_ERR_FORMAT);
    assert_non_null(strstr(ls_error_text(), "want at most"));
    assert_int_equal(ls__manifest_parse(&m, text, size - 1, "m.json"), LS_ERR_FORMAT);
    assert_non_null(strstr(ls_error_text(), "maximum parsing depth"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(every_changed_digit_is_noticed),
        cmocka_unit_test(hostile_ones_are_refused),
        cmocka_unit_test(deep_and_large_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
