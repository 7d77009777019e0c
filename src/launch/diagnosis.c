/* The reasoning: in each group the operations are numbered, so whoever has not begun the number that others
 * are in is the one they wait for. */
#include "launch/diagnosis.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- words ------------------------------------------------------------------------------------------ */

typedef struct words {
    char *text;
    size_t bytes, used;
} words;

static void say(words *w, const char *format, ...) LS_PRINTF(2, 3);

static void say(words *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->text + w->used, w->bytes - w->used, format, args);
    va_end(args);
    if (n > 0)
        w->used = (size_t)n < w->bytes - w->used ? w->used + (size_t)n : w->bytes - 1;
}

/* "rank 1", "ranks 0, 2 to 5" */
static void say_ranks(words *w, const bool *set, int ranks) {
    int count = 0, said = 0;
    for (int r = 0; r < ranks; r++)
        count += set[r];
    say(w, count == 1 ? "rank " : "ranks ");
    for (int r = 0; r < ranks; r++) {
        if (!set[r])
            continue;
        int last = r;
        while (last + 1 < ranks && set[last + 1])
            last++;
        say(w, "%s%d", said++ ? ", " : "", r);
        if (last > r + 1) {
            say(w, " to %d", last);
            r = last;
        }
    }
}

static bool is_point(const ls__flight_entry *e) {
    return e->kind == LS__SEND || e->kind == LS__RECV || e->kind == LS__SENDRECV;
}

static bool has_reduction(const ls__flight_entry *e) {
    return e->kind == LS__ALL_REDUCE || e->kind == LS__REDUCE_SCATTER || e->kind == LS__REDUCE;
}

static bool is_pending(const ls__flight_entry *e) {
    return e->end_ns == 0 || e->status != LS_OK;
}

/* "all_reduce #17", "recv #3 from rank 0" */
static void say_operation(words *w, const ls__flight_entry *e) {
    say(w, "%s #%" PRIu64, ls__kind_name((int)e->kind), e->sequence);
    if (is_point(e))
        say(w, " %s rank %d", e->kind == LS__RECV ? "from" : "to", e->root);
    if (e->kind == LS__SENDRECV)
        say(w, " and #%" PRIu64 " from rank %d", e->recv_sequence, e->from);
}

/* " of group world (26214400 f32, sum)" */
static void say_details(words *w, const char *group, const ls__flight_entry *e) {
    say(w, " of group %s", group);
    if (e->kind == LS__BARRIER)
        return;
    if (e->kind == LS__ALLOC || e->kind == LS__FREE)
        say(w, " (%" PRIu64 " bytes)", e->count);
    else if (has_reduction(e))
        say(w, " (%" PRIu64 " %s, %s)", e->count, ls_dtype_name((ls_dtype)e->dtype),
            ls__op_name(e->op));
    else
        say(w, " (%" PRIu64 " %s)", e->count, ls_dtype_name((ls_dtype)e->dtype));
}

static void say_since(words *w, uint64_t from, uint64_t to) {
    double seconds = to > from ? (double)(to - from) * 1e-9 : 0;
    if (seconds >= 0.05)
        say(w, " for %.1f s", seconds);
}

/* The operation the rank is in or failed in: the oldest such one, because others wait behind it. */
static const ls__flight_entry *pending_of(const ls__flight_record *record) {
    for (int i = 0; i < record->entry_count; i++) {
        if (is_pending(&record->entry[i]))
            return &record->entry[i];
    }
    return NULL;
}

static void say_where(words *w, const ls__flight_record *record) {
    const ls__flight_entry *e = pending_of(record);
    if (!record->pid) {
        say(w, "never joined the job, or left no record");
    } else if (e) {
        say(w, "was in ");
        say_operation(w, e);
        say_since(w, e->begin_ns, e->end_ns ? e->end_ns : record->taken_ns);
    } else if (record->left) {
        say(w, "had left the job");
    } else if (record->entry_count == 0) {
        say(w, "was in no operation, and had been in none");
    } else {
        e = &record->entry[record->entry_count - 1];
        say(w, "was in no operation");
        say_since(w, e->end_ns, record->taken_ns);
        say(w, " (its last was ");
        say_operation(w, e);
        say(w, ")");
    }
    if (record->phase[0])
        say(w, ", in phase '%s'", record->phase);
    if (record->phase[0])
        say_since(w, record->phase_ns, record->taken_ns);
}

