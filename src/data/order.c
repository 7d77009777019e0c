/* The global order of samples: a permutation of 0..count-1 that is computed, not stored.
 *
 * A Feistel network over the smallest even number of bits that holds count - 1 permutes that power
 * of four; a result >= count goes through the network again until it is in range ("cycle walking",
 * Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). The domain is less than
 * four times the count, so that is fewer than four passes on average. The round function is Philox
 * under a round key, and the round keys are Philox under (seed, epoch).
 *
 * Eight rounds, because small domains mix slowly. Four samples have 24 orders; over 240,000 seeds
 * their counts are off by up to 27 % with four rounds, 8 % with six, and by chance alone with eight
 * (chi-square 30 for 23 degrees of freedom). */
#include "data/order.h"

#include <lockstep/random.h>

void ls__order_init(ls__order *order, uint64_t seed, uint64_t epoch, uint64_t count) {
    order->count = count;
    order->half_bits = 1;
    while (order->half_bits < 32 && (count - 1) >> (2 * order->half_bits) != 0)
        order->half_bits++;
    uint64_t stream = ls_random_stream("order");
    for (unsigned i = 0; i < LS__ORDER_ROUNDS; i += 2) {
        uint32_t words[4];
        ls_random_u32x4(seed, stream, epoch * (LS__ORDER_ROUNDS / 2) + i / 2, words);
        order->keys[i] = (uint64_t)words[1] << 32 | words[0];
        order->keys[i + 1] = (uint64_t)words[3] << 32 | words[2];
    }
}

static uint64_t permute_bits(const ls__order *order, uint64_t value) {
    uint64_t mask = ((uint64_t)1 << order->half_bits) - 1;
    uint64_t left = value >> order->half_bits, right = value & mask;
    for (unsigned i = 0; i < LS__ORDER_ROUNDS; i++) {
        uint32_t words[4];
        ls_random_u32x4(order->keys[i], i, right, words);
        uint64_t mixed = left ^ (words[0] & mask);
        left = right;
        right = mixed;
    }
    return left << order->half_bits | right;
}

uint64_t ls__order_at(const ls__order *order, uint64_t position) {
    uint64_t sample = position;
    do
        sample = permute_bits(order, sample);
    while (sample >= order->count);
    return sample;
}

uint64_t ls_order_sample(uint64_t seed, uint64_t epoch, uint64_t position, uint64_t count) {
    /* No sample has this number, so that a reader refuses it. */
    if (position >= count)
        return UINT64_MAX;
    ls__order order;
    ls__order_init(&order, seed, epoch, count);
    return ls__order_at(&order, position);
}
