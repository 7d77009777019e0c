/* One step is begin, ready for each gradient, wait. A bucket counts down as its gradients become ready;
 * filled buckets are started strictly in bucket order, so all ranks start the same operations in the
 * same order, whatever order their gradients finish in.
 *
 * Used marks. A rank that reports a gradient writes +infinity into its mark (layout.h), one that does
 * not leaves 0. The mark goes through the same weighted sum as the gradient: infinity plus anything is
 * infinity in every float type, and times a finite positive scale it still is, where a count of 1
 * would round to zero in f16 once the job's weight exceeds 1e8 tokens. ls_reducer_begin bounds the
 * weights so that the scale is finite and positive. If all weights are 0, nothing was used. */
#include "base/clock.h"
#include "base/error.h"
#include "comm/hold.h"
#include "reducer/fingerprint.h"
#include "reducer/hooked.h"
#include "reducer/layout.h"
#include "reducer/overlap.h"
#include "reducer/weight.h"
#include <lockstep/reducer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_FIRST_BUCKET = 1 << 20, DEFAULT_BUCKET = 4 << 20 };

/* What a step knows of one bucket. */
typedef struct bucket_step {
    size_t missing; /* gradients that are not ready yet */
    ls_work *work;  /* started and not yet waited for */
} bucket_step;

struct ls_reducer {
    ls_group *group;
    ls_progress progress;
    bool leaves_sums; /* asked for, and this is a world of one */
    ls__description description;
    ls__layout layout;
    char *memory;      /* (layout.bytes), of ls_group_alloc */
    int64_t *order;    /* (1 + count): what ls_reducer_set_order sends */
    size_t *positions; /* (count): the same, as the layout takes it */

    bool in_step, reduced;
    double weight, total;      /* this rank's, and the sum over ranks */
    bool *ready, *used;        /* (count): in this step here; in the last step anywhere */
    size_t started;            /* buckets 0 .. started-1 were started */
    bucket_step *bucket;       /* (layout.bucket_limit) */
    ls_reducer_bucket *report; /* (layout.bucket_limit) */
    ls__hooked *hooked;        /* NULL: no hook */
};

/* --- creation -------------------------------------------------------------------------------- */

static ls_status check_param(const ls_reducer_param *param, size_t i) {
    if (param->name == NULL || param->name[0] == '\0')
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_create: parameter %zu has no name", i);
    if (param->dims > LS_REDUCER_MAX_DIMS)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_reducer_create: parameter %zu (%s) has %zu dimensions, want at most %d",
                        i, param->name, param->dims, LS_REDUCER_MAX_DIMS);
    if (param->shape == NULL && param->dims > 0)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_reducer_create: parameter %zu (%s) has %zu dimensions and no shape", i,
                        param->name, param->dims);
    bool is_float = param->dtype == LS_F32 || param->dtype == LS_F64 || param->dtype == LS_F16 ||
                    param->dtype == LS_BF16;
    if (ls_dtype_size(param->dtype) == 0 || (!param->frozen && !is_float))
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_reducer_create: parameter %zu (%s) has dtype %s, want F32, F64, "
                        "F16 or BF16",
                        i, param->name, ls_dtype_name(param->dtype));
    return LS_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names say in messages and checkpoints which parameter is meant. */
static ls_status check_names(const ls_reducer_param *params, size_t count) {
    const char **names = calloc(count + 1, sizeof *names);
    if (names == NULL)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory for %zu parameters", count);
    for (size_t i = 0; i < count; i++)
        names[i] = params[i].name;
    qsort(names, count, sizeof *names, compare_names);
    ls_status status = LS_OK;
    for (size_t i = 1; i < count && status == LS_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = ls__fail(LS_ERR_ARGUMENT,
                              "ls_reducer_create: two parameters have the name %.300s, want names "
                              "that differ",
                              names[i]);
    free(names);
    return status;
}

static ls_status check_params(const ls_reducer_param *params, size_t count) {
    if (params == NULL && count > 0)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_create: params is NULL for %zu parameters",
                        count);
    if (count > PTRDIFF_MAX / sizeof *params)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_reducer_create: %zu parameters are more than memory can hold", count);
    for (size_t i = 0; i < count; i++)
        LS_TRY(check_param(&params[i], i));
    return check_names(params, count);
}

