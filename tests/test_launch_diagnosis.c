/* Who was where: from records to words, and records from files that may hold anything. */
#include "launch/diagnosis.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANKS = 4 };
#define SECOND UINT64_C(1000000000)

static ls__flight_record record[RANKS];

static void start(void) {
    for (int r = 0; r < RANKS; r++) {
        record[r] = (ls__flight_record){.rank = r, .world_size = RANKS, .pid = 100 + r};
        snprintf(record[r].host, sizeof record[r].host, "node%d", r / 2);
        record[r].taken_ns = 20 * SECOND;
        record[r].group_count = 1;
        record[r].group[0].id = 1;
        record[r].group[0].size = RANKS;
        strcpy(record[r].group[0].name, "world");
    }
}

/* Adds an operation of the world; end_ns 0: the rank is in it. */
static ls__flight_entry *add(int rank, int kind, uint64_t sequence, uint64_t begin,
                             uint64_t until) {
    ls__flight_record *r = &record[rank];
    ls__flight_entry *e = &r->entry[r->entry_count++];
    *e = (ls__flight_entry){.number = (uint64_t)r->entry_count,
                            .group = 1,
                            .sequence = sequence,
                            .count = 26214400,
                            .begin_ns = begin,
                            .end_ns = until,
                            .kind = (uint32_t)kind,
                            .dtype = LS_F32,
                            .op = LS_SUM};
    return e;
}

static ls__diagnosis *diagnose(void) {
    ls__diagnosis *d;
    assert_int_equal(ls__diagnosis_make(&d, record, RANKS), LS_OK);
    return d;
}

static void has(const char *text, const char *part) {
    if (!strstr(text, part))
        fail_msg("'%s' lacks '%s'", text, part);
}

/* All did #16; three are in #17, rank 1 waits for a message of rank 0. */
static void stall(void) {
    start();
    for (int r = 0; r < RANKS; r++) {
        add(r, LS__ALL_REDUCE, 16, 10 * SECOND, 11 * SECOND);
        if (r != 1)
            add(r, LS__ALL_REDUCE, 17, 15 * SECOND, 0);
    }
    add(1, LS__RECV, 3, 15 * SECOND + SECOND * 8 / 10, 0)->root = 0;
}

static void test_a_rank_in_another_operation(void **state) {
    (void)state;
    stall();
    ls__diagnosis *d = diagnose();
    assert_int_equal(d->stall_count, 2);
    assert_string_equal(
        d->stall[0].text,
        "rank 1 never arrived at all_reduce #17 of group world (26214400 F32, sum); "
        "it was in recv #3 from rank 0 for 4.2 s; ranks 0, 2, 3 waited for it");
    assert_string_equal(d->stall[1].text,
                        "rank 0 never came to the other end of recv #3 from rank 0 of group world "
                        "(26214400 F32); it was in all_reduce #17 for 5.0 s; rank 1 waited for it");
    assert_true(d->stall[0].missing[1] && !d->stall[0].missing[0] && d->stall[0].waiting[3]);
    assert_string_equal(d->line[2], "was in all_reduce #17 for 5.0 s");
    assert_int_equal(d->first, -1);
    json_t *json = ls__diagnosis_json(d);
    assert_int_equal(json_array_size(json_object_get(json, "stalls")), 2);
    assert_int_equal(json_array_size(json_object_get(json, "ranks")), RANKS);
    json_decref(json);
    ls__diagnosis_free(d);
}

/* Round a ring, each sends on and receives: rank 2 does not come, its neighbours wait for it. */
static void test_sendrecv(void **state) {
    (void)state;
    start();
    for (int r = 0; r < RANKS; r++) {
        if (r == 2)
            continue;
        ls__flight_entry *e = add(r, LS__SENDRECV, 1, 15 * SECOND, 0);
        e->root = (r + 1) % RANKS;
        e->from = (r + RANKS - 1) % RANKS;
        e->recv_sequence = 1;
    }
    ls__diagnosis *d = diagnose();
    assert_int_equal(d->stall_count, 3);
    has(d->stall[0].text, "all had begun sendrecv #1 to rank 1 and #1 from rank 3 of group world");
    has(d->stall[1].text, "rank 2 never came to the other end of sendrecv #1 to rank 2 and #1 from "
                          "rank 0 of group world (26214400 F32); it was in no operation");
    has(d->stall[2].text, "rank 2 never came to the other end of sendrecv #1 to rank 0");
    ls__diagnosis_free(d);
}

