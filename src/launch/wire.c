#include "launch/wire.h"

#include "base/clock.h"
#include "launch/diagnosis.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *ls__wire_make(const char *kind) {
    return json_pack("{s:s}", "kind", kind);
}

bool ls__wire_is(const json_t *message, const char *kind) {
    const char *text = json_string_value(json_object_get(message, "kind"));
    return text && strcmp(text, kind) == 0;
}

void ls__wire_put_number(json_t *message, const char *key, int64_t value) {
    json_object_set_new(message, key, json_integer(value));
}

void ls__wire_put_text(json_t *message, const char *key, const char *text) {
    char clean[2048];
    ls__flight_copy_text(clean, sizeof clean, text, strlen(text));
    json_object_set_new(message, key, ls__json_text(clean));
}

int64_t ls__wire_number(const json_t *message, const char *key, int64_t low, int64_t high) {
    const json_t *value = json_object_get(message, key);
    int64_t number = json_integer_value(value);
    return json_is_integer(value) && number >= low && number <= high ? number : low;
}

int ls__wire_signal(const json_t *message) {
    int number = (int)ls__wire_number(message, "signal", 0, 64);
    return number ? number : SIGTERM;
}

void ls__wire_text(const json_t *message, const char *key, char *text, size_t bytes) {
    const char *value = json_string_value(json_object_get(message, key));
    ls__flight_copy_text(text, bytes, value ? value : "", value ? strlen(value) : 0);
}

/* --- a plan ---------------------------------------------------------------------------------------- */

json_t *ls__wire_from_plan(const ls__plan *plan) {
    json_t *message = ls__wire_make("start");
    ls__wire_put_number(message, "round", plan->round);
    ls__wire_put_number(message, "restarts", plan->restarts);
    ls__wire_put_number(message, "nodes", plan->nodes);
    ls__wire_put_number(message, "node", plan->node);
    ls__wire_put_number(message, "first_rank", plan->first_rank);
    ls__wire_put_number(message, "world", plan->world);
    ls__wire_put_number(message, "port", plan->port);
    ls__wire_put_number(message, "held_port", plan->held_port);
    ls__wire_put_text(message, "nonce", plan->nonce);
    return message;
}

bool ls__wire_to_plan(const json_t *message, ls__plan *plan) {
    const int most = LS__LAUNCH_MOST_RANKS * LS__ROUNDS_NODES;
    *plan = (ls__plan){.listener = -1};
    plan->round = (int)ls__wire_number(message, "round", 0, INT32_MAX);
    plan->restarts = (int)ls__wire_number(message, "restarts", 0, INT32_MAX);
    plan->nodes = (int)ls__wire_number(message, "nodes", 0, LS__ROUNDS_NODES);
    plan->node = (int)ls__wire_number(message, "node", 0, LS__ROUNDS_NODES);
    plan->first_rank = (int)ls__wire_number(message, "first_rank", 0, most);
    plan->world = (int)ls__wire_number(message, "world", 0, most);
    plan->port = (int)ls__wire_number(message, "port", 0, 65535);
    plan->held_port = (int)ls__wire_number(message, "held_port", 0, 65535);
    ls__wire_text(message, "nonce", plan->nonce, sizeof plan->nonce);
    return plan->round && plan->nodes > plan->node && plan->port && plan->held_port &&
           plan->world > plan->first_rank;
}

/* --- how ranks ended ------------------------------------------------------------------------------- */

/* stderr says more about a failure; a rank that was silent there may have spoken on stdout. */
static void take_words(ls__end *end, const ls__rank *rank) {
    const ls__lines *lines = &rank->streams[LS__STDERR].lines;
    end->words_of_error = ls__lines_tail_count(lines) > 0;
    if (!end->words_of_error)
        lines = &rank->streams[LS__STDOUT].lines;
    size_t count = ls__lines_tail_count(lines);
    end->words = count ? calloc(count, sizeof *end->words) : NULL;
    for (size_t i = 0; end->words && i < count; i++)
        memcpy(end->words[end->word_count++], ls__lines_tail(lines, i), sizeof *end->words);
}

void ls__outcome_take_local(ls__outcome *outcome, const ls__launch_job *job) {
    for (int i = 0; i < job->started; i++) {
        const ls__rank *rank = &job->ranks[i];
        ls__end *end = &outcome->end[rank->number];
        end->pid = rank->pid;
        end->exited = rank->exited;
        end->exit_code = rank->exit_code;
        end->signal = rank->signal;
        end->signal_sent = rank->signal_sent;
        end->exited_ns = rank->exited_ns;
        take_words(end, rank);
        if (outcome->record)
            ls__job_flight_read(rank, &outcome->record[rank->number]);
    }
}

