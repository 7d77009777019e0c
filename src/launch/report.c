/* What the launcher says at the end: the first cause once, with the last lines of that rank, then how
 * every other rank ended. */
#include "launch/diagnosis.h"
#include "launch/outcome.h"

#include "base/error.h"
#include "base/json.h"
#include "launch/exit_code.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ls__signal_name(int signal_number) {
    static const char *const names[] = {
        [SIGHUP] = "SIGHUP",   [SIGINT] = "SIGINT",   [SIGQUIT] = "SIGQUIT", [SIGILL] = "SIGILL",
        [SIGTRAP] = "SIGTRAP", [SIGABRT] = "SIGABRT", [SIGBUS] = "SIGBUS",   [SIGFPE] = "SIGFPE",
        [SIGKILL] = "SIGKILL", [SIGUSR1] = "SIGUSR1", [SIGSEGV] = "SIGSEGV", [SIGUSR2] = "SIGUSR2",
        [SIGPIPE] = "SIGPIPE", [SIGALRM] = "SIGALRM", [SIGTERM] = "SIGTERM", [SIGXCPU] = "SIGXCPU",
        [SIGXFSZ] = "SIGXFSZ", [SIGSYS] = "SIGSYS",
    };
    size_t count = sizeof names / sizeof names[0];
    if (signal_number > 0 && (size_t)signal_number < count && names[signal_number])
        return names[signal_number];
    return "unnamed signal";
}

void ls__end_describe(int signal_number, int exit_code, char *text, size_t bytes) {
    if (signal_number)
        snprintf(text, bytes, "was killed by signal %d (%s)", signal_number,
                 ls__signal_name(signal_number));
    else
        snprintf(text, bytes, "exited with code %d", exit_code);
}

static void describe(const ls__end *rank, char *text, size_t bytes) {
    if (rank->pid)
        ls__end_describe(rank->signal, rank->exit_code, text, bytes);
    else
        snprintf(text, bytes, "went with its machine");
}

static int code_of(const ls__end *rank) {
    return rank->signal ? LS__EXIT_SIGNAL + rank->signal : rank->exit_code;
}

/* A full disk, say. A reader that has gone (EPIPE: lockstep run ... | head) is no mistake. */
static bool lost_output(const ls__outcome *o) {
    return o->stop_signal == SIGPIPE && o->write_error != EPIPE;
}

bool ls__signal_asks(int signal_number) {
    return signal_number == SIGTERM || signal_number == SIGHUP;
}

/* All of them did what SIGTERM asks for: they finished what they did, saved and left. */
static bool all_left_well(const ls__outcome *o) {
    for (int i = 0; i < o->ranks; i++) {
        if (!o->end[i].exited || o->end[i].signal || o->end[i].exit_code)
            return false;
    }
    return o->ranks > 0;
}

int ls__outcome_exit_code(const ls__outcome *o) {
    if (o->first_failure >= 0)
        return code_of(&o->end[o->first_failure]);
    if (lost_output(o))
        return LS__EXIT_INPUT;
    if (o->stop_signal && !(ls__signal_asks(o->stop_signal) && all_left_well(o)))
        return LS__EXIT_SIGNAL + o->stop_signal;
    if (o->why == LS__WHY_LOST || o->why == LS__WHY_FEW)
        return LS__EXIT_RANKS;
    return *o->lost_lines ? LS__EXIT_INPUT : LS__EXIT_OK;
}

static double seconds_of(const ls__outcome *o, const ls__end *rank) {
    return rank->exited_ns > o->started_ns ? (double)(rank->exited_ns - o->started_ns) * 1e-9 : 0;
}

/* "host b, pid 12" */
static void place_of(const ls__end *rank, const ls__diagnosis *d, char *text, size_t bytes) {
    const char *host = rank->host;
    if (!*host && d && d->record[rank->number].pid)
        host = d->record[rank->number].host;
    if (*host && rank->pid)
        snprintf(text, bytes, "host %s, pid %d", host, (int)rank->pid);
    else if (*host)
        snprintf(text, bytes, "host %s", host);
    else
        snprintf(text, bytes, "pid %d", (int)rank->pid);
}

