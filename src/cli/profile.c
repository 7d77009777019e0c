#include "cli/profile.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/bench.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const pass_names[] = {"forward", "backward", "update"};

/* What the machine can do. */
typedef struct limits {
    double gflops, gb_s; /* of a large matrix product; of a copy, read and written */
} limits;

/* A row as it is shown; rates are 0 where unknown. */
typedef struct line {
    const char *name, *pass;
    uint64_t calls;
    double ms, share, gflops, gb_s, of_limit;
} line;

double ls__profile_optimizer_bytes(const ls_optimizer_options *options, size_t elements) {
    /* weight and each moment are read and written, the gradient is read */
    size_t moments = options->kind == LS_SGD ? options->momentum > 0 : 2;
    return (double)((3 + 2 * moments) * elements * sizeof(float));
}

void ls__profile_report_step(ls__profile_report *report, uint64_t nanoseconds, bool forget) {
    report->steps++;
    report->time_ns += nanoseconds;
    if (!forget)
        return;
    report->profile.count = 0;
    report->steps = report->time_ns = 0;
}

static ls_status measure_copy(ls_device *device, double *gb_s) {
    enum { BYTES = 64 << 20, REPEATS = 4 };
    void *memory;
    LS_TRY(device->table->alloc(device, 2 * (size_t)BYTES, &memory));
    *gb_s = 0;
    ls_status status = device->table->zero(device, memory, 2 * (size_t)BYTES);
    for (int i = 0; i < REPEATS && status == LS_OK; i++) {
        uint64_t begin = ls__now_ns();
        status = device->table->copy(device, (char *)memory + BYTES, memory, BYTES);
        double rate = 2.0 * BYTES / (double)(ls__now_ns() - begin);
        *gb_s = rate > *gb_s ? rate : *gb_s;
    }
    device->table->free(device, memory);
    return status;
}

static int compare_lines(const void *a, const void *b) {
    double x = ((const line *)a)->ms, y = ((const line *)b)->ms;
    return x > y ? -1 : x < y;
}

/* The rows, the most expensive first, then what belongs to none. `lines` has room for all; returns how
 * many there are. */
static size_t make_lines(const ls__profile_report *report, const limits *l, line *lines) {
    const ls__profile *p = &report->profile;
    double total = (double)report->time_ns, rest = total;
    for (size_t i = 0; i < p->count; i++) {
        const ls__profile_row *row = &p->rows[i];
        double ns = row->time_ns > 0 ? (double)row->time_ns : 1;
        rest -= (double)row->time_ns;
        lines[i] = (line){.name = row->name,
                          .pass = pass_names[row->pass],
                          .calls = row->calls,
                          .ms = ns / 1e6,
                          .share = ns / total};
        if (row->flops > 0) {
            lines[i].gflops = row->flops / ns;
            lines[i].of_limit = lines[i].gflops / l->gflops;
        } else if (row->bytes > 0) {
            lines[i].gb_s = row->bytes / ns;
            lines[i].of_limit = lines[i].gb_s / l->gb_s;
        }
    }
    qsort(lines, p->count, sizeof *lines, compare_lines);
    if (rest < 0)
        rest = 0;
    lines[p->count] = (line){.name = "other",
                             .pass = "",
                             .calls = report->steps,
                             .ms = rest / 1e6,
                             .share = rest / total};
    return p->count + 1;
}

static void print_rate(double rate) {
    if (rate > 0)
        fprintf(stderr, " %9.1f", rate);
    else
        fprintf(stderr, " %9s", "");
}

static void print_table(const ls__profile_report *report, const limits *l, const line *lines,
                        size_t count) {
    double steps = (double)report->steps;
    fprintf(stderr,
            "profile of rank 0: %llu steps of %.2f ms; matrix product %.1f GFLOP/s, memory copy "
            "%.1f GB/s\n%-22s %-8s %9s %11s %8s %9s %9s %8s\n",
            (unsigned long long)report->steps, (double)report->time_ns / steps / 1e6, l->gflops,
            l->gb_s, "operation", "pass", "calls", "ms a step", "share", "GFLOP/s", "GB/s",
            "of limit");
    for (size_t i = 0; i < count; i++) {
        const line *n = &lines[i];
        fprintf(stderr, "%-22s %-8s %9llu %11.3f %7.1f%%", n->name, n->pass,
                (unsigned long long)n->calls, n->ms / steps, 100 * n->share);
        print_rate(n->gflops);
        print_rate(n->gb_s);
        if (n->of_limit > 0)
            fprintf(stderr, " %7.0f%%", 100 * n->of_limit);
        fputc('\n', stderr);
    }
}

static json_t *positive(double value) {
    return value > 0 ? json_real(value) : json_null();
}

static ls_status write_file(const ls__profile_report *report, const limits *l, const line *lines,
                            size_t count, const char *path) {
    json_t *operations = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(
            operations,
            json_pack("{s:s, s:s, s:I, s:f, s:f, s:o, s:o, s:o}", "operation", lines[i].name,
                      "pass", lines[i].pass, "calls", (json_int_t)lines[i].calls, "total_ms",
                      lines[i].ms, "share", lines[i].share, "gflops", positive(lines[i].gflops),
                      "gb_per_s", positive(lines[i].gb_s), "of_limit",
                      positive(lines[i].of_limit)));
    json_t *object = json_pack("{s:I, s:f, s:f, s:f, s:o}", "steps", (json_int_t)report->steps,
                               "total_ms", (double)report->time_ns / 1e6, "peak_gflops", l->gflops,
                               "copy_gb_per_s", l->gb_s, "operations", operations);
    FILE *file = fopen(path, "we");
    if (!file) {
        json_decref(object);
        return ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", path);
    }
    ls_status status = ls__json_write_line(file, path, object);
    if (fclose(file) != 0 && status == LS_OK)
        status = ls__fail_errno(LS_ERR_IO, errno, "%s: cannot write", path);
    return status;
}

ls_status ls__profile_report_finish(const ls__profile_report *report, ls_device *device,
                                    ls_dtype dtype, const char *path) {
    limits l;
    line lines[LS__PROFILE_ROWS + 1];
    LS_TRY(ls__bench_peak(device, dtype, &l.gflops));
    LS_TRY(measure_copy(device, &l.gb_s));
    size_t count = make_lines(report, &l, lines);
    print_table(report, &l, lines, count);
    return path ? write_file(report, &l, lines, count, path) : LS_OK;
}
