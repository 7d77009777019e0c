/* Hooks: on 1 to 4 real ranks, what each leaves is equal to the bit on all of them and is what its formula
 * gives, computed serially here; with a thread and inline; a hook of the user's own; state; refusals. */
#include "base/half.h"
#include "ranks.h"
#include <lockstep/random.h>
#include <lockstep/reducer.h>
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_WORLD = 4, STEPS = 5, ROWS = 24, COLS = 18, MATRIX = ROWS * COLS, VECTOR = 7 };
enum { LOSS, FROZEN, MATRIX_A, BIAS, DOUBLE, UNUSED, MATRIX_B, COUNT };

static const size_t scalar[] = {1}, matrix[] = {ROWS, COLS}, vector[] = {VECTOR};

static void describe(ls_reducer_param params[COUNT]) {
    const ls_reducer_param list[COUNT] = {
        [LOSS] = {.name = "loss", .dtype = LS_F32, .shape = scalar, .dims = 1, .exact = true},
        [FROZEN] = {.name = "frozen", .dtype = LS_F32, .shape = matrix, .dims = 2, .frozen = true},
        [MATRIX_A] = {.name = "a", .dtype = LS_F32, .shape = matrix, .dims = 2},
        [BIAS] = {.name = "bias", .dtype = LS_F32, .shape = vector, .dims = 1},
        [DOUBLE] = {.name = "double", .dtype = LS_F64, .shape = vector, .dims = 1},
        [UNUSED] = {.name = "unused", .dtype = LS_F32, .shape = vector, .dims = 1},
        [MATRIX_B] = {.name = "b", .dtype = LS_F32, .shape = matrix, .dims = 2},
    };
    memcpy(params, list, sizeof list);
}

static size_t elements(size_t i) {
    return i == LOSS ? 1 : i == MATRIX_A || i == MATRIX_B ? MATRIX : VECTOR;
}

/* Gradients that any rank can compute for any other. Matrix b is used by even ranks only. */
static bool uses(size_t i, int rank) {
    return i != FROZEN && i != UNUSED && (i != MATRIX_B || rank % 2 == 0);
}

static float gradient(size_t i, int rank, int step, size_t e) {
    float four[4];
    if (!uses(i, rank))
        return 0;
    ls_random_normal4((uint64_t)step, (uint64_t)rank * COUNT + i, e, four);
    return four[0] + (float)(e % COLS) * 0.1f;
}

static double weight_of(int rank, int step) {
    return rank == 1 && step == 2 ? 0 : 3 + rank;
}

static double total_of(int world, int step) {
    double total = 0;
    for (int rank = 0; rank < world; rank++)
        total += weight_of(rank, step);
    return total;
}

static void check_exact(ls_reducer *r, int world, int step) {
    float scale = (float)(1 / total_of(world, step));
    double sum = 0, sums[VECTOR] = {0};
    for (int rank = 0; rank < world; rank++) {
        sum += gradient(LOSS, rank, step, 0);
        for (size_t e = 0; e < VECTOR; e++)
            sums[e] += gradient(DOUBLE, rank, step, e);
    }
    CHECK(fabs(*(float *)ls_reducer_gradient(r, LOSS) - sum * scale) < 1e-6);
    for (size_t e = 0; e < VECTOR; e++)
        CHECK(fabs(((double *)ls_reducer_gradient(r, DOUBLE))[e] -
                   sums[e] / total_of(world, step)) < 1e-12);
    for (size_t i = 0; i < COUNT; i++)
        CHECK(ls_reducer_used(r, i) == (i != FROZEN && i != UNUSED));
}

static void check_equal_on_all(ls_group *group, ls_reducer *r) {
    for (size_t i = 0; i < COUNT; i++) {
        size_t bytes = elements(i) * (i == DOUBLE ? 8 : 4);
        unsigned char zero[MATRIX * 4];
        if (i == FROZEN)
            continue;
        memcpy(zero, ls_reducer_gradient(r, i), bytes);
        CHECK_OK(ls_broadcast(group, zero, bytes, LS_U8, 0));
        CHECK(memcmp(zero, ls_reducer_gradient(r, i), bytes) == 0);
    }
}

