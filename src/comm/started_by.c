#include "comm/started_by.h"

#include "comm/transport.h"
#include "comm/variables.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct starter {
    const char *rank, *size; /* variables */
} starter;

static const starter starters[] = {
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
};
enum { STARTERS = sizeof starters / sizeof starters[0], PLAIN = 0, SLURM = STARTERS - 1 };

/* -1: not set, or no number. */
static int number_of(const char *name) {
    int number;
    if (!ls__variable(name) || ls__variable_integer(name, 0, INT_MAX, &number) != LS_OK)
        return -1;
    return number;
}

static bool is_same(const char *name, const char *other) {
    return number_of(name) >= 0 && number_of(name) == number_of(other);
}

/* One that has started a single process has started no rank, but perhaps a shell or a launcher. */
static bool speaks(const starter *s) {
    return ls__variable(s->rank) && (s == &starters[PLAIN] || number_of(s->size) > 1);
}

/* mpirun may use srun to reach the machines: SLURM_PROCID is its daemon's there. srun may use PMI: they agree then. */
static bool has_mpi(void) {
    return ls__mpi_launcher() != NULL;
}

bool ls__started_by_slurm(void) {
    return speaks(&starters[SLURM]) && !speaks(&starters[PLAIN]) && !has_mpi();
}

static bool below_another(void) {
    return ls__variable("LOCKSTEP_ROUND") || ls__variable("TORCHELASTIC_RUN_ID");
}

static void put_row(char *table, size_t bytes, const starter *s) {
    size_t used = strlen(table);
    const char *size = ls__variable(s->size);
    snprintf(table + used, bytes - used, "%s%s=%s %s=%s", used ? " | " : "", s->rank,
             ls__variable(s->rank), s->size, size ? size : "(not set)");
}

ls_status ls__started_by_check(void) {
    char table[512] = "";
    const starter *first = NULL;
    bool same = true;
    if (below_another())
        return LS_OK;
    for (int i = 0; i < STARTERS; i++) {
        const starter *s = &starters[i];
        if (!speaks(s) || (i == SLURM && has_mpi()))
            continue;
        put_row(table, sizeof table, s);
        if (first)
            same = same && is_same(s->rank, first->rank) && is_same(s->size, first->size);
        else
            first = s;
    }
    if (same)
        return LS_OK;
    return ls__fail(
        LS_ERR_ARGUMENT,
        "it is not clear which rank this is: %s; set RANK and WORLD_SIZE as the starter of "
        "this process has them, or unset them (env -u RANK -u WORLD_SIZE)",
        table);
}

bool ls__meet_path(char *path, size_t bytes) {
    const char *own = ls__variable("LOCKSTEP_RENDEZVOUS_FILE");
    const char *job = ls__variable("SLURM_JOB_ID"), *step = ls__variable("SLURM_STEP_ID");
    if (own)
        return snprintf(path, bytes, "%s", own) < (int)bytes;
    if (!ls__started_by_slurm() || !job || !step)
        return false;
    return snprintf(path, bytes, ".lockstep-%s.%s", job, step) < (int)bytes;
}
