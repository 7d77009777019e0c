/* Small files the data tests make, in a folder of their own that is removed at the end. */
#ifndef LS_TESTS_DATA_FILES_H
#define LS_TESTS_DATA_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <lockstep/status.h>

static char folder[64];

static inline int folder_setup(void **state) {
    (void)state;
    strcpy(folder, "/tmp/lockstep-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int folder_teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

/* "<folder>/<name>", in one of four buffers that take turns. */
static inline const char *in_folder(const char *name) {
    static char paths[4][512];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void write_file(const char *name, const void *bytes, size_t size) {
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* A path under the data shared with developers, or NULL where it is not there. */
static inline const char *shared_data(const char *name) {
    static char path[1024];
    const char *source = getenv("LOCKSTEP_TEST_SOURCE");
    if (!source)
        return NULL;
    snprintf(path, sizeof path, "%s/../shared/data/%s", source, name);
    if (access(path, R_OK) == 0)
        return path;
    print_message("skipped: no %s\n", path);
    return NULL;
}

/* The last message holds `part`. */
static inline void assert_message(const char *part) {
    if (!strstr(ls_error_text(), part))
        fail_msg("message \"%s\" does not hold \"%s\"", ls_error_text(), part);
}

#endif
