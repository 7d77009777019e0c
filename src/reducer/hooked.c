#include "reducer/hooked.h"

#include "base/clock.h"
#include "base/error.h"
#include <stdlib.h>
#include <string.h>

/* --- one bucket ---------------------------------------------------------------------------------- */

/* The parts of tensors in bucket k, as they follow each other in memory. */
static size_t find_pieces(ls__hooked *h, size_t k) {
    const ls__bucket *bucket = &h->layout->bucket[k];
    size_t n = 0, end = bucket->offset + bucket->bytes;
    for (size_t position = 0; position < h->layout->count; position++) {
        size_t i = h->order[position];
        const ls__place *place = &h->layout->place[i];
        if (place->extent == 0 || k < place->first_bucket || k > place->last_bucket)
            continue;
        size_t from = place->offset > bucket->offset ? place->offset : bucket->offset;
        size_t to = place->offset + place->bytes < end ? place->offset + place->bytes : end;
        if (from < to) /* else only its padding lies here */
            h->piece[n++] = (ls_hook_piece){.param = i,
                                            .first = (from - place->offset) / sizeof(float),
                                            .count = (to - from) / sizeof(float),
                                            .data = (float *)(void *)(h->memory + from),
                                            .reported = h->ready[i]};
    }
    return n;
}

static ls_status reduce_in_full(ls__hooked *h, const ls__bucket *bucket, void *data) {
    LS_TRY(ls_all_reduce_weighted(h->group, data, data,
                                  bucket->bytes / ls_dtype_size(bucket->dtype), bucket->dtype,
                                  h->weight, h->total));
    h->total_known = true;
    return LS_OK;
}

/* Hooks are told the global weight: where no bucket has brought it yet, it travels by itself. */
static ls_status learn_total(ls__hooked *h) {
    if (h->total_known)
        return LS_OK;
    *h->total = h->weight;
    LS_TRY(ls_all_reduce(h->group, h->total, h->total, 1, LS_F64, LS_SUM));
    h->total_known = true;
    return LS_OK;
}

/* A hook of the caller's cannot set the thread's text: then the status says what there is to say. Call
 * forget_text before the hook, so that no earlier failure's text is taken for its own. */
static void forget_text(void) {
    ls__error_set("%s", "");
}

static ls_status hook_failed(const ls__hooked *h, ls_status status, const char *where) {
    if (ls_error_text()[0] == '\0')
        ls__error_set("it returned %s (%s) and no text", ls_status_name(status),
                      ls_status_text(status));
    return ls__fail_context(status, "%shook %.100s", where, h->hook.name);
}

static ls_status reduce_by_hook(ls__hooked *h, size_t k, void *data) {
    const ls__bucket *bucket = &h->layout->bucket[k];
    LS_TRY(learn_total(h));
    if (*h->total == 0) { /* on all ranks */
        memset(data, 0, bucket->bytes);
        return LS_OK;
    }
    const ls_hook_bucket view = {.number = k,
                                 .step = h->steps - 1,
                                 .data = data,
                                 .count = bucket->bytes / sizeof(float),
                                 .piece = h->piece,
                                 .pieces = find_pieces(h, k),
                                 .weight = h->weight,
                                 .total = *h->total};
    forget_text();
    ls_status status = h->hook.reduce(h->hook.context, h->group, &view);
    return status == LS_OK ? LS_OK : hook_failed(h, status, "");
}

static ls_status reduce(void *context, size_t k) {
    ls__hooked *h = context;
    ls_work_times *times = &h->report[k].times;
    const ls__bucket *bucket = &h->layout->bucket[k];
    void *data = h->memory + bucket->offset;
    times->begin_ns = times->ready_ns = ls__now_ns();
    if (times->queued_ns == 0)
        times->queued_ns = times->begin_ns;
    times->last_rank = -1;
    LS_TRY(bucket->full ? reduce_in_full(h, bucket, data) : reduce_by_hook(h, k, data));
    times->end_ns = ls__now_ns();
    return LS_OK;
}

/* --- a reducer's life ---------------------------------------------------------------------------- */

ls_status ls__hooked_attach(ls__hooked *h, const ls_reducer_hook *hook,
                            const ls_reducer_param *params, bool threaded) {
    if (!hook->name || !hook->reduce)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_create: the hook has no %s",
                        hook->name ? "reduce" : "name");
    size_t count = h->layout->count;
    h->hook = *hook;
    h->piece = calloc(count + 1, sizeof *h->piece); /* + 1: of 0 it may return NULL */
    h->flags = calloc(count + 1, sizeof *h->flags);
    h->order = calloc(count + 1, sizeof *h->order);
    if (!h->piece || !h->flags || !h->order)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory for the hook");
    if (hook->attach) {
        forget_text();
        ls_status status = hook->attach(hook->context, h->group, params, count);
        if (status != LS_OK)
            return hook_failed(h, status, "ls_reducer_create: ");
    }
    return threaded ? ls__runner_create(&h->runner, reduce, h) : LS_OK;
}

void ls__hooked_arrange(ls__hooked *h, const size_t *order) {
    memcpy(h->order, order, h->layout->count * sizeof *order);
}

void ls__hooked_begin(ls__hooked *h, double weight) {
    h->weight = weight;
    h->total_known = false;
    h->steps++;
    if (h->runner)
        ls__runner_restart(h->runner);
}

ls_status ls__hooked_start(ls__hooked *h, size_t k) {
    h->report[k].times.queued_ns = ls__now_ns();
    if (!h->runner)
        return reduce(h, k);
    ls__runner_post(h->runner);
    return LS_OK;
}

ls_status ls__hooked_wait(ls__hooked *h) {
    return h->runner ? ls__runner_wait(h->runner) : LS_OK;
}

ls_status ls__hooked_used(ls__hooked *h, bool *used) {
    size_t count = h->layout->count;
    for (size_t i = 0; i < count; i++)
        h->flags[i] = h->ready[i];
    LS_TRY(ls_all_reduce(h->group, h->flags, h->flags, count, LS_U8, LS_MAX));
    for (size_t i = 0; i < count; i++)
        used[i] = h->layout->place[i].extent > 0 && *h->total > 0 && h->flags[i];
    return LS_OK;
}

void ls__hooked_close(ls__hooked *h) {
    if (!h)
        return;
    ls__runner_destroy(h->runner);
    if (h->owns && h->hook.destroy)
        h->hook.destroy(h->hook.context);
    free(h->piece);
    free(h->flags);
    free(h->order);
    free(h);
}
