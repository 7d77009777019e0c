/* The order of one epoch, with its keys computed once. ls_order_sample is the public form. */
#ifndef LS_DATA_ORDER_H
#define LS_DATA_ORDER_H

#include <lockstep/dataset.h>

enum { LS__ORDER_ROUNDS = 8 };

typedef struct ls__order {
    uint64_t count;
    unsigned half_bits; /* the network permutes 2 * half_bits bits */
    uint64_t keys[LS__ORDER_ROUNDS];
} ls__order;

/* count >= 1 */
void ls__order_init(ls__order *order, uint64_t seed, uint64_t epoch, uint64_t count);
/* position < count */
uint64_t ls__order_at(const ls__order *order, uint64_t position);

#endif
