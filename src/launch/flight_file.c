/* Flight records from files. They come from anywhere: every value is bounded before it is used. */
#include "launch/diagnosis.h"

#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_RANKS = 65536, MOST_BYTES = 1 << 20 };

/* --- values of an object ---------------------------------------------------------------------------- */

typedef struct reader {
    const char *name; /* of the file */
    ls_status status; /* the first error */
} reader;

static void bad(reader *r, const char *key, const char *want) {
    if (r->status == LS_OK)
        r->status = ls__fail(LS_ERR_FORMAT, "%s: \"%s\" is not %s", r->name, key, want);
}

static int64_t number(reader *r, const json_t *object, const char *key, int64_t low, int64_t high) {
    const json_t *value = json_object_get(object, key);
    int64_t n = json_integer_value(value);
    if (json_is_integer(value) && n >= low && n <= high)
        return n;
    char want[64];
    snprintf(want, sizeof want, "a whole number from %" PRId64 " to %" PRId64, low, high);
    bad(r, key, want);
    return low;
}

static uint64_t count(reader *r, const json_t *object, const char *key) {
    return (uint64_t)number(r, object, key, 0, INT64_MAX);
}

static const char *text(reader *r, const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    if (!value)
        bad(r, key, "a text");
    return value ? value : "";
}

static uint64_t hexadecimal(reader *r, const json_t *object, const char *key) {
    const char *digits = text(r, object, key);
    char *end;
    uint64_t value = strtoull(digits, &end, 16);
    if (*end || end == digits)
        bad(r, key, "a hexadecimal number");
    return value;
}

/* The number whose name `key` holds: 0 .. most, as `name_of` tells them. */
static uint32_t named(reader *r, const json_t *object, const char *key, uint32_t most,
                      const char *(*name_of)(uint32_t)) {
    const char *name = text(r, object, key);
    for (uint32_t i = 0; i <= most; i++) {
        if (strcmp(name, name_of(i)) == 0)
            return i;
    }
    bad(r, key, "a name of this version");
    return 0;
}

static const char *kind_of(uint32_t i) {
    return ls__kind_name((int)i);
}

static const char *op_of(uint32_t i) {
    return ls__op_name(i);
}

static const char *dtype_of(uint32_t i) {
    const char *name = ls_dtype_name((ls_dtype)i);
    return name ? name : "?";
}

static const char *status_of(uint32_t i) {
    return ls_status_name((ls_status)i);
}

/* --- a record ----------------------------------------------------------------------------------------- */

static void read_operation(reader *r, const json_t *object, ls__flight_entry *e) {
    enum { NAMES = 255 };
    e->number = (uint64_t)number(r, object, "number", 1, INT64_MAX);
    e->kind = named(r, object, "operation", NAMES, kind_of);
    e->group = hexadecimal(r, object, "group");
    e->sequence = count(r, object, "sequence");
    e->count = count(r, object, "count");
    e->dtype = named(r, object, "dtype", NAMES, dtype_of);
    e->op = named(r, object, "reduction", NAMES, op_of);
    e->root = (int32_t)number(r, object, "root", INT32_MIN, INT32_MAX);
    e->queued_ns = count(r, object, "queued_ns");
    e->begin_ns = count(r, object, "begin_ns");
    e->ready_ns = count(r, object, "ready_ns");
    e->end_ns = count(r, object, "end_ns");
    e->last_rank = (int32_t)number(r, object, "last_rank", INT32_MIN, INT32_MAX);
    if (e->kind == LS__SENDRECV) {
        e->from = (int32_t)number(r, object, "from", INT32_MIN, INT32_MAX);
        e->recv_sequence = count(r, object, "recv_sequence");
    }
    if (e->end_ns)
        e->status = (int32_t)named(r, object, "status", NAMES, status_of);
}

static void read_lists(reader *r, const json_t *object, ls__flight_record *record) {
    const json_t *groups = json_object_get(object, "groups");
    const json_t *operations = json_object_get(object, "operations");
    size_t group_count = json_array_size(groups), entry_count = json_array_size(operations);
    if (!json_is_array(groups) || group_count > LS__FLIGHT_GROUPS)
        bad(r, "groups", "a list of at most 16");
    else if (!json_is_array(operations) || entry_count > LS__FLIGHT_ENTRIES)
        bad(r, "operations", "a list of at most 64");
    for (size_t i = 0; i < group_count && r->status == LS_OK; i++) {
        const json_t *group = json_array_get(groups, i);
        record->group[i].id = hexadecimal(r, group, "id");
        record->group[i].size = (int)number(r, group, "size", 1, MOST_RANKS);
        ls__flight_copy_text(record->group[i].name, LS__FLIGHT_NAME_BYTES, text(r, group, "name"),
                             LS__FLIGHT_NAME_BYTES);
        record->group_count = (int)i + 1;
    }
    for (size_t i = 0; i < entry_count && r->status == LS_OK; i++) {
        read_operation(r, json_array_get(operations, i), &record->entry[i]);
        if (i > 0 && record->entry[i].number <= record->entry[i - 1].number)
            bad(r, "number", "larger than that of the operation before");
        record->entry_count = (int)i + 1;
    }
}