static ls_status check_options(const ls_reducer_options *options) {
    if (options->first_bucket_bytes < LS__GRADIENT_ALIGN ||
        options->bucket_bytes < LS__GRADIENT_ALIGN)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_reducer_create: first_bucket_bytes is %zu and bucket_bytes %zu, want "
                        "0 (the default) or at least %d",
                        options->first_bucket_bytes, options->bucket_bytes, LS__GRADIENT_ALIGN);
    if (options->progress != LS_PROGRESS_THREAD && options->progress != LS_PROGRESS_INLINE)
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_reducer_create: progress is %d, want LS_PROGRESS_THREAD or "
                        "LS_PROGRESS_INLINE",
                        (int)options->progress);
    return LS_OK;
}

static void *array(size_t count, size_t size) {
    return calloc(count > 0 ? count : 1, size);
}

static ls_status create_hooked(ls_reducer *reducer, const ls_reducer_param *params,
                               const ls_reducer_hook *hook) {
    ls__hooked *hooked = calloc(1, sizeof *hooked);
    if (hooked == NULL)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory for the hook");
    hooked->group = reducer->group;
    hooked->layout = &reducer->layout;
    hooked->ready = reducer->ready;
    hooked->report = reducer->report;
    hooked->total = &reducer->total;
    reducer->hooked = hooked;
    return ls__hooked_attach(hooked, hook, params, reducer->progress == LS_PROGRESS_THREAD);
}

static void arrange(ls_reducer *reducer) {
    ls__layout_arrange(&reducer->layout, reducer->positions);
    if (reducer->hooked)
        ls__hooked_arrange(reducer->hooked, reducer->positions);
}

/* All that can fail on one rank alone. */
static ls_status create_local(ls_reducer *reducer, const ls_reducer_param *params, size_t count,
                              const ls_reducer_options *options) {
    LS_TRY(check_options(options));
    LS_TRY(check_params(params, count));
    LS_TRY(ls__layout_create(&reducer->layout, params, count, options->first_bucket_bytes,
                             options->bucket_bytes, options->hook));
    LS_TRY(ls__description_create(&reducer->description, params, count, options->first_bucket_bytes,
                                  options->bucket_bytes, options->hook));
    size_t limit = reducer->layout.bucket_limit;
    reducer->order = array(count + 1, sizeof *reducer->order);
    reducer->positions = array(count, sizeof *reducer->positions);
    reducer->ready = array(count, sizeof *reducer->ready);
    reducer->used = array(count, sizeof *reducer->used);
    reducer->bucket = array(limit, sizeof *reducer->bucket);
    reducer->report = array(limit, sizeof *reducer->report);
    if (reducer->order == NULL || reducer->positions == NULL || reducer->ready == NULL ||
        reducer->used == NULL || reducer->bucket == NULL || reducer->report == NULL)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory for %zu parameters", count);
    for (size_t i = 0; i < count; i++)
        reducer->positions[i] = count - 1 - i;
    if (options->hook != NULL)
        LS_TRY(create_hooked(reducer, params, options->hook));
    arrange(reducer);
    return LS_OK;
}

static void free_local(ls_reducer *reducer) {
    ls__hooked_close(reducer->hooked);
    free(reducer->description.text);
    ls__layout_free(&reducer->layout);
    free(reducer->order);
    free(reducer->positions);
    free(reducer->ready);
    free(reducer->used);
    free(reducer->bucket);
    free(reducer->report);
    ls__group_release(reducer->group);
    free(reducer);
}

ls_status ls_reducer_create(ls_reducer **reducer, ls_group *group, const ls_reducer_param *params,
                            size_t count, const ls_reducer_options *options) {
    if (reducer == NULL || group == NULL)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_create: %s is NULL",
                        reducer == NULL ? "reducer" : "group");
    *reducer = NULL;
    ls_reducer_options filled = options != NULL ? *options : (ls_reducer_options){0};
    if (filled.first_bucket_bytes == 0)
        filled.first_bucket_bytes = DEFAULT_FIRST_BUCKET;
    if (filled.bucket_bytes == 0)
        filled.bucket_bytes = DEFAULT_BUCKET;

    ls_status status = LS_OK;
    ls_reducer *made = calloc(1, sizeof *made);
    if (made == NULL)
        return ls__fail(LS_ERR_MEMORY, "ls_reducer_create: no memory");
    made->group = group;
    ls__group_hold(group);
    made->progress = filled.progress;
    made->leaves_sums = filled.leave_sums && ls_group_size(group) == 1 && filled.hook == NULL;
    LS_TRY_OUT(ls__fingerprint_compare(group, create_local(made, params, count, &filled),
                                       &made->description));
    void *memory = NULL;
    LS_TRY_OUT(ls_group_alloc(group, made->layout.bytes, &memory));
    made->memory = memory;
    if (made->hooked) {
        made->hooked->memory = memory;
        made->hooked->owns = true;
    }
    *reducer = made;
    return LS_OK;