static void run_step(ls_reducer *r, int rank, int step) {
    CHECK_OK(ls_reducer_begin(r, weight_of(rank, step)));
    for (size_t n = COUNT; n-- > 0;) {
        size_t i = (n + (size_t)rank) % COUNT; /* each rank in another order */
        if (!uses(i, rank))
            continue;
        for (size_t e = 0; e < elements(i); e++)
            if (i == DOUBLE)
                ((double *)ls_reducer_gradient(r, i))[e] = gradient(i, rank, step, e);
            else
                ((float *)ls_reducer_gradient(r, i))[e] = gradient(i, rank, step, e);
        CHECK_OK(ls_reducer_ready(r, i));
    }
    ls_reducer_report report;
    CHECK_OK(ls_reducer_wait(r, &report));
    CHECK(report.weight > 0 && report.scale == 1 && report.unused == 1);
}

/* The averages that a hook is to leave, of all tensors it gets, on any rank: (COUNT, MATRIX). */
typedef struct reference {
    float average[COUNT][MATRIX];
    float error[MAX_WORLD][COUNT][MATRIX];
    double q[COUNT][2][COLS];
} reference;

static const size_t hooked[] = {MATRIX_A, BIAS, UNUSED, MATRIX_B};

typedef struct scenario {
    const char *text;
    void (*formula)(reference *reference, int world, int step);
    double tolerance; /* relative to 1; 0: to the bit */
    ls_progress progress;
} scenario;

static void body(int rank, ls_job *job, void *context) {
    const scenario *s = context;
    ls_group *group = ls_job_world(job);
    int world = ls_group_size(group);
    ls_reducer_param params[COUNT];
    describe(params);
    ls_reducer_hook *hook;
    CHECK_OK(ls_hook_create(&hook, s->text));
    const ls_reducer_options options = {.first_bucket_bytes = 512,
                                        .bucket_bytes = 1024,
                                        .progress = s->progress,
                                        .leave_sums = true,
                                        .hook = hook};
    ls_reducer *r;
    CHECK_OK(ls_reducer_create(&r, group, params, COUNT, &options));
    reference *want = calloc(1, sizeof *want);
    for (int step = 0; step < STEPS; step++) {
        run_step(r, rank, step);
        check_exact(r, world, step);
        check_equal_on_all(group, r);
        s->formula(want, world, step);
        for (size_t h = 0; h < 4; h++)
            for (size_t e = 0; e < elements(hooked[h]); e++) {
                float got = ((float *)ls_reducer_gradient(r, hooked[h]))[e];
                float wanted = want->average[hooked[h]][e];
                CHECK(s->tolerance > 0 ? fabsf(got - wanted) < s->tolerance : got == wanted);
            }
    }
    free(want);
    ls_reducer_destroy(r);
}

static void run(scenario s) {
    for (int progress = LS_PROGRESS_THREAD; progress <= LS_PROGRESS_INLINE; progress++)
        for (int world = 1; world <= MAX_WORLD; world++) {
            s.progress = (ls_progress)progress;
            assert_int_equal(ranks_run(world, ranks_transport(), body, &s), 0);
        }
}

/* --- bf16, f16 ------------------------------------------------------------------------------------- */

static float tree(const float *values, int n) {
    int m = 1;
    if (n == 1)
        return values[0];
    while (2 * m < n)
        m *= 2;
    return tree(values, m) + tree(values + m, n - m);
}

static float rounded(float x, bool bf16) {
    uint16_t half;
    (bf16 ? ls__f32_to_bf16 : ls__f32_to_f16)(&half, &x, 1);
    (bf16 ? ls__bf16_to_f32 : ls__f16_to_f32)(&x, &half, 1);
    return x;
}

