/* lockstep run --dry-run: what would be started here, as far as one machine can know it. */
#include "launch/launch.h"

#include "base/error.h"
#include "launch/binding.h"
#include "launch/environment.h"
#include "launch/exit_code.h"
#include "launch/program.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of ranks on other machines come with the launchers there; their ports and tokens when it begins. */
static void make_plan(ls__plan *plan, const ls__launch_options *options) {
    bool alone = !ls__launch_meets(options);
    *plan = (ls__plan){.round = 1,
                       .nodes = options->max_nodes > 1 ? options->max_nodes : 1,
                       .node = options->node_rank,
                       .ranks = options->ranks,
                       .listener = -1};
    plan->first_rank = plan->node * options->ranks;
    plan->world = plan->nodes * options->ranks;
    plan->held_port = !alone || options->transport == LS__LAUNCH_TCP;
    snprintf(plan->address, sizeof plan->address, "%s", alone ? "127.0.0.1" : "?");
}

/* Which variables depend on the moment. */
static bool is_of_the_moment(const char *entry) {
    static const char *const names[] = {"MASTER_PORT=", "LOCKSTEP_PORT=", "LOCKSTEP_TOKEN="};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strncmp(entry, names[i], strlen(names[i])) == 0)
            return true;
    }
    return false;
}

static void print_entry(const char *entry) {
    size_t name = strcspn(entry, "=");
    if (is_of_the_moment(entry))
        printf("  %.*s=(chosen at the start)\n", (int)name, entry);
    else
        printf("  %s\n", entry);
}

static ls_status print(const ls__launch_options *options, const ls__plan *plan,
                       char *const *cores) {
    ls__environment environment;
    ls_status status = ls__environment_create(&environment, options, plan);
    printf("program:");
    for (char *const *word = options->argv; *word; word++)
        printf(" %s", *word);
    printf("\n rank  local  node  processors\n");
    for (int i = 0; i < plan->ranks; i++)
        printf("%5d  %5d  %4d  %s\n", plan->first_rank + i, i, plan->node,
               cores[i] ? cores[i] : "all");
    for (int i = 0; i < plan->ranks && status == LS_OK; i++) {
        status = ls__environment_set_rank(&environment, plan, i);
        if (i == 0 && status == LS_OK) {
            printf("environment of all of them:\n");
            for (size_t e = environment.inherited; e < environment.shared; e++)
                print_entry(environment.entries[e]);
        }
        printf("of rank %d:\n", plan->first_rank + i);
        for (size_t e = environment.shared; status == LS_OK && environment.entries[e]; e++)
            print_entry(environment.entries[e]);
    }
    ls__environment_destroy(&environment);
    return status;
}

ls_status ls__launch_dry_run(const ls__launch_options *options, int *exit_code) {
    ls__plan plan;
    *exit_code = LS__EXIT_FAILURE;
    LS_TRY(ls__launch_check(options));
    char *path =
        ls__program_find(options->program ? options->program : options->argv[0], exit_code);
    if (!path)
        return LS_ERR_ARGUMENT;
    free(path);
    char **cores = calloc((size_t)options->ranks, sizeof *cores);
    if (!cores)
        return ls__fail(LS_ERR_MEMORY, "no memory for %d ranks", options->ranks);
    if (options->bind != LS__LAUNCH_BIND_NONE)
        ls__launch_divide(cores, options->ranks, options->bind == LS__LAUNCH_BIND_NUMA);
    make_plan(&plan, options);
    ls_status status = print(options, &plan, cores);
    for (int i = 0; i < options->ranks; i++)
        free(cores[i]);
    free(cores);
    if (status == LS_OK)
        *exit_code = LS__EXIT_OK;
    return status;
}