/* With where it was before, if that is known. */
static void describe_end(const ls__end *rank, const ls__diagnosis *d, char *text, size_t bytes) {
    if (rank->signal && rank->signal == rank->signal_sent)
        snprintf(text, bytes, "was ended by the launcher (%s)", ls__signal_name(rank->signal));
    else
        describe(rank, text, bytes);
    size_t n = strlen(text);
    if (d && d->record[rank->number].pid)
        snprintf(text + n, bytes - n, "; it %s", d->line[rank->number]);
}

/* One line for each rank; neighbours that ended the same way share one in large jobs. */
static void print_others(const ls__outcome *o, int first, const ls__diagnosis *d) {
    enum { LARGE = 16, BYTES = 400 };
    for (int i = 0, next; i < o->ranks; i = next) {
        const ls__end *rank = &o->end[i];
        char how[BYTES], same[BYTES], place[LS__FLIGHT_NAME_BYTES + 32];
        describe_end(rank, o->ranks > LARGE ? NULL : d, how, sizeof how);
        place_of(rank, NULL, place, sizeof place);
        next = i + 1;
        if (i == first)
            continue;
        for (; o->ranks > LARGE && next < o->ranks && next != first; next++) {
            describe_end(&o->end[next], NULL, same, sizeof same);
            if (strcmp(how, same) != 0)
                break;
        }
        if (next == i + 1)
            fprintf(stderr, "%s: rank %d (%s) %s\n", o->command, i, place, how);
        else
            fprintf(stderr, "%s: ranks %d to %d: each %s\n", o->command, i, next - 1, how);
    }
}

/* The first error that a rank got from the library, unless the lines just shown hold it. */
static void print_first_error(const ls__outcome *o, const ls__end *first, const ls__diagnosis *d) {
    if (d->first < 0 || (first->signal && first->number != d->stopped))
        return;
    const char *text = d->record[d->first].failure;
    for (int i = 0; i < first->word_count; i++) {
        if (strstr(first->words[i], text))
            return;
    }
    fprintf(stderr, "%s: first error, on rank %d: %s\n", o->command, d->first, text);
}

/* Who had not arrived where; a signal or an exit tells only who ended. */
static void print_diagnosis(const ls__outcome *o, const ls__end *first, const ls__diagnosis *d) {
    print_first_error(o, first, d);
    for (int i = 0; i < d->stall_count; i++)
        fprintf(stderr, "%s: %s\n", o->command, d->stall[i].text);
}

/* Without memory for it the report is shorter. */
static ls__diagnosis *diagnose(const ls__outcome *o) {
    ls__diagnosis *d = NULL;
    if (o->record && o->first_failure >= 0)
        (void)ls__diagnosis_make(&d, o->record, o->ranks);
    return d;
}

static bool ended_before(const ls__end *rank, const ls__end *other) {
    return rank->exited && rank->exited_ns < other->exited_ns;
}

/* Ranks that lose a peer or wait in vain end with code 4: then the one that was first is who left without a
 * word, though with code 0, or whose heartbeat the first error missed, or who noted that error. */
static const ls__end *first_cause(const ls__outcome *o, const ls__diagnosis *d) {
    const ls__end *first = &o->end[o->first_failure];
    if (!d || !ls__end_is_consequence(first->signal, first->exit_code))
        return first;
    for (int r = 0; r < o->ranks; r++) {
        const ls__end *rank = &o->end[r];
        if (rank->exited && !rank->signal && rank->exit_code == 0 && !d->record[r].left &&
            rank->exited_ns < first->exited_ns)
            return rank;
    }
    if (d->stopped >= 0 && !ended_before(&o->end[d->stopped], first))
        return &o->end[d->stopped];
    return d->first >= 0 && !o->end[d->first].signal ? &o->end[d->first] : first;
}

/* How the first cause ended, "stopped" where others missed its heartbeat, and "gave up" where it only found another rank dead, stopped or of another opinion:
 * code 4 and an error of the library. */
