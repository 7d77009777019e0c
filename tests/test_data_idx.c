/* IDX files: what is right is read, what is wrong is refused with a message that says what. */
#include "data_files.h"

#include "data/dataset.h"
#include "data/idx.h"
#include <lockstep/dataset.h>
#include <math.h>
#ifdef LOCKSTEP_WITH_ZLIB
#include <zlib.h>
#endif

enum { TRAIN = 12, TEST = 5, HEIGHT = 3, WIDTH = 2, PIXELS = HEIGHT * WIDTH };

typedef struct bytes {
    unsigned char data[4096];
    size_t size;
} bytes;

static void put32(bytes *b, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8)
        b->data[b->size++] = (unsigned char)(value >> shift);
}

static bytes make_images(uint32_t count, uint32_t height, uint32_t width) {
    bytes b = {.size = 0};
    put32(&b, 0x803);
    put32(&b, count);
    put32(&b, height);
    put32(&b, width);
    for (uint32_t i = 0; i < count * height * width; i++)
        b.data[b.size++] = (unsigned char)(i * 37);
    return b;
}

static bytes make_labels(uint32_t count) {
    bytes b = {.size = 0};
    put32(&b, 0x801);
    put32(&b, count);
    for (uint32_t i = 0; i < count; i++)
        b.data[b.size++] = (unsigned char)(i % 10);
    return b;
}

static void put_file(const char *name, bytes b) {
    write_file(name, b.data, b.size);
}

#define TRAIN_IMAGES "train-images-idx3-ubyte"
#define TRAIN_LABELS "train-labels-idx1-ubyte"
#define TEST_IMAGES "t10k-images-idx3-ubyte"
#define TEST_LABELS "t10k-labels-idx1-ubyte"

static void make_good_folder(void) {
    put_file(TRAIN_IMAGES, make_images(TRAIN, HEIGHT, WIDTH));
    put_file(TRAIN_LABELS, make_labels(TRAIN));
    put_file(TEST_IMAGES, make_images(TEST, HEIGHT, WIDTH));
    put_file(TEST_LABELS, make_labels(TEST));
}

static ls_status open_folder(ls_dataset **dataset) {
    char spec[128];
    snprintf(spec, sizeof spec, "idx:%s", folder);
    return ls_dataset_open(dataset, spec, 0);
}

static void expect_refusal(ls_status want, const char *message) {
    ls_dataset *dataset;
    ls_status status = open_folder(&dataset);
    if (status != want)
        fail_msg("got %s, want %s (\"%s\")", ls_status_name(status), ls_status_name(want), message);
    assert_null(dataset);
    assert_message(message);
    assert_message(folder);
}

/* --- what is right ------------------------------------------------------------------------------ */

static void check_good_dataset(const ls_dataset *dataset) {
    assert_int_equal(ls_dataset_get_kind(dataset), LS_IMAGES);
    assert_int_equal(ls_dataset_count(dataset, LS_TRAIN), TRAIN);
    assert_int_equal(ls_dataset_count(dataset, LS_VALIDATION), TEST);
    assert_int_equal(ls_dataset_classes(dataset), 10);
    assert_null(ls_dataset_vocabulary(dataset));
    size_t shape[3];
    assert_int_equal(ls_dataset_sample_shape(dataset, shape), 3);
    assert_int_equal(shape[0], 1);
    assert_int_equal(shape[1], HEIGHT);
    assert_int_equal(shape[2], WIDTH);

    double sum = 0, squares = 0, mean, deviation;
    for (int i = 0; i < TRAIN * PIXELS; i++) {
        double x = (i * 37) % 256 / 255.0;
        sum += x;
        squares += x * x;
    }
    double want_mean = sum / (TRAIN * PIXELS);
    double want_deviation = sqrt(squares / (TRAIN * PIXELS) - want_mean * want_mean);
    ls__images_statistics(dataset, &mean, &deviation);
    assert_true(fabs(mean - want_mean) < 1e-12);
    assert_true(fabs(deviation - want_deviation) < 1e-12);

    static const uint64_t samples[3] = {4, 0, 4};
    float input[3][PIXELS];
    int32_t target[3];
    double weight;
    for (int split = 0; split < 2; split++) {
        assert_int_equal(
            ls_dataset_read(dataset, (ls_split)split, samples, 3, input, target, &weight), LS_OK);
        assert_true(weight == 3);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(target[i], samples[i]);
            for (int j = 0; j < PIXELS; j++) {
                int byte = ((int)samples[i] * PIXELS + j) * 37 % 256;
                double want = (byte / 255.0 - want_mean) / want_deviation;
                assert_true(fabs(input[i][j] - want) < 1e-6);
            }
        }
    }
}

