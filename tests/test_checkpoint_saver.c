/* Checkpoints: what is saved beside training is what was there when saving began, in parallel or not; any number of
 * ranks loads it; what each rank has of its own keeps its sum; what does not fit is refused. */
#include "data_files.h"
#include "ranks.h"

#include "nn/model.h"
#include "optim/state.h"
#include <lockstep/lockstep.h>
#include <math.h>

enum { MEMORY = 5 };
static const char SPEC[] = "mlp:64,300,10"; /* some 260 KB of state: several parts */
static const char FILLER[] =
    "a-folder-name-of-some-length-a-folder-name-of-some-length-a-folder-name";
static const size_t memory_shape[] = {MEMORY};

/* One rank's state and its checkpointer. */
typedef struct fixture {
    ls_device *device;
    ls_model *model;
    ls_optimizer *optimizer;
    float memory[MEMORY]; /* per rank */
    int64_t counter;      /* equal on all */
    ls_checkpoint_item items[2];
    ls_checkpoint_contents contents;
    ls_checkpointer *checkpointer;
} fixture;

/* Every tensor that is saved, a function of its place and `salt`. */
static void fill(fixture *f, float salt) {
    for (size_t p = 0; p < f->model->parameter_count; p++) {
        ls_tensor *value = &f->model->parameters[p]->value;
        for (size_t i = 0; i < value->count; i++)
            ((float *)value->data)[i] = salt + (float)p + (float)i / 1024;
    }
    for (size_t s = 0; s < ls__optimizer_state_count(f->optimizer); s++) {
        ls__optimizer_state state = ls__optimizer_state_get(f->optimizer, s);
        for (size_t i = 0; i < state.parameter->value.count; i++) {
            state.first[i] = salt - (float)i / 512;
            state.second[i] = salt + (float)s + (float)i / 2048;
        }
        *state.steps = (uint64_t)salt + s;
    }
    *ls__optimizer_steps(f->optimizer) = (uint64_t)salt + ls__optimizer_state_count(f->optimizer);
    f->counter = (int64_t)salt;
}

static bool is_filled(fixture *f, float salt) {
    for (size_t p = 0; p < f->model->parameter_count; p++) {
        const ls_tensor *value = &f->model->parameters[p]->value;
        for (size_t i = 0; i < value->count; i++)
            if (((float *)value->data)[i] != salt + (float)p + (float)i / 1024)
                return false;
    }
    for (size_t s = 0; s < ls__optimizer_state_count(f->optimizer); s++) {
        ls__optimizer_state state = ls__optimizer_state_get(f->optimizer, s);
        for (size_t i = 0; i < state.parameter->value.count; i++)
            if (state.first[i] != salt - (float)i / 512 ||
                state.second[i] != salt + (float)s + (float)i / 2048)
                return false;
        if (*state.steps != (uint64_t)salt + s)
            return false;
    }
    if (*ls__optimizer_steps(f->optimizer) !=
        (uint64_t)salt + ls__optimizer_state_count(f->optimizer))
        return false;
    return f->counter == (int64_t)salt;
}

static void make(fixture *f, ls_job *job, const ls_checkpointer_options *options, bool frozen) {
    *f = (fixture){0};
    CHECK_OK(ls_device_cpu(&f->device, 1));
    const ls_model_options model = {.device = f->device, .seed = 1};
    CHECK_OK(ls_model_create(&f->model, SPEC, &model));
    CHECK_OK(ls_model_set_trainable(f->model, "", !frozen));
    const ls_optimizer_options optimizer = {.kind = LS_ADAMW};
    CHECK_OK(ls_optimizer_create(&f->optimizer, f->model, &optimizer));
    f->items[0] = (ls_checkpoint_item){.name = "memory",
                                       .dtype = LS_F32,
                                       .shape = memory_shape,
                                       .dims = 1,
                                       .data = f->memory,
                                       .per_rank = true};
    f->items[1] = (ls_checkpoint_item){.name = "counter", .dtype = LS_I64, .data = &f->counter};
    f->contents = (ls_checkpoint_contents){
        .model = f->model, .optimizer = f->optimizer, .items = f->items, .item_count = 2};
    CHECK_OK(ls_checkpointer_create(&f->checkpointer, ls_job_world(job), &f->contents, options));
}

static void open_fixture(fixture *f, ls_job *job, const char *where, bool synchronous) {
    const ls_checkpointer_options options = {
        .folder = where, .keep = 2, .synchronous = synchronous};
    make(f, job, &options, false);
}