static const char *describe_first(const ls__end *first, const ls__diagnosis *d, char *how,
                                  size_t bytes) {
    bool known = d && d->record[first->number].pid;
    describe(first, how, bytes);
    if (first->exited && !first->signal && first->exit_code == 0)
        snprintf(how, bytes, "exited with code 0 %s",
                 known ? "without leaving the job (ls_job_finish)" : "before it joined the job");
    if (d && first->number == d->stopped) {
        size_t n = (size_t)snprintf(how, bytes, "had no heartbeat any more, and ");
        describe(first, how + n, bytes - n);
        n = strlen(how);
        if (first->signal && first->signal == first->signal_sent)
            snprintf(how + n, bytes - n, " by the launcher");
        return "stopped";
    }
    bool gave_up = d && ls__end_is_consequence(first->signal, first->exit_code) &&
                   d->record[first->number].failure[0];
    return gave_up ? "gave up" : "failed";
}

static void print_failure(const ls__outcome *o, const ls__diagnosis *d) {
    const ls__end *first = first_cause(o, d);
    int count = first->word_count;
    const char *introduction = count ? "; its last lines:" : " without a word";
    char how[160], place[LS__FLIGHT_NAME_BYTES + 32];
    if (count && first->number == 0 && o->options->rank0_speaks) { /* they passed already */
        count = 0;
        introduction = "; its last lines stand above";
    }
    const char *verb = describe_first(first, d, how, sizeof how);
    place_of(first, d, place, sizeof place);
    fprintf(stderr, "%s: rank %d (%s) %s first: it %s after %.1f s%s\n", o->command, first->number,
            place, verb, how, seconds_of(o, first), introduction);
    for (int i = 0; i < count; i++)
        fprintf(stderr, "    %s\n", first->words[i]);
    if (first->signal == SIGKILL && first->signal_sent != SIGKILL)
        fprintf(stderr, "    (if nobody sent that signal, the machine may have run out of memory: "
                        "dmesg tells)\n");
    if (d)
        print_diagnosis(o, first, d);
    print_others(o, first->number, d);
}

static void summarize_failure(const ls__outcome *o, char *text, size_t bytes) {
    char how[160], place[LS__FLIGHT_NAME_BYTES + 32];
    ls__diagnosis *d = diagnose(o);
    const ls__end *first = first_cause(o, d);
    const char *verb = describe_first(first, d, how, sizeof how);
    place_of(first, d, place, sizeof place);
    snprintf(text, bytes, "rank %d (%s) %s first: it %s", first->number, place, verb, how);
    ls__diagnosis_free(d);
}

void ls__outcome_summary(const ls__outcome *o, char *text, size_t bytes) {
    text[0] = '\0';
    if (o->first_failure >= 0) {
        summarize_failure(o, text, bytes);
    } else if (o->stop_signal) {
        snprintf(text, bytes, "stopped by %s", ls__signal_name(o->stop_signal));
    } else if (*o->missing) {
        snprintf(text, bytes, "%s", o->missing);
    } else if (*o->lost_lines) {
        snprintf(text, bytes, "host %s could not write its --log-dir", o->lost_lines);
    }
}

/* A mistake of the user that every rank found: the ranks' own line is the message, once. */
static bool print_mistake(const ls__outcome *o) {
    const ls__end *first = &o->end[o->first_failure];
    if (!o->options->rank0_speaks || first->signal ||
        (first->exit_code != LS__EXIT_USAGE && first->exit_code != LS__EXIT_INPUT))
        return false;
    const ls__end *speaker = &o->end[0];
    if (!speaker->signal && speaker->exit_code == first->exit_code)
        return true; /* its output passed already */
    for (int i = 0; i < first->word_count; i++)
        fprintf(stderr, "%s\n", first->words[i]);
    return first->word_count > 0;
}

static void print_stop(const ls__outcome *o) {
    int killed = 0;
    for (int i = 0; i < o->ranks; i++)
        killed += o->end[i].signal == SIGKILL;
    fprintf(stderr, "%s: stopped by %s; all %d ranks have ended", o->command,
            ls__signal_name(o->stop_signal), o->ranks);
    if (killed)
        fprintf(stderr, ", %d had to be killed", killed);
    else if (all_left_well(o))
        fprintf(stderr, " with code 0");
    fputc('\n', stderr);
}

