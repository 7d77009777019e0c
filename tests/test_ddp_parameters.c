/* Parameters that are shared, used twice, used on some ranks only, computed again, called from elsewhere,
 * frozen and unfrozen, loaded anew: N ranks are one process, or are told by name why not. */
#include "autograd/checkpoint.h"
#include "nn/parameter.h"
#include "trainer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Two samples for each of four parts of a batch; every process can compute any part. */
enum { PARTS = 4, ROWS = 2 };

static ls_parameter *find(ls_model *model, const char *name) {
    for (size_t i = 0; i < ls_model_parameter_count(model); i++)
        if (strcmp(ls_parameter_name(ls_model_parameter(model, i)), name) == 0)
            return ls_model_parameter(model, i);
    CHECK(name == NULL); /* no parameter of that name */
    return NULL;
}

static ls_tensor *layer(trainer *t, const char *name, ls_tensor *x) {
    char weight[32], bias[32];
    snprintf(weight, sizeof weight, "%s.weight", name);
    snprintf(bias, sizeof bias, "%s.bias", name);
    return ls_linear(t->step, x, ls_parameter_value(find(t->model, weight)),
                     ls_parameter_value(find(t->model, bias)));
}

/* --- the ways to use a model: the sum of losses of one part --- */

typedef ls_tensor *(*use_fn)(trainer *t, size_t part, ls_tensor *x, ls_tensor *y);

/* fc1 twice in a row (width 12 -> 12), fc2 never */
static ls_tensor *repeated(trainer *t, size_t part, ls_tensor *x, ls_tensor *y) {
    (void)part;
    x = ls_tanh(t->step, layer(t, "fc1", x));
    x = ls_tanh(t->step, layer(t, "fc1", x));
    return ls_cross_entropy(t->step, layer(t, "fc3", x), y);
}

/* fc2 only in odd parts, so at four ranks on ranks 1 and 3 only */
static ls_tensor *some_ranks(trainer *t, size_t part, ls_tensor *x, ls_tensor *y) {
    x = ls_tanh(t->step, layer(t, "fc1", x));
    if (part % 2 == 1)
        x = ls_tanh(t->step, layer(t, "fc2", x));
    return ls_cross_entropy(t->step, layer(t, "fc3", x), y);
}

/* three forwards of the whole model before one backward */
static ls_tensor *several_forwards(trainer *t, size_t part, ls_tensor *x, ls_tensor *y) {
    (void)part;
    ls_tensor *one = ls_cross_entropy(t->step, ls_model_forward(t->step, t->model, x), y);
    ls_tensor *z = ls_scale(t->step, x, 0.5F);
    ls_tensor *two = ls_cross_entropy(t->step, ls_model_forward(t->step, t->model, z), y);
    ls_tensor *three = ls_model_loss(t->step, t->model, ls_scale(t->step, x, -1), y, NULL);
    return ls_add(t->step, ls_add(t->step, one, two), three);
}

static ls_tensor *segment(ls_step *step, void *context, ls_tensor *x) {
    (void)step;
    return ls_tanh(step, layer(context, "fc1", ls_tanh(step, layer(context, "fc1", x))));
}

/* fc1 twice inside of a segment that is computed again, the segment twice, and fc1 once outside */
static ls_tensor *recomputed(trainer *t, size_t part, ls_tensor *x, ls_tensor *y) {
    (void)part;
    ls_tensor *weights[] = {ls_parameter_value(find(t->model, "fc1.weight")),
                            ls_parameter_value(find(t->model, "fc1.bias"))};
    x = ls__checkpoint(t->step, segment, t, x, weights, 2);
    x = ls__checkpoint(t->step, segment, t, x, weights, 2);
    x = ls_tanh(t->step, layer(t, "fc1", x));
    return ls_cross_entropy(t->step, layer(t, "fc3", x), y);
}

