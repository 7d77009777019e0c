/* The flight recorder: what is noted, what is kept, and that a reader never sees half an entry. */
#include "comm/board.h"
#include "ranks.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

static ls__operation operation(uint64_t sequence) {
    ls__operation op = {.root = 3, .times = {.queued_ns = 1, .begin_ns = 1000 + sequence}};
    op.header = (ls__header){.magic = LS__HEADER_MAGIC,
                             .kind = LS__ALL_REDUCE,
                             .dtype = LS_F16,
                             .op = LS_MAX,
                             .group = 7,
                             .sequence = sequence,
                             .count = 2 * sequence};
    return op;
}

static void end(ls__flight *flight, uint64_t number, ls__operation *op, ls_status status) {
    op->times.ready_ns = op->times.begin_ns + 1;
    op->times.end_ns = op->times.begin_ns + 2;
    op->times.last_rank = 5;
    ls__flight_end(flight, number, op, status);
}

static ls__flight flight;
static ls__flight_record record;

static void test_the_last_are_kept(void **state) {
    (void)state;
    memset(&flight, 0, sizeof flight);
    ls__flight_read(&flight, &record);
    assert_int_equal(record.entry_count, 0);
    enum { MANY = 3 * LS__FLIGHT_ENTRIES + 5 };
    for (uint64_t i = 1; i <= MANY; i++) {
        ls__operation op = operation(i);
        uint64_t number = ls__flight_begin(&flight, &op);
        if (i < MANY)
            end(&flight, number, &op, i == MANY - 1 ? LS_ERR_PEER : LS_OK);
    }
    ls__flight_read(&flight, &record);
    assert_int_equal(record.entry_count, LS__FLIGHT_ENTRIES);
    for (int i = 0; i < record.entry_count; i++) {
        const ls__flight_entry *e = &record.entry[i];
        uint64_t sequence = (uint64_t)(MANY - LS__FLIGHT_ENTRIES + 1 + i);
        bool last = sequence == MANY;
        assert_true(e->number == sequence && e->sequence == sequence && e->group == 7);
        assert_true(e->count == 2 * sequence && e->kind == LS__ALL_REDUCE);
        assert_true(e->dtype == LS_F16 && e->op == LS_MAX && e->root == 3);
        assert_true(e->queued_ns == 1 && e->begin_ns == 1000 + sequence);
        assert_true(e->end_ns == (last ? 0 : 1002 + sequence));
        assert_true(e->ready_ns == (last ? 0 : 1001 + sequence));
        assert_int_equal(e->status, sequence == MANY - 1 ? LS_ERR_PEER : LS_OK);
        assert_int_equal(e->last_rank, last ? -1 : 5);
    }
}

/* Whose place was taken meanwhile writes nothing into the newcomer's. */
static void test_an_end_that_comes_too_late(void **state) {
    (void)state;
    memset(&flight, 0, sizeof flight);
    ls__operation slow = operation(1);
    uint64_t number = ls__flight_begin(&flight, &slow);
    for (uint64_t i = 2; i <= LS__FLIGHT_ENTRIES + 1; i++) {
        ls__operation op = operation(i);
        ls__flight_begin(&flight, &op);
    }
    end(&flight, number, &slow, LS_OK);
    ls__flight_read(&flight, &record);
    for (int i = 0; i < record.entry_count; i++)
        assert_true(record.entry[i].end_ns == 0);
    ls__flight_end(NULL, 1, &slow, LS_OK); /* nobody records: no effect */
    assert_true(ls__flight_begin(NULL, &slow) == 0);
}

static void test_the_first_error_stays(void **state) {
    (void)state;
    memset(&flight, 0, sizeof flight);
    assert_true(ls__flight_fail(&flight, "first\n"));
    assert_false(ls__flight_fail(&flight, "second"));
    ls__flight_read(&flight, &record);
    assert_string_equal(record.failure, "first ");
    assert_true(record.failed_ns > 0);
}