static void close_fixture(fixture *f) {
    ls_checkpointer_destroy(f->checkpointer);
    ls_optimizer_destroy(f->optimizer);
    ls_model_destroy(f->model);
    ls_device_destroy(f->device);
}

static ls_checkpoint_progress at_step(uint64_t step) {
    return (ls_checkpoint_progress){.step = step,
                                    .epoch = 3,
                                    .position = 7,
                                    .seed = 1,
                                    .shards = 8,
                                    .train_loss = 0.1,
                                    .val_loss = NAN,
                                    .best_loss = 0.25};
}

/* Returns how it ended. */
static ls_status save(const fixture *f, uint64_t step) {
    const ls_checkpoint_progress progress = at_step(step);
    CHECK_OK(ls_checkpointer_save(f->checkpointer, &progress));
    return ls_checkpointer_wait(f->checkpointer);
}

/* --- saving --------------------------------------------------------------------------------------- */

/* Three saves; each is followed at once by changes to all that is being saved. */
static void body_save(int rank, ls_job *job, void *context) {
    const char *where = in_folder(context ? "sync" : "async");
    fixture f;
    open_fixture(&f, job, where, context != NULL);
    for (uint64_t step = 1; step <= 3; step++) {
        const ls_checkpoint_progress progress = at_step(step);
        fill(&f, (float)step);
        for (size_t i = 0; i < MEMORY; i++)
            f.memory[i] = (float)(100 * rank + (int)i);
        CHECK_OK(ls_checkpointer_save(f.checkpointer, &progress));
        fill(&f, -1);
        memset(f.memory, 0, sizeof f.memory);
    }
    CHECK_OK(ls_checkpointer_wait(f.checkpointer));
    ls_checkpoint_outcome outcome;
    uint64_t last = 0;
    while (ls_checkpointer_poll(f.checkpointer, &outcome)) {
        CHECK(outcome.status == LS_OK && strstr(outcome.text, "/step-0000000"));
        last = outcome.step;
    }
    CHECK(last == 3);
    close_fixture(&f);
}

/* The sum over all ranks of what the 4 savers had: 100 * (0+1+2+3) + 4 * i. */
static void body_load(int rank, ls_job *job, void *context) {
    (void)rank;
    fixture f;
    char *path;
    ls_checkpoint_progress progress;
    ls_group *world = ls_job_world(job);
    open_fixture(&f, job, context, false);
    fill(&f, -1);
    CHECK_OK(ls_checkpoint_find(world, context, NULL, NULL, &path, &progress));
    CHECK(path && strstr(path, "/step-00000003"));
    CHECK_OK(ls_checkpointer_load(f.checkpointer, path, &progress));
    free(path);
    CHECK(is_filled(&f, 3));
    CHECK(progress.step == 3 && progress.epoch == 3 && progress.position == 7 &&
          progress.shards == 8 && isnan(progress.val_loss) && progress.best_loss == 0.25);
    if (ls_group_size(world) == 4)
        for (size_t i = 0; i < MEMORY; i++)
            CHECK(f.memory[i] == (float)(100 * rank + (int)i));
    float sum[MEMORY];
    CHECK_OK(ls_all_reduce(world, f.memory, sum, MEMORY, LS_F32, LS_SUM));
    for (size_t i = 0; i < MEMORY; i++)
        CHECK(sum[i] == (float)(600 + 4 * (int)i));
    close_fixture(&f);
}

static void any_world_loads_what_four_ranks_saved(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 8};
    static bool yes = true;
    assert_int_equal(ranks_run(4, "shm", body_save, NULL), 0);
    assert_int_equal(ranks_run(4, "shm", body_save, &yes), 0);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        assert_int_equal(ranks_run(worlds[i], "shm", body_load, (void *)in_folder("async")), 0);
        assert_int_equal(ranks_run(worlds[i], "shm", body_load, (void *)in_folder("sync")), 0);
    }
    /* keep = 2 */
    size_t count;
    assert_int_equal(ls_checkpoint_count(in_folder("async"), &count), LS_OK);
    assert_int_equal(count, 2);
}

/* --- refusals ------------------------------------------------------------------------------------- */

/* A checkpointer's contents are fixed at its creation: one for each that is wrong. */
static void refuse(ls_job *job, const char *path, const ls_checkpoint_contents *contents,
                   ls_status status, const char *text) {
    const ls_checkpointer_options options = {.folder = in_folder("elsewhere")};
    ls_checkpoint_progress progress;
    ls_checkpointer *c;
    CHECK_OK(ls_checkpointer_create(&c, ls_job_world(job), contents, &options));
    CHECK(ls_checkpointer_load(c, path, &progress) == status);
    CHECK(strstr(ls_error_text(), text));
    ls_checkpointer_destroy(c);
}

