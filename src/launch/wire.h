/* What launchers say to each other, as JSON. Numbers from the network are bounded here.
 *
 *   to the meeting:    hello   how many ranks, which number is wanted, what the job is thought to be
 *                      failed  the first failure among the ranks of this round
 *                      ended   all of them have: how
 *                      rest    whether they are stopped: stopped.h
 *                      leave   this launcher was told to stop: a signal
 *                      kill    and asked again; also the other way
 *   from the meeting:  start   a plan
 *                      stop    the ranks may finish and save: a signal
 *                      end     they are to end now
 *                      stuck   whether only stopped ranks are waited for: stopped.h
 *                      over    the exit code, and in a line why */
#ifndef LS_LAUNCH_WIRE_H
#define LS_LAUNCH_WIRE_H

#include "base/json.h"
#include "launch/job.h"

/* {"kind": KIND}; NULL: no memory, which ls__link_send takes. */
json_t *ls__wire_make(const char *kind);
bool ls__wire_is(const json_t *message, const char *kind);
/* Adds; `key` of a message that is NULL goes nowhere. */
void ls__wire_put_number(json_t *message, const char *key, int64_t value);
void ls__wire_put_text(json_t *message, const char *key, const char *text);
/* The number under `key`, within low .. high; `low` where there is none. */
int64_t ls__wire_number(const json_t *message, const char *key, int64_t low, int64_t high);
/* The number of a signal, SIGTERM where it is none. */
int ls__wire_signal(const json_t *message);
/* The text, cut and with ' ' for control characters; "" where there is none. */
void ls__wire_text(const json_t *message, const char *key, char *text, size_t bytes);

json_t *ls__wire_from_plan(const ls__plan *plan);
/* False where it makes no sense. `address` is known better by who has the connection. */
bool ls__wire_to_plan(const json_t *message, ls__plan *plan);

/* The ends of this machine's ranks, with their records where one failed. */
json_t *ls__wire_from_ends(const ls__launch_job *job);
/* Whether it tells of `count` ranks that each ended by itself, with code 0. */
bool ls__wire_ends_are_done(const json_t *message, int count);
/* Fills outcome->end[first .. first + count) and the records. The message came at `came_ns`. */
void ls__wire_to_ends(const json_t *message, uint64_t came_ns, ls__outcome *outcome, int first,
                      int count);

/* The same without a detour, for the machine of the meeting. */
void ls__outcome_take_local(ls__outcome *outcome, const ls__launch_job *job);

#endif
