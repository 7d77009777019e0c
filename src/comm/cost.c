/* The formulas of cost.h, and what they choose. */
#include "comm/cost.h"

#include "base/error.h"
#include <stdio.h>
#include <string.h>

enum { UNKNOWN_ONE_SHOT_BYTES = 4 * 1024 };

const char *const ls__algorithm_words[LS__ALGORITHMS + 1] = {"auto", "one-shot", "pairwise",
                                                             "flat"};

const char *ls__algorithm_name(ls__algorithm algorithm) {
    return ls__algorithm_words[algorithm];
}

bool ls__algorithm_find(const char *name, ls__algorithm *algorithm) {
    for (int i = 0; i < LS__ALGORITHMS; i++) {
        if (strcmp(name, ls__algorithm_words[i]) == 0) {
            *algorithm = (ls__algorithm)i;
            return true;
        }
    }
    return false;
}

static double steps_of(size_t bytes, size_t chunk) {
    return bytes > 0 ? (double)((bytes - 1) / chunk + 1) : 1;
}

double ls__cost_of(const ls__cost *cost, ls__algorithm algorithm, int ranks, size_t bytes,
                   size_t chunk) {
    const double n = (double)bytes, p = ranks;
    if (algorithm == LS__ONE_SHOT)
        return steps_of(bytes, chunk) * cost->sync_s + (p - 1) * n / cost->bytes_per_s +
               p * n / cost->add_per_s;
    const size_t slice = bytes / (size_t)ranks + (bytes % (size_t)ranks > 0);
    return (steps_of(slice, chunk) + 1) * cost->sync_s + 2 * n * (p - 1) / p / cost->bytes_per_s +
           n / cost->add_per_s;
}

ls__algorithm ls__cost_choose(const ls__cost *cost, ls__algorithm forced, int ranks, size_t bytes,
                              size_t chunk) {
    if (forced == LS__ONE_SHOT || forced == LS__PAIRWISE)
        return forced;
    if (!ls__cost_is_known(cost))
        return bytes <= UNKNOWN_ONE_SHOT_BYTES ? LS__ONE_SHOT : LS__PAIRWISE;
    return ls__cost_of(cost, LS__ONE_SHOT, ranks, bytes, chunk) <=
                   ls__cost_of(cost, LS__PAIRWISE, ranks, bytes, chunk)
               ? LS__ONE_SHOT
               : LS__PAIRWISE;
}

void ls__cost_add_option(ls__cost_answer *answer, const char *name, double seconds) {
    if (answer->options < LS__COST_OPTIONS)
        answer->option[answer->options++] = (ls__cost_option){.name = name, .seconds = seconds};
}
