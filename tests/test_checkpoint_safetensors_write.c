/* Writing safetensors: what is written reads back; on any failure the path is as it was and no
 * temporary file is left. */
#include "data_files.h"

#include "checkpoint/safetensors.h"
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const float weights[6] = {1, 2, 3, 4, 5, -0.0f};
static const unsigned char bytes[3] = {7, 8, 9};
static const size_t shape_23[2] = {2, 3}, shape_3[1] = {3}, shape_0[2] = {5, 0};

static const ls_safetensors_entry entries[] = {
    {"b.bytes", "U8", 1, shape_3, bytes, 3},
    {"w \"quoted\" \xc3\xa4", "F32", 2, shape_23, weights, sizeof weights},
    {"none", "F32", 2, shape_0, NULL, 0},
    {"scalar", "F32", 0, NULL, weights, 4},
};
enum { COUNT = sizeof entries / sizeof entries[0] };
static const char *const keys[] = {"lockstep.model", "other"};
static const char *const values[] = {"mlp:2,3", "\n\t\"x\""};

static ls_status write_entries(const char *path) {
    return ls__safetensors_write(path, entries, COUNT, keys, values, 2);
}

static size_t files_in(const char *path) {
    DIR *dir = opendir(path);
    assert_non_null(dir);
    size_t n = 0;
    for (struct dirent *d; (d = readdir(dir));)
        n += d->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void check_content(const char *path) {
    ls_safetensors *file;
    if (ls_safetensors_open(&file, path) != LS_OK)
        fail_msg("%s", ls_error_text());
    assert_int_equal(ls_safetensors_count(file), COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        const ls_safetensors_entry *e = ls_safetensors_find(file, entries[i].name);
        assert_non_null(e);
        assert_string_equal(e->dtype, entries[i].dtype);
        assert_int_equal(e->dims, entries[i].dims);
        for (size_t d = 0; d < e->dims; d++)
            assert_int_equal(e->shape[d], entries[i].shape[d]);
        assert_int_equal(e->bytes, entries[i].bytes);
        assert_true(e->bytes == 0 || memcmp(e->data, entries[i].data, e->bytes) == 0);
    }
    for (size_t i = 0; i < 2; i++)
        assert_string_equal(ls_safetensors_metadata(file, keys[i]), values[i]);
    assert_int_equal((uintptr_t)ls_safetensors_get(file, 0)->data % 64, 0);
    ls_safetensors_close(file);
}

static void reads_back(void **state) {
    (void)state;
    const char *path = in_folder("model.safetensors");
    for (int i = 0; i < 2; i++) { /* new, then over the old one */
        if (write_entries(path) != LS_OK)
            fail_msg("%s", ls_error_text());
        check_content(path);
        assert_int_equal(files_in(folder), 1);
    }
    struct stat info;
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0666 & ~mask);
    /* nothing at all is a file too; so is a path without folder */
    assert_int_equal(ls__safetensors_write(path, NULL, 0, NULL, NULL, 0), LS_OK);
    char before[1024];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(write_entries("here.safetensors"), LS_OK);
    check_content("here.safetensors");
    assert_int_equal(chdir(before), 0);
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    const char *path = in_folder("bad.safetensors");
    ls_safetensors_entry e[2] = {entries[0], entries[0]};
    assert_int_equal(ls__safetensors_write(path, e, 2, NULL, NULL, 0), LS_ERR_ARGUMENT);
    assert_message("\"b.bytes\" is used twice");
    e[0].name = "__metadata__";
    assert_int_equal(ls__safetensors_write(path, e, 1, NULL, NULL, 0), LS_ERR_ARGUMENT);
    assert_message("reserved");
    e[0].name = "\xff";
    assert_int_equal(ls__safetensors_write(path, e, 1, NULL, NULL, 0), LS_ERR_ARGUMENT);
    assert_message("UTF-8");
    e[0] = entries[0];
    e[0].bytes = 4;
    assert_int_equal(ls__safetensors_write(path, e, 1, NULL, NULL, 0), LS_ERR_ARGUMENT);
    assert_message("has 4 bytes");
    e[0] = entries[0];
    e[0].dtype = "U9";
    assert_int_equal(ls__safetensors_write(path, e, 1, NULL, NULL, 0), LS_ERR_ARGUMENT);
    static const char *const bad_value[] = {"\xff", "\xff"};
    assert_int_equal(ls__safetensors_write(path, entries, COUNT, keys, bad_value, 2),
                     LS_ERR_ARGUMENT);
    assert_message("lockstep.model");
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(files_in(folder), 0);
}

