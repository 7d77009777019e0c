/* The measurement of `lockstep bench OPERATION`, one rank's: for each size one call that is checked to
 * the bit, a warm-up, then calls one after the other. A call's time is that of the slowest rank. */
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/bench_comm.h"
#include "cli/bench_common.h"

#include <stdlib.h>
#include <string.h>

typedef struct bench {
    const ls__bench_comm_settings *settings;
    char command[64];
    ls_job *job;
    ls_group *world;
    int rank, ranks;
} bench;

/* One size. */
typedef struct row {
    ls__bench_call call;
    void *memory[2]; /* send and recv where they are two */
    size_t bytes;    /* of the larger buffer */
    size_t warmup, iterations;
    double *times;
    bool verified;
    double p50, p99, floor; /* us */
} row;

ls_status ls__bench_slowest(ls_group *group, double *times, size_t count) {
    LS_TRY(ls_all_reduce(group, times, times, count, LS_F64, LS_MAX));
    ls__bench_sort(times, count);
    return LS_OK;
}

/* --- buffers -------------------------------------------------------------------------------------- */

static ls_status allocate(const bench *b, size_t bytes, void **memory) {
    if (b->settings->registered)
        return ls_group_alloc(b->world, bytes, memory);
    if (posix_memalign(memory, 4096, bytes)) {
        *memory = NULL;
        return ls__fail(LS_ERR_MEMORY, "no memory for a buffer of %zu bytes", bytes);
    }
    memset(*memory, 0, bytes);
    return LS_OK;
}

static ls_status release(const bench *b, void *memory) {
    if (b->settings->registered)
        return ls_group_free(b->world, memory);
    free(memory);
    return LS_OK;
}

/* Whole blocks, at least one element each. */
static void choose_count(const bench *b, size_t bytes, row *r) {
    const ls__bench_operation *operation = b->settings->operation;
    size_t blocks = operation->send_blocks || operation->recv_blocks ? (size_t)b->ranks : 1;
    size_t unit = ls_dtype_size(r->call.dtype) * blocks;
    r->call.count = operation->empty ? 0 : bytes / unit + (bytes % unit != 0);
    r->bytes = r->call.count * unit;
}

/* As many as take long enough to be told from noise: some 256 MiB of traffic, 20 to 20000 calls. */
static void choose_iterations(const bench *b, row *r) {
    size_t traffic = (size_t)256 << 20, fit = traffic / (r->bytes + 1);
    size_t usual = fit < 20 ? 20 : fit > 20000 ? 20000 : fit;
    const ls__bench_comm_settings *s = b->settings;
    r->iterations = s->iterations > 0 ? (size_t)s->iterations : usual;
    r->warmup = s->warmup >= 0 ? (size_t)s->warmup : r->iterations / 10 + 3;
}

static ls_status create_buffers(const bench *b, row *r) {
    const ls__bench_operation *operation = b->settings->operation;
    size_t block = r->call.count * ls_dtype_size(r->call.dtype);
    bool one = b->settings->in_place || operation->in_place == LS__BENCH_IN_PLACE_ALWAYS;
    r->times = calloc(r->iterations, sizeof *r->times);
    r->call.counts = calloc((size_t)b->ranks, sizeof *r->call.counts);
    if (!r->times || !r->call.counts)
        return ls__fail(LS_ERR_MEMORY, "no memory for %zu times", r->iterations);
    for (int rank = 0; rank < b->ranks; rank++)
        r->call.counts[rank] = r->call.count;
    if (operation->empty)
        return LS_OK;
    for (int i = 0; i < (one ? 1 : 2); i++)
        LS_TRY(allocate(b, r->bytes, &r->memory[i]));
    r->call.send = r->memory[0];
    r->call.recv = one ? r->memory[0] : r->memory[1];
    size_t mine = (size_t)b->rank * block;
    if (one && operation->send_blocks && !operation->recv_blocks)
        r->call.recv = (char *)r->call.send + mine;
    if (one && operation->recv_blocks && !operation->send_blocks)
        r->call.send = (char *)r->call.recv + mine;
    return LS_OK;
}

