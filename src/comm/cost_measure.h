/* Measuring what cost.h reckons with, and agreeing on it. */
#ifndef LS_COMM_COST_MEASURE_H
#define LS_COMM_COST_MEASURE_H

#include "comm/transport.h"

/* transport->cost of a level; some milliseconds, some tens where a link is slow. Collective over `transport`; its
 * ranks end with the same numbers. */
ls_status ls__cost_measure(ls__transport *transport, uint64_t deadline);

/* Fills place->costs and place->algorithm on all ranks of `flat` with what rank 0 has: from its table, or as
 * measured over `between` (and `local`, NULL: none), which are of this rank's machine and index; and the cost
 * of these three transports. Collective over `flat`. Where place->costs are known already, they are taken. */
ls_status ls__cost_learn(ls__transport *flat, ls__transport *between, ls__transport *local,
                         ls__job_place *place, uint64_t deadline);

/* Rank 0's `bytes` bytes for everyone. */
ls_status ls__cost_share(ls__transport *flat, void *data, size_t bytes, uint64_t deadline);

#endif