out:
    free_local(made);
    return status;
}

/* Waits for all that was started; the first error and its text stay. */
static ls_status wait_started(ls_reducer *reducer) {
    if (reducer->hooked)
        return ls__hooked_wait(reducer->hooked);
    ls_status first = LS_OK;
    char text[1024] = "";
    for (size_t k = 0; k < reducer->started; k++) {
        ls_work *work = reducer->bucket[k].work;
        if (work == NULL)
            continue;
        reducer->bucket[k].work = NULL;
        ls_status status = ls_work_wait(work, &reducer->report[k].times);
        if (status != LS_OK && first == LS_OK) {
            first = status;
            snprintf(text, sizeof text, "%s", ls_error_text());
        }
    }
    return first == LS_OK ? LS_OK : ls__fail(first, "%s", text);
}

void ls_reducer_destroy(ls_reducer *reducer) {
    if (reducer == NULL)
        return;
    /* Inside a step this rank is giving up, so no other need be here: what was started may end, but
     * freeing is a collective, and the others would take it for a wrong call instead of a lost rank. */
    if (reducer->in_step)
        wait_started(reducer);
    else
        ls_group_free(reducer->group, reducer->memory);
    free_local(reducer);
}

/* --- between steps --------------------------------------------------------------------------- */

/* Turns the received order into positions, or says what is wrong with it: equally on all ranks. */
static ls_status take_order(ls_reducer *reducer) {
    size_t count = reducer->layout.count;
    if (reducer->order[0] == 0)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_set_order: order is NULL on rank 0");
    bool *seen = reducer->ready; /* free between steps */
    memset(seen, 0, count * sizeof *seen);
    for (size_t position = 0; position < count; position++) {
        size_t i = (size_t)reducer->order[1 + position];
        if (i >= count || seen[i])
            return ls__fail(LS_ERR_ARGUMENT,
                            "ls_reducer_set_order: entry %zu of rank 0's order is %zu, %s; want a "
                            "permutation of 0..%zu",
                            position, i, i >= count ? "no parameter" : "which stood there before",
                            count - 1);
        seen[i] = true;
    }
    for (size_t position = 0; position < count; position++)
        reducer->positions[position] = (size_t)reducer->order[1 + position];
    return LS_OK;
}

ls_status ls_reducer_set_order(ls_reducer *reducer, const size_t *order) {
    if (!reducer)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_set_order: reducer is NULL");
    if (reducer->in_step)
        return ls__fail(LS_ERR_STATE, "ls_reducer_set_order: a step is running; call it after "
                                      "ls_reducer_wait");
    size_t count = reducer->layout.count;
    reducer->order[0] = order != NULL || count == 0;
    for (size_t i = 0; i < count; i++)
        reducer->order[1 + i] = order != NULL ? (int64_t)order[i] : 0;
    LS_TRY(ls_broadcast(reducer->group, reducer->order, count + 1, LS_I64, 0));
    LS_TRY(take_order(reducer));
    arrange(reducer);
    memset(reducer->memory, 0, reducer->layout.bytes);
    reducer->reduced = false;
    return LS_OK;
}

void *ls_reducer_gradient(ls_reducer *reducer, size_t i) {
    if (!reducer)
        return NULL;
    if (i >= reducer->layout.count || reducer->layout.place[i].extent == 0)
        return NULL;
    return reducer->memory + reducer->layout.place[i].offset;
}

bool ls_reducer_reduced(const ls_reducer *reducer) {
    return reducer ? reducer->reduced : false;
}

bool ls_reducer_used(const ls_reducer *reducer, size_t i) {
    return reducer ? i < reducer->layout.count && reducer->used[i] : false;
}

/* --- a step ---------------------------------------------------------------------------------- */

