/* Who was where when a job failed: read off the ranks' flight records. */
#ifndef LS_LAUNCH_DIAGNOSIS_H
#define LS_LAUNCH_DIAGNOSIS_H

#include "base/json.h"
#include "comm/flight.h"

enum { LS__DIAGNOSIS_TEXT_BYTES = 1024, LS__DIAGNOSIS_STALLS = 32 };

/* An operation that some ranks of its group are in, and others have not reached. */
typedef struct ls__stall {
    ls__flight_entry entry; /* as one of those who wait has it */
    char group[LS__FLIGHT_NAME_BYTES];
    int peer;                /* send, recv: the one rank that is missing; -1: a collective */
    bool *missing, *waiting; /* (ranks) */
    char text[LS__DIAGNOSIS_TEXT_BYTES];
} ls__stall;

typedef struct ls__diagnosis {
    int ranks;
    const ls__flight_record *record; /* (ranks) the caller's */
    int first; /* the rank whose own error was the first; -1: none noted one */
    int stopped; /* the rank that this error found without a heartbeat; -1: it tells of something else */
    int stall_count;
    ls__stall stall[LS__DIAGNOSIS_STALLS];
    char (*line)[LS__DIAGNOSIS_TEXT_BYTES]; /* (ranks) "was in recv #3 from rank 0 for 4.2 s" */
} ls__diagnosis;

/* record[r] is of rank r, with pid 0 where nothing is known of it. Records may hold anything. */
ls_status ls__diagnosis_make(ls__diagnosis **diagnosis, const ls__flight_record *record, int ranks);
void ls__diagnosis_free(ls__diagnosis *diagnosis);

/* The same for machines; owned by the caller. */
json_t *ls__diagnosis_json(const ls__diagnosis *diagnosis);

/* Reads DIR/flight-rank-*.json: *record gets (*ranks) records (free it). What is damaged, foreign or missing
 * is said in `complain`, once each, and counts as a rank of which nothing is known. An error where there
 * is no folder, or nothing in it that can be used. */
ls_status ls__flight_load(const char *folder, ls__flight_record **record, int *ranks,
                          void (*complain)(void *context, const char *line), void *context);
/* One file's text; `name` for messages. */
ls_status ls__flight_parse(const char *bytes, size_t size, const char *name,
                           ls__flight_record *record);

#endif
