/* What of a step's transfers was hidden. */
#ifndef LS_REDUCER_OVERLAP_H
#define LS_REDUCER_OVERLAP_H

#include <lockstep/reducer.h>

/* `beside`: buckets were reduced by another thread than the one that computes; what is reduced by the
 * latter hides nothing. wait_begin_ns, wait_end_ns: ls_reducer_wait. */
ls_reducer_overlap ls__overlap_of(const ls_reducer_bucket *buckets, size_t count, bool beside,
                                  uint64_t wait_begin_ns, uint64_t wait_end_ns);

#endif