/* not through the model's forward: its first layer as a value, its last as an operation of the caller's */
static ls_tensor *another_entry(trainer *t, size_t part, ls_tensor *x, ls_tensor *y) {
    (void)part;
    x = ls_matmul(t->step, x, ls_parameter_value(find(t->model, "fc1.weight")));
    return ls_cross_entropy(t->step, layer(t, "fc3", x), y);
}

static const use_fn USES[] = {repeated, some_ranks, several_forwards, recomputed, another_entry};
enum { USE_COUNT = sizeof USES / sizeof *USES };

/* --- N ranks against one process --- */

static ls_tensor *part_loss(trainer *t, use_fn use, uint64_t s, size_t part, float *x, int32_t *y) {
    make_samples(s, part * ROWS, ROWS, x, y);
    CHECK_OK(ls_step_begin(t->step, &(ls_step_mode){.training = true}));
    ls_tensor *input = ls_tensor_wrap(t->step, x, LS_F32, (size_t[]){ROWS, INPUTS}, 2);
    ls_tensor *target = ls_tensor_wrap(t->step, y, LS_I32, (size_t[]){ROWS}, 1);
    ls_tensor *loss = use(t, part, input, target);
    CHECK_OK(ls_step_status(t->step));
    return loss;
}

/* One backward over the sum of the losses of all parts, without a ddp. */
static void train_alone(trainer *t, use_fn use, uint64_t steps) {
    static float x[PARTS][ROWS * INPUTS];
    int32_t y[PARTS][ROWS];
    for (uint64_t s = 0; s < steps; s++) {
        CHECK_OK(ls_step_begin(t->step, &(ls_step_mode){.training = true}));
        ls_tensor *loss = NULL;
        for (size_t part = 0; part < PARTS; part++) {
            make_samples(s, part * ROWS, ROWS, x[part], y[part]);
            ls_tensor *input =
                ls_tensor_wrap(t->step, x[part], LS_F32, (size_t[]){ROWS, INPUTS}, 2);
            ls_tensor *target = ls_tensor_wrap(t->step, y[part], LS_I32, (size_t[]){ROWS}, 1);
            ls_tensor *one = use(t, part, input, target);
            loss = loss ? ls_add(t->step, loss, one) : one;
        }
        loss = ls_scale(t->step, loss, 1.0F / (PARTS * ROWS));
        CHECK_OK(ls_backward(t->step, loss, NULL, NULL));
        CHECK_OK(ls_optimizer_step(t->optimizer, 0.1, NULL));
    }
}

typedef struct use_case {
    size_t use;
    uint64_t *hash;
} use_case;

static void check_close(ls_model *a, ls_model *b) {
    for (size_t i = 0; i < ls_model_parameter_count(a); i++) {
        const ls_tensor *one = &ls_model_parameter(a, i)->value;
        const float *p = one->data, *q = ls_model_parameter(b, i)->value.data;
        for (size_t k = 0; k < one->count; k++)
            CHECK(fabsf(p[k] - q[k]) < 2e-6F * (1 + fabsf(p[k])));
    }
}

static const char SQUARE[] = "mlp:12,12,12,5";