static json_t *from_words(const ls__rank *rank, bool *of_error) {
    json_t *list = json_array(), *holder = json_object();
    ls__end end = {0};
    take_words(&end, rank);
    for (int i = 0; i < end.word_count; i++) {
        ls__wire_put_text(holder, "line", end.words[i]);
        json_array_append(list, json_object_get(holder, "line"));
    }
    *of_error = end.words_of_error;
    free(end.words);
    json_decref(holder);
    return list;
}

/* A record travels as the file it would be. */
static void put_record(json_t *end, const ls__rank *rank) {
    ls__flight_record *record = malloc(sizeof *record);
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = record ? open_memstream(&text, &bytes) : NULL;
    if (file) {
        ls__job_flight_read(rank, record);
        ls__flight_put(file, record);
        if (fclose(file) == 0 && record->pid)
            json_object_set_new(end, "flight", json_stringn(text, bytes));
    }
    free(text);
    free(record);
}

json_t *ls__wire_from_ends(const ls__launch_job *job) {
    json_t *message = ls__wire_make("ended"), *list = json_array();
    uint64_t now = ls__now_ns();
    ls__wire_put_number(message, "round", job->plan.round);
    ls__wire_put_number(message, "lost_lines", job->lost_lines);
    if (job->first_failure >=
        0) { /* as it is seen now: a likelier one may have ended a moment later */
        const ls__rank *first = &job->ranks[job->first_failure];
        ls__wire_put_number(message, "rank", first->number);
        ls__wire_put_number(message, "code", first->signal ? 0 : first->exit_code);
    }
    for (int i = 0; i < job->started; i++) {
        const ls__rank *rank = &job->ranks[i];
        json_t *end = json_object();
        bool of_error;
        ls__wire_put_number(end, "pid", rank->pid);
        ls__wire_put_number(end, "exit_code", rank->exit_code);
        ls__wire_put_number(end, "signal", rank->signal);
        ls__wire_put_number(end, "signal_sent", rank->signal_sent);
        ls__wire_put_number(end, "age_ns", (int64_t)(now - rank->exited_ns));
        json_object_set_new(end, "words", from_words(rank, &of_error));
        json_object_set_new(end, "words_of_error", json_boolean(of_error));
        if (job->first_failure >= 0 || job->ending)
            put_record(end, rank);
        json_array_append_new(list, end);
    }
    json_object_set_new(message, "ends", list);
    return message;
}

bool ls__wire_ends_are_done(const json_t *message, int count) {
    const json_t *list = json_object_get(message, "ends");
    for (int i = 0; i < count; i++) {
        const json_t *end = json_array_get(list, (size_t)i);
        if (ls__wire_number(end, "pid", 0, INT32_MAX) == 0 ||
            ls__wire_number(end, "exit_code", -1, 0) != 0 ||
            ls__wire_number(end, "signal", -1, 0) != 0 ||
            ls__wire_number(end, "signal_sent", -1, 0) != 0)
            return false;
    }
    return true;
}

static void to_words(const json_t *list, ls__end *end) {
    size_t count = json_array_size(list);
    if (count > LS__TAIL_LINES)
        count = LS__TAIL_LINES;
    end->words = count ? calloc(count, sizeof *end->words) : NULL;
    for (size_t i = 0; end->words && i < count; i++) {
        const char *line = json_string_value(json_array_get(list, i));
        ls__flight_copy_text(end->words[end->word_count++], LS__TAIL_BYTES, line ? line : "",
                             line ? strlen(line) : 0);
    }
}

static void to_end(const json_t *object, uint64_t came_ns, ls__end *end,
                   ls__flight_record *record) {
    uint64_t age = (uint64_t)ls__wire_number(object, "age_ns", 0, INT64_MAX);
    const json_t *flight = json_object_get(object, "flight");
    end->pid = (pid_t)ls__wire_number(object, "pid", 0, INT32_MAX);
    end->exited = end->pid > 0;
    end->exit_code = (int)ls__wire_number(object, "exit_code", 0, 255);
    end->signal = (int)ls__wire_number(object, "signal", 0, 64);
    end->signal_sent = (int)ls__wire_number(object, "signal_sent", 0, 64);
    end->exited_ns = age < came_ns ? came_ns - age : 1;
    end->words_of_error = json_is_true(json_object_get(object, "words_of_error"));
    to_words(json_object_get(object, "words"), end);
    if (!record || !flight ||
        ls__flight_parse(json_string_value(flight) ? json_string_value(flight) : "",
                         json_string_length(flight), end->host, record) != LS_OK ||
        record->rank != end->number) {
        if (record)
            *record = (ls__flight_record){.rank = end->number};
    }
}

void ls__wire_to_ends(const json_t *message, uint64_t came_ns, ls__outcome *outcome, int first,
                      int count) {
    const json_t *list = json_object_get(message, "ends");
    for (int i = 0; i < count; i++) {
        const json_t *object = json_array_get(list, (size_t)i);
        if (json_is_object(object))
            to_end(object, came_ns, &outcome->end[first + i],
                   outcome->record ? &outcome->record[first + i] : NULL);
    }
}
