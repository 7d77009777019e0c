/* A record as a file of JSON: known fields, bounded texts, so that liblockstep-comm needs no JSON library.
 * Read back by src/launch/flight_file.c. */
#include "comm/flight.h"

#include "base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* As a JSON string. Bytes of other alphabets become '?': texts are cut at a byte, and half a letter is no
 * UTF-8. */
static void put_text(FILE *file, const char *text) {
    fputc('"', file);
    for (const char *c = text; *c; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte == '"' || byte == '\\')
            fputc('\\', file);
        fputc(byte < 0x20 || byte >= 0x7f ? '?' : byte, file);
    }
    fputc('"', file);
}

/* JSON's readers have signed numbers. */
static uint64_t bounded(uint64_t value) {
    return value > INT64_MAX ? INT64_MAX : value;
}

static void put_operation(FILE *file, const ls__flight_entry *e) {
    fprintf(file,
            "{\"number\":%" PRIu64 ",\"operation\":\"%s\",\"group\":\"%" PRIx64
            "\",\"sequence\":%" PRIu64 ",\"count\":%" PRIu64
            ",\"dtype\":\"%s\",\"reduction\":\"%s\",\"root\":%" PRId32,
            bounded(e->number), ls__kind_name((int)e->kind), e->group, bounded(e->sequence),
            bounded(e->count), ls_dtype_name((ls_dtype)e->dtype), ls__op_name(e->op), e->root);
    fprintf(file,
            ",\"queued_ns\":%" PRIu64 ",\"begin_ns\":%" PRIu64 ",\"ready_ns\":%" PRIu64
            ",\"end_ns\":%" PRIu64 ",\"status\":",
            bounded(e->queued_ns), bounded(e->begin_ns), bounded(e->ready_ns), bounded(e->end_ns));
    if (e->end_ns)
        fprintf(file, "\"%s\"", ls_status_name((ls_status)e->status));
    else
        fputs("null", file);
    if (e->kind == LS__SENDRECV)
        fprintf(file, ",\"from\":%" PRId32 ",\"recv_sequence\":%" PRIu64, e->from,
                bounded(e->recv_sequence));
    fprintf(file, ",\"last_rank\":%" PRId32 "}", e->last_rank);
}

void ls__flight_put(FILE *file, const ls__flight_record *record) {
    fprintf(file, "{\"flight\":1,\"rank\":%d,\"world_size\":%d,\"pid\":%" PRId64 ",\"host\":",
            record->rank, record->world_size, record->pid);
    put_text(file, record->host);
    fprintf(file,
            ",\"left\":%s,\"clock_offset_ns\":%" PRId64 ",\"taken_ns\":%" PRIu64 ",\"phase\":",
            record->left ? "true" : "false", record->clock_offset_ns, bounded(record->taken_ns));
    put_text(file, record->phase);
    fprintf(file, ",\"phase_ns\":%" PRIu64 ",\"failed_ns\":%" PRIu64 ",\"failure\":",
            bounded(record->phase_ns), bounded(record->failed_ns));
    put_text(file, record->failure);
    fputs(",\"groups\":[", file);
    for (int i = 0; i < record->group_count; i++) {
        fprintf(file, "%s{\"id\":\"%" PRIx64 "\",\"size\":%d,\"name\":", i ? "," : "",
                record->group[i].id, record->group[i].size);
        put_text(file, record->group[i].name);
        fputc('}', file);
    }
    fputs("],\"operations\":[", file);
    for (int i = 0; i < record->entry_count; i++) {
        fputs(i ? ",\n" : "\n", file);
        put_operation(file, &record->entry[i]);
    }
    fputs("]}\n", file);
}

ls_status ls__flight_write(const char *folder, const ls__flight_record *record) {
    char path[4096], fresh[4096];
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return ls__fail_errno(LS_ERR_IO, errno, "flight recorder: cannot make folder %s", folder);
    int n = snprintf(path, sizeof path, "%s/flight-rank-%d.json", folder, record->rank);
    int m =
        snprintf(fresh, sizeof fresh, "%s/.flight-rank-%d.%d", folder, record->rank, (int)getpid());
    if (n < 0 || m < 0 || n >= (int)sizeof path || m >= (int)sizeof fresh)
        return ls__fail(LS_ERR_ARGUMENT, "flight recorder: the name of the folder is too long");
    ls_status status = ls__file_check_target(path);
    if (status != LS_OK)
        return ls__fail_context(status, "flight recorder");
    (void)unlink(fresh);
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        status = ls__fail_errno(LS_ERR_IO, errno, "flight recorder: cannot write %s", fresh);
        if (fd >= 0)
            close(fd);
        return status;
    }
    ls__flight_put(file, record);
    bool good = !ferror(file);
    good = fclose(file) == 0 && good;
    if (good && rename(fresh, path) == 0)
        return LS_OK;
    status = ls__fail_errno(LS_ERR_IO, errno, "flight recorder: cannot write %s", path);
    (void)unlink(fresh);
    return status;
}
