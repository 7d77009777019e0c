/* A timeline of the first steps of all ranks: forward, backward, what of the reduction is left then, and
 * the reduction of each bucket with the rank that came last. Times are CLOCK_MONOTONIC, which ranks of one machine
 * share; those of other machines are moved onto rank 0's. */
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/train.h"
#include "reducer/agree.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A span on one of two tracks. All int64 so that spans travel by an all-gather. */
typedef enum span_kind {
    SPAN_NONE,
    SPAN_FORWARD,
    SPAN_BACKWARD,
    SPAN_OPTIMIZER,
    SPAN_EXPOSED,
    SPAN_WAIT,
    SPAN_REDUCE
} span_kind;
typedef struct span {
    int64_t kind, step, begin_ns, end_ns;
    int64_t bucket, bytes, last_rank; /* SPAN_WAIT and SPAN_REDUCE */
} span;

static const char *const span_names[] = {
    "", "forward", "backward", "optimizer", "exposed reduction", "wait for ranks", "reduce"};

struct ls__trace {
    uint64_t steps;
    span *spans;
    size_t count, capacity;
    bool full; /* memory ran out: what is there is written */
};

ls_status ls__trace_open(ls__trace **out, uint64_t steps, const char *path) {
    if (path && ls__file_check_in_place(path) != LS_OK)
        return ls__fail_context(LS_ERR_IO, "--trace");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (path && !file)
        return ls__fail_errno(LS_ERR_IO, errno, "--trace %s: cannot write", path);
    if (file)
        fclose(file);
    ls__trace *t = calloc(1, sizeof *t);
    if (!t)
        return ls__fail(LS_ERR_MEMORY, "trace: out of memory");
    t->steps = steps;
    *out = t;
    return LS_OK;
}

void ls__trace_close(ls__trace *t) {
    if (t)
        free(t->spans);
    free(t);
}

static void add(ls__trace *t, span s) {
    if (t->count == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 64;
        span *more = t->full ? NULL : realloc(t->spans, capacity * sizeof *more);
        if (!more) {
            t->full = true;
            return;
        }
        t->spans = more;
        t->capacity = capacity;
    }
    t->spans[t->count++] = s;
}

void ls__trace_span(ls__trace *t, uint64_t step, const char *name, uint64_t begin_ns,
                    uint64_t end_ns) {
    if (!t || step > t->steps)
        return;
    for (int kind = SPAN_FORWARD; kind <= SPAN_OPTIMIZER; kind++)
        if (strcmp(name, span_names[kind]) == 0)
            add(t, (span){.kind = kind,
                          .step = (int64_t)step,
                          .begin_ns = (int64_t)begin_ns,
                          .end_ns = (int64_t)end_ns});
}

void ls__trace_report(ls__trace *t, uint64_t step, const ls_reducer_report *report) {
    if (!t || step > t->steps)
        return;
    add(t, (span){.kind = SPAN_EXPOSED,
                  .step = (int64_t)step,
                  .begin_ns = (int64_t)report->overlap.wait_begin_ns,
                  .end_ns = (int64_t)(report->overlap.wait_begin_ns + report->wait_ns)});
    for (size_t b = 0; b < report->bucket_count; b++) {
        const ls_reducer_bucket *bucket = &report->buckets[b];
        span s = {.kind = SPAN_WAIT,
                  .step = (int64_t)step,
                  .begin_ns = (int64_t)bucket->times.begin_ns,
                  .end_ns = (int64_t)bucket->times.ready_ns,
                  .bucket = (int64_t)b,
                  .bytes = (int64_t)bucket->bytes,
                  .last_rank = bucket->times.last_rank};
        add(t, s);
        s.kind = SPAN_REDUCE;
        s.begin_ns = s.end_ns;
        s.end_ns = (int64_t)bucket->times.end_ns;
        add(t, s);
    }
}

/* Buckets that were reduced before backward of their step ended. */
static void count_hidden(const span *spans, size_t count, int64_t step, int *hidden, int *buckets) {
    int64_t end = 0;
    for (size_t i = 0; i < count; i++)
        if (spans[i].step == step && spans[i].kind == SPAN_BACKWARD && spans[i].end_ns > end)
            end = spans[i].end_ns;
    *hidden = *buckets = 0;
    for (size_t i = 0; i < count; i++)
        if (spans[i].step == step && spans[i].kind == SPAN_REDUCE) {
            ++*buckets;
            *hidden += spans[i].end_ns < end;
        }
}