static void set_mark(ls_reducer *reducer, const ls__place *place) {
    /* +infinity */
    static const float f32 = INFINITY;
    static const double f64 = INFINITY;
    static const uint16_t f16 = 0x7c00, bf16 = 0x7f80;
    const void *infinity = place->dtype == LS_F32   ? (const void *)&f32
                           : place->dtype == LS_F64 ? (const void *)&f64
                           : place->dtype == LS_F16 ? (const void *)&f16
                                                    : (const void *)&bf16;
    memcpy(reducer->memory + place->offset + place->bytes, infinity, ls_dtype_size(place->dtype));
}

static bool has_mark(const ls_reducer *reducer, const ls__place *place) {
    static const char zero[8];
    return memcmp(reducer->memory + place->offset + place->bytes, zero,
                  ls_dtype_size(place->dtype)) != 0;
}

ls_status ls_reducer_begin(ls_reducer *reducer, double weight) {
    if (!reducer)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_begin: reducer is NULL");
    if (reducer->in_step)
        return ls__fail(LS_ERR_STATE, "ls_reducer_begin: a step is running; end it with "
                                      "ls_reducer_wait first");
    if (!ls__weight_is_legal(weight))
        return ls__fail(LS_ERR_ARGUMENT,
                        "ls_reducer_begin: weight is %g, want 0 or a number of samples from %g to "
                        "%g",
                        weight, ls__weight_min, ls__weight_max);
    LS_TRY(ls__group_check_alive(reducer->group)); /* gradients lie in its memory */
    const ls__layout *layout = &reducer->layout;
    memset(reducer->ready, 0, layout->count * sizeof *reducer->ready);
    memset(reducer->report, 0, layout->bucket_count * sizeof *reducer->report);
    for (size_t k = 0; k < layout->bucket_count; k++) {
        reducer->bucket[k] = (bucket_step){.missing = layout->bucket[k].members};
        reducer->report[k].bytes = layout->bucket[k].bytes;
    }
    if (reducer->hooked)
        ls__hooked_begin(reducer->hooked, weight);
    reducer->weight = weight;
    reducer->total = 0;
    reducer->started = 0;
    reducer->reduced = false;
    reducer->in_step = true;
    return LS_OK;
}

static void count_down(ls_reducer *reducer, const ls__place *place) {
    uint64_t now = 0;
    for (size_t k = place->first_bucket; k <= place->last_bucket; k++)
        if (--reducer->bucket[k].missing == 0)
            reducer->report[k].filled_ns = now ? now : (now = ls__now_ns());
}

/* A step of weight 0 makes zeros of whatever the gradients hold, which a factor cannot. */
static bool keeps_sums(const ls_reducer *reducer) {
    return reducer->leaves_sums && reducer->weight > 0;
}

static ls_status start_bucket(ls_reducer *reducer, size_t k) {
    if (reducer->hooked)
        return ls__hooked_start(reducer->hooked, k);
    const ls__bucket *bucket = &reducer->layout.bucket[k];
    void *data = reducer->memory + bucket->offset;
    size_t count = bucket->bytes / ls_dtype_size(bucket->dtype);
    double *total = k == 0 ? &reducer->total : NULL; /* it is the same for all buckets */
    if (reducer->progress == LS_PROGRESS_THREAD && !keeps_sums(reducer))
        return ls_all_reduce_weighted_start(reducer->group, data, data, count, bucket->dtype,
                                            reducer->weight, total, &reducer->bucket[k].work);

    ls_work_times *times = &reducer->report[k].times;
    times->queued_ns = times->begin_ns = times->ready_ns = ls__now_ns();
    times->last_rank = -1;
    if (keeps_sums(reducer))
        reducer->total = reducer->weight;
    else
        LS_TRY(ls_all_reduce_weighted(reducer->group, data, data, count, bucket->dtype,
                                      reducer->weight, total));
    times->end_ns = ls__now_ns();
    return LS_OK;
}

/* Starts the filled buckets that are next in order. After a failure the same bucket is tried again by
 * the next call: the group is broken then and returns its first error. */
static ls_status start_filled(ls_reducer *reducer) {
    while (reducer->started < reducer->layout.bucket_count &&
           reducer->bucket[reducer->started].missing == 0) {
        LS_TRY(start_bucket(reducer, reducer->started));
        reducer->started++;
    }
    return LS_OK;
}

