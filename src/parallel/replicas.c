/* Are all replicas still the same? Hashes of all parameters travel in one all-gather: 8 bytes a tensor. */
#include "parallel/replicas.h"

#include "autograd/tape.h"
#include "base/error.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

/* "1, 3, 4" */
static void list_ranks(const uint64_t *all, size_t count, size_t tensor, int ranks, char *text,
                       size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int r = 1; r < ranks && used + 16 < size; r++)
        if (all[(size_t)r * count + tensor] != all[tensor])
            used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", r);
}

static ls_status compare(const uint64_t *all, ls_model *model, size_t count, int ranks) {
    for (size_t i = 0; i < count; i++)
        for (int r = 1; r < ranks; r++)
            if (all[(size_t)r * count + i] != all[i]) {
                char text[256];
                list_ranks(all, count, i, ranks, text, sizeof text);
                return ls__fail(LS_ERR_MISMATCH,
                                "replicas differ: %s is not what rank 0 has (xxh64 %016" PRIx64
                                ") on rank %s; the ranks did not make the same updates",
                                ls_parameter_name(ls_model_parameter(model, i)), all[i], text);
            }
    return LS_OK;
}

ls_status ls__replicas_verify(ls_model *model, ls_group *group) {
    size_t count = ls_model_parameter_count(model);
    int ranks = ls_group_size(group);
    uint64_t *mine = malloc((count + 1) * sizeof *mine);
    uint64_t *all = malloc((count * (size_t)ranks + 1) * sizeof *all);
    ls_status status = LS_OK;
    if (!mine || !all)
        status = ls__fail(LS_ERR_MEMORY, "ls_ddp_verify: no memory for %zu hashes", count);
    for (size_t i = 0; status == LS_OK && i < count; i++) {
        const ls_tensor *value = &ls_model_parameter(model, i)->value;
        mine[i] = XXH64(value->data, value->count * ls_dtype_size(value->dtype), 0);
    }
    if (status == LS_OK)
        status = ls_all_gather(group, mine, all, count, LS_I64);
    if (status == LS_OK)
        status = compare(all, model, count, ranks);
    free(mine);
    free(all);
    return status;
}