static void write_rank(FILE *file, int rank, const span *spans, size_t count, int64_t origin,
                       uint64_t steps) {
    fprintf(
        file,
        "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}},\n",
        rank, rank);
    fprintf(
        file,
        "{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"thread_name\",\"args\":{\"name\":\"compute\"}},\n",
        rank);
    fprintf(
        file,
        "{\"ph\":\"M\",\"pid\":%d,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"reduction\"}},\n",
        rank);
    for (size_t i = 0; i < count && spans[i].kind > SPAN_NONE && spans[i].kind <= SPAN_REDUCE;
         i++) {
        const span *s = &spans[i];
        fprintf(
            file,
            "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"step\":%" PRId64,
            rank, s->kind >= SPAN_WAIT, span_names[s->kind], (double)(s->begin_ns - origin) / 1e3,
            (double)(s->end_ns - s->begin_ns) / 1e3, s->step);
        if (s->kind >= SPAN_WAIT)
            fprintf(file, ",\"bucket\":%" PRId64 ",\"bytes\":%" PRId64 ",\"last_rank\":%" PRId64,
                    s->bucket, s->bytes, s->last_rank);
        fputs("}},\n", file);
    }
    for (uint64_t step = 1; step <= steps; step++) {
        int hidden, buckets;
        count_hidden(spans, count, (int64_t)step, &hidden, &buckets);
        fprintf(file,
                "{\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":1,\"ts\":0,\"name\":\"step %" PRIu64
                ": %d of %d buckets reduced before backward ended\",\"args\":{\"step\":%" PRIu64
                ",\"hidden\":%d,\"buckets\":%d}},\n",
                rank, step, hidden, buckets, step, hidden, buckets);
    }
}

static ls_status write_file(const char *path, const span *spans, size_t per_rank, int ranks,
                            uint64_t steps) {
    FILE *file = fopen(path, "we");
    if (!file)
        return ls__fail_errno(LS_ERR_IO, errno, "--trace %s: cannot write", path);
    int64_t origin = INT64_MAX;
    for (size_t i = 0; i < per_rank * (size_t)ranks; i++)
        if (spans[i].kind && spans[i].begin_ns < origin)
            origin = spans[i].begin_ns;
    fputs("{\"traceEvents\":[\n", file);
    for (int r = 0; r < ranks; r++)
        write_rank(file, r, spans + (size_t)r * per_rank, per_rank, origin, steps);
    fputs(
        "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_labels\",\"args\":{\"labels\":\"lockstep\"}}\n]}\n",
        file);
    bool bad = ferror(file) != 0;
    if (fclose(file) != 0 || bad)
        return ls__fail_errno(LS_ERR_IO, errno, "--trace %s: cannot write", path);
    return LS_OK;
}

/* --- one clock ------------------------------------------------------------------------------------- */

/* When a rank saw that all had come to the first reduction: the same moment for each, but for the time that news takes
 * and a busy core, as its clock has it. */
static int64_t meeting_ns(const span *spans, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (spans[i].kind == SPAN_WAIT)
            return spans[i].end_ns;
    return 0;
}

/* clocks[r]: which clock rank r reads. */
static void move_onto_first(span *spans, size_t per_rank, size_t ranks, const uint64_t *clocks) {
    const int64_t first = meeting_ns(spans, per_rank);
    for (size_t r = 1; r < ranks; r++) {
        span *own = spans + r * per_rank;
        const int64_t ahead = meeting_ns(own, per_rank) - first;
        if (clocks[r] == clocks[0])
            continue;
        for (size_t i = 0; i < per_rank; i++) {
            own[i].begin_ns -= ahead;
            own[i].end_ns -= ahead;
        }
    }
}

ls_status ls__trace_write(ls__trace *t, ls_group *group, const char *path) {
    int64_t most = (int64_t)t->count;
    LS_TRY(ls_all_reduce(group, &most, &most, 1, LS_I64, LS_MAX));
    size_t per_rank = (size_t)most, ranks = (size_t)ls_group_size(group);
    span *mine = calloc(per_rank + 1, sizeof *mine);
    span *all = calloc(per_rank * ranks + 1, sizeof *all);
    uint64_t own_clock = ls__clock_identity(), *clocks = calloc(ranks, sizeof *clocks);
    ls_status status = LS_OK;
    if (!mine || !all || !clocks)
        status =
            ls__fail(LS_ERR_MEMORY, "--trace %s: no memory for %zu spans", path, per_rank * ranks);
    status = ls__agree(group, status);
    if (status == LS_OK && mine && all && clocks) {
        if (t->count)
            memcpy(mine, t->spans, t->count * sizeof *mine);
        status = ls_all_gather(group, mine, all, per_rank * sizeof(span) / sizeof(int64_t), LS_I64);
        if (status == LS_OK)
            status = ls_all_gather(group, &own_clock, clocks, sizeof own_clock, LS_U8);
        if (status == LS_OK)
            move_onto_first(all, per_rank, ranks, clocks);
        if (status == LS_OK && ls_group_rank(group) == 0)
            status = write_file(path, all, per_rank, (int)ranks, t->steps);
    }
    free(mine);
    free(all);
    free(clocks);
    return status;
}