static void reads_a_plain_folder(void **state) {
    (void)state;
    make_good_folder();
    ls_dataset *dataset;
    assert_int_equal(open_folder(&dataset), LS_OK);
    check_good_dataset(dataset);
    uint64_t beyond = TRAIN;
    float input[PIXELS];
    int32_t target;
    assert_int_equal(ls_dataset_read(dataset, LS_TRAIN, &beyond, 1, input, &target, NULL),
                     LS_ERR_ARGUMENT);
    assert_message("sample 12, want less than 12");
    assert_int_equal(ls_dataset_read(dataset, LS_TRAIN, NULL, 0, NULL, NULL, NULL), LS_OK);
    ls_dataset_close(dataset);
    ls_dataset_close(NULL);
}

static void equal_pixels_become_zero(void **state) {
    (void)state;
    make_good_folder();
    bytes b = make_images(TRAIN, HEIGHT, WIDTH);
    memset(b.data + 16, 7, b.size - 16);
    put_file(TRAIN_IMAGES, b);
    ls_dataset *dataset;
    assert_int_equal(open_folder(&dataset), LS_OK);
    uint64_t sample = 0;
    float input[PIXELS];
    int32_t target;
    assert_int_equal(ls_dataset_read(dataset, LS_TRAIN, &sample, 1, input, &target, NULL), LS_OK);
    assert_true(fabsf(input[0]) < 1e-6f);
    ls_dataset_close(dataset);
}

/* --- what is wrong ------------------------------------------------------------------------------ */

static void missing_files_are_named(void **state) {
    (void)state;
    static const char *const names[4] = {TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS};
    for (int i = 0; i < 4; i++) {
        make_good_folder();
        unlink(in_folder(names[i]));
        char message[64];
        snprintf(message, sizeof message, "/%s: not found, nor with .gz", names[i]);
        expect_refusal(LS_ERR_IO, message);
        for (int j = 0; j < 4; j++)
            assert_message(names[j]);
    }
    ls_dataset *dataset;
    assert_int_equal(ls_dataset_open(&dataset, "mnist:/no/such/folder", 0), LS_ERR_IO);
    assert_message("/no/such/folder/train-images-idx3-ubyte");
}

static void a_folder_in_place_of_a_file(void **state) {
    (void)state;
    make_good_folder();
    unlink(in_folder(TEST_LABELS));
    assert_int_equal(mkdir(in_folder(TEST_LABELS), 0700), 0);
    expect_refusal(LS_ERR_IO, "is a folder, want a file");
    rmdir(in_folder(TEST_LABELS));
}

