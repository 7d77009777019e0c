/* The folder of checkpoints: a step that is saved again is there at every instant, and going back to an earlier step
 * takes later ones out of the way without removing them. */
#include "data_files.h"

#include "checkpoint/folder.h"
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/syscall.h>

/* Instead of the C library's: notes what is brought to the disk. */
static char synced[8][512];
static size_t synced_count;

int fsync(int fd) {
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size >= 0 && synced_count < 8)
        snprintf(synced[synced_count++], sizeof synced[0], "%.*s", (int)size, path);
    return (int)syscall(SYS_fsync, fd);
}

/* FOLDER/step-N with one file that holds `text`. */
static void publish(const char *where, uint64_t step, const char *text) {
    char *half, name[700];
    assert_int_equal(ls__folder_begin(where, step, &half), LS_OK);
    snprintf(name, sizeof name, "%s/file", half);
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(ls__folder_publish(where, step, half), LS_OK);
    free(half);
}

static void assert_holds(const char *where, const char *step, const char *text) {
    char name[700], seen[32] = "";
    snprintf(name, sizeof name, "%s/%s/file", where, step);
    FILE *file = fopen(name, "r");
    assert_non_null(file);
    assert_non_null(fgets(seen, sizeof seen, file));
    fclose(file);
    assert_string_equal(seen, text);
}

/* Names in the folder, with hidden ones. */
static size_t count_names(const char *where) {
    char command[700];
    int count = -1;
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", where);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%d", &count), 1);
    pclose(pipe);
    return (size_t)count;
}

static bool can_exchange(void) {
    const char *a = in_folder("a"), *b = in_folder("b");
    assert_int_equal(mkdir(a, 0777), 0);
    assert_int_equal(mkdir(b, 0777), 0);
    return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
}

static void a_step_saved_again_is_there_all_the_time(void **state) {
    (void)state;
    const char *where = in_folder("again");
    char events[4096] __attribute__((aligned(8)));
    bool exchange = can_exchange();
    assert_int_equal(mkdir(where, 0777), 0);
    publish(where, 1, "old");
    int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(watch >= 0);
    assert_true(inotify_add_watch(watch, where, IN_MOVE | IN_DELETE) >= 0);
    publish(where, 1, "new");
    assert_holds(where, "step-00000001", "new");
    assert_int_equal(count_names(where), 1);
    /* The name is taken over before it is given up. */
    ssize_t size = read(watch, events, sizeof events);
    uint32_t first = 0;
    for (ssize_t at = 0; at < size && !first;) {
        const struct inotify_event *e = (const struct inotify_event *)(const void *)(events + at);
        if (e->len > 0 && strcmp(e->name, "step-00000001") == 0)
            first = e->mask;
        at += (ssize_t)(sizeof *e + e->len);
    }
    close(watch);
    if (exchange)
        assert_true(first & IN_MOVED_TO);
    else
        print_message("skipped: this file system cannot exchange names\n");
}

static void going_back_takes_later_steps_aside(void **state) {
    (void)state;
    const char *where = in_folder("back");
    size_t moved, count;
    uint64_t *steps;
    assert_int_equal(mkdir(where, 0777), 0);
    publish(where, 100, "a");
    publish(where, 200, "b");
    publish(where, 300, "c");
    ls__folder_link(where, "latest", 300);
    assert_int_equal(ls__folder_rewind(where, 100, &moved), LS_OK);
    assert_int_equal(moved, 2);
    assert_int_equal(ls__folder_steps(where, &steps, &count), LS_OK);
    assert_int_equal(count, 1);
    assert_int_equal(steps[0], 100);
    free(steps);
    assert_holds(where, "old-step-00000300", "c");
    assert_int_equal(count_names(where), 3); /* and no link to what is gone */
    /* again: the one of before is replaced */
    publish(where, 200, "d");
    assert_int_equal(ls__folder_rewind(where, 100, &moved), LS_OK);
    assert_int_equal(moved, 1);
    assert_holds(where, "old-step-00000200", "d");
    assert_int_equal(count_names(where), 3);
}

/* What is called latest and is neither a link nor a file is of nobody here. */
static void a_pipe_in_place_of_a_link_stays(void **state) {
    (void)state;
    const char *where = in_folder("pipe");
    char name[600];
    struct stat about;
    size_t moved;
    assert_int_equal(mkdir(where, 0777), 0);
    publish(where, 100, "a");
    publish(where, 200, "b");
    snprintf(name, sizeof name, "%s/latest", where);
    assert_int_equal(mkfifo(name, 0600), 0);
    ls__folder_link(where, "latest", 200);
    assert_true(lstat(name, &about) == 0 && S_ISFIFO(about.st_mode));
    assert_int_equal(ls__folder_rewind(where, 100, &moved), LS_OK);
    assert_true(lstat(name, &about) == 0 && S_ISFIFO(about.st_mode));
    assert_int_equal(count_names(where), 3);
}

