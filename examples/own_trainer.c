/* A small trainer with a backward pass written by hand, made data-parallel with liblockstep-comm: look
 * for the lines that begin with ls_. It learns which of two spirals a point of the plane lies on.
 *
 *     ./own_trainer                              alone
 *     lockstep run -n 4 -- ./own_trainer         four processes, the same result to the last bit
 *
 * Why the same bits: float sums depend on their order. So a batch is always cut into SHARDS shards,
 * each shard's gradient is computed by one process, and the shards are added in the order of one
 * balanced tree: ((s0 + s1) + (s2 + s3)). A process that owns shards 0 and 1 adds its half of the
 * tree, and the reducer adds the processes in the order of the same tree. */
#include <lockstep/group.h>
#include <lockstep/job.h>
#include <lockstep/reducer.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 1000, BATCH = 96, SHARDS = 4, LEVELS = 3, HIDDEN = 48, EPOCHS = 60 };
enum { FEATURES = 2, ROWS = BATCH / SHARDS + 1 }; /* samples a shard can have, at most */

/* The parameters, in one list: index, elements, shape. Every process describes the same list. */
enum { W1, B1, W2, B2, PARAMS };
static const size_t shape_w1[] = {HIDDEN, FEATURES}, shape_hidden[] = {HIDDEN}, shape_one[] = {1};
static const ls_reducer_param params[PARAMS] = {
    {.name = "w1", .dtype = LS_F32, .shape = shape_w1, .dims = 2},
    {.name = "b1", .dtype = LS_F32, .shape = shape_hidden, .dims = 1},
    {.name = "w2", .dtype = LS_F32, .shape = shape_hidden, .dims = 1},
    {.name = "b2", .dtype = LS_F32, .shape = shape_one, .dims = 1}};
static const size_t elements[PARAMS] = {HIDDEN * FEATURES, HIDDEN, HIDDEN, 1};

typedef struct trainer {
    ls_group *world;
    ls_reducer *reducer;
    float *weight[PARAMS], *velocity[PARAMS];
    float *gradient[PARAMS];        /* of this process, then of all: memory of the reducer */
    float *partial[PARAMS][LEVELS]; /* sums of 1, 2, 4 shards that wait for their right half */
    size_t shard, shard_count;      /* the one being computed, of those this process owns */
    double loss;                    /* summed over this process' samples of the epoch */
} trainer;

static void check(ls_status status) {
    if (status == LS_OK)
        return;
    fprintf(stderr, "own_trainer: %s\n", ls_error_text());
    exit(1);
}

/* --- data and weights: computed from numbers, so every process has the same without sending any -- */

static float uniform(uint64_t n) { /* -1 .. 1 */
    n = (n + 1) * 0x9e3779b97f4a7c15u;
    n = (n ^ (n >> 32)) * 0xd6e8feb86659fd93u;
    return (float)((double)((n ^ (n >> 32)) >> 11) / 4503599627370496.0 - 1);
}

/* Sample i: a point (FEATURES) on spiral i % 2, with a little noise. */
static float sample(uint64_t i, float x[FEATURES]) {
    float label = i % 2 ? 1 : -1;
    float along = (uniform(3 * i) + 1) / 2, radius = 0.2f + along;
    float angle = 5 * along + (label > 0 ? 3.14159265f : 0);
    x[0] = radius * cosf(angle) + 0.03f * uniform(3 * i + 1);
    x[1] = radius * sinf(angle) + 0.03f * uniform(3 * i + 2);
    return label;
}

static void make_weights(trainer *t) {
    for (size_t p = 0; p < PARAMS; p++) {
        t->weight[p] = calloc(elements[p], sizeof(float));
        t->velocity[p] = calloc(elements[p], sizeof(float));
        for (size_t level = 0; level < LEVELS; level++)
            t->partial[p][level] = calloc(elements[p], sizeof(float));
        t->gradient[p] = ls_reducer_gradient(t->reducer, p);
        float scale = p == W1 ? 1.0f : p == W2 ? 0.15f : 0;
        for (size_t e = 0; e < elements[p]; e++)
            t->weight[p][e] = scale * uniform(1000003 * (p + 1) + e);
    }
}

/* --- one shard ------------------------------------------------------------------------------------ */

/* partial[p][0] holds the gradient of the current shard: climbs the tree like a carry in a binary
 * counter. With the last shard the sum of all is complete, and the reducer may send it. */
static void finish_gradient(trainer *t, size_t p) {
    float *sum = t->gradient[p]; /* used as scratch until it holds the final sum */
    memcpy(sum, t->partial[p][0], elements[p] * sizeof(float));
    size_t level = 0;
    for (; t->shard >> level & 1; level++)
        for (size_t e = 0; e < elements[p]; e++)
            sum[e] = t->partial[p][level + 1][e] + sum[e];
    if (t->shard + 1 == t->shard_count)
        check(ls_reducer_ready(t->reducer, p));
    else
        memcpy(t->partial[p][level + 1], sum, elements[p] * sizeof(float));
}

