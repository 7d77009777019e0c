/* `lockstep bench all_reduce --explain`: the ways there are for each size, what each is predicted to take, and which
 * one the job takes and why. */
#include "base/error.h"
#include "base/json.h"
#include "cli/bench_comm.h"
#include "comm/cost.h"

static void print_costs(const char *level, const ls__cost *cost) {
    if (cost->sync_s > 0)
        printf("  %-8s a step %.1f us, %.3f GB/s each way, adds %.1f GB/s a source\n", level,
               cost->sync_s * 1e6, cost->bytes_per_s * 1e-9, cost->add_per_s * 1e-9);
}

static void print_head(ls_job *job, const ls__bench_comm_settings *s, const ls__costs *costs) {
    printf("all_reduce, %d ranks over %s, %s memory; costs %s:\n", ls_job_world_size(job),
           ls_job_transport(job), s->registered ? "registered" : "ordinary",
           costs->between.stored ? "from LOCKSTEP_COST_TABLE" : "as measured now");
    print_costs("inside", &costs->inside);
    print_costs("between", &costs->between);
}

static void print_text(const ls__cost_question *question, const ls__cost_answer *answer) {
    printf("%zu bytes: %s, because %s\n", question->bytes, answer->option[answer->chosen].name,
           answer->reason);
    for (int i = 0; i < answer->options; i++)
        printf("  %c %-22s %12.1f us predicted\n", i == answer->chosen ? '*' : ' ',
               answer->option[i].name, answer->option[i].seconds * 1e6);
}

static ls_status print_json(ls_job *job, const ls__cost_question *question,
                            const ls__cost_answer *answer) {
    json_t *options = json_object();
    for (int i = 0; i < answer->options; i++)
        json_object_set_new(options, answer->option[i].name,
                            ls__json_real(answer->option[i].seconds * 1e6));
    json_t *object =
        json_pack("{s:s, s:s, s:i, s:I, s:s, s:s, s:o}", "op", "all_reduce", "transport",
                  ls_job_transport(job), "ranks", ls_job_world_size(job), "bytes",
                  (json_int_t)question->bytes, "chosen", answer->option[answer->chosen].name,
                  "reason", answer->reason, "predicted_us", options);
    return ls__json_write_line(stdout, "stdout", object);
}

ls_status ls__bench_explain(const ls__bench_comm_settings *settings, ls_job *job) {
    ls_group *world = ls_job_world(job);
    ls__cost_answer answer = {0};
    for (size_t i = 0; i < settings->sizes; i++) {
        const ls__cost_question question = {.bytes = settings->size[i],
                                            .registered = settings->registered};
        LS_TRY(ls__cost_explain(world, &question, &answer));
        if (ls_job_rank(job) != 0)
            continue;
        if (i == 0 && settings->format == 0)
            print_head(job, settings, &answer.costs);
        if (settings->format == 0)
            print_text(&question, &answer);
        else
            LS_TRY(print_json(job, &question, &answer));
    }
    if (settings->store && ls_job_rank(job) == 0)
        LS_TRY(ls__cost_table_write(settings->store, &answer.costs));
    return ls_barrier(world);
}
