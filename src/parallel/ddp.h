/* The inside of a ddp: what its files share. ddp.c holds the calls of a step, entries.c what is reduced
 * and in which order, shards.c the sums over this rank's shards, sync.c batch norm over all ranks, votes.c what ranks say about a step,
 * watch.c and replicas.c whether they still hold the same, bits.c what is promised of the result's bits. */
#ifndef LS_PARALLEL_DDP_H
#define LS_PARALLEL_DDP_H

#include "base/error.h"
#include "nn/model.h"
#include "nn/parameter.h"
#include <lockstep/ddp.h>

enum { LS__DDP_SLOTS = 64 };

/* One tensor that is reduced: a weight, a statistic, the loss, or the votes. */
typedef struct ls__ddp_entry {
    ls_parameter *parameter;     /* NULL: the loss or the votes */
    size_t count;                /* elements */
    bool reduces;                /* false: frozen, stands in the list for the fingerprint only */
    bool by_shard;               /* summed over the shards of this rank, in slots */
    bool ready;                  /* reported to the reducer in this step */
    size_t scratch_offset;       /* elements into every scratch slot */
    float *slots[LS__DDP_SLOTS]; /* where slot s of this entry lies; slot 0 is the reducer's */
    uint64_t holds;              /* bit s: slot s holds a sum */
} ls__ddp_entry;

struct ls_ddp {
    ls_model *model;
    ls_device *device;
    ls_group *group;
    ls_reducer *reducer;
    ls_reducer_options reducer_options;
    size_t shards, first, count; /* of the global batch; this rank's */
    ls__ddp_entry *entries; /* the model's parameters in order, then the loss, then the votes */
    size_t parameter_count, statistic_count, entry_count;
    ls_reducer_param *params; /* (entries): how the reducer is told of them */
    size_t slot_count;
    float *scratch[LS__DDP_SLOTS]; /* slots 1 .. slot_count-1 */
    bool owns_model;               /* its parameters are marked as managed by this ddp */
    bool ordered;                  /* the buckets follow the tape's ready order */
    bool in_step, reducing;        /* between begin and wait; the reducer's step is open */
    bool lost;                     /* this rank cannot finish its shards of the open step */
    double weight;                 /* of this rank in this step */
    double loss_scale;             /* gradients of weights are so many times too large */
    size_t next;                   /* local shard to come */
    float loss;                    /* average of the last complete step */
    float *sums;                   /* (1 + statistics): a shard's loss and samples, on the host */
    double *squares;     /* (ranks, squares_each): sums over blocks of all gradients, on the host */
    size_t squares_each; /* blocks of a rank; 0: each squares all, by itself */
    float *ballot;       /* (ranks, LS__BALLOT): what all ranks said, on the host */
    uint64_t begin_ns;   /* of the open step */
    ls_ddp_times own_times; /* of the last step */
    ls_ddp_times *times;    /* (ranks) of the one before it */
    ls_vote vote;           /* of this rank in this step, and why */
    char reason[LS_VOTE_REASON];
    ls_group *sync_group; /* for batch norm over the whole batch; NULL: there is none */
    double *sync_values;
    uint64_t steps;      /* completed */
    size_t watch_every;  /* 0: never */
    void *hash_state;    /* for the watch */
    bool nonfinite;      /* a loss of this rank in this step is no finite number */
    bool stop_requested; /* ls_ddp_request_stop */
    ls_ddp_tally tally;
    char bits_note[400];
    char *cards;      /* for bits.c, during creation */
    ls_status failed; /* a step was lost for the whole job: everything after returns this */
};

static inline size_t ls__ddp_loss_entry(const ls_ddp *ddp) {
    return ddp->parameter_count;
}

static inline size_t ls__ddp_votes_entry(const ls_ddp *ddp) {
    return ddp->parameter_count + 1;
}

/* LS_OK while no step was lost for the whole job. */
ls_status ls__ddp_check_alive(const ls_ddp *ddp);

/* --- entries.c --- */

/* A parameter as the reducer is told of it. */
ls_reducer_param ls__ddp_describe(const ls_parameter *parameter);
/* Lists the model's parameters, the loss and the votes. */
ls_status ls__ddp_create_entries(ls_ddp *ddp);
/* Collective. The reducer for the entries as they are; the first ready order is that of registration,
 * reversed. */
ls_status ls__ddp_create_reducer(ls_ddp *ddp);
/* Collective: every rank comes here once, in its first step, with or without a tape. The buckets take the
 * order in which rank 0's tape finishes gradients. */
ls_status ls__ddp_adopt_order(ls_ddp *ddp, ls_step *step);

/* --- shards.c --- */

