/* What is promised of bits is checked when a ddp is made: a request that breaks it is told, and why. */
#include "base/level.h"
#include "trainer.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

typedef struct request {
    size_t shards;
    int threads_of_last;
    const char *isa_of_last; /* ONEDNN_MAX_CPU_ISA */
    const char *cpu_of_last; /* LOCKSTEP_CPU */
    const char *want;        /* in the note; NULL: none */
} request;

static void body(int rank, ls_job *job, void *context) {
    const request *r = context;
    bool last = rank == ls_group_size(ls_job_world(job)) - 1;
    ls_device *device;
    ls_model *model;
    ls_ddp *ddp;
    if (last && r->isa_of_last)
        setenv("ONEDNN_MAX_CPU_ISA", r->isa_of_last, 1);
    if (last && r->cpu_of_last)
        setenv("LOCKSTEP_CPU", r->cpu_of_last, 1);
    CHECK_OK(ls_device_cpu(&device, last && r->threads_of_last ? r->threads_of_last : 1));
    CHECK_OK(ls_model_create(&model, SPEC, &(ls_model_options){.device = device, .seed = 1}));
    const ls_ddp_options options = {.shards = r->shards};
    CHECK_OK(ls_ddp_create(&ddp, model, ls_job_world(job), &options));
    const char *note = ls_ddp_bits_note(ddp);
    CHECK(r->want ? note && strstr(note, r->want) : !note);
    ls_ddp_destroy(ddp);
    ls_model_destroy(model);
    ls_device_destroy(device);
}

static void test_notes(void **state) {
    (void)state;
    const struct {
        int world;
        request request;
    } cases[] = {
        {1, {.shards = 6}},
        {2, {.shards = 8}},
        {3, {.shards = 12}},
        {3, {.shards = 0}},
        {3, {.shards = 4, .want = "4 shards on 3 ranks"}},
        {2, {.shards = 6, .want = "6 shards on 2 ranks"}},
        {3, {.threads_of_last = 2, .want = "1 thread, rank 2 with oneDNN"}},
        {2, {.isa_of_last = "SSE41", .want = "rank 1 with oneDNN"}},
        {2,
         {.cpu_of_last = "baseline", /* which only AVX-512 differs from */
          .want = ls__cpu_level_best() == LS__CPU_AVX512 ? "own kernels on AVX-512" : NULL}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        request r = cases[i].request;
        assert_int_equal(ranks_run(cases[i].world, "shm", body, &r), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_notes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