static void copy_text(reader *r, const json_t *object, const char *key, char *to, size_t bytes) {
    ls__flight_copy_text(to, bytes, text(r, object, key), bytes);
}

ls_status ls__flight_parse(const char *bytes, size_t size, const char *name,
                           ls__flight_record *record) {
    json_error_t error;
    reader r = {.name = name, .status = LS_OK};
    *record = (ls__flight_record){0};
    json_t *object = json_loadb(bytes, size, 0, &error);
    if (!object)
        return ls__fail(LS_ERR_FORMAT, "%s: no JSON at byte %d: %s", name, error.position,
                        error.text);
    (void)number(&r, object, "flight", 1, 1);
    record->world_size = (int)number(&r, object, "world_size", 1, MOST_RANKS);
    record->rank = (int)number(&r, object, "rank", 0, record->world_size - 1);
    record->pid = number(&r, object, "pid", 0, INT32_MAX);
    record->left = json_is_true(json_object_get(object, "left"));
    record->clock_offset_ns = number(&r, object, "clock_offset_ns", INT64_MIN / 4, INT64_MAX / 4);
    record->taken_ns = count(&r, object, "taken_ns");
    record->phase_ns = count(&r, object, "phase_ns");
    record->failed_ns = count(&r, object, "failed_ns");
    copy_text(&r, object, "host", record->host, sizeof record->host);
    copy_text(&r, object, "phase", record->phase, sizeof record->phase);
    copy_text(&r, object, "failure", record->failure, sizeof record->failure);
    read_lists(&r, object, record);
    json_decref(object);
    return r.status;
}

/* --- a folder ------------------------------------------------------------------------------------------- */

static ls_status read_file(const char *folder, const char *name, ls__flight_record *record) {
    char path[4096];
    unsigned char *bytes;
    size_t size;
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n < 0 || n >= (int)sizeof path)
        return ls__fail(LS_ERR_ARGUMENT, "%s: the name of the folder is too long", name);
    struct stat file;
    if (stat(path, &file) == 0 && file.st_size > MOST_BYTES)
        return ls__fail(LS_ERR_FORMAT, "%s: %lld bytes are no flight record", path,
                        (long long)file.st_size);
    LS_TRY(ls__file_read(path, &bytes, &size));
    ls_status status = ls__flight_parse((const char *)bytes, size, path, record);
    free(bytes);
    int rank;
    char rest;
    if (status == LS_OK &&
        (sscanf(name, "flight-rank-%d.jso%c", &rank, &rest) != 2 || rank != record->rank))
        status = ls__fail(LS_ERR_FORMAT, "%s: holds the record of rank %d", path, record->rank);
    return status;
}

static int is_record(const struct dirent *entry) {
    const char *name = entry->d_name, *end = strrchr(name, '.');
    return strncmp(name, "flight-rank-", 12) == 0 && end && strcmp(end, ".json") == 0;
}

/* The first good file tells the size of the world; one of another world is of another job. */
static ls_status take(ls__flight_record **all, int *ranks, const ls__flight_record *one,
                      const char *name) {
    if (!*all) {
        *all = calloc((size_t)one->world_size, sizeof **all);
        if (!*all)
            return ls__fail(LS_ERR_MEMORY, "no memory for %d records", one->world_size);
        *ranks = one->world_size;
    }
    if (one->world_size != *ranks)
        return ls__fail(LS_ERR_FORMAT, "%s: is of a job of %d ranks, others of one of %d", name,
                        one->world_size, *ranks);
    (*all)[one->rank] = *one;
    return LS_OK;
}

ls_status ls__flight_load(const char *folder, ls__flight_record **record, int *ranks,
                          void (*complain)(void *context, const char *line), void *context) {
    struct dirent **names = NULL;
    *record = NULL;
    *ranks = 0;
    int n = scandir(folder, &names, is_record, alphasort);
    if (n < 0)
        return ls__fail_errno(LS_ERR_IO, errno, "cannot read folder %s", folder);
    ls__flight_record *one = malloc(sizeof *one);
    for (int i = 0; i < n; i++) {
        ls_status status = one ? read_file(folder, names[i]->d_name, one) : LS_ERR_MEMORY;
        if (status == LS_OK)
            status = take(record, ranks, one, names[i]->d_name);
        if (status != LS_OK)
            complain(context, ls_error_text());
        free(names[i]);
    }
    free(names);
    free(one);
    for (int rank = 0; rank < *ranks; rank++) {
        char line[80];
        (*record)[rank].rank = rank;
        if ((*record)[rank].pid || rank > 1000)
            continue;
        snprintf(line, sizeof line, "rank %d left no record that can be used", rank);
        complain(context, line);
    }
    if (*record)
        return LS_OK;
    return ls__fail(LS_ERR_FORMAT,
                    "%s holds no flight record (flight-rank-N.json) that can be used", folder);
}