static void body_refuse(int rank, ls_job *job, void *context) {
    (void)rank;
    static const size_t other_shape[] = {MEMORY + 1};
    static float more[MEMORY + 1];
    fixture f;
    char path[600];
    snprintf(path, sizeof path, "%s/step-00000003", (const char *)context);
    open_fixture(&f, job, in_folder("unused"), false);
    ls_checkpoint_item items[2] = {f.items[0], f.items[1]};
    ls_checkpoint_contents contents = f.contents;
    contents.items = items;
    items[0].shape = other_shape;
    items[0].data = more;
    refuse(job, path, &contents, LS_ERR_FORMAT, "rank-0.memory has another shape");
    items[0] = f.items[0];
    items[1].name = "count";
    refuse(job, path, &contents, LS_ERR_FORMAT, "no tensor count, which this run has");
    items[1] = f.items[1];
    const ls_checkpoint_fact fact = {"--batch-size", "64", true};
    contents.facts = &fact;
    contents.fact_count = 1;
    refuse(job, path, &contents, LS_ERR_ARGUMENT,
           "saved with --batch-size unknown, this run has 64");

    close_fixture(&f);
}

/* Contents that no checkpointer is made of. */
static void refuse_contents(ls_job *job, const ls_checkpoint_contents *contents, const char *text) {
    const ls_checkpointer_options options = {.folder = in_folder("elsewhere")};
    ls_checkpointer *c;
    CHECK(ls_checkpointer_create(&c, ls_job_world(job), contents, &options) == LS_ERR_ARGUMENT);
    CHECK(!c && strstr(ls_error_text(), text));
}

static void refuse_item(ls_job *job, const fixture *f, ls_checkpoint_item item, const char *text) {
    ls_checkpoint_item items[2] = {f->items[0], item};
    ls_checkpoint_contents contents = f->contents;
    contents.items = items;
    refuse_contents(job, &contents, text);
}

static void body_refuse_contents(int rank, ls_job *job, void *context) {
    (void)rank, (void)context;
    fixture f;
    open_fixture(&f, job, in_folder("unused"), false);
    ls_checkpoint_item item = f.items[1];
    item.per_rank = true;
    refuse_item(job, &f, item, "counter is per rank and I64");
    item = f.items[1];
    item.dims = 1;
    refuse_item(job, &f, item, "counter has 1 dimensions and no shape");
    item.dims = SIZE_MAX;
    refuse_item(job, &f, item, "18446744073709551615 dimensions");
    item = f.items[1];
    item.dtype = (ls_dtype)99;
    refuse_item(job, &f, item, "99 is no dtype");
    ls_checkpoint_contents contents = f.contents;
    contents.items = NULL;
    refuse_contents(job, &contents, "items is NULL for 2 items");
    contents = f.contents;
    contents.fact_count = 1;
    refuse_contents(job, &contents, "facts is NULL for 1 facts");
    close_fixture(&f);
}

static void what_cannot_be_saved_is_refused_by_name(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_refuse_contents, NULL), 0);
}

/* Whole by its checksums, and yet of no run: a weight has more updates than the optimizer made, or that many. */
static void body_impossible_steps(int rank, ls_job *job, void *context) {
    const struct {
        uint64_t all, one;
        const char *text;
    } cases[] = {{1, 2, "fc1.weight.step is 2, want 0 to the optimizer's 1 steps"},
                 {4, UINT64_C(1) << 62, "fc1.weight.step is 4611686018427387904, want"},
                 {(uint64_t)-5, 1, "steps are -5, want 0 to"}};
    (void)rank;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path;
        fixture f;
        ls_checkpoint_progress progress;
        open_fixture(&f, job, context, true);
        fill(&f, 0);
        for (size_t s = 0; s < ls__optimizer_state_count(f.optimizer); s++)
            *ls__optimizer_state_get(f.optimizer, s).steps = cases[i].one;
        *ls__optimizer_steps(f.optimizer) = cases[i].all;
        CHECK_OK(save(&f, i + 1));
        CHECK_OK(ls_checkpoint_find(ls_job_world(job), context, NULL, NULL, &path, &progress));
        CHECK(ls_checkpointer_load(f.checkpointer, path, &progress) == LS_ERR_FORMAT);
        CHECK(strstr(ls_error_text(), cases[i].text));
        free(path);
        close_fixture(&f);
    }
}