static void body_use(int rank, ls_job *job, void *context) {
    const use_case *c = context;
    use_fn use = USES[c->use];
    float x[ROWS * INPUTS];
    int32_t y[ROWS];
    trainer t, alone;
    open_trainer(&t, job, SQUARE, 3, PARTS);
    size_t first, count;
    ls_ddp_shards(t.ddp, &first, &count);
    for (uint64_t s = 0; s < 3; s++) {
        CHECK_OK(ls_ddp_begin(t.ddp, (double)(count * ROWS)));
        for (size_t part = first; part < first + count; part++)
            CHECK_OK(ls_ddp_backward(t.ddp, t.step, part_loss(&t, use, s, part, x, y)));
        ls_reducer_report report;
        CHECK_OK(ls_ddp_wait(t.ddp, &report));
        size_t unused = use == repeated || use == recomputed ? 2 : use == another_entry ? 3 : 0;
        CHECK(report.unused == unused);
        CHECK_OK(ls_optimizer_step(t.optimizer, 0.1, NULL));
    }
    CHECK_OK(ls_ddp_verify(t.ddp));
    if (rank == 0) {
        *c->hash = ls_model_hash(t.model);
        alone = (trainer){.device = t.device, .step = t.step};
        const ls_model_options options = {.device = t.device, .seed = 3};
        CHECK_OK(ls_model_create(&alone.model, SQUARE, &options));
        const ls_optimizer_options sgd = {.kind = LS_SGD, .momentum = 0.9};
        CHECK_OK(ls_optimizer_create(&alone.optimizer, alone.model, &sgd));
        train_alone(&alone, use, 3);
        check_close(alone.model, t.model);
        ls_optimizer_destroy(alone.optimizer);
        ls_model_destroy(alone.model);
    }
    close_trainer(&t);
}

static void test_uses(void **state) {
    (void)state;
    uint64_t *hash = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(hash, MAP_FAILED);
    for (size_t use = 0; use < USE_COUNT; use++) {
        uint64_t first = 0;
        for (int world = 1; world <= PARTS; world *= 2) {
            use_case c = {use, hash};
            *hash = 0;
            assert_int_equal(ranks_run(world, "shm", body_use, &c), 0);
            if (world == 1)
                first = *hash;
            assert_int_not_equal(*hash, 0);
            assert_int_equal(*hash, first);
        }
    }
    munmap(hash, 4096);
}

/* --- two losses, two backwards: refused by name, and nothing hangs --- */

static void body_two_backwards(int rank, ls_job *job, void *context) {
    (void)rank;
    (void)context;
    float x[ROWS * INPUTS];
    int32_t y[ROWS];
    trainer t;
    open_trainer(&t, job, SPEC, 1, 4);
    CHECK_OK(ls_ddp_begin(t.ddp, 2 * ROWS));
    ls_tensor *loss = forward(&t, 0, 0, ROWS, x, y);
    CHECK_OK(ls_ddp_backward(t.ddp, t.step, loss));
    CHECK(ls_ddp_backward(t.ddp, t.step, ls_scale(t.step, loss, 2)) == LS_ERR_STATE);
    CHECK(strstr(ls_error_text(), "called twice in one step; add the losses"));
    CHECK(ls_ddp_wait(t.ddp, NULL) == LS_ERR_PEER);
    CHECK(strstr(ls_error_text(), "rank 0") && strstr(ls_error_text(), "add the losses"));
    close_trainer(&t);
}

static void test_two_backwards(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_two_backwards, NULL), 0);
}

/* --- freezing and unfreezing --- */

static void train_steps(trainer *t, uint64_t first, uint64_t count) {
    for (uint64_t s = first; s < first + count; s++)
        run_step(t, s, 4, BATCH);
}

static uint64_t hash_of(ls_model *model, const char *name) {
    const ls_tensor *value = &find(model, name)->value;
    uint64_t hash = 5381;
    for (size_t i = 0; i < value->count * sizeof(float); i++)
        hash = hash * 33 + ((const unsigned char *)value->data)[i];
    return hash;
}