static void half_formula(reference *want, int world, int step, bool bf16) {
    double total = total_of(world, step), power = 1;
    while (power < total)
        power *= 2;
    for (size_t h = 0; h < 4; h++)
        for (size_t e = 0; e < elements(hooked[h]); e++) {
            float sent[MAX_WORLD];
            for (int rank = 0; rank < world; rank++)
                sent[rank] = rounded(gradient(hooked[h], rank, step, e) / (float)power, bf16);
            want->average[hooked[h]][e] = rounded(tree(sent, world), bf16) * (float)(power / total);
        }
}

static void bf16_formula(reference *want, int world, int step) {
    half_formula(want, world, step, true);
}

static void f16_formula(reference *want, int world, int step) {
    half_formula(want, world, step, false);
}

static void test_bf16(void **state) {
    (void)state;
    run((scenario){.text = "bf16", .formula = bf16_formula});
}

static void test_f16(void **state) {
    (void)state;
    run((scenario){.text = "f16", .formula = f16_formula});
}

/* --- top-k ------------------------------------------------------------------------------------------- */

/* Whether element e is among the `keep` largest: at most so many come before it. */
static bool among(const float *a, size_t count, size_t e, size_t keep) {
    size_t before = 0;
    for (size_t i = 0; i < count; i++)
        before += fabsf(a[i]) > fabsf(a[e]) || (fabsf(a[i]) == fabsf(a[e]) && i < e);
    return before < keep;
}

static void topk_formula(reference *want, int world, int step) {
    float scale = (float)(1 / total_of(world, step));
    for (size_t h = 0; h < 4; h++) {
        size_t i = hooked[h], count = elements(i), keep = (size_t)ceil(0.1 * (double)count);
        memset(want->average[i], 0, sizeof want->average[i]);
        for (int rank = 0; rank < world; rank++) {
            float a[MATRIX], *error = want->error[rank][i];
            for (size_t e = 0; e < count; e++)
                a[e] = gradient(i, rank, step, e) + error[e];
            for (size_t e = 0; e < count; e++) {
                bool sent = among(a, count, e, keep);
                error[e] = sent ? 0 : a[e];
                want->average[i][e] += sent ? a[e] : 0;
            }
        }
        for (size_t e = 0; e < count; e++)
            want->average[i][e] *= scale;
    }
}

static void test_topk(void **state) {
    (void)state;
    run((scenario){.text = "topk:ratio=0.1", .formula = topk_formula});
}

/* --- PowerSGD, in f64 ---------------------------------------------------------------------------------- */

static void first_q(reference *want, size_t i) {
    float four[4];
    for (size_t k = 0; k < 2; k++)
        for (size_t j = 0; j < COLS; j++) {
            ls_random_normal4(4 + k, ls_random_stream(i == MATRIX_A ? "a" : "b"), j / 4, four);
            want->q[i][k][j] = four[j % 4];
        }
}

static void orthogonalise(double p[ROWS][2]) {
    for (size_t k = 0; k < 2; k++) {
        double along = 0, square = 0;
        for (size_t i = 0; k > 0 && i < ROWS; i++)
            along += p[i][0] * p[i][1];
        for (size_t i = 0; k > 0 && i < ROWS; i++)
            p[i][1] -= along * p[i][0];
        for (size_t i = 0; i < ROWS; i++)
            square += p[i][k] * p[i][k];
        for (size_t i = 0; i < ROWS; i++)
            p[i][k] /= sqrt(square);
    }
}