/* --- measuring --------------------------------------------------------------------------------------- */

/* One call, compared bit by bit; all ranks learn whether it was right everywhere. */
static ls_status verify(const bench *b, row *r) {
    const ls__bench_operation *operation = b->settings->operation;
    const ls__bench_call *call = &r->call;
    size_t elements = call->count * (operation->send_blocks ? (size_t)b->ranks : 1), wrong = 0;
    ls__bench_fill(call->send, elements, call->dtype, call->op, b->rank, b->ranks);
    LS_TRY(operation->run(call));
    int32_t good = ls__bench_verify(operation, call, &wrong);
    if (!good)
        fprintf(stderr, "lockstep bench %s: rank %d: wrong value at element %zu of %zu bytes\n",
                operation->name, b->rank, wrong, r->bytes);
    LS_TRY(ls_all_reduce(b->world, &good, &good, 1, LS_I32, LS_MIN));
    r->verified = good;
    return LS_OK;
}

/* Values no longer matter: in place, sums grow to infinity, which costs no more to add. */
static ls_status time_calls(const bench *b, row *r) {
    ls_status (*run)(const ls__bench_call *) = b->settings->operation->run;
    for (size_t i = 0; i < r->warmup; i++)
        LS_TRY(run(&r->call));
    LS_TRY(ls_barrier(b->world));
    uint64_t before = ls__now_ns();
    for (size_t i = 0; i < r->iterations; i++) {
        LS_TRY(run(&r->call));
        uint64_t after = ls__now_ns();
        r->times[i] = (double)(after - before) / 1e3;
        before = after;
    }
    LS_TRY(ls__bench_slowest(b->world, r->times, r->iterations));
    r->p50 = ls__bench_percentile(r->times, r->iterations, 0.5);
    r->p99 = ls__bench_percentile(r->times, r->iterations, 0.99);
    return LS_OK;
}

/* --- printing ------------------------------------------------------------------------------------------ */

/* GB/s of the larger buffer; a clock that saw no time pass gives 0. */
static double speed(const row *r) {
    return r->p50 > 0 ? (double)r->bytes / r->p50 / 1e3 : 0;
}

static const char *dtype_text(int dtype) {
    static const char *const names[LS_DTYPE_COUNT] = {"f32", "f64", "f16", "bf16",
                                                      "i8",  "u8",  "i32", "i64"};
    return names[dtype];
}

static ls_status print_json(const bench *b, const row *r) {
    const ls__bench_comm_settings *s = b->settings;
    double bus = s->operation->bus(b->ranks);
    json_t *object =
        json_pack("{s:s, s:s, s:i, s:I, s:s, s:b, s:b, s:I, s:f, s:f, s:f, s:f, s:b}", "op",
                  s->operation->name, "transport", ls_job_transport(b->job), "ranks", b->ranks,
                  "bytes", (json_int_t)r->bytes, "dtype", dtype_text(s->dtype), "registered",
                  s->registered, "in_place", r->call.send == r->call.recv || s->in_place,
                  "iterations", (json_int_t)r->iterations, "us_p50", r->p50, "us_p99", r->p99,
                  "algbw_gbs", speed(r), "busbw_gbs", speed(r) * bus, "verified", r->verified);
    if (object && s->floor) {
        json_object_set_new(object, "floor_us", json_real(r->floor));
        json_object_set_new(object, "floor_ratio", ls__json_real(r->p50 / r->floor));
    }
    return ls__json_write_line(stdout, "stdout", object);
}

