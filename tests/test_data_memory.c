/* Every allocation of opening, loading and writing fails once: an error comes back, nothing crashes,
 * nothing leaks. The sanitizers have a malloc of their own, so there is nothing to test under them. */
#include "data_files.h"

#include "checkpoint/safetensors.h"
#include <errno.h>
#include <lockstep/dataset.h>
#include <malloc.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OTHER_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define OTHER_MALLOC 1
#endif
#endif
#if !defined(__GLIBC__)
#define OTHER_MALLOC 1
#endif

#ifdef OTHER_MALLOC

int main(void) {
    puts("skipped: this build has a malloc of its own");
    return 0;
}

#else

/* glibc's own, under names that stay when malloc is replaced. The replacements further down are
 * LS_API: exported, so that jansson, zlib and the C library itself use them as well. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

/* Of the thread that tests: allocations until the one that fails (0: none fails), and what lives. */
static _Thread_local long countdown;
static _Thread_local long alive;

static bool fails_now(void) {
    if (countdown > 0 && --countdown == 0) {
        errno = ENOMEM;
        return true;
    }
    return false;
}

static void *counted(void *memory) {
    alive += memory != NULL;
    return memory;
}

LS_API void *malloc(size_t size) {
    return fails_now() ? NULL : counted(__libc_malloc(size));
}

LS_API void *calloc(size_t count, size_t size) {
    return fails_now() ? NULL : counted(__libc_calloc(count, size));
}

LS_API void *realloc(void *old, size_t size) {
    if (fails_now())
        return NULL;
    void *memory = __libc_realloc(old, size);
    alive += !old && memory;
    return memory;
}

LS_API void *aligned_alloc(size_t alignment, size_t size) {
    return fails_now() ? NULL : counted(__libc_memalign(alignment, size));
}

LS_API void free(void *memory) {
    alive -= memory != NULL;
    __libc_free(memory);
}

/* Calls `work` with the 1st, 2nd, ... allocation failing, until it gets through. */
static void fail_each(ls_status (*work)(void), long least, bool counts_leaks) {
    assert_int_equal(work(), LS_OK); /* what libraries allocate once and keep */
    for (long n = 1; n < 10000; n++) {
        long before = alive;
        countdown = n;
        ls_status status = work();
        bool done = countdown > 0;
        countdown = 0;
        if (counts_leaks && alive != before)
            fail_msg("allocation %ld failed: %ld allocations were left", n, alive - before);
        if (done) {
            assert_int_equal(status, LS_OK);
            assert_true(n > least);
            return;
        }
        if (status == LS_OK)
            continue; /* one that the caller can do without, as in a message's text */
        if (status != LS_ERR_MEMORY && status != LS_ERR_FORMAT && status != LS_ERR_ARGUMENT &&
            status != LS_ERR_IO && status != LS_ERR_SYSTEM)
            fail_msg("allocation %ld failed: got %s", n, ls_status_name(status));
    }
    fail_msg("never got through");
}

static char spec[600];

static ls_status open_and_close(void) {
    ls_dataset *dataset;
    ls_status status = ls_dataset_open(&dataset, spec, 4);
    assert_true((status == LS_OK) == (dataset != NULL));
    ls_dataset_close(dataset);
    return status;
}

static void opening_a_text(void **state) {
    (void)state;
    write_file("text", "some text that is long enough", 29);
    snprintf(spec, sizeof spec, "text:%s", in_folder("text"));
    fail_each(open_and_close, 2, true);
}

static void opening_images(void **state) {
    (void)state;
    static const char *const names[2] = {"train", "t10k"};
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s-images-idx3-ubyte", names[i]);
        write_file(name, "\0\0\10\3\0\0\0\2\0\0\0\1\0\0\0\1ab", 18);
        snprintf(name, sizeof name, "%s-labels-idx1-ubyte", names[i]);
        write_file(name, "\0\0\10\1\0\0\0\2\1\2", 10);
    }
    snprintf(spec, sizeof spec, "idx:%s", folder);
    fail_each(open_and_close, 6, true);
}

static ls_dataset *text;

static ls_status load_a_batch(void) {
    ls_loader *loader;
    ls_status status = ls_loader_create(
        &loader, text, &(ls_loader_options){.batch_size = 4, .shards = 2, .shard_count = 2});
    assert_true((status == LS_OK) == (loader != NULL));
    const ls_batch *batch;
    if (status == LS_OK)
        status = ls_loader_next(loader, &batch);
    ls_loader_destroy(loader);
    return status;
}

/* Leaks are not counted: the C library keeps the stacks of threads. */
static void loading(void **state) {
    (void)state;
    write_file("text", "some text that is long enough", 29);
    snprintf(spec, sizeof spec, "text:%s", in_folder("text"));
    assert_int_equal(ls_dataset_open(&text, spec, 4), LS_OK);
    fail_each(load_a_batch, 10, false);
    ls_dataset_close(text);
}

static ls_status write_safetensors(void) {
    static const size_t shape[2] = {2, 3};
    static const unsigned char data[6] = {1, 2, 3, 4, 5, 6};
    static const ls_safetensors_entry entries[2] = {{"a", "U8", 2, shape, data, 6},
                                                    {"b", "U8", 2, shape, data, 6}};
    static const char *const keys[1] = {"key"}, *const values[1] = {"value"};
    return ls__safetensors_write(in_folder("model.safetensors"), entries, 2, keys, values, 1);
}

static ls_status open_safetensors(void) {
    ls_safetensors *file;
    ls_status status = ls_safetensors_open(&file, in_folder("model.safetensors"));
    assert_true((status == LS_OK) == (file != NULL));
    if (file)
        assert_int_equal(ls_safetensors_count(file), 2);
    ls_safetensors_close(file);
    return status;
}

static void writing_and_reading_safetensors(void **state) {
    (void)state;
    fail_each(write_safetensors, 20, true);
    assert_int_equal(unlink(in_folder("model.safetensors")), 0);
    assert_int_equal(rmdir(folder), 0); /* no temporary file was left */
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(write_safetensors(), LS_OK);
    fail_each(open_safetensors, 10, true);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(opening_a_text),
        IN_FOLDER(opening_images),
        IN_FOLDER(loading),
        IN_FOLDER(writing_and_reading_safetensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