static void wrong_files_are_refused(void **state) {
    (void)state;
    bytes b;
#define CASE(file, message)                                                                        \
    do {                                                                                           \
        make_good_folder();                                                                        \
        put_file(file, b);                                                                         \
        expect_refusal(LS_ERR_FORMAT, message);                                                    \
        assert_message(file);                                                                      \
    } while (0)
    b = (bytes){.size = 0};
    CASE(TEST_LABELS, "is empty");
    b = make_images(TRAIN, HEIGHT, WIDTH);
    b.size = 10;
    CASE(TRAIN_IMAGES, "has 10 bytes, want at least 16 for the header");
    b = make_images(TRAIN, HEIGHT, WIDTH);
    b.size -= 1;
    CASE(TRAIN_IMAGES, "has 87 bytes, want 88 for 12 x 3 x 2: cut off");
    b.size += 2;
    CASE(TRAIN_IMAGES, "has 89 bytes, want 88 for 12 x 3 x 2: bytes follow");
    memcpy(b.data, "\x89PNG", 4);
    CASE(TRAIN_IMAGES, "magic is 0x89504e47, want 0x00000803");
    b = make_images(TRAIN, HEIGHT, WIDTH);
    b.data[2] = 0x0d;
    CASE(TRAIN_IMAGES, "element type is 0x0d, want 0x08");
    b = make_images(TRAIN, HEIGHT, WIDTH);
    CASE(TRAIN_LABELS, "has 3 dimensions, want 1");
    memset(b.data + 4, 0xff, 12);
    CASE(TRAIN_IMAGES, "4294967295 x 4294967295 x 4294967295 is more than memory can hold");
    /* 2^32 * ... wraps to a small number in careless arithmetic */
    b = (bytes){.size = 0};
    put32(&b, 0x803), put32(&b, 0x80000000), put32(&b, 0x80000000), put32(&b, 4);
    CASE(TRAIN_IMAGES, "more than memory can hold");
    b = make_images(0, HEIGHT, WIDTH);
    CASE(TEST_IMAGES, "0 images of 3 x 2 pixels");
    b = make_images(TRAIN, 0, WIDTH);
    CASE(TRAIN_IMAGES, "12 images of 0 x 2 pixels");
    b = make_images(TEST, 2, 3);
    CASE(TEST_IMAGES, "images are 3 x 2 in train-images-idx3-ubyte, but 2 x 3 in");
    b = make_labels(TRAIN - 1);
    CASE(TRAIN_LABELS, "12 images in train-images-idx3-ubyte, but 11 labels in");
#undef CASE
}

static void labels_out_of_range_are_named(void **state) {
    (void)state;
    make_good_folder();
    bytes b = make_labels(TRAIN);
    b.data[8 + 7] = 10;
    put_file(TRAIN_LABELS, b);
    expect_refusal(LS_ERR_RANGE, "train-labels-idx1-ubyte: label 7 is 10, want 0 to 9");
}

static void bad_specs_list_what_is_known(void **state) {
    (void)state;
    static const char *const specs[] = {
        "", "cifar", "text", "idx:", "text:", "fashion-mnist:x", "IDX:x"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        ls_dataset *dataset;
        assert_int_equal(ls_dataset_open(&dataset, specs[i], 8), LS_ERR_ARGUMENT);
        assert_null(dataset);
        char quoted[64];
        snprintf(quoted, sizeof quoted, "data \"%s\"", specs[i]);
        assert_message(quoted);
        if (!strchr(specs[i], ':') || specs[i][0] == 'f' || specs[i][0] == 'I')
            assert_message("known are fashion-mnist, idx:DIR, mnist:DIR, text:FILE");
    }
    ls_dataset *dataset;
    assert_int_equal(ls_dataset_open(&dataset, NULL, 8), LS_ERR_ARGUMENT);
}

/* --- gzip --------------------------------------------------------------------------------------- */

#ifdef LOCKSTEP_WITH_ZLIB

static bytes pack(const unsigned char *data, size_t size) {
    bytes out = {.size = 0};
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)data;
    z.avail_in = (uInt)size;
    z.next_out = out.data;
    z.avail_out = sizeof out.data;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out.size = z.total_out;
    deflateEnd(&z);
    return out;
}

static void make_gzip_folder(void) {
    make_good_folder();
    unlink(in_folder(TRAIN_IMAGES));
    unlink(in_folder(TRAIN_LABELS));
    bytes b = make_images(TRAIN, HEIGHT, WIDTH);
    put_file(TRAIN_IMAGES ".gz", pack(b.data, b.size));
    b = make_labels(TRAIN);
    put_file(TRAIN_LABELS ".gz", pack(b.data, b.size));
}

