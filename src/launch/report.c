/* What the launcher says at the end: the first cause once, with the last lines of that rank, then how
 * every other rank ended. */
#include "launch/diagnosis.h"
#include "launch/job.h"

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

void ls__rank_describe(const ls__rank *rank, char *text, size_t bytes) {
    if (rank->signal)
        snprintf(text, bytes, "was killed by signal %d (%s)", rank->signal,
                 ls__signal_name(rank->signal));
    else
        snprintf(text, bytes, "exited with code %d", rank->exit_code);
}

static int code_of(const ls__rank *rank) {
    return rank->signal ? LS__EXIT_SIGNAL + rank->signal : rank->exit_code;
}

/* A full disk, say. A reader that has gone (EPIPE: lockstep run ... | head) is no mistake. */
static bool lost_output(const ls__launch_job *job) {
    return job->stop_signal == SIGPIPE && job->write_error != EPIPE;
}

int ls__job_exit_code(const ls__launch_job *job) {
    if (job->first_failure >= 0)
        return code_of(&job->ranks[job->first_failure]);
    if (lost_output(job))
        return LS__EXIT_FAILURE;
    return job->stop_signal ? LS__EXIT_SIGNAL + job->stop_signal : LS__EXIT_OK;
}

static double seconds_of(const ls__launch_job *job, const ls__rank *rank) {
    return (double)(rank->exited_ns - job->started_ns) * 1e-9;
}

/* stderr says more about a failure; a rank that was silent there may have spoken on stdout. */
static const ls__lines *last_words(const ls__rank *rank) {
    const ls__lines *lines = &rank->streams[LS__STDERR].lines;
    return ls__lines_tail_count(lines) ? lines : &rank->streams[LS__STDOUT].lines;
}

/* With where it was before, if that is known. */
static void describe_end(const ls__rank *rank, const ls__diagnosis *d, char *text, size_t bytes) {
    if (rank->signal && rank->signal == rank->signal_sent)
        snprintf(text, bytes, "was ended by the launcher (%s)", ls__signal_name(rank->signal));
    else
        ls__rank_describe(rank, text, bytes);
    size_t n = strlen(text);
    if (d && d->record[rank->number].pid)
        snprintf(text + n, bytes - n, "; it %s", d->line[rank->number]);
}

/* One line for each rank; neighbours that ended the same way share one in large jobs. */
static void print_others(const ls__launch_job *job, int first, const ls__diagnosis *d) {
    enum { LARGE = 16, BYTES = 400 };
    for (int i = 0, next; i < job->started; i = next) {
        const ls__rank *rank = &job->ranks[i];
        char how[BYTES], same[BYTES];
        describe_end(rank, job->started > LARGE ? NULL : d, how, sizeof how);
        next = i + 1;
        if (i == first)
            continue;
        for (; job->started > LARGE && next < job->started && next != first; next++) {
            describe_end(&job->ranks[next], NULL, same, sizeof same);
            if (strcmp(how, same) != 0)
                break;
        }
        if (next == i + 1)
            fprintf(stderr, "%s: rank %d (pid %d) %s\n", job->command, i, (int)rank->pid, how);
        else
            fprintf(stderr, "%s: ranks %d to %d: each %s\n", job->command, i, next - 1, how);
    }
}

/* The first error that a rank got from the library, unless the lines just shown hold it. */
static void print_first_error(const ls__launch_job *job, const ls__rank *first,
                              const ls__diagnosis *d) {
    if (d->first < 0 || first->signal)
        return;
    const char *text = d->record[d->first].failure;
    const ls__lines *words = last_words(first);
    for (size_t i = 0; i < ls__lines_tail_count(words); i++) {
        if (strstr(ls__lines_tail(words, i), text))
            return;
    }
    fprintf(stderr, "%s: first error, on rank %d: %s\n", job->command, d->first, text);
}

/* Who had not arrived where; a signal or an exit tells only who ended. */
static void print_diagnosis(const ls__launch_job *job, const ls__rank *first,
                            const ls__diagnosis *d) {
    print_first_error(job, first, d);
    for (int i = 0; i < d->stall_count; i++)
        fprintf(stderr, "%s: %s\n", job->command, d->stall[i].text);
}