/* --- stalls ------------------------------------------------------------------------------------------- */

static int group_index(const ls__flight_record *record, uint64_t id) {
    for (int i = 0; i < record->group_count; i++) {
        if (record->group[i].id == id)
            return i;
    }
    return -1;
}

static const char *group_name(const ls__diagnosis *d, uint64_t id, int *size) {
    for (int r = 0; r < d->ranks; r++) {
        int i = group_index(&d->record[r], id);
        if (i < 0)
            continue;
        *size = d->record[r].group[i].size;
        return d->record[r].group[i].name;
    }
    *size = 0;
    return "?";
}

/* The last collective of the group that the rank began. */
static const ls__flight_entry *last_collective(const ls__flight_record *record, uint64_t group) {
    const ls__flight_entry *last = NULL;
    for (int i = 0; i < record->entry_count; i++) {
        const ls__flight_entry *e = &record->entry[i];
        if (e->group == group && !is_point(e) && (!last || e->sequence > last->sequence))
            last = e;
    }
    return last;
}

static bool sends_to(const ls__flight_entry *e, int peer, uint64_t *sequence) {
    *sequence = e->sequence;
    return (e->kind == LS__SEND || e->kind == LS__SENDRECV) && e->root == peer;
}

static bool receives_from(const ls__flight_entry *e, int peer, uint64_t *sequence) {
    *sequence = e->kind == LS__SENDRECV ? e->recv_sequence : e->sequence;
    return (e->kind == LS__RECV && e->root == peer) || (e->kind == LS__SENDRECV && e->from == peer);
}

/* Whether the rank came to its end of message `sequence`, the other end of which is `peer`'s. */
static bool has_come(const ls__flight_record *record, uint64_t group, int peer, uint64_t sequence,
                     bool (*half)(const ls__flight_entry *, int, uint64_t *)) {
    uint64_t own;
    for (int i = 0; i < record->entry_count; i++) {
        if (record->entry[i].group == group && half(&record->entry[i], peer, &own) &&
            own >= sequence)
            return true;
    }
    return false;
}

static bool is_known(const ls__diagnosis *d, const ls__flight_entry *e) {
    for (int i = 0; i < d->stall_count && !is_point(e); i++) {
        const ls__flight_entry *known = &d->stall[i].entry;
        if (known->group == e->group && known->sequence == e->sequence && !is_point(known))
            return true;
    }
    return false;
}

static void say_stall(ls__diagnosis *d, ls__stall *s) {
    words w = {.text = s->text, .bytes = sizeof s->text};
    int missing = 0, named = 0;
    for (int r = 0; r < d->ranks; r++)
        missing += s->missing[r];
    if (missing > 0)
        say_ranks(&w, s->missing, d->ranks);
    if (missing > 0 && s->peer >= 0)
        say(&w, " never came to the other end of ");
    else
        say(&w, missing > 0 ? " never arrived at " : "all had begun ");
    say_operation(&w, &s->entry);
    say_details(&w, s->group, &s->entry);
    for (int r = 0; r < d->ranks && named < 4; r++) {
        if (!s->missing[r])
            continue;
        if (missing == 1)
            say(&w, "; it ");
        else
            say(&w, "; rank %d ", r);
        say_where(&w, &d->record[r]);
        named++;
    }
    say(&w, "; ");
    say_ranks(&w, s->waiting, d->ranks);
    if (missing == 0)
        say(&w, " had not ended it");
    else
        say(&w, " waited for %s", missing == 1 ? "it" : "them");
}

/* Who has begun a later number has arrived at this one, too. */
static void find_waiting(ls__diagnosis *d, ls__stall *s, int size) {
    const ls__flight_entry *e = &s->entry;
    for (int r = 0; r < d->ranks; r++) {
        const ls__flight_record *record = &d->record[r];
        bool member = group_index(record, e->group) >= 0 || (!record->pid && size == d->ranks);
        const ls__flight_entry *last = last_collective(record, e->group);
        s->missing[r] = (member || last) && (!last || last->sequence < e->sequence);
        s->waiting[r] = last && last->sequence == e->sequence && is_pending(last);
    }
}

