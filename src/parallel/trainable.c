/* Freezing and unfreezing under a ddp: the list of what is reduced is made anew, by all ranks together, and
 * compared as at creation. The old buckets go first, so that there never are two sets of them. */
#include "parallel/ddp.h"

#include "reducer/agree.h"
#include <stdio.h>
#include <stdlib.h>

/* As ls_ddp_create leaves them: weights without a gradient, statistics with storage of their own, which
 * the next forward writes before there are buckets. */
static ls_status reset_parameter(ls__ddp_entry *e) {
    ls_parameter *p = e->parameter;
    e->reduces = e->by_shard = p->role != LS_FROZEN;
    if (p->role == LS_STATISTIC)
        LS_TRY(ls__parameter_own_gradient(p));
    else
        ls__parameter_set_gradient(p, NULL);
    p->managed = e->reduces;
    return LS_OK;
}

/* Collective, also on a rank where it fails: that goes on to open_registration. */
static ls_status close_registration(ls_ddp *ddp) {
    ls_status status = LS_OK;
    for (size_t i = 0; i < ddp->parameter_count; i++) {
        ls_parameter *p = ddp->entries[i].parameter;
        if (p->role != LS_STATISTIC)
            continue;
        if (status == LS_OK)
            status = ls__parameter_own_gradient(p);
        if (status != LS_OK) /* not into buckets that are gone */
            ls__parameter_set_gradient(p, NULL);
    }
    ls_reducer_destroy(ddp->reducer);
    ddp->reducer = NULL;
    ls__ddp_free_scratch(ddp);
    ddp->ordered = false;
    return status;
}

static ls_status prepare(ls_ddp *ddp) {
    for (size_t i = 0; i < ddp->parameter_count; i++)
        LS_TRY(reset_parameter(&ddp->entries[i]));
    return ls__ddp_create_scratch(ddp);
}

/* Collective. `closed`: what this rank brings along. */
static ls_status open_registration(ls_ddp *ddp, ls_status closed) {
    LS_TRY(ls__agree(ddp->group, closed == LS_OK ? prepare(ddp) : closed));
    ls_status status = ls__ddp_create_reducer(ddp);
    if (status != LS_OK)
        ls__ddp_free_scratch(ddp);
    return status;
}

static void restore_roles(ls_ddp *ddp, const ls_role *roles) {
    for (size_t i = 0; i < ddp->parameter_count; i++)
        ddp->entries[i].parameter->role = roles[i];
}

static ls_status change(ls_ddp *ddp, const char *part, bool trainable, ls_role *roles) {
    for (size_t i = 0; i < ddp->parameter_count; i++)
        roles[i] = ddp->entries[i].parameter->role;
    ls_status closed = close_registration(ddp);
    size_t meant = ls__model_set_roles(ddp->model, part, trainable);
    ls_status status = open_registration(ddp, closed);
    if (status == LS_ERR_MISMATCH) { /* on all ranks: back together to what they had agreed on */
        char text[1024];
        snprintf(text, sizeof text, "%s", ls_error_text());
        restore_roles(ddp, roles);
        LS_TRY(ddp->failed = open_registration(ddp, LS_OK));
        return ls__fail(LS_ERR_MISMATCH, "ls_ddp_set_trainable: %s; nothing was changed", text);
    }
    LS_TRY(ddp->failed = status);
    return meant ? LS_OK : ls__model_no_part(ddp->model, part);
}

ls_status ls_ddp_set_trainable(ls_ddp *ddp, const char *part, bool trainable) {
    LS_TRY(ls__ddp_check_alive(ddp));
    if (ddp->in_step)
        return ls__fail(LS_ERR_STATE,
                        "ls_ddp_set_trainable: inside of a step; call ls_ddp_wait first");
    if (ddp->reducer_options.hook) /* it went with the first reducer, and remembers its tensors */
        return ls__fail(LS_ERR_STATE, "ls_ddp_set_trainable: with a hook for gradients the list of "
                                      "weights is fixed; freeze them before ls_ddp_create");
    if (!part)
        return ls__fail(LS_ERR_ARGUMENT, "ls_ddp_set_trainable: part is NULL");
    ls_role *roles = malloc((ddp->parameter_count + 1) * sizeof *roles);
    if (!roles)
        return ls__fail(LS_ERR_MEMORY, "ls_ddp_set_trainable: out of memory");
    ls_status status = change(ddp, part, trainable, roles);
    free(roles);
    return status;
}