static void folder_missing_or_path_taken(void **state) {
    (void)state;
    assert_int_equal(write_entries(in_folder("none/model.safetensors")), LS_ERR_IO);
    assert_message("none/model.safetensors: cannot open its folder: No such file");
    assert_int_equal(mkdir(in_folder("taken"), 0700), 0);
    assert_int_equal(write_entries(in_folder("taken")), LS_ERR_IO);
    assert_message("taken: is a folder, want a file");
    assert_int_equal(files_in(folder), 1);
    assert_int_equal(write_entries(""), LS_ERR_ARGUMENT);
    assert_message("the path is empty");
}

/* What is no file is not replaced by one; a link is, and what it points to stays. */
static void pipes_and_sockets_stay(void **state) {
    (void)state;
    struct stat about;
    const char *path = in_folder("special");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(write_entries(path), LS_ERR_IO);
    assert_message("special: is a pipe or device, want a regular file");
    assert_true(lstat(path, &about) == 0 && S_ISFIFO(about.st_mode));
    assert_int_equal(files_in(folder), 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mknod(path, S_IFSOCK | 0600, 0), 0);
    assert_int_equal(write_entries(path), LS_ERR_IO);
    assert_true(lstat(path, &about) == 0 && S_ISSOCK(about.st_mode));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("nowhere", path), 0);
    assert_int_equal(write_entries(path), LS_OK);
    assert_true(lstat(path, &about) == 0 && S_ISREG(about.st_mode));
}

/* Runs `write_it` in a child, with a limit on time; the child's exit code, 0 for success. */
static int in_child(int (*write_it)(void)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(30);
        _exit(write_it());
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

enum { LARGE = 1 << 20, SKIPPED = 77 };
static unsigned char large[LARGE];

static ls_status write_large(const char *path) {
    size_t shape[1] = {LARGE};
    ls_safetensors_entry e = {"large", "U8", 1, shape, large, LARGE};
    return ls__safetensors_write(path, &e, 1, NULL, NULL, 0);
}

static int write_beyond_the_limit(void) {
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {65536, 65536};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return SKIPPED;
    if (write_large(in_folder("model.safetensors")) != LS_ERR_IO)
        return 2;
    return strstr(ls_error_text(), "model.safetensors: cannot write: File too large") ? 0 : 3;
}

static void a_failed_write_leaves_the_old_file(void **state) {
    (void)state;
    assert_int_equal(write_entries(in_folder("model.safetensors")), LS_OK);
    assert_int_equal(in_child(write_beyond_the_limit), 0);
    check_content(in_folder("model.safetensors"));
    assert_int_equal(files_in(folder), 1);
}

/* A disk of 256 KiB, seen by the child alone. */
static int write_on_a_full_disk(void) {
    if (unshare(CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER)) != 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", folder, "tmpfs", 0, "size=256k") != 0)
        return SKIPPED;
    const char *path = in_folder("model.safetensors");
    if (write_entries(path) != LS_OK)
        return 2;
    if (write_large(path) != LS_ERR_IO || !strstr(ls_error_text(), "No space left"))
        return 3;
    check_content(path);
    return files_in(folder) == 1 ? 0 : 4;
}

static void a_full_disk_leaves_the_old_file(void **state) {
    (void)state;
    int code = in_child(write_on_a_full_disk);
    if (code == SKIPPED) {
        print_message("skipped: may not mount a small disk here\n");
        skip();
    }
    assert_int_equal(code, 0);
}

/* Killed at any moment: under the final name stands the old file or the new one, whole. */
static void killed_at_any_time(void **state) {
    (void)state;
    const char *path = in_folder("model.safetensors");
    assert_int_equal(write_large(path), LS_OK);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            alarm(30);
            memset(large, i, sizeof large);
            for (;;)
                write_large(path);
        }
        usleep((useconds_t)(500 + 700 * i));
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        ls_safetensors *file;
        if (ls_safetensors_open(&file, path) != LS_OK)
            fail_msg("%s", ls_error_text());
        const unsigned char *data = ls_safetensors_get(file, 0)->data;
        assert_true(memcmp(data, data + 1, LARGE - 1) == 0); /* all bytes equal: of one write */
        ls_safetensors_close(file);
    }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(reads_back),
        IN_FOLDER(bad_arguments_are_refused),
        IN_FOLDER(folder_missing_or_path_taken),
        IN_FOLDER(pipes_and_sockets_stay),
        IN_FOLDER(a_failed_write_leaves_the_old_file),
        IN_FOLDER(a_full_disk_leaves_the_old_file),
        IN_FOLDER(killed_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