static void test_groups_come_and_go(void **state) {
    (void)state;
    memset(&flight, 0, sizeof flight);
    for (uint64_t i = 1; i <= 1000; i++) {
        ls__flight_name_group(&flight, i, 2, "passing");
        ls__flight_forget_group(&flight, i);
    }
    for (uint64_t i = 1; i <= 2 * LS__FLIGHT_GROUPS; i++)
        ls__flight_name_group(&flight, i, (int)i, "staying");
    ls__flight_read(&flight, &record);
    assert_int_equal(record.group_count, LS__FLIGHT_GROUPS);
    assert_int_equal(record.group[4].size, 5);
    assert_string_equal(record.group[4].name, "staying");
}

/* --- a reader beside the writers -------------------------------------------------------------------- */

static atomic_bool stop;

static void *write_on(void *argument) {
    (void)argument;
    for (uint64_t i = 1; !atomic_load(&stop); i++) {
        ls__operation op = operation(i);
        end(&flight, ls__flight_begin(&flight, &op), &op, LS_OK);
    }
    return NULL;
}

static void test_entries_are_read_whole(void **state) {
    (void)state;
    pthread_t thread[2];
    memset(&flight, 0, sizeof flight);
    ls__flight_name_group(&flight, 2, 2, "another than the world");
    atomic_store(&stop, false);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, write_on, NULL), 0);
    for (int i = 0; i < 20000; i++) {
        ls__flight_read(&flight, &record);
        for (int k = 0; k < record.entry_count; k++) {
            const ls__flight_entry *e = &record.entry[k];
            assert_true(e->count == 2 * e->sequence && e->begin_ns == 1000 + e->sequence);
            assert_true(k == 0 || e->number > record.entry[k - 1].number);
        }
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}

/* Memory that a wild pointer of a rank wrote over: read without harm. */
static void test_noise(void **state) {
    (void)state;
    for (unsigned seed = 1; seed < 200; seed++) {
        unsigned char *bytes = (unsigned char *)&flight;
        unsigned x = seed;
        for (size_t i = 0; i < sizeof flight; i++) {
            x = x * 1664525 + 1013904223;
            bytes[i] = (unsigned char)(x >> 24);
        }
        atomic_store(&flight.failed, 2);
        ls__flight_read(&flight, &record);
        assert_true(strlen(record.failure) < sizeof record.failure);
        for (int i = 0; i < record.group_count; i++)
            assert_true(strlen(record.group[i].name) < LS__FLIGHT_NAME_BYTES);
    }
}

/* --- in a job ------------------------------------------------------------------------------------------ */

/* Ranks without a launcher write their own files: at the first error and at the end. */
static void work_in_folder(int rank, ls_job *job, void *context) {
    char path[200];
    float value = 1;
    unsetenv("LOCKSTEP_BOARD_FD"); /* as without a launcher */
    setenv("LOCKSTEP_FLIGHT", context, 1);
    CHECK_OK(ls_job_init(&job, NULL));
    CHECK_OK(ls_all_reduce(ls_job_world(job), &value, &value, 1, LS_F32, LS_SUM));
    snprintf(path, sizeof path, "%s/flight-rank-%d.json", (char *)context, rank);
    CHECK(access(path, F_OK) != 0);
    if (rank == 2)
        _exit(0);
    CHECK(ls_barrier(ls_job_world(job)) == LS_ERR_PEER);
    CHECK(access(path, F_OK) == 0);
    CHECK(strstr(ls_error_text(), "rank 2"));
    CHECK(unlink(path) == 0);
    ls_job_finish(job);
    CHECK(access(path, F_OK) == 0);
}

