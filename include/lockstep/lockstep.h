/* All of Lockstep. Trainers with their own tensors need only status.h, job.h, group.h and reducer.h
 * (liblockstep-comm).
 *
 * A handle that is NULL gives LS_ERR_ARGUMENT; 0, -1 for a rank, or NULL from functions without a status.
 * So does a result that has no place to go, unless the function says that it may be NULL. */
#ifndef LOCKSTEP_LOCKSTEP_H
#define LOCKSTEP_LOCKSTEP_H

#include <lockstep/checkpoint.h>
#include <lockstep/dataset.h>
#include <lockstep/ddp.h>
#include <lockstep/dp.h>
#include <lockstep/dtype.h>
#include <lockstep/group.h>
#include <lockstep/hook.h>
#include <lockstep/job.h>
#include <lockstep/local_sgd.h>
#include <lockstep/model.h>
#include <lockstep/mpi.h>
#include <lockstep/ops.h>
#include <lockstep/optimizer.h>
#include <lockstep/random.h>
#include <lockstep/reducer.h>
#include <lockstep/status.h>
#include <lockstep/tensor.h>

#endif