static void steps_that_no_run_makes_are_refused(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_impossible_steps, (void *)in_folder("steps")), 0);
}

static void what_does_not_fit_is_refused_by_name(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_refuse, (void *)in_folder("async")), 0);
}

/* --- the job is finished first ------------------------------------------------------------------------- */

static void body_job_first(int rank, ls_job *job, void *context) {
    (void)rank;
    fixture f;
    const ls_checkpoint_progress progress = at_step(3);
    CHECK_OK(ls_job_init(&job, NULL));
    open_fixture(&f, job, context, false);
    CHECK_OK(ls_checkpointer_save(f.checkpointer, &progress));
    ls_job_finish(job); /* the save may be whole, or not */
    ls_checkpointer_wait(f.checkpointer);
    CHECK(ls_checkpointer_clear(f.checkpointer) != LS_OK);
    close_fixture(&f);
}

static void a_job_may_be_finished_first(void **state) {
    (void)state;
    for (int size = 1; size <= 2; size++)
        assert_int_equal(
            ranks_run_no_job(size, "shm", body_job_first, (void *)in_folder("job-first")), 0);
}

/* --- a folder that cannot be written --------------------------------------------------------------- */

static void body_failure(int rank, ls_job *job, void *context) {
    fixture f;
    const char *where = context;
    ls_checkpoint_outcome outcome;
    open_fixture(&f, job, where, false);
    CHECK_OK(save(&f, 1));
    /* rank 0 makes the files: in a folder that has gone it cannot, and all ranks hear of it */
    char aside[600];
    snprintf(aside, sizeof aside, "%s.aside", where);
    CHECK_OK(ls_barrier(ls_job_world(job)));
    if (rank == 0)
        CHECK(rename(where, aside) == 0);
    CHECK_OK(ls_barrier(ls_job_world(job)));
    CHECK(save(&f, 2) == LS_ERR_IO);
    CHECK(strstr(ls_error_text(), "No such file or directory"));
    if (rank == 0)
        CHECK(rename(aside, where) == 0);
    CHECK_OK(ls_barrier(ls_job_world(job)));
    CHECK_OK(save(&f, 3));
    CHECK(ls_checkpointer_poll(f.checkpointer, &outcome));
    CHECK(outcome.step == 2 && outcome.status == LS_ERR_IO);
    CHECK(ls_checkpointer_poll(f.checkpointer, &outcome));
    CHECK(outcome.step == 3 && outcome.status == LS_OK);
    CHECK(!ls_checkpointer_poll(f.checkpointer, &outcome));
    close_fixture(&f);
}

static void a_save_that_fails_can_be_tried_again(void **state) {
    (void)state;
    size_t count;
    assert_int_equal(ranks_run(3, "shm", body_failure, (void *)in_folder("failing")), 0);
    assert_int_equal(ls_checkpoint_count(in_folder("failing"), &count), LS_OK);
    assert_int_equal(count, 2); /* steps 1 and 3 */
}

/* --- what must not go ------------------------------------------------------------------------------- */

/* Rank 1 cannot take part, so the run cannot start over: what is there stays. */
static void body_start_over(int rank, ls_job *job, void *context) {
    ls_checkpointer *c;
    size_t count;
    fixture f;
    open_fixture(&f, job, context, true);
    CHECK_OK(save(&f, 1));
    ls_checkpointer_destroy(f.checkpointer);
    f.checkpointer = NULL;
    const ls_checkpointer_options options = {.folder = context, .start_over = true};
    f.items[1].per_rank = rank == 1; /* I64, which may not be */
    CHECK(ls_checkpointer_create(&c, ls_job_world(job), &f.contents, &options) == LS_ERR_ARGUMENT);
    CHECK_OK(ls_checkpoint_count(context, &count));
    CHECK(count == 1);
    CHECK_OK(ls_barrier(ls_job_world(job)));
    f.items[1].per_rank = false;
    CHECK_OK(ls_checkpointer_create(&c, ls_job_world(job), &f.contents, &options));
    CHECK_OK(ls_checkpoint_count(context, &count));
    CHECK(count == 0);
    ls_checkpointer_destroy(c);
    close_fixture(&f);
}

static void starting_over_waits_for_all_ranks(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_start_over, (void *)in_folder("over")), 0);
}