static void powersgd_matrix(reference *want, size_t i, int world, int step) {
    double p[ROWS][2] = {{0}}, mean[2][COLS] = {{0}}, total = total_of(world, step);
    static float m[MAX_WORLD][MATRIX];
    for (int rank = 0; rank < world; rank++)
        for (size_t e = 0; e < MATRIX; e++) {
            m[rank][e] = gradient(i, rank, step, e) + want->error[rank][i][e];
            for (size_t k = 0; k < 2; k++)
                p[e / COLS][k] += m[rank][e] * want->q[i][k][e % COLS];
        }
    orthogonalise(p);
    for (int rank = 0; rank < world; rank++) {
        double local[2][COLS] = {{0}};
        for (size_t e = 0; e < MATRIX; e++)
            for (size_t k = 0; k < 2; k++)
                local[k][e % COLS] += p[e / COLS][k] * m[rank][e];
        for (size_t e = 0; e < MATRIX; e++)
            want->error[rank][i][e] = (float)(m[rank][e] - p[e / COLS][0] * local[0][e % COLS] -
                                              p[e / COLS][1] * local[1][e % COLS]);
        for (size_t j = 0; j < COLS; j++)
            for (size_t k = 0; k < 2; k++)
                mean[k][j] += local[k][j] / total;
    }
    memcpy(want->q[i], mean, sizeof mean);
    for (size_t e = 0; e < MATRIX; e++)
        want->average[i][e] =
            (float)(p[e / COLS][0] * mean[0][e % COLS] + p[e / COLS][1] * mean[1][e % COLS]);
}

static void in_full(reference *want, size_t i, int world, int step) {
    for (size_t e = 0; e < elements(i); e++) {
        double sum = 0;
        for (int rank = 0; rank < world; rank++)
            sum += gradient(i, rank, step, e);
        want->average[i][e] = (float)(sum / total_of(world, step));
    }
}

/* The first step in full, then rank 2. */
static void powersgd_formula(reference *want, int world, int step) {
    for (size_t h = 0; h < 4; h++) {
        size_t i = hooked[h];
        if (step == 0 || elements(i) == VECTOR) {
            in_full(want, i, world, step);
            continue;
        }
        if (step == 1)
            first_q(want, i);
        powersgd_matrix(want, i, world, step);
    }
}

static void test_powersgd(void **state) {
    (void)state;
    run((scenario){
        .text = "powersgd:rank=2,start=1", .formula = powersgd_formula, .tolerance = 2e-4});
}

/* --- of the user's own --------------------------------------------------------------------------------- */

typedef struct own {
    ls_group *group;
    int attached, destroyed;
    size_t buckets, whole;
} own;

static ls_status own_attach(void *context, const ls_group *group, const ls_reducer_param *params,
                            size_t count) {
    own *o = context;
    CHECK(group && count == COUNT && strcmp(params[MATRIX_A].name, "a") == 0);
    o->attached++;
    return LS_OK;
}

/* The plain average, by hand. */
static ls_status own_reduce(void *context, ls_group *group, const ls_hook_bucket *b) {
    own *o = context;
    o->buckets++;
    CHECK(b->pieces > 0 && b->total > 0);
    for (size_t p = 0; p < b->pieces; p++) {
        const ls_hook_piece *piece = &b->piece[p];
        CHECK(piece->param != LOSS && piece->param != DOUBLE && piece->param != FROZEN);
        CHECK(piece->data >= b->data && piece->data + piece->count <= b->data + b->count);
        CHECK(piece->reported == uses(piece->param, ls_group_rank(group)));
        o->whole += piece->first == 0 && piece->count == elements(piece->param);
        if (piece->count == 0)
            continue;
        ls_status status =
            ls_all_reduce(group, piece->data, piece->data, piece->count, LS_F32, LS_SUM);
        if (status != LS_OK)
            return status;
        for (size_t e = 0; e < piece->count; e++)
            piece->data[e] = (float)(piece->data[e] / b->total);
    }
    return LS_OK;
}

static void own_destroy(void *context) {
    ((own *)context)->destroyed++;
}