/* The other ends of a message that `rank` waits for. */
static void find_ends(ls__diagnosis *d, ls__stall *s, int rank) {
    const ls__flight_entry *e = &s->entry;
    s->waiting[rank] = true;
    for (int peer = 0; peer < d->ranks; peer++) {
        const ls__flight_record *record = &d->record[peer];
        uint64_t sequence;
        if (sends_to(e, peer, &sequence))
            s->missing[peer] |= !has_come(record, e->group, rank, sequence, receives_from);
        if (receives_from(e, peer, &sequence))
            s->missing[peer] |= !has_come(record, e->group, rank, sequence, sends_to);
    }
}

static ls_status add_stall(ls__diagnosis *d, const ls__flight_entry *e, int rank) {
    int peer = is_point(e) ? e->root : -1, size;
    if (d->stall_count == LS__DIAGNOSIS_STALLS || is_known(d, e))
        return LS_OK;
    ls__stall *s = &d->stall[d->stall_count];
    *s = (ls__stall){.entry = *e, .peer = peer};
    snprintf(s->group, sizeof s->group, "%s", group_name(d, e->group, &size));
    s->missing = calloc((size_t)d->ranks, 2 * sizeof(bool));
    if (!s->missing)
        return ls__fail(LS_ERR_MEMORY, "no memory for a report on %d ranks", d->ranks);
    s->waiting = s->missing + d->ranks;
    d->stall_count++;
    if (peer < 0)
        find_waiting(d, s, size);
    else
        find_ends(d, s, rank);
    say_stall(d, s);
    return LS_OK;
}

/* Only the last collective that a group is in can be waited for. */
static bool is_front(const ls__diagnosis *d, const ls__flight_entry *e) {
    for (int r = 0; r < d->ranks && !is_point(e); r++) {
        const ls__flight_entry *last = last_collective(&d->record[r], e->group);
        if (last && last->sequence > e->sequence && is_pending(last))
            return false;
    }
    return true;
}

static ls_status find_stalls(ls__diagnosis *d) {
    for (int r = 0; r < d->ranks; r++) {
        const ls__flight_record *record = &d->record[r];
        for (int i = 0; i < record->entry_count; i++) {
            const ls__flight_entry *e = &record->entry[i];
            if (is_pending(e) && is_front(d, e))
                LS_TRY(add_stall(d, e, r));
        }
    }
    return LS_OK;
}

/* --- all of it ------------------------------------------------------------------------------------------ */

/* Ranks of other machines have other clocks: compared by the time of day. */
static int first_error(const ls__diagnosis *d) {
    int first = -1;
    int64_t at = 0;
    for (int r = 0; r < d->ranks; r++) {
        const ls__flight_record *record = &d->record[r];
        uint64_t failed = record->failed_ns;
        if (!failed || failed > INT64_MAX / 2 || record->clock_offset_ns > INT64_MAX / 2)
            continue;
        int64_t then = (int64_t)failed + record->clock_offset_ns;
        if (first < 0 || then < at) {
            first = r;
            at = then;
        }
    }
    return first;
}

/* "... rank 3 (host b, pid 7) has stopped: no heartbeat for ..." (comm/heartbeat.c) -> 3 */
static int stopped_rank(const ls__diagnosis *d) {
    const char *text = d->first < 0 ? "" : d->record[d->first].failure;
    const char *end = strstr(text, " has stopped: no heartbeat");
    int stopped = -1;
    for (const char *at = text; end && (at = strstr(at, "rank ")) && at < end; at++) {
        char *after;
        long rank = strtol(at + 5, &after, 10);
        if (after > at + 5 && strncmp(after, " (", 2) == 0 && rank >= 0 && rank < d->ranks)
            stopped = (int)rank;
    }
    return stopped;
}

static void say_lines(ls__diagnosis *d) {
    for (int r = 0; r < d->ranks; r++) {
        words w = {.text = d->line[r], .bytes = sizeof d->line[r]};
        say_where(&w, &d->record[r]);
    }
}