/* A path that does not fit: nothing is left of it, and nothing is removed that has the name cut off. */
static void body_long(int rank, ls_job *job, void *context) {
    char path[1200];
    fixture f;
    (void)rank;
    snprintf(path, sizeof path, "%s", (const char *)context);
    while (strlen(path) < 985) /* .step-00000001.TOKEN takes 28 more */
        snprintf(path + strlen(path), 986 - strlen(path), "/%.200s", FILLER);
    open_fixture(&f, job, path, true);
    CHECK(save(&f, 1) == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_text(), "longer than 999 bytes"));
    CHECK(rmdir(path) == 0); /* it is empty */
    close_fixture(&f);
}

static void a_path_too_long_leaves_nothing(void **state) {
    (void)state;
    assert_int_equal(ranks_run(1, "shm", body_long, (void *)in_folder("long")), 0);
}

/* --- weights that were frozen ----------------------------------------------------------------------- */

static void train_once(fixture *f) {
    static float x[4 * 64];
    static int32_t y[4];
    static const size_t shape[] = {4, 64};
    ls_step *step;
    const ls_step_options options = {.device = f->device, .seed = 1};
    const ls_step_mode mode = {.training = true};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)i / 256;
    CHECK_OK(ls_step_create(&step, &options));
    CHECK_OK(ls_step_begin(step, &mode));
    ls_tensor *input = ls_tensor_wrap(step, x, LS_F32, shape, 2);
    ls_tensor *targets = ls_tensor_wrap(step, y, LS_I32, shape, 1);
    ls_tensor *loss = ls_model_loss(step, f->model, input, targets, NULL);
    CHECK_OK(ls_backward(step, loss, NULL, NULL));
    CHECK_OK(ls_optimizer_step(f->optimizer, 0.1, NULL));
    ls_step_destroy(step);
}

/* Frozen when the checkpointer was made, and then trained. */
static void open_unfrozen(fixture *f, ls_job *job, const char *where) {
    const ls_checkpointer_options options = {.folder = where};
    make(f, job, &options, true);
    CHECK_OK(ls_model_set_trainable(f->model, "", true));
    train_once(f);
}

/* Optimizer state that came after the checkpointer was made is saved too. */
static void body_unfreeze(int rank, ls_job *job, void *context) {
    (void)rank;
    ls_safetensors *file;
    char path[600];
    fixture f;
    open_unfrozen(&f, job, context);
    CHECK_OK(save(&f, 1));
    snprintf(path, sizeof path, "%s/step-00000001/optimizer.safetensors", (const char *)context);
    CHECK_OK(ls_safetensors_open(&file, path));
    for (size_t s = 0; s < ls__optimizer_state_count(f.optimizer); s++) {
        ls__optimizer_state state = ls__optimizer_state_get(f.optimizer, s);
        char name[200];
        snprintf(name, sizeof name, "%s.exp_avg", state.parameter->name);
        const ls_safetensors_entry *e = ls_safetensors_find(file, name);
        CHECK(e && memcmp(e->data, state.first, e->bytes) == 0);
    }
    ls_safetensors_close(file);
    close_fixture(&f);
}

static void state_that_came_later_is_saved_too(void **state) {
    (void)state;
    assert_int_equal(ranks_run(1, "shm", body_unfreeze, (void *)in_folder("unfrozen")), 0);
}

/* State that came later and does not fit on one rank: all hear of it at once, and may try again. */
static void body_refit(int rank, ls_job *job, void *context) {
    const ls_checkpoint_progress progress = at_step(1);
    fixture f;
    open_unfrozen(&f, job, context);
    f.items[1].per_rank = rank == 1; /* I64, which may not be */
    CHECK(ls_checkpointer_save(f.checkpointer, &progress) == LS_ERR_ARGUMENT);
    CHECK(strstr(ls_error_text(), "rank 1: checkpoint: item counter is per rank and I64"));
    f.items[1].per_rank = false;
    CHECK_OK(save(&f, 1));
    close_fixture(&f);
}

static void state_that_does_not_fit_is_told_to_all(void **state) {
    (void)state;
    assert_int_equal(ranks_run(2, "shm", body_refit, (void *)in_folder("refit")), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_world_loads_what_four_ranks_saved),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
        cmocka_unit_test(steps_that_no_run_makes_are_refused),
        cmocka_unit_test(what_cannot_be_saved_is_refused_by_name),
        cmocka_unit_test(a_job_may_be_finished_first),
        cmocka_unit_test(a_save_that_fails_can_be_tried_again),
        cmocka_unit_test(starting_over_waits_for_all_ranks),
        cmocka_unit_test(a_path_too_long_leaves_nothing),
        cmocka_unit_test(state_that_does_not_fit_is_told_to_all),
        cmocka_unit_test(state_that_came_later_is_saved_too),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
