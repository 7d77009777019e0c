/* Text at byte level: vocabulary, split, windows, messages. */
#include "data_files.h"

#include <lockstep/dataset.h>

static ls_status open_text(ls_dataset **dataset, const void *text, size_t size, size_t context) {
    write_file("text", text, size);
    char spec[600];
    snprintf(spec, sizeof spec, "text:%s", in_folder("text"));
    return ls_dataset_open(dataset, spec, context);
}

/* Any bytes, also 0 and 255; ids in rising order of the bytes. */
static void vocabulary_is_what_occurs(void **state) {
    (void)state;
    static const unsigned char text[24] = {'b', 0xff, 0, 'a', 'b', 'b', 'z', '\n', 0xc3, 0xa4};
    ls_dataset *dataset;
    assert_int_equal(open_text(&dataset, text, sizeof text, 4), LS_OK);
    static const unsigned char want[8] = {0, '\n', 'a', 'b', 'z', 0xa4, 0xc3, 0xff};
    assert_int_equal(ls_dataset_classes(dataset), 8);
    assert_memory_equal(ls_dataset_vocabulary(dataset), want, 8);
    assert_int_equal(ls_dataset_get_kind(dataset), LS_TOKENS);
    size_t shape[3];
    assert_int_equal(ls_dataset_sample_shape(dataset, shape), 1);
    assert_int_equal(shape[0], 4);
    uint64_t first = 0;
    int32_t input[4], target[4];
    assert_int_equal(ls_dataset_read(dataset, LS_TRAIN, &first, 1, input, target, NULL), LS_OK);
    assert_memory_equal(input, ((int32_t[]){3, 7, 0, 2}), sizeof input);
    assert_memory_equal(target, ((int32_t[]){7, 0, 2, 3}), sizeof target);
    ls_dataset_close(dataset);
}

/* For many sizes and contexts: floor(0.9 n) tokens train, every window is inside them, and each
 * validation target is counted once. */
static void split_and_windows(void **state) {
    (void)state;
    unsigned char text[256];
    for (int i = 0; i < 256; i++)
        text[i] = (unsigned char)i;
    for (size_t size = 20; size <= 256; size += 3)
        for (size_t context = 1; context <= 12; context++) {
            ls_dataset *dataset;
            assert_int_equal(open_text(&dataset, text, size, context), LS_OK);
            size_t train = size * 9 / 10, held = size - train;
            assert_int_equal(ls_dataset_count(dataset, LS_TRAIN), train - context);
            int32_t input[12], target[12];
            uint64_t sample = train - context - 1;
            double weight;
            assert_int_equal(ls_dataset_read(dataset, LS_TRAIN, &sample, 1, input, target, &weight),
                             LS_OK);
            assert_true(weight == (double)context);
            assert_int_equal(target[context - 1], train - 1); /* ids are positions here */
            size_t windows = ls_dataset_count(dataset, LS_VALIDATION), next = train;
            assert_int_equal(windows, (held - 1 + context - 1) / context);
            for (sample = 0; sample < windows; sample++) {
                assert_int_equal(
                    ls_dataset_read(dataset, LS_VALIDATION, &sample, 1, input, target, &weight),
                    LS_OK);
                size_t counted = 0;
                for (size_t i = 0; i < context; i++) {
                    bool padded = next == size - 1;
                    assert_int_equal(input[i], padded ? 0 : (int)next);
                    assert_int_equal(target[i], padded ? -1 : (int)next + 1);
                    counted += !padded;
                    next += !padded;
                }
                assert_true(weight == (double)counted && counted > 0);
            }
            assert_int_equal(next, size - 1);
            ls_dataset_close(dataset);
        }
}

static void rows_stand_side_by_side(void **state) {
    (void)state;
    unsigned char text[100];
    for (int i = 0; i < 100; i++)
        text[i] = (unsigned char)i;
    ls_dataset *dataset;
    assert_int_equal(open_text(&dataset, text, 100, 3), LS_OK);
    uint64_t samples[2] = {50, 7};
    int32_t input[2][3], target[2][3];
    double weight;
    assert_int_equal(ls_dataset_read(dataset, LS_TRAIN, samples, 2, input, &target[0][0], &weight),
                     LS_OK);
    assert_memory_equal(input, ((int32_t[]){50, 51, 52, 7, 8, 9}), sizeof input);
    assert_memory_equal(target, ((int32_t[]){51, 52, 53, 8, 9, 10}), sizeof target);
    assert_true(weight == 6);
    ls_dataset_close(dataset);
}

static void bad_texts_are_refused(void **state) {
    (void)state;
    static const unsigned char text[1000] = {0};
    ls_dataset *dataset;
    assert_int_equal(open_text(&dataset, text, 0, 4), LS_ERR_FORMAT);
    assert_message("is empty");
    assert_message(in_folder("text"));
    /* floor(0.9 * 20) = 18 = context + 2 is enough, one more is not */
    assert_int_equal(open_text(&dataset, text, 20, 16), LS_OK);
    assert_int_equal(ls_dataset_count(dataset, LS_TRAIN), 2);
    ls_dataset_close(dataset);
    assert_int_equal(open_text(&dataset, text, 20, 17), LS_ERR_RANGE);
    assert_null(dataset);
    assert_message("its 20 bytes leave 18 to train on, want at least 19 for a context of 17");
    assert_int_equal(open_text(&dataset, text, 10, 4), LS_ERR_RANGE);
    assert_message("its 10 bytes leave 1 to validate on, want at least 2");
    assert_int_equal(open_text(&dataset, text, 1000, SIZE_MAX / 16), LS_ERR_RANGE);
    assert_int_equal(open_text(&dataset, text, 1000, SIZE_MAX), LS_ERR_ARGUMENT);
    assert_int_equal(open_text(&dataset, text, 1000, 0), LS_ERR_ARGUMENT);
    assert_message("context is 0");
}

static void not_a_file(void **state) {
    (void)state;
    ls_dataset *dataset;
    assert_int_equal(ls_dataset_open(&dataset, "text:/no/such/file", 4), LS_ERR_IO);
    assert_message("/no/such/file: cannot open: No such file");
    assert_int_equal(ls_dataset_open(&dataset, "text:/tmp", 4), LS_ERR_IO);
    assert_message("/tmp: is a folder, want a file");
    assert_int_equal(ls_dataset_open(&dataset, "text:/dev/null", 4), LS_ERR_IO);
    assert_message("want a regular file");
    char spec[600];
    snprintf(spec, sizeof spec, "text:%s", in_folder("pipe"));
    assert_int_equal(mkfifo(spec + 5, 0600), 0); /* must not wait for a writer */
    assert_int_equal(ls_dataset_open(&dataset, spec, 4), LS_ERR_IO);
    assert_message("want a regular file");
    if (geteuid() != 0) { /* root reads everything */
        write_file("secret", "x", 1);
        snprintf(spec, sizeof spec, "text:%s", in_folder("secret"));
        chmod(spec + 5, 0);
        assert_int_equal(ls_dataset_open(&dataset, spec, 4), LS_ERR_IO);
        assert_message("Permission denied");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocabulary_is_what_occurs),
        cmocka_unit_test(split_and_windows),
        cmocka_unit_test(rows_stand_side_by_side),
        cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test(not_a_file),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
