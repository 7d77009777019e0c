/* Reading safetensors: small files made here, and the shared collection of valid and hostile ones. */
#include "data_files.h"

#include "checkpoint/safetensors.h"

static unsigned char image[200000];
static size_t image_size;

/* A file of this header and `data_size` bytes 1, 2, 3, ... */
static void make(const char *json, size_t data_size) {
    size_t n = strlen(json);
    assert_true(8 + n + data_size <= sizeof image);
    for (int i = 0; i < 8; i++)
        image[i] = (unsigned char)(n >> (8 * i));
    memcpy(image + 8, json, n);
    for (size_t i = 0; i < data_size; i++)
        image[8 + n + i] = (unsigned char)(i + 1);
    image_size = 8 + n + data_size;
}

/* Parses a copy without a byte to spare, so that the address sanitizer sees any step beyond. */
static ls_status parse(ls_safetensors **file) {
    static unsigned char *copy;
    free(copy);
    copy = malloc(image_size ? image_size : 1);
    memcpy(copy, image, image_size);
    return ls__safetensors_parse(file, copy, image_size, "some.safetensors");
}

static void expect_refusal(const char *json, size_t data_size, const char *message) {
    make(json, data_size);
    ls_safetensors *file;
    ls_status status = parse(&file);
    if (status != LS_ERR_FORMAT)
        fail_msg("%s: got %s", json, ls_status_name(status));
    assert_null(file);
    assert_message("some.safetensors: ");
    assert_message(message);
}

static ls_safetensors *expect_good(const char *json, size_t data_size) {
    make(json, data_size);
    ls_safetensors *file;
    if (parse(&file) != LS_OK)
        fail_msg("%s: %s", json, ls_error_text());
    return file;
}

/* --- what is right ------------------------------------------------------------------------------ */

static void reads_tensors_in_order_of_data(void **state) {
    (void)state;
    ls_safetensors *f =
        expect_good("  {\"second\":{\"dtype\":\"F32\",\"shape\":[2,3],"
                    "\"data_offsets\":[3,27]},\n\"first\":{\"shape\":[3],"
                    "\"data_offsets\":[0,3],\"dtype\":\"U8\"},\"__metadata__\":"
                    "{\"lockstep.model\":\"mlp:2,3\"},\"scalar\":{\"dtype\":\"I16\","
                    "\"shape\":[],\"data_offsets\":[27,29]},\"none\":{\"dtype\":"
                    "\"F64\",\"shape\":[7,0],\"data_offsets\":[27,27]}}   ",
                    29);
    static const char *const names[4] = {"first", "second", "none", "scalar"};
    static const size_t bytes[4] = {3, 24, 0, 2}, dims[4] = {1, 2, 2, 0};
    assert_int_equal(ls_safetensors_count(f), 4);
    for (size_t i = 0; i < 4; i++) {
        const ls_safetensors_entry *e = ls_safetensors_get(f, i);
        assert_string_equal(e->name, names[i]);
        assert_int_equal(e->bytes, bytes[i]);
        assert_int_equal(e->dims, dims[i]);
        assert_ptr_equal(ls_safetensors_find(f, names[i]), e);
    }
    const ls_safetensors_entry *e = ls_safetensors_find(f, "second");
    assert_string_equal(e->dtype, "F32");
    assert_int_equal(e->shape[0], 2);
    assert_int_equal(e->shape[1], 3);
    assert_int_equal(((const unsigned char *)e->data)[0], 4);
    assert_null(ls_safetensors_find(f, "third"));
    assert_null(ls_safetensors_get(f, 4));
    assert_string_equal(ls_safetensors_metadata(f, "lockstep.model"), "mlp:2,3");
    assert_null(ls_safetensors_metadata(f, "other"));
    ls_safetensors_close(f);
}

static void reads_empty_forms(void **state) {
    (void)state;
    static const char *const forms[] = {"{}", " {} ", "{\"__metadata__\":{}}",
                                        "{\"__metadata__\":null}"};
    for (size_t i = 0; i < 4; i++) {
        ls_safetensors *f = expect_good(forms[i], 0);
        assert_int_equal(ls_safetensors_count(f), 0);
        assert_null(ls_safetensors_find(f, ""));
        assert_null(ls_safetensors_metadata(f, "x"));
        ls_safetensors_close(f);
    }
    ls_safetensors_close(NULL);
}

static void unusual_names_and_fields(void **state) {
    (void)state;
    ls_safetensors *f = expect_good("{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],"
                                    "\"extra\":[{}]},\"a b\\\"\\\\\\u00e4\":{\"dtype\":\"F4\","
                                    "\"shape\":[2],\"data_offsets\":[1,2]}}",
                                    2);
    assert_non_null(ls_safetensors_find(f, ""));
    assert_non_null(ls_safetensors_find(f, "a b\"\\\xc3\xa4"));
    ls_safetensors_close(f);
}

