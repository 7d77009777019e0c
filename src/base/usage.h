/* How much memory this process takes from the machine. */
#ifndef LS_BASE_USAGE_H
#define LS_BASE_USAGE_H

#include <stdint.h>

/* Bytes held now: pages of its own, and its share of those that several processes map, so that a gradient that
 * two ranks map counts once in their sum. Pages of files (programs, data) are not counted: the system drops
 * them when it needs room. All resident pages where the system does not tell them apart. */
uint64_t ls__usage_held(void);
/* The most that was held at once. The kernel keeps that only for all resident pages; what of them does not count
 * now is taken not to have counted then. */
uint64_t ls__usage_peak(void);

#endif