ls_status ls_reducer_ready(ls_reducer *reducer, size_t i) {
    if (!reducer)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_ready: reducer is NULL");
    if (i >= reducer->layout.count)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_ready: parameter %zu of %zu", i,
                        reducer->layout.count);
    const ls__place *place = &reducer->layout.place[i];
    const char *what = NULL;
    ls_status status = LS_ERR_STATE;
    if (place->extent == 0) {
        what = "is frozen: it has no gradient";
        status = LS_ERR_ARGUMENT;
    } else if (!reducer->in_step) {
        what = "was reported outside of a step: call ls_reducer_begin first";
    } else if (reducer->ready[i]) {
        what = "was reported twice in one step: report each gradient once, when it is complete";
    }
    if (what != NULL)
        return ls__fail(status, "ls_reducer_ready: parameter %zu (%.300s) %s", i,
                        ls__description_param(&reducer->description, i), what);

    reducer->ready[i] = true;
    if (!reducer
             ->hooked) /* else marks travel apart: what compresses would take them for gradients */
        set_mark(reducer, place);
    count_down(reducer, place);
    return start_filled(reducer);
}

/* A gradient that nobody reported here counts as zero here. */
static void zero_missing(ls_reducer *reducer) {
    for (size_t i = 0; i < reducer->layout.count; i++) {
        const ls__place *place = &reducer->layout.place[i];
        if (place->extent == 0 || reducer->ready[i])
            continue;
        memset(reducer->memory + place->offset, 0, place->extent);
        count_down(reducer, place);
    }
}

/* Sets used[], and *unused to how many trainable parameters no rank used. */
static ls_status read_marks(ls_reducer *reducer, size_t *unused) {
    if (reducer->hooked)
        LS_TRY(ls__hooked_used(reducer->hooked, reducer->used));
    *unused = 0;
    for (size_t i = 0; i < reducer->layout.count; i++) {
        const ls__place *place = &reducer->layout.place[i];
        if (!reducer->hooked)
            reducer->used[i] = place->extent > 0 && reducer->total > 0 && has_mark(reducer, place);
        *unused += place->extent > 0 && !reducer->used[i];
    }
    return LS_OK;
}

ls_status ls_reducer_wait(ls_reducer *reducer, ls_reducer_report *report) {
    if (!reducer)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_wait: reducer is NULL");
    if (!reducer->in_step)
        return ls__fail(LS_ERR_STATE, "ls_reducer_wait: no step is running; call ls_reducer_begin "
                                      "first");
    uint64_t begin = ls__now_ns();
    zero_missing(reducer);
    ls_status start = start_filled(reducer);
    /* Also after an error: no other thread may use the gradients once this returns. */
    ls_status work = wait_started(reducer);
    reducer->in_step = false;
    if (work != LS_OK || start != LS_OK)
        return work != LS_OK ? work : start;
    size_t unused;
    LS_TRY(read_marks(reducer, &unused));
    reducer->reduced = true;
    uint64_t end = ls__now_ns();
    if (report != NULL)
        *report = (ls_reducer_report){
            .weight = reducer->total,
            .scale = keeps_sums(reducer) && reducer->total > 0 ? 1 / reducer->total : 1,
            .buckets = reducer->report,
            .bucket_count = reducer->layout.bucket_count,
            .unused = unused,
            .wait_ns = end - begin,
            .overlap = ls__overlap_of(reducer->report, reducer->layout.bucket_count,
                                      reducer->progress == LS_PROGRESS_THREAD, begin, end)};
    return LS_OK;
}

/* --- the hook's memory ---------------------------------------------------------------------------- */

size_t ls_reducer_hook_states(const ls_reducer *reducer) {
    if (!reducer || !reducer->hooked || !reducer->hooked->hook.states)
        return 0;
    return reducer->hooked->hook.states(reducer->hooked->hook.context);
}

ls_status ls_reducer_hook_state(ls_reducer *reducer, size_t i, ls_hook_state *state) {
    if (!reducer || !state)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_hook_state: %s is NULL",
                        reducer ? "state" : "reducer");
    if (i >= ls_reducer_hook_states(reducer) || !reducer->hooked->hook.state)
        return ls__fail(LS_ERR_ARGUMENT, "ls_reducer_hook_state: state %zu of %zu", i,
                        ls_reducer_hook_states(reducer));
    *state = (ls_hook_state){0};
    reducer->hooked->hook.state(reducer->hooked->hook.context, i, state);
    return LS_OK;
}