static void own_body(int rank, ls_job *job, void *context) {
    ls_group *group = ls_job_world(job);
    bool whole = *(bool *)context;
    own o = {.group = group};
    ls_reducer_param params[COUNT];
    describe(params);
    const ls_reducer_hook hook = {.name = "own",
                                  .whole_tensors = whole,
                                  .context = &o,
                                  .attach = own_attach,
                                  .reduce = own_reduce,
                                  .destroy = own_destroy};
    const ls_reducer_options options = {
        .first_bucket_bytes = 512, .bucket_bytes = 1024, .hook = &hook};
    ls_reducer *r;
    CHECK_OK(ls_reducer_create(&r, group, params, COUNT, &options));
    reference *want = calloc(1, sizeof *want);
    run_step(r, rank, 0);
    check_exact(r, ls_group_size(group), 0);
    check_equal_on_all(group, r);
    for (size_t h = 0; h < 4; h++) {
        in_full(want, hooked[h], ls_group_size(group), 0);
        for (size_t e = 0; e < elements(hooked[h]); e++)
            CHECK(fabsf(((float *)ls_reducer_gradient(r, hooked[h]))[e] -
                        want->average[hooked[h]][e]) < 1e-6);
    }
    free(want);
    CHECK(o.attached == 1 && o.destroyed == 0);
    CHECK(o.buckets >= (whole ? 2 : 4) && (o.whole == 4) == whole);
    /* a step of no weight does not reach the hook, and gives zeros */
    size_t before = o.buckets;
    CHECK_OK(ls_reducer_begin(r, 0));
    CHECK_OK(ls_reducer_ready(r, MATRIX_A));
    CHECK_OK(ls_reducer_wait(r, NULL));
    CHECK(o.buckets == before && ((float *)ls_reducer_gradient(r, MATRIX_A))[3] == 0);
    CHECK(!ls_reducer_used(r, MATRIX_A));
    ls_reducer_destroy(r);
    CHECK(o.destroyed == 1);
}

static void test_own(void **state) {
    (void)state;
    for (int whole = 0; whole < 2; whole++)
        for (int world = 1; world <= 3; world++) {
            bool wants = whole;
            assert_int_equal(ranks_run(world, ranks_transport(), own_body, &wants), 0);
        }
}

/* --- state and refusals ---------------------------------------------------------------------------------- */

static void state_body(int rank, ls_job *job, void *context) {
    (void)context;
    ls_reducer_param params[COUNT];
    describe(params);
    ls_reducer_hook *hook;
    CHECK_OK(ls_hook_create(&hook, "powersgd:rank=2"));
    ls_reducer *r;
    CHECK_OK(ls_reducer_create(&r, ls_job_world(job), params, COUNT,
                               &(ls_reducer_options){.hook = hook}));
    run_step(r, rank, 0);
    run_step(r, rank, 1);
    CHECK(ls_reducer_hook_states(r) == 5);
    ls_hook_state state;
    CHECK_OK(ls_reducer_hook_state(r, 0, &state));
    CHECK(strcmp(state.name, "powersgd.step") == 0 && *(int64_t *)state.data == 2 &&
          !state.per_rank);
    CHECK_OK(ls_reducer_hook_state(r, 1, &state));
    CHECK(strcmp(state.name, "powersgd.error.a") == 0 && state.per_rank && state.dims == 2);
    CHECK(state.shape[0] == ROWS && state.shape[1] == COLS && ((float *)state.data)[1] != 0);
    CHECK_OK(ls_reducer_hook_state(r, 4, &state));
    CHECK(strcmp(state.name, "powersgd.q.b") == 0 && !state.per_rank && state.shape[0] == 2);
    CHECK(ls_reducer_hook_state(r, 5, &state) == LS_ERR_ARGUMENT);

    /* Another reducer that takes this state over goes on to the same bits. */
    ls_reducer *again;
    CHECK_OK(ls_hook_create(&hook, "powersgd:rank=2"));
    CHECK_OK(ls_reducer_create(&again, ls_job_world(job), params, COUNT,
                               &(ls_reducer_options){.hook = hook}));
    for (size_t i = 0; i < 5; i++) {
        ls_hook_state to;
        CHECK_OK(ls_reducer_hook_state(r, i, &state));
        CHECK_OK(ls_reducer_hook_state(again, i, &to));
        size_t count = state.shape[0] * (state.dims > 1 ? state.shape[1] : 1);
        memcpy(to.data, state.data, count * ls_dtype_size(state.dtype));
    }
    run_step(r, rank, 2);
    run_step(again, rank, 2);
    for (size_t i = 0; i < COUNT; i++)
        CHECK(i == FROZEN || memcmp(ls_reducer_gradient(r, i), ls_reducer_gradient(again, i),
                                    elements(i) * 4) == 0);
    ls_reducer_destroy(again);
    ls_reducer_destroy(r);
}