static void test_files(void **state) {
    (void)state;
    char folder[] = "/tmp/lockstep-flight.XXXXXX", path[100];
    assert_non_null(mkdtemp(folder));
    ranks r = {.size = 3, .transport = ranks_transport(), .no_job = true};
    r.body = work_in_folder;
    r.context = folder;
    ranks_start(&r);
    assert_int_equal(ranks_wait(&r), 0);
    ranks_free(&r);
    for (int rank = 0; rank < 3; rank++) {
        snprintf(path, sizeof path, "%s/flight-rank-%d.json", folder, rank);
        assert_int_equal(unlink(path) == 0, rank != 2);
    }
    assert_int_equal(rmdir(folder), 0); /* nothing else is left in it */
}

static void test_a_folder_that_cannot_be(void **state) {
    (void)state;
    record = (ls__flight_record){.world_size = 1};
    assert_int_equal(ls__flight_write("/proc/no/such", &record), LS_ERR_IO);
    assert_non_null(strstr(ls_error_text(), "/proc/no/such"));
}

static void test_a_pipe_stays(void **state) {
    (void)state;
    char folder[] = "/tmp/lockstep-flight.XXXXXX", path[100];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/flight-rank-0.json", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    record = (ls__flight_record){.world_size = 1};
    assert_int_equal(ls__flight_write(folder, &record), LS_ERR_IO);
    assert_non_null(strstr(ls_error_text(), "flight-rank-0.json: is a pipe or device"));
    struct stat about;
    assert_true(lstat(path, &about) == 0 && S_ISFIFO(about.st_mode));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* --- the board ------------------------------------------------------------------------------------------ */

static void test_board(void **state) {
    (void)state;
    ls__board launcher, rank, again;
    int fd;
    assert_int_equal(ls__board_create(&launcher, 3, &fd), LS_OK);
    assert_int_equal(ls__board_join(&rank, fd, 1, 3, NULL), LS_OK);
    assert_true(rank.mapped > 0);
    ls__operation op = operation(9);
    ls__flight_begin(&rank.mine->flight, &op);
    ls__board_read(&launcher, 1, 77, &record);
    assert_true(record.pid == getpid() && record.rank == 1 && record.world_size == 3);
    assert_true(record.taken_ns == 77 && record.entry_count == 1 && !record.left);
    assert_true(record.host[0] != '\0');
    ls__board_read(&launcher, 0, 77, &record);
    assert_true(record.pid == 0 && record.entry_count == 0);
    /* taken: as good as none */
    assert_int_equal(ls__board_join(&again, fd, 1, 3, NULL), LS_OK);
    assert_true(again.mapped == 0 && again.mine);
    ls__board_close(&again, true);
    ls__board_read(&launcher, 1, 77, &record);
    assert_false(record.left);
    ls__board_close(&rank, true);
    ls__board_read(&launcher, 1, 77, &record);
    assert_true(record.left);
    /* one program after another */
    assert_int_equal(ls__board_join(&again, fd, 1, 3, NULL), LS_OK);
    assert_true(again.mapped > 0);
    ls__board_read(&launcher, 1, 77, &record);
    assert_true(!record.left && record.entry_count == 0);
    ls__board_close(&again, false);
    /* no board of this job */
    assert_int_equal(ls__board_join(&again, fd, 1, 4, NULL), LS_OK);
    assert_true(again.mapped == 0);
    ls__board_close(&again, false);
    int null = open("/dev/null", O_RDONLY);
    assert_int_equal(ls__board_join(&again, null, 0, 3, NULL), LS_OK);
    assert_true(again.mapped == 0);
    ls__board_close(&again, false);
    close(null);
    ls__board_close(&launcher, false);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_last_are_kept),
        cmocka_unit_test(test_an_end_that_comes_too_late),
        cmocka_unit_test(test_the_first_error_stays),
        cmocka_unit_test(test_groups_come_and_go),
        cmocka_unit_test(test_entries_are_read_whole),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_a_folder_that_cannot_be),
        cmocka_unit_test(test_a_pipe_stays),
        cmocka_unit_test(test_board),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
