/* Costs in a file, so that a job need not measure them and a cluster's jobs all have the same. */
#include "comm/cost.h"

#include "base/error.h"
#include "base/file.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_positive(double value) {
    return isfinite(value) && value > 0;
}

/* A line without its comment; nothing on it is well. */
static bool parse_line(const char *line, ls__costs *costs) {
    char level[16] = "", rest[2] = "";
    double sync_us, gbs, add_gbs;
    const int fields = sscanf(line, "%15s %lf %lf %lf %1s", level, &sync_us, &gbs, &add_gbs, rest);
    ls__cost *cost = strcmp(level, "inside") == 0    ? &costs->inside
                     : strcmp(level, "between") == 0 ? &costs->between
                                                     : NULL;
    if (fields <= 0)
        return true;
    if (fields != 4 || !cost || !is_positive(sync_us) || !is_positive(gbs) || !is_positive(add_gbs))
        return false;
    *cost = (ls__cost){.sync_s = sync_us * 1e-6,
                       .bytes_per_s = gbs * 1e9,
                       .add_per_s = add_gbs * 1e9,
                       .stored = true};
    return true;
}

/* One line after the other of `text`, which is changed. */
static ls_status parse(const char *path, char *text, ls__costs *costs) {
    char *next = text;
    for (int number = 1; next; number++) {
        char *line = strsep(&next, "\n");
        line[strcspn(line, "#")] = '\0';
        if (!parse_line(line, costs))
            return ls__fail(
                LS_ERR_FORMAT,
                "%s, line %d: '%.60s', want \"inside\" or \"between\", then three numbers "
                "above 0: us of a step, GB/s, GB/s of adding",
                path, number, line);
    }
    return LS_OK;
}

ls_status ls__cost_table_read(const char *path, ls__costs *costs) {
    unsigned char *bytes;
    size_t size;
    *costs = (ls__costs){0};
    ls_status status = ls__file_read(path, &bytes, &size);
    if (status != LS_OK)
        return ls__fail_context(status, "the cost table");
    char *text = strndup((char *)bytes, size);
    if (!text)
        status = ls__fail(LS_ERR_MEMORY, "%s: out of memory", path);
    else if (strlen(text) != size)
        status = ls__fail(LS_ERR_FORMAT, "%s: holds a byte of 0, want text", path);
    else
        status = parse(path, text, costs);
    if (status == LS_OK && !ls__cost_is_known(&costs->inside) &&
        !ls__cost_is_known(&costs->between))
        status =
            ls__fail(LS_ERR_FORMAT,
                     "%s: holds no costs; lockstep bench --explain --store FILE writes them", path);
    free(text);
    free(bytes);
    return status;
}

static void write_line(FILE *file, const char *level, const ls__cost *cost) {
    if (ls__cost_is_known(cost))
        fprintf(file, "%-8s %10.3f %10.4f %10.4f\n", level, cost->sync_s * 1e6,
                cost->bytes_per_s * 1e-9, cost->add_per_s * 1e-9);
}

ls_status ls__cost_table_write(const char *path, const ls__costs *costs) {
    if (ls__file_check_in_place(path) != LS_OK)
        return ls__fail_context(LS_ERR_IO, "the cost table");
    FILE *file = fopen(path, "we");
    if (!file)
        return ls__fail_errno(LS_ERR_IO, errno, "cannot write the cost table %s", path);
    fprintf(file,
            "# What a step costs (us), GB/s of a rank each way, GB/s and source of adding; for "
            "LOCKSTEP_COST_TABLE.\n");
    write_line(file, "inside", &costs->inside);
    write_line(file, "between", &costs->between);
    const bool failed = ferror(file);
    if (fclose(file) || failed)
        return ls__fail_errno(LS_ERR_IO, errno, "cannot write the cost table %s", path);
    return LS_OK;
}