static void test_state(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, ranks_transport(), state_body, NULL), 0);
}

/* A NaN reaches all ranks, and is gone a step later. */
static void nan_body(int rank, ls_job *job, void *context) {
    ls_reducer_param params[COUNT];
    describe(params);
    ls_reducer_hook *hook;
    CHECK_OK(ls_hook_create(&hook, context));
    ls_reducer *r;
    CHECK_OK(ls_reducer_create(&r, ls_job_world(job), params, COUNT,
                               &(ls_reducer_options){.hook = hook}));
    for (int step = 0; step < 3; step++) {
        CHECK_OK(ls_reducer_begin(r, 1));
        float *g = ls_reducer_gradient(r, MATRIX_A);
        for (size_t e = 0; e < MATRIX; e++)
            g[e] = gradient(MATRIX_A, rank, step, e);
        if (step == 1 && rank == 1)
            g[5] = NAN;
        CHECK_OK(ls_reducer_ready(r, MATRIX_A));
        CHECK_OK(ls_reducer_wait(r, NULL));
        bool finite = true;
        for (size_t e = 0; e < MATRIX; e++)
            finite &= isfinite(g[e]) != 0;
        CHECK(finite == (step != 1));
    }
    ls_reducer_destroy(r);
}

static void test_nan(void **state) {
    (void)state;
    const char *texts[] = {"bf16", "f16", "topk:ratio=0.05", "powersgd:rank=2"};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(ranks_run(2, ranks_transport(), nan_body, (void *)texts[i]), 0);
}

/* A caller's hook has no way to set the text of its error. */
static ls_status fails_to_attach(void *context, const ls_group *group,
                                 const ls_reducer_param *params, size_t count) {
    (void)context, (void)params, (void)count;
    return ls_group_rank(group) == 1 ? LS_ERR_MEMORY : LS_OK;
}

static ls_status fails_to_reduce(void *context, ls_group *group, const ls_hook_bucket *b) {
    (void)context, (void)group, (void)b;
    return LS_ERR_MEMORY;
}

static void wordless_body(int rank, ls_job *job, void *context) {
    (void)context;
    ls_group *world = ls_job_world(job);
    ls_reducer_param params[COUNT];
    describe(params);
    ls_reducer_hook hook = {.name = "h", .attach = fails_to_attach, .reduce = fails_to_reduce};
    const ls_reducer_options options = {.hook = &hook};
    ls_reducer *r;
    const char *words = "hook h: it returned LS_ERR_MEMORY (out of memory) and no text";
    CHECK(ls_group_free(NULL, NULL) == LS_ERR_ARGUMENT); /* leaves a text behind */
    CHECK(ls_reducer_create(&r, world, params, COUNT, &options) ==
          (rank == 1 ? LS_ERR_MEMORY : LS_ERR_PEER));
    CHECK(strstr(ls_error_text(), words));
    hook.attach = NULL;
    CHECK_OK(ls_reducer_create(&r, world, params, COUNT, &options));
    CHECK_OK(ls_reducer_begin(r, 1));
    CHECK(ls_reducer_wait(r, NULL) == LS_ERR_MEMORY);
    CHECK(strstr(ls_error_text(), words));
    ls_reducer_destroy(r);
}

static void test_a_hook_without_words(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, ranks_transport(), wordless_body, NULL), 0);
}