static void body_freeze(int rank, ls_job *job, void *context) {
    trainer t;
    open_trainer(&t, job, SPEC, 1, 4);
    CHECK_OK(ls_ddp_set_trainable(t.ddp, "fc1", false)); /* before the first step */
    uint64_t start[2] = {hash_of(t.model, "fc1.weight"), hash_of(t.model, "fc2.weight")};
    train_steps(&t, 0, 2);
    CHECK(hash_of(t.model, "fc1.weight") == start[0] && hash_of(t.model, "fc2.weight") != start[1]);
    CHECK(!ls_parameter_gradient(find(t.model, "fc1.weight")));
    CHECK_OK(ls_ddp_set_trainable(t.ddp, "fc2.weight", false));
    CHECK_OK(ls_ddp_set_trainable(t.ddp, "fc1", true));
    start[1] = hash_of(t.model, "fc2.weight");
    uint64_t bias = hash_of(t.model, "fc2.bias");
    train_steps(&t, 2, 2);
    CHECK(hash_of(t.model, "fc1.weight") != start[0] && hash_of(t.model, "fc2.weight") == start[1]);
    CHECK(hash_of(t.model, "fc2.bias") != bias);
    CHECK_OK(ls_ddp_set_trainable(t.ddp, "", true));
    train_steps(&t, 4, 2 * WATCH);
    CHECK_OK(ls_ddp_verify(t.ddp));
    if (rank == 0)
        *(uint64_t *)context = ls_model_hash(t.model);
    CHECK(ls_ddp_set_trainable(t.ddp, "fc4", false) == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_text(), "fc4"));
    CHECK(ls_ddp_set_trainable(t.ddp, "fc", false) == LS_ERR_ARGUMENT);
    CHECK(ls_model_set_trainable(t.model, "fc1", false) == LS_ERR_STATE);
    CHECK(strstr(ls_error_text(), "ls_ddp_set_trainable"));
    train_steps(&t, 20, 1);
    close_trainer(&t);
}

static void test_freeze(void **state) {
    (void)state;
    uint64_t *hash = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(hash, MAP_FAILED);
    uint64_t first = 0;
    for (int world = 1; world <= 4; world *= 2) {
        assert_int_equal(ranks_run(world, "shm", body_freeze, hash), 0);
        if (world == 1)
            first = *hash;
        assert_int_equal(*hash, first);
    }
    assert_int_not_equal(first, 0);
    munmap(hash, 4096);
}

/* Ranks that do not ask for the same are told, and can go on as they were. */
static void body_freeze_differs(int rank, ls_job *job, void *context) {
    (void)context;
    trainer t;
    open_trainer(&t, job, SPEC, 1, 4);
    train_steps(&t, 0, 1);
    CHECK(ls_ddp_set_trainable(t.ddp, rank == 1 ? "fc2" : "fc1", false) == LS_ERR_MISMATCH);
    CHECK(strstr(ls_error_text(), "fc1.weight") && strstr(ls_error_text(), "rank 1"));
    CHECK(strstr(ls_error_text(), "frozen") && strstr(ls_error_text(), "nothing was changed"));
    uint64_t before = hash_of(t.model, "fc1.weight");
    train_steps(&t, 1, 2);
    CHECK(hash_of(t.model, "fc1.weight") != before);
    CHECK_OK(ls_ddp_verify(t.ddp));
    CHECK_OK(ls_ddp_begin(t.ddp, 1));
    CHECK(ls_ddp_set_trainable(t.ddp, "fc1", false) == LS_ERR_STATE);
    CHECK_OK(ls_ddp_wait(t.ddp, NULL));
    close_trainer(&t);
}

static void test_freeze_differs(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_freeze_differs, NULL), 0);
    assert_int_equal(ranks_run(3, "tcp", body_freeze_differs, NULL), 0);
}

/* What fails on one rank before there is a reducer is heard by all at once. */
static void body_one_cannot(int rank, ls_job *job, void *context) {
    (void)context;
    trainer t;
    ls_group *self;
    ls_ddp *other = NULL;
    CHECK_OK(ls_device_cpu(&t.device, 1));
    CHECK_OK(ls_model_create(&t.model, SPEC, &(ls_model_options){.device = t.device, .seed = 1}));
    CHECK_OK(ls_group_split(ls_job_world(job), rank, 0, &self));
    if (rank == 1)
        CHECK_OK(ls_ddp_create(&other, t.model, self, NULL));
    CHECK(ls_ddp_create(&t.ddp, t.model, ls_job_world(job), NULL) ==
          (rank == 1 ? LS_ERR_STATE : LS_ERR_PEER));
    CHECK(strstr(ls_error_text(), "already trained by another ddp"));
    CHECK(rank == 1 || strstr(ls_error_text(), "rank 1"));
    ls_ddp_destroy(other); /* and nothing is left in the way of another try */
    CHECK_OK(ls_ddp_create(&t.ddp, t.model, ls_job_world(job), NULL));
    ls_ddp_destroy(t.ddp);
    ls_group_destroy(self);
    ls_model_destroy(t.model);
    ls_device_destroy(t.device);
}

