/* The real data sets, where they are: MNIST, Fashion-MNIST, tiny Shakespeare. */
#include "data_files.h"

#include "data/dataset.h"
#include <lockstep/dataset.h>
#include <math.h>

static void check_images(const char *spec, double want_mean, double want_deviation,
                         const int32_t first_labels[5]) {
    ls_dataset *dataset;
    if (ls_dataset_open(&dataset, spec, 0) != LS_OK)
        fail_msg("%s", ls_error_text());
    assert_int_equal(ls_dataset_count(dataset, LS_TRAIN), 60000);
    assert_int_equal(ls_dataset_count(dataset, LS_VALIDATION), 10000);
    size_t shape[3];
    assert_int_equal(ls_dataset_sample_shape(dataset, shape), 3);
    assert_int_equal(shape[1], 28);
    assert_int_equal(shape[2], 28);
    double mean, deviation;
    ls__images_statistics(dataset, &mean, &deviation);
    assert_true(fabs(mean - want_mean) < 5e-6);
    assert_true(fabs(deviation - want_deviation) < 5e-6);
    static const uint64_t samples[5] = {0, 1, 2, 3, 4};
    static float input[5 * 28 * 28];
    int32_t target[5];
    assert_int_equal(ls_dataset_read(dataset, LS_TRAIN, samples, 5, input, target, NULL), LS_OK);
    assert_memory_equal(target, first_labels, sizeof target);
    assert_true(fabs(input[0] + mean / deviation) < 1e-5); /* the corner is background */
    ls_dataset_close(dataset);
}

static void mnist(void **state) {
    (void)state;
    const char *path = shared_data("images/mnist");
    if (!path)
        skip();
    char spec[1100];
    snprintf(spec, sizeof spec, "mnist:%s", path);
    check_images(spec, 0.13066, 0.30811, (int32_t[]){5, 0, 4, 1, 9});
}

static void fashion_mnist(void **state) {
    (void)state;
    if (access("/usr/share/datasets/fashion-mnist", R_OK) != 0) {
        ls_dataset *dataset;
        assert_int_equal(ls_dataset_open(&dataset, "fashion-mnist", 0), LS_ERR_IO);
        assert_message("apt-get install dataset-fashion-mnist");
        print_message("skipped: package dataset-fashion-mnist is not installed\n");
        skip();
    }
    check_images("fashion-mnist", 0.28604, 0.35302, (int32_t[]){9, 0, 0, 3, 0});
}

static void tiny_shakespeare(void **state) {
    (void)state;
    const char *path = shared_data("text/tinyshakespeare.txt");
    if (!path)
        skip();
    char spec[1100];
    snprintf(spec, sizeof spec, "text:%s", path);
    ls_dataset *dataset;
    if (ls_dataset_open(&dataset, spec, 64) != LS_OK)
        fail_msg("%s", ls_error_text());
    assert_int_equal(ls_dataset_classes(dataset), 65);
    assert_int_equal(ls_dataset_count(dataset, LS_TRAIN), 1003854 - 64);
    assert_int_equal(ls_dataset_count(dataset, LS_VALIDATION), (111540 - 1 + 63) / 64);
    uint64_t first = 0;
    int32_t input[64], target[64];
    assert_int_equal(ls_dataset_read(dataset, LS_TRAIN, &first, 1, input, target, NULL), LS_OK);
    const unsigned char *vocabulary = ls_dataset_vocabulary(dataset);
    for (int i = 0; i < 13; i++)
        assert_int_equal(vocabulary[input[i]], "First Citizen"[i]);
    ls_dataset_close(dataset);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mnist),
        cmocka_unit_test(fashion_mnist),
        cmocka_unit_test(tiny_shakespeare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