/* --- what is wrong ------------------------------------------------------------------------------ */

#define T(fields) "{\"t\":{" fields "}}"
#define U8 "\"dtype\":\"U8\","

static void bad_tensors_are_refused(void **state) {
    (void)state;
    expect_refusal(T("\"shape\":[1],\"data_offsets\":[0,1]"), 1, "dtype is \"\"");
    expect_refusal(T("\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]"), 4,
                   "tensor \"t\": dtype is \"f32\"");
    expect_refusal(T(U8 "\"data_offsets\":[0,1]"), 1, "no \"shape\"");
    expect_refusal(T(U8 "\"shape\":1,\"data_offsets\":[0,1]"), 1, "no \"shape\"");
    expect_refusal(T(U8 "\"shape\":[1,-1],\"data_offsets\":[0,1]"), 1, "dimension 1");
    expect_refusal(T(U8 "\"shape\":[1.0],\"data_offsets\":[0,1]"), 1, "dimension 0");
    expect_refusal(T(U8 "\"shape\":[true],\"data_offsets\":[0,1]"), 1, "dimension 0");
    expect_refusal(T(U8 "\"shape\":[1]"), 1, "no \"data_offsets\"");
    expect_refusal(T(U8 "\"shape\":[1],\"data_offsets\":[0]"), 1, "no \"data_offsets\"");
    expect_refusal(T(U8 "\"shape\":[1],\"data_offsets\":[0,1,1]"), 1, "no \"data_offsets\"");
    expect_refusal(T(U8 "\"shape\":[1],\"data_offsets\":[0,1e0]"), 1, "no \"data_offsets\"");
    expect_refusal(T(U8 "\"shape\":[1],\"data_offsets\":[0,\"1\"]"), 1, "no \"data_offsets\"");
    expect_refusal(T(U8 "\"shape\":[1],\"data_offsets\":[1,0]"), 1, "data_offsets are 1 to 0");
    expect_refusal(T(U8 "\"shape\":[2],\"data_offsets\":[0,2]"), 1,
                   "data_offsets are 0 to 2, but there are 1 bytes");
    expect_refusal(T(U8 "\"shape\":[2],\"data_offsets\":[0,1]"), 1,
                   "span 1 bytes, but its shape and dtype want 2");
    expect_refusal(T(U8 "\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0, "2^64");
    expect_refusal(T(U8 "\"shape\":[4294967296,4294967296,0],\"data_offsets\":[0,0]"), 0, "2^64");
    expect_refusal(T("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]"), 1, "no whole bytes");
    expect_refusal("{\"t\":null}", 0, "tensor \"t\" is no JSON object");
    expect_refusal("{\"t\":[\"U8\",[1],[0,1]]}", 1, "tensor \"t\" is no JSON object");
    expect_refusal("{\"__metadata__\":{\"k\":1}}", 0, "metadata \"k\" is no text");
    expect_refusal("{\"__metadata__\":[]}", 0, "\"__metadata__\" is no JSON object");
}

#define TWO(a, b)                                                                                  \
    "{\"a\":{" U8 "\"shape\":[4],\"data_offsets\":" a "},\"b\":{" U8                               \
    "\"shape\":[4],\"data_offsets\":" b "}}"

static void holes_and_overlaps_are_refused(void **state) {
    (void)state;
    ls_safetensors_close(expect_good(TWO("[4,8]", "[0,4]"), 8));
    expect_refusal(TWO("[0,4]", "[0,4]"), 4, "it overlaps the one before");
    expect_refusal(TWO("[0,4]", "[3,7]"), 7, "begins at byte 3 of the data, want 4");
    expect_refusal(TWO("[0,4]", "[5,9]"), 9, "there is a hole");
    expect_refusal(TWO("[1,5]", "[5,9]"), 9, "there is a hole");
    expect_refusal(TWO("[0,4]", "[4,8]"), 9, "has 9 bytes of data, but its tensors end at 8");
    expect_refusal("{}", 1, "has 1 bytes of data, but its tensors end at 0");
}

static void bad_headers_are_refused(void **state) {
    (void)state;
    expect_refusal("", 0, "no valid JSON");
    expect_refusal("   ", 0, "no valid JSON");
    expect_refusal("[]", 0, "no JSON object");
    expect_refusal("{}{}", 0, "no valid JSON");
    expect_refusal("\xef\xbb\xbf{}", 0, "no valid JSON");
    expect_refusal("{'a':1}", 0, "no valid JSON");
    expect_refusal("{\"\xff\":1}", 0, "no valid JSON");
    expect_refusal("{\"a\\u0000b\":{" U8 "\"shape\":[0],\"data_offsets\":[0,0]}}", 0,
                   "no valid JSON");
    expect_refusal("{\"a\":{},\"a\":{}}", 0, "duplicate");
    expect_refusal("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "duplicate");
    expect_refusal(T(U8 "\"shape\":[18446744073709551616],\"data_offsets\":[0,0]"), 0,
                   "no valid JSON");
    ls_safetensors *file;
    for (image_size = 0; image_size < 8; image_size++) {
        assert_int_equal(parse(&file), LS_ERR_FORMAT);
        assert_message("want at least 8");
    }
    make("{}", 0);
    image[0] = 3;
    assert_int_equal(parse(&file), LS_ERR_FORMAT);
    assert_message("has 10 bytes, but its header says it ends at byte 11: cut off");
    memset(image, 0xff, 8);
    assert_int_equal(parse(&file), LS_ERR_FORMAT);
    assert_message("18446744073709551615 bytes long, want at most 100000000");
}

/* Nested deeper than any stack: refused, not crashed. */
static void deep_nesting_is_refused(void **state) {
    (void)state;
    static char json[150000];
    memset(json, '[', sizeof json - 1);
    expect_refusal(json, 0, "no valid JSON");
}

static void opens_files(void **state) {
    (void)state;
    ls_safetensors *file;
    make(T(U8 "\"shape\":[3],\"data_offsets\":[0,3]"), 3);
    write_file("good.safetensors", image, image_size);
    assert_int_equal(ls_safetensors_open(&file, in_folder("good.safetensors")), LS_OK);
    assert_memory_equal(ls_safetensors_get(file, 0)->data, "\1\2\3", 3);
    ls_safetensors_close(file);
    write_file("empty.safetensors", "", 0);
    assert_int_equal(ls_safetensors_open(&file, in_folder("empty.safetensors")), LS_ERR_FORMAT);
    assert_null(file);
    assert_int_equal(ls_safetensors_open(&file, folder), LS_ERR_IO);
    assert_message("is a folder");
    assert_int_equal(ls_safetensors_open(&file, in_folder("none")), LS_ERR_IO);
    assert_message("cannot open");
    assert_int_equal(ls_safetensors_open(&file, NULL), LS_ERR_ARGUMENT);
}

/* --- the shared collection ---------------------------------------------------------------------- */

/* Valid by the reference reader, refused here on purpose (see safetensors.c). */
static bool refused_on_purpose(const char *name) {
    return strstr(name, "m_nul_in_name") || strstr(name, "m_zero_dim_huge_dim");
}

static void shared_collection(void **state) {
    (void)state;
    const char *list = shared_data("safetensors/CASES.tsv");
    if (!list)
        skip();
    FILE *cases = fopen(list, "r");
    assert_non_null(cases);
    char line[4096], name[256], verdict[256];
    size_t seen = 0;
    while (fgets(line, sizeof line, cases)) {
        char path[1024], part[300];
        if (sscanf(line, "%255[^\t]\t%*[^\t]\t%255[^\t]", name, verdict) != 2 ||
            strcmp(name, "file") == 0)
            continue;
        snprintf(part, sizeof part, "safetensors/%s", name);
        const char *found = shared_data(part);
        assert_non_null(found);
        snprintf(path, sizeof path, "%s", found);
        bool good = strncmp(verdict, "accept", 6) == 0 && !refused_on_purpose(name);
        ls_safetensors *file;
        ls_status status = ls_safetensors_open(&file, path);
        if (status != (good ? LS_OK : LS_ERR_FORMAT))
            fail_msg("%s: %s (%s), the verdict is %s", name, ls_status_name(status),
                     ls_error_text(), verdict);
        ls_safetensors_close(file);
        seen++;
    }
    fclose(cases);
    assert_true(seen > 80);
}

static void shared_checkpoints(void **state) {
    (void)state;
    static const char *const names[] = {"fake_gpt2", "mnist_mlp", "ref_gpt2"};
    for (size_t i = 0; i < 3; i++) {
        char part[64];
        snprintf(part, sizeof part, "checkpoints/%s/model.safetensors", names[i]);
        const char *path = shared_data(part);
        if (!path)
            skip();
        ls_safetensors *file;
        if (ls_safetensors_open(&file, path) != LS_OK)
            fail_msg("%s", ls_error_text());
        assert_true(ls_safetensors_count(file) > 3);
        ls_safetensors_close(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_tensors_in_order_of_data),
        cmocka_unit_test(reads_empty_forms),
        cmocka_unit_test(unusual_names_and_fields),
        cmocka_unit_test(bad_tensors_are_refused),
        cmocka_unit_test(holes_and_overlaps_are_refused),
        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(opens_files),
        cmocka_unit_test(shared_collection),
        cmocka_unit_test(shared_checkpoints),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