static void differ_body(int rank, ls_job *job, void *context) {
    (void)context;
    ls_reducer_param params[COUNT];
    describe(params);
    ls_reducer_hook *hook;
    CHECK_OK(ls_hook_create(&hook, rank == 1 ? "topk:ratio=0.5" : "bf16"));
    ls_reducer *r;
    CHECK(ls_reducer_create(&r, ls_job_world(job), params, COUNT,
                            &(ls_reducer_options){.hook = hook}) == LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_text(), "hooks differ: rank 0 has hook bf16, rank 1 has hook "
                                  "topk:ratio=0.5; give all ranks the same options"));
    CHECK(ls_reducer_create(&r, ls_job_world(job), params, COUNT,
                            &(ls_reducer_options){.hook = rank == 1 ? NULL : hook}) ==
          LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_text(), "hooks differ: rank 0 has hook bf16, rank 1 has no hook"));
    ls_hook_destroy(hook);
}

static void test_hooks_differ(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, ranks_transport(), differ_body, NULL), 0);
}

/* A hook whose reducer came to nothing is the caller's to use again, and keeps nothing of it. */
static void again_body(int rank, ls_job *job, void *context) {
    ls_reducer_param params[COUNT];
    describe(params);
    ls_reducer_hook *hook;
    CHECK_OK(ls_hook_create(&hook, context));
    ls_reducer *r;
    size_t used = 0;
    for (int i = 0; i < 40; i++) {
        const ls_reducer_options differ = {.hook = hook, .bucket_bytes = 4096 + 64 * (size_t)rank};
        CHECK(ls_reducer_create(&r, ls_job_world(job), params, COUNT, &differ) == LS_ERR_MISMATCH);
        if (i == 4)
            used = mallinfo2().uordblks;
    }
    CHECK(mallinfo2().uordblks < used + 16384); /* 35 times two errors of a matrix are 120960 */
    CHECK_OK(ls_reducer_create(&r, ls_job_world(job), params, COUNT,
                               &(ls_reducer_options){.hook = hook}));
    run_step(r, rank, 0);
    ls_reducer_destroy(r);
}

static void test_hook_is_used_again(void **state) {
    (void)state;
    const char *texts[] = {"topk:ratio=0.05", "powersgd:rank=2", "bf16"};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(ranks_run(2, ranks_transport(), again_body, (void *)texts[i]), 0);
}

static void test_texts(void **state) {
    (void)state;
    ls_reducer_hook *hook;
    assert_int_equal(ls_hook_create(&hook, "none"), LS_OK);
    assert_null(hook);
    const char *bad[] = {"",
                         "fp8",
                         "bf16:x=1",
                         "powersgd",
                         "powersgd:",
                         "powersgd:rank=0",
                         "powersgd:rank=2.5",
                         "powersgd:rank=2,",
                         "powersgd:rank=2,begin=3",
                         "topk:ratio=0",
                         "topk:ratio=1.5",
                         "topk:ratio=x",
                         "topk:ratio=nan",
                         "topk:ratio=0.1,ratio=0.2",
                         "powersgd:rank=4,start=2,rank=4"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ls_hook_create(&hook, bad[i]), LS_ERR_ARGUMENT);
        assert_null(hook);
        assert_non_null(strstr(ls_error_text(), "want none, bf16"));
    }
    assert_int_equal(ls_hook_create(&hook, "powersgd:start=7,rank=3"), LS_OK);
    assert_string_equal(hook->name, "powersgd:rank=3,start=7");
    ls_hook_destroy(hook);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16),         cmocka_unit_test(test_f16),
        cmocka_unit_test(test_topk),         cmocka_unit_test(test_powersgd),
        cmocka_unit_test(test_own),          cmocka_unit_test(test_state),
        cmocka_unit_test(test_nan),          cmocka_unit_test(test_a_hook_without_words),
        cmocka_unit_test(test_hooks_differ), cmocka_unit_test(test_hook_is_used_again),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