/* The warnings of ranks that were kept quiet. */
static void print_kept(const ls__outcome *o) {
    for (int rank = 1; rank < o->ranks; rank++) {
        const ls__end *end = &o->end[rank];
        for (int i = 0; end->words_of_error && i < end->word_count; i++)
            fprintf(stderr, "[rank %d] %s\n", rank, end->words[i]);
    }
}

/* --- the same for machines ------------------------------------------------------------------------- */

static json_t *rank_json(const ls__outcome *o, const ls__end *rank) {
    json_t *object = json_object();
    bool ended = rank->exited;
    json_object_set_new(object, "rank", json_integer(rank->number));
    if (*rank->host)
        json_object_set_new(object, "host", ls__json_text(rank->host));
    json_object_set_new(object, "pid", json_integer(rank->pid));
    json_object_set_new(object, "exit_code",
                        rank->signal || !ended ? json_null() : json_integer(rank->exit_code));
    json_object_set_new(object, "signal", rank->signal ? json_integer(rank->signal) : json_null());
    json_object_set_new(object, "signal_name",
                        rank->signal ? json_string(ls__signal_name(rank->signal)) : json_null());
    json_object_set_new(object, "by_launcher",
                        json_boolean(rank->signal && rank->signal == rank->signal_sent));
    json_object_set_new(object, "seconds", ls__json_real(seconds_of(o, rank)));
    return object;
}

static ls_status write_json(const ls__outcome *o, const ls__diagnosis *d) {
    json_t *object = json_object(), *ranks = json_array();
    json_object_set_new(object, "event", json_string("job_end"));
    json_object_set_new(object, "exit_code", json_integer(ls__outcome_exit_code(o)));
    json_object_set_new(object, "stopped_by",
                        o->stop_signal ? json_string(ls__signal_name(o->stop_signal))
                                       : json_null());
    json_object_set_new(object, "nodes", json_integer(o->nodes));
    json_object_set_new(object, "restarts", json_integer(o->restarts));
    json_t *first = json_null();
    if (o->first_failure >= 0) {
        const ls__end *rank = first_cause(o, d);
        json_t *lines = json_array();
        for (int i = 0; i < rank->word_count; i++)
            json_array_append_new(lines, ls__json_text(rank->words[i]));
        first = rank_json(o, rank);
        json_object_set_new(first, "last_lines", lines);
    }
    json_object_set_new(object, "first_failure", first);
    if (*o->missing)
        json_object_set_new(object, "missing", ls__json_text(o->missing));
    if (*o->lost_lines)
        json_object_set_new(object, "lost_lines", ls__json_text(o->lost_lines));
    for (int i = 0; i < o->ranks; i++)
        json_array_append_new(ranks, rank_json(o, &o->end[i]));
    json_object_set_new(object, "ranks", ranks);
    json_object_set_new(object, "flight", d ? ls__diagnosis_json(d) : json_null());
    return ls__json_write_line(stdout, "stdout", object);
}

void ls__outcome_report(const ls__outcome *o) {
    ls__diagnosis *d = diagnose(o);
    if (o->line_open && ls__outcome_exit_code(o))
        fputc('\n', stderr);
    if (o->first_failure >= 0) {
        if (!print_mistake(o))
            print_failure(o, d);
    } else if (o->stop_signal && o->stop_signal != SIGPIPE) {
        print_stop(o);
    } else if (lost_output(o)) {
        fprintf(stderr, "%s: cannot write the ranks' output: %s\n", o->command,
                strerror(o->write_error));
    } else if (*o->missing) {
        fprintf(stderr, "%s: %s\n", o->command, o->missing);
    } else if (o->options->rank0_speaks && !o->stop_signal) {
        print_kept(o);
    } else if (o->nodes > 1 && *o->lost_lines && !o->stop_signal) {
        char why[160];
        ls__outcome_summary(o, why, sizeof why);
        fprintf(stderr, "%s: %s\n", o->command, why);
    }
    ls__diagnosis_free(d);
}

ls_status ls__outcome_write_json(const ls__outcome *o) {
    ls__diagnosis *d = diagnose(o);
    ls_status status = write_json(o, d);
    ls__diagnosis_free(d);
    return status;
}
