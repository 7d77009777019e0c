/* Comparing what ranks hold: the model, and the state of its optimizer where it has one. */
#ifndef LS_PARALLEL_REPLICAS_H
#define LS_PARALLEL_REPLICAS_H

#include <lockstep/group.h>
#include <lockstep/model.h>

/* One number for all of it: equal on two ranks only where every bit is. Reads it once. */
uint64_t ls__replicas_hash(ls_model *model, void *hash_state);
/* Scratch for that: an XXH3 state. NULL when out of memory. */
void *ls__replicas_hash_state(void);
void ls__replicas_hash_free(void *hash_state);

/* See ls_ddp_verify. */
ls_status ls__replicas_verify(ls_model *model, ls_group *group);

#endif
