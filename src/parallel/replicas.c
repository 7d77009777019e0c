/* Are all replicas still the same? To tell whether, one hash is enough (watch.c); to tell where, hashes of
 * all tensors travel in one all-gather: 8 bytes a tensor. */
#include "parallel/replicas.h"

#include "base/error.h"
#include "nn/model.h"
#include "optim/state.h"
#include "reducer/agree.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

/* Something a replica holds: a parameter's value, or what an optimizer keeps for it. */
typedef struct part {
    const char *kind; /* "exp_avg", "number of updates"; NULL: the parameter itself */
    const char *name; /* of the parameter */
    const void *data;
    size_t bytes;
} part;

typedef struct part_walk {
    ls_model *model;
    ls_optimizer *optimizer;
    size_t parameter, state, field;
} part_walk;

enum { FIELDS = 3 }; /* of an optimizer's state for one weight */

static part state_part(const ls__optimizer_state *s, size_t field) {
    size_t bytes = s->parameter->value.count * sizeof(float);
    part fields[FIELDS] = {
        {.kind = s->first_name, .data = s->first, .bytes = s->first ? bytes : 0},
        {.kind = s->second_name, .data = s->second, .bytes = s->second ? bytes : 0},
        {.kind = "number of updates", .data = s->steps, .bytes = sizeof *s->steps}};
    fields[field].name = s->parameter->name;
    return fields[field];
}

/* False at the end. All ranks come by the same parts in the same order. */
static bool next_part(part_walk *w, part *p) {
    if (w->parameter < ls_model_parameter_count(w->model)) {
        const ls_parameter *parameter = ls_model_parameter(w->model, w->parameter++);
        const ls_tensor *value = &parameter->value;
        *p = (part){.name = parameter->name,
                    .data = value->data,
                    .bytes = value->count * ls_dtype_size(value->dtype)};
        return true;
    }
    if (!w->optimizer || w->state == ls__optimizer_state_count(w->optimizer))
        return false;
    ls__optimizer_state s = ls__optimizer_state_get(w->optimizer, w->state);
    *p = state_part(&s, w->field);
    if (++w->field == FIELDS) {
        w->field = 0;
        w->state++;
    }
    return true;
}

static size_t part_count(ls_model *model) {
    return ls_model_parameter_count(model) +
           (model->optimizer ? FIELDS * ls__optimizer_state_count(model->optimizer) : 0);
}

void *ls__replicas_hash_state(void) {
    return XXH3_createState();
}

void ls__replicas_hash_free(void *hash_state) {
    XXH3_freeState(hash_state);
}

uint64_t ls__replicas_hash(ls_model *model, void *hash_state) {
    part_walk walk = {.model = model, .optimizer = model->optimizer};
    part p;
    XXH3_64bits_reset(hash_state);
    while (next_part(&walk, &p))
        XXH3_64bits_update(hash_state, p.data, p.bytes);
    return XXH3_64bits_digest(hash_state);
}

/* --- where they differ --- */

typedef struct hash_table {
    const uint64_t *hash; /* (ranks, parts) */
    size_t parts, ranks;
} hash_table;

static uint64_t at(const hash_table *t, size_t rank, size_t i) {
    return t->hash[rank * t->parts + i];
}

/* What most ranks have; of several the lowest rank's. */
static uint64_t usual(const hash_table *t, size_t i) {
    size_t best = 0, best_votes = 0;
    for (size_t r = 0; r < t->ranks; r++) {
        size_t votes = 0;
        for (size_t q = 0; q < t->ranks; q++)
            votes += at(t, q, i) == at(t, r, i);
        if (votes > best_votes) {
            best_votes = votes;
            best = r;
        }
    }
    return at(t, best, i);
}

/* "1, 3, 4": those that have something else than `want` */
static void list_ranks(const hash_table *t, size_t i, uint64_t want, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t r = 0; r < t->ranks && used + 24 < size; r++)
        if (at(t, r, i) != want)
            used += (size_t)snprintf(text + used, size - used, "%s%zu", used ? ", " : "", r);
}

static ls_status compare(const hash_table *t, ls_model *model) {
    part_walk walk = {.model = model, .optimizer = model->optimizer};
    part p;
    for (size_t i = 0; next_part(&walk, &p); i++)
        for (size_t r = 1; r < t->ranks; r++) {
            if (at(t, r, i) == at(t, 0, i))
                continue;
            uint64_t want = usual(t, i);
            char text[256];
            list_ranks(t, i, want, text, sizeof text);
            return ls__fail(LS_ERR_MISMATCH,
                            "replicas differ: %s%s%s on rank %s is not what the other ranks have "
                            "(xxh64 %016" PRIx64 "); the ranks did not make the same updates, or "
                            "memory of one was changed",
                            p.kind ? p.kind : "", p.kind ? " of " : "", p.name, text, want);
        }
    return LS_OK;
}

ls_status ls__replicas_verify(ls_model *model, ls_group *group) {
    size_t count = part_count(model), ranks = (size_t)ls_group_size(group);
    uint64_t *mine = malloc((count + 1) * sizeof *mine);
    uint64_t *all = malloc((count * ranks + 1) * sizeof *all);
    ls_status status = LS_OK;
    if (!mine || !all)
        status = ls__fail(LS_ERR_MEMORY, "ls_ddp_verify: no memory for %zu hashes", count);
    part_walk walk = {.model = model, .optimizer = model->optimizer};
    part p;
    for (size_t i = 0; status == LS_OK && next_part(&walk, &p); i++)
        mine[i] = XXH64(p.data, p.bytes, 0);
    status = ls__agree(group, status);
    if (status == LS_OK)
        status = ls_all_gather(group, mine, all, count, LS_I64);
    if (status == LS_OK)
        status = compare(&(hash_table){.hash = all, .parts = count, .ranks = ranks}, model);
    free(mine);
    free(all);
    return status;
}