static void test_one_cannot(void **state) {
    (void)state;
    assert_int_equal(ranks_run(3, "shm", body_one_cannot, NULL), 0);
}

/* --- values replaced after the ddp was made: they are the same parameters, and are reduced --- */

static void load_values(ls_model *model, const char *path) {
    float *value[16], *gradient[16];
    size_t count = ls_model_parameter_count(model);
    CHECK(count <= 16);
    for (size_t i = 0; i < count; i++) {
        value[i] = ls_model_parameter(model, i)->value.data;
        gradient[i] = ls_parameter_gradient(ls_model_parameter(model, i));
    }
    CHECK_OK(ls_model_load(model, path));
    CHECK(ls_model_parameter_count(model) == count);
    for (size_t i = 0; i < count; i++) {
        CHECK(ls_model_parameter(model, i)->value.data == value[i]);
        CHECK(ls_parameter_gradient(ls_model_parameter(model, i)) == gradient[i]);
    }
}

typedef struct replaced {
    char path[64]; /* weights of another seed */
    uint64_t hash;
} replaced;

static void body_values_replaced(int rank, ls_job *job, void *context) {
    replaced *c = context;
    trainer t;
    open_trainer(&t, job, SPEC, 1, 4);
    train_steps(&t, 0, 2);
    uint64_t before = hash_of(t.model, "fc1.weight");
    load_values(t.model, c->path);
    CHECK(hash_of(t.model, "fc1.weight") != before);
    CHECK_OK(ls_ddp_verify(t.ddp));
    before = hash_of(t.model, "fc1.weight");
    train_steps(&t, 2, 2);
    CHECK(hash_of(t.model, "fc1.weight") != before);
    CHECK_OK(ls_ddp_verify(t.ddp));
    if (rank == 0)
        c->hash = ls_model_hash(t.model);
    if (ls_job_world_size(job) == 4) { /* on one rank alone: all are told */
        if (rank == 2)
            load_values(t.model, c->path);
        CHECK(ls_ddp_verify(t.ddp) == LS_ERR_MISMATCH);
        CHECK(strstr(ls_error_text(), "fc1.weight") && strstr(ls_error_text(), "rank 2"));
    }
    close_trainer(&t);
}

static void test_values_replaced(void **state) {
    (void)state;
    replaced *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(c, MAP_FAILED);
    snprintf(c->path, sizeof c->path, "/tmp/lockstep-replaced.%d", (int)getpid());
    ls_device *device;
    ls_model *other;
    assert_int_equal(ls_device_cpu(&device, 1), LS_OK);
    const ls_model_options options = {.device = device, .seed = 9};
    assert_int_equal(ls_model_create(&other, SPEC, &options), LS_OK);
    assert_int_equal(ls_model_save(other, c->path), LS_OK);
    ls_model_destroy(other);
    ls_device_destroy(device);
    uint64_t first = 0;
    int failed = 0;
    for (int world = 1; world <= 4 && !failed; world *= 2) {
        c->hash = 0;
        failed = ranks_run(world, "shm", body_values_replaced, c);
        first = world == 1 ? c->hash : first;
        failed |= c->hash == 0 || c->hash != first;
    }
    unlink(c->path);
    munmap(c, sizeof *c);
    assert_int_equal(failed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uses),       cmocka_unit_test(test_two_backwards),
        cmocka_unit_test(test_freeze),     cmocka_unit_test(test_freeze_differs),
        cmocka_unit_test(test_one_cannot), cmocka_unit_test(test_values_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
