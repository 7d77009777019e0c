/* The flight recorder: a rank's last operations, kept where they outlive it. Each operation costs two short
 * writes into memory that nobody else touches; what they say is read after a failure, by the rank itself or,
 * where the memory is the launcher's (board.h), by the launcher, also of a rank that SIGKILL ended.
 *
 * Writers are the threads that run operations, one a group; with several groups they claim an entry before they
 * write it. A reader may come at any time and in another process, so an entry carries its number last and a
 * reader that finds it changed looks again. */
#ifndef LS_COMM_FLIGHT_H
#define LS_COMM_FLIGHT_H

#include "base/error.h"
#include "comm/transport.h"
#include <stdatomic.h>
#include <stdio.h>

enum {
    LS__FLIGHT_ENTRIES = 64,
    LS__FLIGHT_GROUPS = 16, /* whose names are kept; the operations of others show a number */
    LS__FLIGHT_NAME_BYTES = 64,
    LS__FLIGHT_TEXT_BYTES = 768,
};

/* One operation. Times in ns of CLOCK_MONOTONIC of its machine; 0: not yet. */
typedef struct ls__flight_entry {
    uint64_t number; /* 1, 2, ... in the order they began; 0: none */
    uint64_t group, sequence, count;
    uint64_t queued_ns, begin_ns, ready_ns, end_ns;
    uint32_t kind; /* ls__kind */
    uint32_t dtype, op;
    int32_t
        root; /* broadcast and the like: root; send, recv: the peer; ranks of the world, as below */
    int32_t status; /* ls_status, once it ended */
    int32_t last_rank;
    int32_t
        from; /* sendrecv: whom it receives from, with its own number; root is whom it sends to */
    uint64_t recv_sequence;
} ls__flight_entry;

enum { LS__FLIGHT_WORDS = 12 }; /* as the ring holds it */

typedef struct ls__flight_group {
    _Atomic uint64_t id; /* 0: none */
    _Atomic uint32_t size;
    char name[LS__FLIGHT_NAME_BYTES]; /* written before `id` */
} ls__flight_group;

typedef struct ls__flight {
    _Alignas(64) _Atomic uint64_t begun; /* operations, ever */
    _Atomic uint32_t shared;             /* there is more than one group */
    struct {
        _Alignas(128) _Atomic uint64_t word[LS__FLIGHT_WORDS]; /* of an ls__flight_entry */
    } entry[LS__FLIGHT_ENTRIES];
    ls__flight_group group[LS__FLIGHT_GROUPS];
    /* The first error: 0, 1 while its words are written, then 2. */
    _Atomic uint32_t failed;
    _Atomic uint64_t failed_ns;
    char failure[LS__FLIGHT_TEXT_BYTES];
} ls__flight;

/* All of it NULL-safe. An operation begins (times.begin_ns is set); the result is for ls__flight_end. */
uint64_t ls__flight_begin(ls__flight *flight, const ls__operation *operation);
void ls__flight_end(ls__flight *flight, uint64_t number, const ls__operation *operation,
                    ls_status status);
/* Messages and reports then call the group by its name. */
void ls__flight_name_group(ls__flight *flight, uint64_t id, int size, const char *name);
void ls__flight_forget_group(ls__flight *flight, uint64_t id);
/* The first call counts; true for it. */
bool ls__flight_fail(ls__flight *flight, const char *text);

/* --- reading ------------------------------------------------------------------------------------ */

/* What one rank left, as it is read from memory or from a file. */
typedef struct ls__flight_record {
    int rank, world_size;
    int64_t pid; /* 0: the rank never came */
    char host[LS__FLIGHT_NAME_BYTES];
    bool left;                         /* it called ls_job_finish */
    int64_t clock_offset_ns;           /* CLOCK_REALTIME - CLOCK_MONOTONIC on its machine */
    uint64_t taken_ns;                 /* when it was read, or when the rank ended */
    char phase[LS__FLIGHT_NAME_BYTES]; /* what it said it was doing; "" */
    uint64_t phase_ns;                 /* since when */
    uint64_t failed_ns;                /* its first error; 0: none */
    char failure[LS__FLIGHT_TEXT_BYTES];
    int group_count;
    struct {
        uint64_t id;
        int size;
        char name[LS__FLIGHT_NAME_BYTES];
    } group[LS__FLIGHT_GROUPS];
    int entry_count;
    ls__flight_entry entry[LS__FLIGHT_ENTRIES]; /* oldest first */
} ls__flight_record;

/* Fills groups, entries and failure. Whatever the memory holds, the record is well-formed: bounded texts
 * that end, entries in order. */
void ls__flight_read(const ls__flight *flight, ls__flight_record *record);
/* Bytes that end, without control characters. */
LS_SHARED void ls__flight_copy_text(char *to, size_t bytes, const char *from, size_t most);

/* --- files: DIR/flight-rank-N.json ---------------------------------------------------------------- */

/* As JSON: what the file holds. */
LS_SHARED void ls__flight_put(FILE *file, const ls__flight_record *record);
/* Writes the record, replacing what was there as a whole; makes the folder. */
LS_SHARED ls_status ls__flight_write(const char *folder, const ls__flight_record *record);

#endif