static void reads_gzip(void **state) {
    (void)state;
    make_gzip_folder();
    ls_dataset *dataset;
    assert_int_equal(open_folder(&dataset), LS_OK);
    check_good_dataset(dataset);
    ls_dataset_close(dataset);
    /* two members are one file */
    bytes b = make_images(TRAIN, HEIGHT, WIDTH);
    bytes two = pack(b.data, 20), second = pack(b.data + 20, b.size - 20);
    memcpy(two.data + two.size, second.data, second.size);
    two.size += second.size;
    put_file(TRAIN_IMAGES ".gz", two);
    assert_int_equal(open_folder(&dataset), LS_OK);
    check_good_dataset(dataset);
    ls_dataset_close(dataset);
}

static void the_plain_file_is_preferred(void **state) {
    (void)state;
    make_gzip_folder();
    put_file(TRAIN_IMAGES, make_images(TRAIN, HEIGHT, WIDTH));
    write_file(TRAIN_IMAGES ".gz", "garbage", 7);
    ls_dataset *dataset;
    assert_int_equal(open_folder(&dataset), LS_OK);
    ls_dataset_close(dataset);
}

static void wrong_gzip_is_refused(void **state) {
    (void)state;
    bytes plain = make_images(TRAIN, HEIGHT, WIDTH), good = pack(plain.data, plain.size), b;
#define CASE(message)                                                                              \
    do {                                                                                           \
        make_gzip_folder();                                                                        \
        put_file(TRAIN_IMAGES ".gz", b);                                                           \
        expect_refusal(LS_ERR_FORMAT, message);                                                    \
        assert_message(TRAIN_IMAGES ".gz");                                                        \
    } while (0)
    for (size_t cut = 2; cut < good.size; cut++) {
        b = good;
        b.size = cut;
        CASE("cut off");
    }
    b = good;
    b.size = 0;
    CASE("is empty");
    b = good;
    b.data[b.size - 6] ^= 1; /* checksum */
    CASE("corrupt");
    b = good;
    b.data[b.size++] = 0;
    b.data[b.size++] = 0;
    CASE("corrupt"); /* not a member */
    b.size = 7;
    memcpy(b.data, "garbage", 7);
    CASE("has 7 bytes");
    b = pack(plain.data, 9);
    CASE("unpacks to 9 bytes, want at least 16");
    b = pack(plain.data, plain.size - 1);
    CASE("unpacks to 87 bytes, want 88 for 12 x 3 x 2: cut off");
    b = pack(plain.data, plain.size + 1);
    CASE("more than the 88 bytes for 12 x 3 x 2");
    plain.data[3] = 1;
    b = pack(plain.data, plain.size);
    CASE("has 1 dimensions, want 3");
    /* a few bytes that claim 2^40: refused before memory is taken */
    b = (bytes){.size = 0};
    put32(&b, 0x803), put32(&b, 1 << 20), put32(&b, 1 << 10), put32(&b, 1 << 10);
    b = pack(b.data, b.size);
    CASE("1048576 x 1024 x 1024 does not fit into");
#undef CASE
}

#endif

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(reads_a_plain_folder),
        IN_FOLDER(equal_pixels_become_zero),
        IN_FOLDER(missing_files_are_named),
        IN_FOLDER(a_folder_in_place_of_a_file),
        IN_FOLDER(wrong_files_are_refused),
        IN_FOLDER(labels_out_of_range_are_named),
        cmocka_unit_test(bad_specs_list_what_is_known),
#ifdef LOCKSTEP_WITH_ZLIB
        IN_FOLDER(reads_gzip),
        IN_FOLDER(the_plain_file_is_preferred),
        IN_FOLDER(wrong_gzip_is_refused),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