/* Ranks that lose a peer or wait in vain end with code 4: then the one that was first is who left without a
 * word, though with code 0, or who noted the first error. */
static const ls__rank *first_cause(const ls__launch_job *job, const ls__diagnosis *d) {
    const ls__rank *first = &job->ranks[job->first_failure];
    if (!d || first->signal || first->exit_code != LS__EXIT_RANKS)
        return first;
    for (int r = 0; r < job->started; r++) {
        const ls__rank *rank = &job->ranks[r];
        if (rank->exited && !rank->signal && rank->exit_code == 0 && !d->record[r].left &&
            rank->exited_ns < first->exited_ns)
            return rank;
    }
    return d->first >= 0 && !job->ranks[d->first].signal ? &job->ranks[d->first] : first;
}

static void print_failure(const ls__launch_job *job, const ls__diagnosis *d) {
    const ls__rank *first = first_cause(job, d);
    const ls__lines *words = last_words(first);
    size_t count = ls__lines_tail_count(words);
    const char *introduction = count ? "; its last lines:" : " without a word";
    /* code 4 and an error of the library: it found another rank dead, stopped or of another opinion */
    bool gave_up = d && !first->signal && first->exit_code == LS__EXIT_RANKS &&
                   d->record[first->number].failure[0];
    char how[120], host[LS__FLIGHT_NAME_BYTES + 8] = "";
    if (count && first->number == 0 && job->options->rank0_speaks) { /* they passed already */
        count = 0;
        introduction = "; its last lines stand above";
    }
    ls__rank_describe(first, how, sizeof how);
    if (!first->signal && first->exit_code == 0)
        snprintf(how, sizeof how, "exited with code 0 %s",
                 d && d->record[first->number].pid ? "without leaving the job (ls_job_finish)"
                                                   : "before it joined the job");
    if (d && d->record[first->number].pid)
        snprintf(host, sizeof host, "host %s, ", d->record[first->number].host);
    fprintf(stderr, "%s: rank %d (%spid %d) %s first: it %s after %.1f s%s\n", job->command,
            first->number, host, (int)first->pid, gave_up ? "gave up" : "failed", how,
            seconds_of(job, first), introduction);
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, "    %s\n", ls__lines_tail(words, i));
    if (first->signal == SIGKILL)
        fprintf(stderr, "    (if nobody sent that signal, the machine may have run out of memory: "
                        "dmesg tells)\n");
    if (d)
        print_diagnosis(job, first, d);
    print_others(job, first->number, d);
}

/* A mistake of the user that every rank found: the ranks' own line is the message, once. */
static bool print_mistake(const ls__launch_job *job) {
    const ls__rank *first = &job->ranks[job->first_failure];
    if (!job->options->rank0_speaks || first->signal ||
        (first->exit_code != LS__EXIT_USAGE && first->exit_code != LS__EXIT_INPUT))
        return false;
    const ls__rank *speaker = &job->ranks[0];
    if (!speaker->signal && speaker->exit_code == first->exit_code)
        return true; /* its output passed already */
    const ls__lines *words = last_words(first);
    for (size_t i = 0; i < ls__lines_tail_count(words); i++)
        fprintf(stderr, "%s\n", ls__lines_tail(words, i));
    return ls__lines_tail_count(words) > 0;
}

static void print_stop(const ls__launch_job *job) {
    int killed = 0;
    for (int i = 0; i < job->started; i++)
        killed += job->ranks[i].signal == SIGKILL;
    fprintf(stderr, "%s: stopped by %s; all %d ranks have ended", job->command,
            ls__signal_name(job->stop_signal), job->started);
    if (killed)
        fprintf(stderr, ", %d had to be killed", killed);
    fputc('\n', stderr);
}

/* The warnings of ranks that were kept quiet. */
static void print_kept(const ls__launch_job *job) {
    for (int rank = 1; rank < job->started; rank++) {
        const ls__lines *lines = &job->ranks[rank].streams[LS__STDERR].lines;
        for (size_t i = 0; i < ls__lines_tail_count(lines); i++)
            fprintf(stderr, "[rank %d] %s\n", rank, ls__lines_tail(lines, i));
    }
}