ls_status ls__diagnosis_make(ls__diagnosis **diagnosis, const ls__flight_record *record,
                             int ranks) {
    *diagnosis = NULL;
    ls__diagnosis *d = calloc(1, sizeof *d);
    if (!d)
        return ls__fail(LS_ERR_MEMORY, "no memory for a report on %d ranks", ranks);
    d->ranks = ranks;
    d->record = record;
    d->line = calloc((size_t)ranks, sizeof *d->line);
    ls_status status =
        d->line ? LS_OK : ls__fail(LS_ERR_MEMORY, "no memory for a report on %d ranks", ranks);
    if (status == LS_OK)
        status = find_stalls(d);
    if (status != LS_OK) {
        ls__diagnosis_free(d);
        return status;
    }
    d->first = first_error(d);
    d->stopped = stopped_rank(d);
    say_lines(d);
    *diagnosis = d;
    return LS_OK;
}

void ls__diagnosis_free(ls__diagnosis *diagnosis) {
    if (!diagnosis)
        return;
    for (int i = 0; i < diagnosis->stall_count; i++)
        free(diagnosis->stall[i].missing);
    free(diagnosis->line);
    free(diagnosis);
}

/* --- for machines ----------------------------------------------------------------------------------------- */

static json_t *set_json(const bool *set, int ranks) {
    json_t *list = json_array();
    for (int r = 0; r < ranks; r++) {
        if (set[r])
            json_array_append_new(list, json_integer(r));
    }
    return list;
}

static json_t *stall_json(const ls__diagnosis *d, const ls__stall *s) {
    const ls__flight_entry *e = &s->entry;
    json_t *object = json_object();
    json_object_set_new(object, "operation", json_string(ls__kind_name((int)e->kind)));
    json_object_set_new(object, "sequence", json_integer((json_int_t)e->sequence));
    json_object_set_new(object, "group", ls__json_text(s->group));
    json_object_set_new(object, "count", json_integer((json_int_t)e->count));
    json_object_set_new(object, "dtype", json_string(ls_dtype_name((ls_dtype)e->dtype)));
    json_object_set_new(object, "reduction", json_string(ls__op_name(e->op)));
    json_object_set_new(object, "peer", s->peer < 0 ? json_null() : json_integer(s->peer));
    json_object_set_new(object, "missing", set_json(s->missing, d->ranks));
    json_object_set_new(object, "waiting", set_json(s->waiting, d->ranks));
    json_object_set_new(object, "text", ls__json_text(s->text));
    return object;
}

static json_t *rank_json(const ls__diagnosis *d, int r) {
    const ls__flight_record *record = &d->record[r];
    const ls__flight_entry *e = pending_of(record);
    json_t *object = json_object();
    json_object_set_new(object, "rank", json_integer(r));
    json_object_set_new(object, "host", record->pid ? ls__json_text(record->host) : json_null());
    json_object_set_new(object, "pid", record->pid ? json_integer(record->pid) : json_null());
    json_object_set_new(object, "operation",
                        e ? json_string(ls__kind_name((int)e->kind)) : json_null());
    json_object_set_new(object, "sequence",
                        e ? json_integer((json_int_t)e->sequence) : json_null());
    json_object_set_new(object, "phase",
                        record->phase[0] ? ls__json_text(record->phase) : json_null());
    json_object_set_new(object, "error",
                        record->failure[0] ? ls__json_text(record->failure) : json_null());
    json_object_set_new(object, "text", ls__json_text(d->line[r]));
    return object;
}

json_t *ls__diagnosis_json(const ls__diagnosis *d) {
    json_t *object = json_object(), *stalls = json_array(), *ranks = json_array();
    json_object_set_new(object, "first_error_rank",
                        d->first < 0 ? json_null() : json_integer(d->first));
    json_object_set_new(object, "first_error",
                        d->first < 0 ? json_null() : ls__json_text(d->record[d->first].failure));
    for (int i = 0; i < d->stall_count; i++)
        json_array_append_new(stalls, stall_json(d, &d->stall[i]));
    for (int r = 0; r < d->ranks; r++)
        json_array_append_new(ranks, rank_json(d, r));
    json_object_set_new(object, "stalls", stalls);
    json_object_set_new(object, "ranks", ranks);
    return object;
}