static void test_ranks_in_no_operation(void **state) {
    (void)state;
    start();
    for (int r = 0; r < RANKS; r++)
        add(r, LS__BARRIER, 1, 10 * SECOND, 11 * SECOND);
    add(3, LS__BARRIER, 2, 12 * SECOND, 13 * SECOND)->status = LS_ERR_TIMEOUT;
    strcpy(record[0].phase, "saving checkpoint");
    record[0].phase_ns = 17 * SECOND;
    record[1].pid = 0;
    record[1].entry_count = record[1].group_count = 0;
    record[2].left = true;
    ls__diagnosis *d = diagnose();
    assert_int_equal(d->stall_count, 1);
    has(d->stall[0].text,
        "ranks 0 to 2 never arrived at barrier #2 of group world; rank 0 was in no "
        "operation for 9.0 s (its last was barrier #1), in phase 'saving "
        "checkpoint' for 3.0 s; rank 1 never joined the job, or left no record; "
        "rank 2 had left the job; rank 3 waited for them");
    ls__diagnosis_free(d);
}

/* A rank that died in the middle: all had begun. */
static void test_all_had_arrived(void **state) {
    (void)state;
    start();
    for (int r = 0; r < RANKS; r++)
        add(r, LS__ALL_REDUCE, 5, 10 * SECOND, r == 3 ? 0 : 11 * SECOND)->status = LS_ERR_PEER;
    ls__diagnosis *d = diagnose();
    assert_int_equal(d->stall_count, 1);
    has(d->stall[0].text, "all had begun all_reduce #5 of group world");
    has(d->stall[0].text, "ranks 0 to 3 had not ended it");
    ls__diagnosis_free(d);
    start();
    d = diagnose();
    assert_int_equal(d->stall_count, 0);
    assert_string_equal(d->line[0], "was in no operation, and had been in none");
    ls__diagnosis_free(d);
}

/* Named by the error of who found it. */
static void test_who_has_stopped(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int stopped;
    } of[] = {
        {"rank 0: recv #3 from rank 2: rank 1 (host b, pid 7, in recv #2 from rank 3) has stopped: "
         "no heartbeat for 10.2 s",
         1},
        {"rank 0: rank 2 gave up: rank 3 (pid 9) has stopped: no heartbeat for 1 s, rank 1 (x)", 3},
        {"rank 0: rank 1 (host b, pid 7) ended without leaving the job", -1},
        {"rank 9 (host b) has stopped: no heartbeat", -1},
        {"has stopped: no heartbeat", -1},
        {" has stopped: no heartbeat rank 1 (", -1},
    };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        start();
        record[0].failed_ns = 5 * SECOND;
        snprintf(record[0].failure, sizeof record[0].failure, "%s", of[i].text);
        ls__diagnosis *d = diagnose();
        assert_int_equal(d->stopped, of[i].stopped);
        ls__diagnosis_free(d);
    }
}

/* Clocks of two machines: the time of day decides. */
static void test_the_first_error(void **state) {
    (void)state;
    start();
    record[0].failed_ns = 5 * SECOND;
    record[0].clock_offset_ns = 1000 * (int64_t)SECOND;
    record[3].failed_ns = 900 * SECOND;
    record[3].clock_offset_ns = 100 * (int64_t)SECOND;
    ls__diagnosis *d = diagnose();
    assert_int_equal(d->first, 3);
    ls__diagnosis_free(d);
}

static void test_groups_of_other_sizes(void **state) {
    (void)state;
    start();
    for (int r = 0; r < 2; r++) {
        record[r].group[1].id = 0xfeed;
        record[r].group[1].size = 2;
        strcpy(record[r].group[1].name, "rows");
        record[r].group_count = 2;
    }
    add(0, LS__BROADCAST, 8, 15 * SECOND, 0)->group = 0xfeed;
    ls__diagnosis *d = diagnose();
    assert_int_equal(d->stall_count, 1);
    has(d->stall[0].text, "rank 1 never arrived at broadcast #8 of group rows");
    ls__diagnosis_free(d);
}

/* --- files --------------------------------------------------------------------------------------------- */

static int complaints;
static char complaint[4096];

static void complain(void *context, const char *line) {
    (void)context;
    complaints++;
    size_t n = strlen(complaint);
    snprintf(complaint + n, sizeof complaint - n, "%s\n", line);
}

