/* Comparing the copies of a model that ranks hold. */
#ifndef LS_PARALLEL_REPLICAS_H
#define LS_PARALLEL_REPLICAS_H

#include <lockstep/group.h>
#include <lockstep/model.h>

/* See ls_ddp_verify. */
ls_status ls__replicas_verify(ls_model *model, ls_group *group);

#endif