/* Forward and backward over samples [first, end): sums of losses and gradients, not means. */
static void run_shard(trainer *t, size_t first, size_t end) {
    float x[ROWS][FEATURES], h[ROWS][HIDDEN], dz[ROWS]; /* dz: d loss / d output */
    const float *w1 = t->weight[W1], *b1 = t->weight[B1], *w2 = t->weight[W2];
    size_t rows = end - first;
    float *d[PARAMS];
    for (size_t p = 0; p < PARAMS; p++)
        d[p] = memset(t->partial[p][0], 0, elements[p] * sizeof(float));

    for (size_t r = 0; r < rows; r++) {
        float y = sample(first + r, x[r]), z = t->weight[B2][0];
        for (size_t j = 0; j < HIDDEN; j++) {
            float sum = b1[j];
            for (size_t k = 0; k < FEATURES; k++)
                sum += w1[j * FEATURES + k] * x[r][k];
            h[r][j] = tanhf(sum);
            z += w2[j] * h[r][j];
        }
        t->loss += log1p(exp(-(double)(y * z))); /* logistic loss of label y = -1 or 1 */
        dz[r] = -y / (1 + expf(y * z));
    }
    for (size_t r = 0; r < rows; r++) { /* the last layer first ... */
        d[B2][0] += dz[r];
        for (size_t j = 0; j < HIDDEN; j++)
            d[W2][j] += dz[r] * h[r][j];
    }
    finish_gradient(t, B2);
    finish_gradient(t, W2); /* ... its reduction can run while the first layer is computed */
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < HIDDEN; j++) {
            float da = dz[r] * w2[j] * (1 - h[r][j] * h[r][j]);
            d[B1][j] += da;
            for (size_t k = 0; k < FEATURES; k++)
                d[W1][j * FEATURES + k] += da * x[r][k];
        }
    finish_gradient(t, B1);
    finish_gradient(t, W1);
}

/* --- training ------------------------------------------------------------------------------------- */

/* One batch: samples [start, start + size). The last batch of an epoch is smaller, and its shards
 * need not be equal: a process weighs as much as it has samples. */
static void run_batch(trainer *t, size_t start, size_t size) {
    size_t first = (size_t)ls_group_rank(t->world) * t->shard_count;
    size_t begin = start + size * first / SHARDS;
    size_t end = start + size * (first + t->shard_count) / SHARDS;
    check(ls_reducer_begin(t->reducer, (double)(end - begin)));
    for (t->shard = 0; t->shard < t->shard_count; t->shard++)
        run_shard(t, start + size * (first + t->shard) / SHARDS,
                  start + size * (first + t->shard + 1) / SHARDS);
    check(ls_reducer_wait(t->reducer, NULL)); /* gradient[p] is now the mean over the batch */
    for (size_t p = 0; p < PARAMS; p++)
        for (size_t e = 0; e < elements[p]; e++) {
            t->velocity[p][e] = 0.9f * t->velocity[p][e] + t->gradient[p][e];
            t->weight[p][e] -= 0.1f * t->velocity[p][e];
        }
}

static uint64_t hash_weights(const trainer *t) { /* FNV-1a over all bytes */
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t p = 0; p < PARAMS; p++)
        for (size_t b = 0; b < elements[p] * sizeof(float); b++)
            hash = (hash ^ ((const unsigned char *)t->weight[p])[b]) * 0x100000001b3u;
    return hash;
}

int main(void) {
    ls_job *job;
    trainer t = {0};
    check(ls_job_init(&job, NULL)); /* from the launcher's environment, or alone */
    t.world = ls_job_world(job);
    int ranks = ls_group_size(t.world);
    if (ranks > SHARDS || SHARDS % ranks != 0) {
        fprintf(stderr, "own_trainer: %d processes cannot share %d shards\n", ranks, SHARDS);
        return 2;
    }
    t.shard_count = (size_t)(SHARDS / ranks);
    check(ls_reducer_create(&t.reducer, t.world, params, PARAMS, NULL));
    make_weights(&t);

    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        t.loss = 0;
        for (size_t start = 0; start < SAMPLES; start += BATCH)
            run_batch(&t, start, start + BATCH <= SAMPLES ? BATCH : SAMPLES - start);
        /* Only printed: its last digits may depend on the number of processes. */
        check(ls_all_reduce(t.world, &t.loss, &t.loss, 1, LS_F64, LS_SUM));
        if (ls_group_rank(t.world) == 0 && epoch % 10 == 0)
            printf("epoch %3d  loss %.4f\n", epoch, t.loss / SAMPLES);
    }
    if (ls_group_rank(t.world) == 0)
        printf("weights %016llx after %d epochs\n", (unsigned long long)hash_weights(&t), EPOCHS);

    for (size_t p = 0; p < PARAMS; p++) {
        free(t.weight[p]);
        free(t.velocity[p]);
        for (size_t level = 0; level < LEVELS; level++)
            free(t.partial[p][level]);
    }
    ls_reducer_destroy(t.reducer);
    ls_job_finish(job);
    return 0;
}