static void put(const char *folder, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void empty(const char *folder) {
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

static void test_written_and_read(void **state) {
    (void)state;
    char folder[] = "/tmp/lockstep-diagnosis.XXXXXX";
    assert_non_null(mkdtemp(folder));
    stall();
    record[2].failed_ns = 16 * SECOND;
    strcpy(record[2].failure, "a \"quoted\" reason \\ with \xc3");
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(ls__flight_write(folder, &record[r]), LS_OK);
    ls__flight_record *back;
    int ranks;
    complaints = 0;
    assert_int_equal(ls__flight_load(folder, &back, &ranks, complain, NULL), LS_OK);
    assert_int_equal(ranks, RANKS);
    assert_int_equal(complaints, 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(back[r].entry_count, record[r].entry_count);
        assert_memory_equal(back[r].entry, record[r].entry, sizeof record[r].entry);
        assert_string_equal(back[r].host, record[r].host);
        assert_string_equal(back[r].group[0].name, "world");
    }
    assert_string_equal(back[2].failure, "a \"quoted\" reason \\ with ?");
    free(back);
    /* damaged, foreign and missing ones are named; the others still count */
    put(folder, "flight-rank-1.json", "{\"flight\":1,\"rank\":1,");
    put(folder, "flight-rank-3.json", "{\"flight\":1,\"rank\":-3,\"world_size\":4}");
    put(folder, "flight-rank-x.json", "[]");
    put(folder, "flight-rank-99.json", "");
    complaint[0] = '\0';
    complaints = 0;
    assert_int_equal(ls__flight_load(folder, &back, &ranks, complain, NULL), LS_OK);
    has(complaint, "flight-rank-1.json: no JSON");
    has(complaint, "flight-rank-3.json: \"rank\" is not a whole number from 0 to 3");
    has(complaint, "flight-rank-x.json: ");
    has(complaint, "flight-rank-99.json: ");
    has(complaint, "rank 1 left no record that can be used");
    has(complaint, "rank 3 left no record that can be used");
    assert_int_equal(complaints, 6);
    assert_int_equal(back[1].pid, 0);
    free(back);
    empty(folder);
    assert_int_equal(ls__flight_load(folder, &back, &ranks, complain, NULL), LS_ERR_IO);
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(ls__flight_load(folder, &back, &ranks, complain, NULL), LS_ERR_FORMAT);
    empty(folder);
}

/* Every value that is out of its bounds is refused by name. */
static void test_values_are_bounded(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *named;
    } changes[] = {
        {"\"flight\":1", "\"flight\":2", "flight"},
        {"\"world_size\":4", "\"world_size\":99999999", "world_size"},
        {"\"rank\":1", "\"rank\":4", "rank"},
        {"\"pid\":101", "\"pid\":\"x\"", "pid"},
        {"\"size\":4", "\"size\":0", "size"},
        {"\"number\":2", "\"number\":1", "number"},
        {"\"operation\":\"recv\"", "\"operation\":\"telepathy\"", "operation"},
        {"\"dtype\":\"F32\"", "\"dtype\":7", "dtype"},
        {"\"group\":\"1\"", "\"group\":\"zz\"", "group"},
        {"\"begin_ns\":1", "\"begin_ns\":-1", "begin_ns"},
        {"\"status\":\"LS_OK\"", "\"status\":\"LS_FINE\"", "status"},
        {"\"operations\":[", "\"operations\":0,\"x\":[", "operations"},
    };
    char folder[] = "/tmp/lockstep-diagnosis.XXXXXX", path[100], text[4096], changed[4200], key[40];
    assert_non_null(mkdtemp(folder));
    stall();
    assert_int_equal(ls__flight_write(folder, &record[1]), LS_OK);
    snprintf(path, sizeof path, "%s/flight-rank-1.json", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    empty(folder);
    ls__flight_record one;
    assert_int_equal(ls__flight_parse(text, strlen(text), "file", &one), LS_OK);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        const char *at = strstr(text, changes[i].from);
        if (!at)
            fail_msg("no %s in %s", changes[i].from, text);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, changes[i].to,
                 at + strlen(changes[i].from));
        assert_int_equal(ls__flight_parse(changed, strlen(changed), "file", &one), LS_ERR_FORMAT);
        snprintf(key, sizeof key, "file: \"%s\" is not", changes[i].named);
        has(ls_error_text(), key);
    }
    for (size_t n = 0; n < strlen(text) - 2; n++)
        assert_int_equal(ls__flight_parse(text, n, "file", &one), LS_ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_in_another_operation),
        cmocka_unit_test(test_sendrecv),
        cmocka_unit_test(test_ranks_in_no_operation),
        cmocka_unit_test(test_all_had_arrived),
        cmocka_unit_test(test_who_has_stopped),
        cmocka_unit_test(test_the_first_error),
        cmocka_unit_test(test_groups_of_other_sizes),
        cmocka_unit_test(test_written_and_read),
        cmocka_unit_test(test_values_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