static void print_head(const bench *b) {
    const ls__bench_comm_settings *s = b->settings;
    static const char *const ops[LS_OP_COUNT] = {"sum", "product", "min", "max", "avg"};
    const ls__bench_operation *operation = s->operation;
    bool in_place = s->in_place || operation->in_place == LS__BENCH_IN_PLACE_ALWAYS;
    bool reduces = ls__bench_reduces(operation);
    printf("%s", operation->name);
    if (!operation->empty)
        printf(" of %s", dtype_text(s->dtype));
    if (reduces)
        printf(", %s", ops[s->op]);
    printf(", %d rank%s over %s", b->ranks, b->ranks == 1 ? "" : "s", ls_job_transport(b->job));
    if (!operation->empty)
        printf(", %s memory, %s", s->registered ? "registered" : "ordinary",
               in_place ? "in place" : "out of place");
    putchar('\n');
    printf("%12s %12s %12s %12s %12s%s  %s\n", "bytes", "us p50", "us p99", "algbw GB/s",
           "busbw GB/s", s->floor ? "     floor us  x floor" : "", "result");
}

static ls_status print(const bench *b, const row *r) {
    const ls__bench_comm_settings *s = b->settings;
    if (s->format == 1)
        return print_json(b, r);
    printf("%12zu %12.2f %12.2f %12.2f %12.2f", r->bytes, r->p50, r->p99, speed(r),
           speed(r) * s->operation->bus(b->ranks));
    if (s->floor)
        printf(" %12.2f %8.2f", r->floor, r->p50 / r->floor);
    printf("  %s\n", r->verified ? "right" : "WRONG");
    fflush(stdout);
    return LS_OK;
}

/* --- the whole ------------------------------------------------------------------------------------------- */

static ls_status measure(const bench *b, row *r) {
    choose_iterations(b, r);
    LS_TRY(create_buffers(b, r));
    LS_TRY(verify(b, r));
    LS_TRY(time_calls(b, r));
    if (b->settings->floor) {
        int64_t iterations = (int64_t)(r->iterations < 100 ? r->iterations : 100);
        LS_TRY(ls__bench_floor(&r->call, r->bytes, iterations, &r->floor));
    }
    if (b->rank == 0)
        LS_TRY(print(b, r));
    for (int i = 0; i < 2; i++) {
        void *memory = r->memory[i];
        r->memory[i] = NULL;
        if (memory)
            LS_TRY(release(b, memory));
    }
    if (!r->verified)
        return ls__fail(LS_ERR_STATE, "the result of %zu bytes is wrong; see above", r->bytes);
    return LS_OK;
}

static ls_status run_size(const bench *b, size_t bytes) {
    const ls__bench_comm_settings *s = b->settings;
    row r = {.call = {.group = b->world,
                      .dtype = (ls_dtype)s->dtype,
                      .op = (ls_op)s->op,
                      .root = (int)s->root}};
    choose_count(b, bytes, &r);
    ls_status status = measure(b, &r);
    for (int i = 0; i < 2; i++)
        if (!s->registered) /* what is registered ends with the job */
            free(r.memory[i]);
    free(r.times);
    free(r.call.counts);
    return status;
}

static ls_status run(bench *b) {
    const ls__bench_comm_settings *s = b->settings;
    snprintf(b->command, sizeof b->command, "lockstep bench %s", s->operation->name);
    LS_TRY(ls__bench_join(&b->job, b->command, s->ranks_given, s->ranks));
    b->world = ls_job_world(b->job);
    b->rank = ls_group_rank(b->world);
    b->ranks = ls_group_size(b->world);
    if (s->root >= b->ranks)
        return ls__fail(LS_ERR_ARGUMENT, "--root %lld, but the ranks are 0 to %d",
                        (long long)s->root, b->ranks - 1);
    if (s->explain)
        return ls__bench_explain(s, b->job);
    if (b->rank == 0 && s->format == 0)
        print_head(b);
    size_t sizes = s->operation->empty ? 1 : s->sizes;
    for (size_t i = 0; i < sizes; i++)
        LS_TRY(run_size(b, s->size[i]));
    return ls_barrier(b->world);
}

ls_status ls__bench_comm_run(const ls__bench_comm_settings *settings) {
    bench b = {.settings = settings};
    ls__kept_error kept = ls__cli_keep(run(&b));
    ls_job_finish(b.job);
    return ls__cli_restore(&kept);
}