/* A link to a checkpoint that was moved, or a file: a save of that step takes the name, and they are kept. */
static void what_is_no_folder_makes_way(void **state) {
    (void)state;
    const char *where = in_folder("way");
    char name[600], seen[64];
    size_t moved;
    assert_int_equal(mkdir(where, 0777), 0);
    for (int again = 0; again < 2; again++) {
        snprintf(name, sizeof name, "%s/step-00000020", where);
        assert_int_equal(symlink("nowhere", name), 0);
        publish(where, 20, "saved");
        assert_holds(where, "step-00000020", "saved");
        snprintf(name, sizeof name, "%s/old-step-00000020", where);
        ssize_t size = readlink(name, seen, sizeof seen);
        assert_true(size == 7 && memcmp(seen, "nowhere", 7) == 0);
        assert_int_equal(count_names(where), 2);
        assert_int_equal(ls__folder_rewind(where, 10, &moved), LS_OK); /* over that link */
        assert_holds(where, "old-step-00000020", "saved");
    }
    snprintf(name, sizeof name, "%s/step-00000020", where);
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fclose(file);
    publish(where, 20, "again");
    assert_holds(where, "step-00000020", "again");
    assert_int_equal(count_names(where), 2);
}

static void count_line(void *context, ls_log_level level, const char *line) {
    (void)level;
    *(int *)context += strstr(line, "is no folder, so of no run; it stays") != NULL;
}

/* Links that somebody made, to a checkpoint that was moved or to nothing any more, are not removed; they are told. */
static void what_is_no_folder_stays(void **state) {
    (void)state;
    static const char *const targets[] = {"nowhere", "moved"};
    const char *where = in_folder("links");
    char name[600];
    int lines = 0;
    assert_int_equal(mkdir(where, 0777), 0);
    publish(where, 1, "one");
    publish(where, 4, "four");
    snprintf(name, sizeof name, "%s/moved", where);
    assert_int_equal(mkdir(name, 0777), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s/step-0000000%d", where, 2 + i);
        assert_int_equal(symlink(targets[i], name), 0);
        assert_false(ls__folder_remove(where, name));
    }
    ls__folder_empty(where, count_line, &lines);
    assert_int_equal(lines, 2);
    assert_int_equal(count_names(where), 3);
    assert_true(readlink(name, (char[8]){0}, 8) == 5);
}

/* Only names that a run makes are taken for what a run left. */
static void leftovers_are_told_by_their_names(void **state) {
    (void)state;
    static const char *const own[] = {".step-00000001.abc", ".step-1.0123456789ab",
                                      ".step-00000001.0123456789AB", ".step-00000001"};
    char name[600];
    const char *where = in_folder("left");
    char *half;
    assert_int_equal(mkdir(where, 0777), 0);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        snprintf(name, sizeof name, "%s/%s", where, own[i]);
        assert_int_equal(mkdir(name, 0777), 0);
    }
    assert_int_equal(ls__folder_begin(where, 7, &half), LS_OK);
    free(half);
    assert_int_equal(count_names(where), 5);
    ls__folder_clean(where);
    assert_int_equal(count_names(where), 4);
}

/* A folder that was made is found after a power cut: its name stands in the one above. */
static void folders_that_are_made_are_synced(void **state) {
    (void)state;
    int lock;
    synced_count = 0;
    assert_int_equal(ls__folder_lock(in_folder("new/runs//c"), "", true, NULL, NULL, &lock), LS_OK);
    close(lock);
    assert_int_equal(synced_count, 3);
    assert_string_equal(synced[0], folder);
    assert_string_equal(synced[1], in_folder("new"));
    assert_string_equal(synced[2], in_folder("new/runs"));
    synced_count = 0; /* nothing is made, nothing is synced */
    assert_int_equal(ls__folder_lock(in_folder("new/runs/c"), "", true, NULL, NULL, &lock), LS_OK);
    close(lock);
    assert_int_equal(synced_count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_saved_again_is_there_all_the_time),
        cmocka_unit_test(folders_that_are_made_are_synced),
        cmocka_unit_test(a_pipe_in_place_of_a_link_stays),
        cmocka_unit_test(what_is_no_folder_makes_way),
        cmocka_unit_test(what_is_no_folder_stays),
        cmocka_unit_test(leftovers_are_told_by_their_names),
        cmocka_unit_test(going_back_takes_later_steps_aside),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
