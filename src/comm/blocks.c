#include "comm/blocks.h"

#include "base/error.h"

size_t ls__block_count(const ls__operation *operation, int r) {
    return operation->counts ? operation->counts[r] : operation->count;
}

size_t ls__block_first(const ls__operation *operation, int r) {
    size_t first = 0;
    if (!operation->counts)
        return operation->count * (size_t)r;
    for (int i = 0; i < r; i++)
        first += operation->counts[i];
    return first;
}

size_t ls__block_longest(const ls__operation *operation, int size) {
    size_t longest = ls__block_count(operation, 0);
    for (int r = 1; r < size; r++)
        if (ls__block_count(operation, r) > longest)
            longest = ls__block_count(operation, r);
    return longest;
}

/* FNV-1a over the 64-bit counts, folded. */
uint32_t ls__counts_hash(const size_t *counts, int size) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int r = 0; r < size; r++)
        for (int shift = 0; shift < 64; shift += 8)
            hash = (hash ^ ((uint64_t)counts[r] >> shift & 0xff)) * UINT64_C(1099511628211);
    uint32_t folded = (uint32_t)(hash ^ hash >> 32);
    return folded ? folded : 1;
}

void ls__counts_show(const ls__counts_rows *rows, const ls__operation *operation, int r) {
    uint64_t *row = ls__counts_row(rows, r);
    for (int i = 0; i < rows->size; i++) {
        row[i] = operation->counts[i];
        row[rows->size + i] = operation->recv_counts[i];
    }
}

ls_status ls__counts_compare(const ls__counts_rows *rows, const ls__operation *operation,
                             size_t *longest) {
    const int size = rows->size;
    *longest = 0;
    for (int from = 0; from < size; from++)
        for (int to = 0; to < size; to++) {
            const uint64_t sent = ls__counts_row(rows, from)[to];
            const uint64_t expected = ls__counts_row(rows, to)[size + from];
            if (sent != expected)
                return ls__fail(LS_ERR_MISMATCH,
                                "%s #%llu: ranks disagree on the count from rank %d to rank %d: "
                                "%llu on rank %d, which sends, %llu on rank %d, which receives",
                                ls__kind_name(operation->header.kind),
                                (unsigned long long)operation->header.sequence, from, to,
                                (unsigned long long)sent, from, (unsigned long long)expected, to);
            if (sent > *longest)
                *longest = sent;
        }
    return LS_OK;
}

size_t ls__counts_before(const ls__counts_rows *rows, int r, int to) {
    size_t before = 0;
    for (int i = 0; i < to; i++)
        before += ls__counts_row(rows, r)[i];
    return before;
}