/* --- the same for machines ------------------------------------------------------------------------- */

/* Text of a rank as a JSON string: bytes that are no UTF-8 become '?'. */
static json_t *text_of(const char *text) {
    json_t *string = json_string(text);
    if (string)
        return string;
    char clean[LS__TAIL_BYTES];
    size_t n = 0;
    for (; text[n] && n + 1 < sizeof clean; n++)
        clean[n] = (unsigned char)text[n] < 0x80 ? text[n] : '?';
    clean[n] = '\0';
    return json_string(clean);
}

static json_t *rank_json(const ls__launch_job *job, const ls__rank *rank) {
    json_t *object = json_object();
    json_object_set_new(object, "rank", json_integer(rank->number));
    json_object_set_new(object, "pid", json_integer(rank->pid));
    json_object_set_new(object, "exit_code",
                        rank->signal ? json_null() : json_integer(rank->exit_code));
    json_object_set_new(object, "signal", rank->signal ? json_integer(rank->signal) : json_null());
    json_object_set_new(object, "signal_name",
                        rank->signal ? json_string(ls__signal_name(rank->signal)) : json_null());
    json_object_set_new(object, "by_launcher",
                        json_boolean(rank->signal && rank->signal == rank->signal_sent));
    json_object_set_new(object, "seconds", ls__json_real(seconds_of(job, rank)));
    return object;
}

static ls_status write_json(const ls__launch_job *job, const ls__diagnosis *d) {
    json_t *object = json_object(), *ranks = json_array();
    int code = ls__job_exit_code(job);
    json_object_set_new(object, "event", json_string("job_end"));
    json_object_set_new(object, "exit_code", json_integer(code));
    json_object_set_new(object, "stopped_by",
                        job->stop_signal ? json_string(ls__signal_name(job->stop_signal))
                                         : json_null());
    json_t *first = json_null();
    if (job->first_failure >= 0) {
        const ls__rank *rank = first_cause(job, d);
        const ls__lines *words = last_words(rank);
        json_t *lines = json_array();
        for (size_t i = 0; i < ls__lines_tail_count(words); i++)
            json_array_append_new(lines, text_of(ls__lines_tail(words, i)));
        first = rank_json(job, rank);
        json_object_set_new(first, "last_lines", lines);
    }
    json_object_set_new(object, "first_failure", first);
    for (int i = 0; i < job->started; i++)
        json_array_append_new(ranks, rank_json(job, &job->ranks[i]));
    json_object_set_new(object, "ranks", ranks);
    json_object_set_new(object, "flight", d ? ls__diagnosis_json(d) : json_null());
    return ls__json_write_line(stdout, "stdout", object);
}

/* A progress line may be standing there. */
static void begin_line(const ls__launch_job *job) {
    if (job->error_sink->last && job->error_sink->last != '\n')
        fputc('\n', stderr);
}

static void print_report(const ls__launch_job *job, const ls__diagnosis *d) {
    if (ls__job_exit_code(job))
        begin_line(job);
    if (job->first_failure >= 0) {
        if (!print_mistake(job))
            print_failure(job, d);
    } else if (job->stop_signal && job->stop_signal != SIGPIPE) {
        print_stop(job);
    } else if (lost_output(job)) {
        fprintf(stderr, "%s: cannot write the ranks' output: %s\n", job->command,
                strerror(job->write_error));
    } else if (job->options->rank0_speaks && !job->stop_signal) {
        print_kept(job);
    }
}

ls_status ls__job_report(const ls__launch_job *job) {
    ls__flight_record *record = ls__job_flight_records(job);
    ls__diagnosis *d = NULL;
    /* Without memory for it the report is shorter. */
    if (record && job->first_failure >= 0)
        (void)ls__diagnosis_make(&d, record, job->options->ranks);
    print_report(job, d);
    if (record)
        ls__job_flight_write(job, record);
    ls_status status = job->options->json ? write_json(job, d) : LS_OK;
    ls__diagnosis_free(d);
    free(record);
    return status;
}
