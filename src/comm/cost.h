/* What an exchange costs, in three numbers a level (inside a machine, between machines), and the algorithm that
 * follows from them. Rank 0's numbers count for all ranks, so all choose the same; a choice never changes a
 * bit. They come, in this order, from LOCKSTEP_COST_TABLE or a short measurement when the job starts: only
 * where ranks are on several machines, as the rest does not depend on them.
 *
 * p ranks that each send n bytes in steps of at most c a peer (ls__cost_mesh):
 *
 *   one-shot    everyone sends all to everyone and adds everything itself:
 *               ceil(n / c) sync + (p - 1) n / bandwidth + p n / adding
 *   pairwise    slice j goes to rank j, which adds it and sends the sum to all:
 *               (ceil(n / (p c)) + 1) sync + 2 n (p - 1) / (p bandwidth) + n / adding
 *
 * Every rank reaches every other in one step, so trees and recursive doubling, which need log2(p) steps and send
 * no less, never win. */
#ifndef LS_COMM_COST_H
#define LS_COMM_COST_H

#include <lockstep/group.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All 0: not known. */
typedef struct ls__cost {
    double sync_s; /* s: a step in which every rank sends a little to every other and awaits it */
    double bytes_per_s; /* that a rank sends while it receives as many, all ranks at a time */
    double add_per_s;   /* bytes per s and source that a rank reads to add them up */
    bool stored;        /* read from a file */
} ls__cost;

static inline bool ls__cost_is_known(const ls__cost *cost) {
    return cost->sync_s > 0;
}

typedef struct ls__costs {
    ls__cost inside, between;
} ls__costs;

/* LOCKSTEP_ALGORITHM: how ranks exchange sums. */
typedef enum ls__algorithm {
    LS__BY_COST = 0,
    LS__ONE_SHOT,
    LS__PAIRWISE,
    LS__FLAT, /* as if every rank were alone on its machine, then by cost */
} ls__algorithm;
enum { LS__ALGORITHMS = LS__FLAT + 1 };

/* "auto", "one-shot", "pairwise", "flat"; NULL ends */
extern const char *const ls__algorithm_words[LS__ALGORITHMS + 1];
LS_API const char *ls__algorithm_name(ls__algorithm algorithm);
/* False where there is none of that name. */
bool ls__algorithm_find(const char *name, ls__algorithm *algorithm);

/* --- the choice --- */

/* Seconds of a sum of `bytes` bytes over `ranks` ranks, sent in steps of at most `chunk` a peer. */
double ls__cost_of(const ls__cost *cost, ls__algorithm algorithm, int ranks, size_t bytes,
                   size_t chunk);
/* LS__ONE_SHOT or LS__PAIRWISE; `forced` decides where it is one of them. Where the costs are not known: one-shot
 * up to 4 KiB. */
ls__algorithm ls__cost_choose(const ls__cost *cost, ls__algorithm forced, int ranks, size_t bytes,
                              size_t chunk);

/* --- for `lockstep bench --explain` --- */

/* Of an all_reduce. */
typedef struct ls__cost_question {
    size_t bytes;
    bool registered; /* the buffers come from ls_group_alloc */
} ls__cost_question;

typedef struct ls__cost_option {
    const char *name;
    double seconds; /* predicted */
} ls__cost_option;

enum { LS__COST_OPTIONS = 4 };

typedef struct ls__cost_answer {
    ls__cost_option option[LS__COST_OPTIONS];
    int options, chosen;
    char reason[256];
    ls__costs costs; /* what it was reckoned with */
} ls__cost_answer;

void ls__cost_add_option(ls__cost_answer *answer, const char *name, double seconds);
/* What a group would do. Collective: measures what is not known yet. */
LS_API ls_status ls__cost_explain(ls_group *group, const ls__cost_question *question,
                                  ls__cost_answer *answer);
/* --- the file: lines "inside SYNC_US GB/S ADD_GB/S" and "between ...", # begins a comment --- */

/* LS_ERR_FORMAT names file and line. A level without a line stays unknown. */
LS_API ls_status ls__cost_table_read(const char *path, ls__costs *costs);
LS_API ls_status ls__cost_table_write(const char *path, const ls__costs *costs);

#endif