/* Slots that `shards` shards of a rank need, slot 0 included. */
size_t ls__ddp_slots_needed(size_t shards);
ls_status ls__ddp_create_scratch(ls_ddp *ddp);
void ls__ddp_free_scratch(ls_ddp *ddp);
/* Slot 0 of every entry is where the reducer has put it; the others never move. */
void ls__ddp_place_slots(ls_ddp *ddp);
/* Points every parameter's gradient at the slot of local shard `shard`; nothing is written there yet. */
void ls__ddp_aim_gradients(ls_ddp *ddp, size_t shard);
/* The present shard's contribution to entry i is in its slot. In the last shard: added up, and reported. */
ls_status ls__ddp_entry_done(ls_ddp *ddp, size_t i);
/* Where the present shard's value of entry i belongs. */
float *ls__ddp_entry_slot(ls_ddp *ddp, size_t i);
/* After a shard: completes the subtrees it closes, and aims at the next one's slot. */
ls_status ls__ddp_close_shard(ls_ddp *ddp);

/* --- votes.c --- */

/* Floats of a rank in the votes: what it says, a hash of its replica and its loss scale in pieces of 16 bits, which
 * are exact in a float, and its times. */
enum {
    LS__BALLOT_PIECES = 4, /* of 64 bits */
    LS__BALLOT_HASH = 1,
    LS__BALLOT_SCALE = LS__BALLOT_HASH + LS__BALLOT_PIECES,
    LS__BALLOT_TIMES = LS__BALLOT_SCALE + LS__BALLOT_PIECES,
    LS__BALLOT = LS__BALLOT_TIMES + 6
};
static inline void ls__ballot_write(float pieces[LS__BALLOT_PIECES], uint64_t bits) {
    for (int k = 0; k < LS__BALLOT_PIECES; k++)
        pieces[k] = (float)(bits >> 16 * k & 0xffff);
}
static inline uint64_t ls__ballot_read(const float pieces[LS__BALLOT_PIECES]) {
    uint64_t bits = 0;
    for (int k = 0; k < LS__BALLOT_PIECES; k++)
        bits |= (uint64_t)pieces[k] << 16 * k;
    return bits;
}

void ls__votes_begin(ls_ddp *ddp);
/* Before the reducer's wait: writes what this rank says, and reports it ready. */
ls_status ls__votes_cast(ls_ddp *ddp);
/* After it: fills the tally, equal on all ranks. LS_ERR_PEER where a rank said it has failed. */
ls_status ls__votes_count(ls_ddp *ddp, const ls_reducer_report *report);

/* --- ddp.c --- */

/* The present shard's loss, and the samples of each statistic, as the forward of `model` (the ddp's, or another
 * replica of it: dp.c) left them on the tape of `step`. */
ls_status ls__ddp_take_loss(ls_ddp *ddp, const ls_model *model, const ls_step *step, float loss);
/* What fails in a shard and not in the reduction is this rank's own misfortune: the others are told of it
 * by the votes, in ls_ddp_wait, and are not kept waiting. Returns `status`, with its text. */
ls_status ls__ddp_lose_shards(ls_ddp *ddp, ls_status status);

/* --- sync.c --- */

/* Nothing where the model has no norm=sync: whether the ddp can have it, and memory for it. */
ls_status ls__sync_prepare(ls_ddp *ddp);
/* Collective, after that. */
ls_status ls__sync_create(ls_ddp *ddp);
void ls__sync_free(ls_ddp *ddp);
/* This rank's forward (in the first step), or its backward, is over, or there is none: takes part in the
 * others' until theirs are. */
ls_status ls__sync_finish(ls_ddp *ddp);

/* --- bits.c --- */

/* Memory for it. */
ls_status ls__bits_prepare(ls_ddp *ddp);
/* Collective: fills bits_note, equal on all ranks. */
ls_status ls__bits_check(ls_ddp *ddp);

/* --- watch.c --- */

/* Steps between two looks; 0: never. */
size_t ls__watch_interval(const ls_ddp_options *options);
ls_status ls__watch_create(ls_ddp *ddp, const ls_ddp_options *options);
void ls__watch_free(ls_ddp *ddp);
/* Where this step is watched: the hash of this rank, into the four pieces of its row. */
void ls__watch_write(ls_ddp *ddp, float *pieces);
/* After the votes were read. LS_ERR_MISMATCH on all ranks names the tensor and the ranks. */
ls_status ls__watch_compare(ls_ddp *ddp);

/* --- squares.c --- */

/* Memory for it, where it pays. */
ls_status ls__squares_prepare(ls_ddp *ddp);
void ls__squares_free(ls_ddp *ddp);
/* Collective, after the gradients were handed out: their sums of squares become known. */
ls_status ls__squares_share(ls_ddp *ddp);

/* --- times.c --- */

/* Writes this rank's times of the last step into its row of the votes. */
void ls__times_cast(const ls_ddp *ddp, float row[LS__BALLOT]);
/* Reads all ranks' times from the votes. */
void ls__times_count(ls_ddp *ddp);
/* After a step: what this rank will tell in the next. */
void ls__times_note(ls_ddp *ddp, const ls_reducer_report *report);

#endif
