/* The words of messages about operations: one place, so every transport says the same. */
#include "base/error.h"
#include "comm/transport.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const kind_names[] = {
    [LS__ALL_REDUCE] = "all_reduce",
    [LS__REDUCE_SCATTER] = "reduce_scatter",
    [LS__ALL_GATHER] = "all_gather",
    [LS__BROADCAST] = "broadcast",
    [LS__BARRIER] = "barrier",
    [LS__SEND] = "send",
    [LS__RECV] = "recv",
    [LS__ALLOC] = "group_alloc",
    [LS__FREE] = "group_free",
    [LS__REDUCE] = "reduce",
    [LS__GATHER] = "gather",
    [LS__SCATTER] = "scatter",
    [LS__ALL_TO_ALL] = "all_to_all",
    [LS__ALL_TO_ALL_V] = "all_to_all_v",
    [LS__SENDRECV] = "sendrecv",
    [LS__SPLIT] = "group_split",
};

enum { KIND_COUNT = sizeof kind_names / sizeof kind_names[0] };

const char *ls__kind_name(int kind) {
    return kind > 0 && kind < KIND_COUNT ? kind_names[kind] : "?";
}

const char *ls__op_name(unsigned op) {
    static const char *const names[LS_OP_COUNT] = {"sum", "product", "min", "max", "avg"};
    if (op & LS__OP_WEIGHTED)
        return "weighted sum";
    return op < LS_OP_COUNT ? names[op] : "?";
}

ls_status ls__operation_fail(ls_status status, const ls__operation *operation, int rank,
                             const char *format, ...) {
    char text[1024], peer[64] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const ls__header *header = &operation->header;
    const ls__group_label *label = operation->label;
    const int root = ls__label_rank(label, operation->root);
    if (header->kind == LS__SEND)
        snprintf(peer, sizeof peer, " to rank %d", root);
    else if (header->kind == LS__RECV)
        snprintf(peer, sizeof peer, " from rank %d", root);
    else if (header->kind == LS__SENDRECV)
        snprintf(peer, sizeof peer, " to rank %d, from rank %d", root,
                 ls__label_rank(label, operation->from));
    char inside[48] = "";
    if (label && label->rank != rank)
        snprintf(inside, sizeof inside, " (rank %d of %d in it)", label->rank, label->size);
    return ls__fail(status, "%s #%llu%s of group %s on rank %d%s: %s", ls__kind_name(header->kind),
                    (unsigned long long)header->sequence, peer, label ? label->name : "world", rank,
                    inside, text);
}

/* The two sides of a difference, in the words of the one who looks. */
typedef struct sides {
    const ls__header *mine, *other;
    int my_rank, other_rank;
} sides;

static ls_status differ(const sides *s, const char *what, const char *mine, const char *other) {
    return ls__fail(
        LS_ERR_MISMATCH,
        "%s #%llu: ranks disagree on the %s: %s on rank %d, %s on rank %d; every rank must "
        "make the same calls in the same order",
        ls__kind_name(s->mine->kind), (unsigned long long)s->mine->sequence, what, mine, s->my_rank,
        other, s->other_rank);
}

static ls_status differ_number(const sides *s, const char *what, uint64_t mine, uint64_t other) {
    char a[24], b[24];
    snprintf(a, sizeof a, "%llu", (unsigned long long)mine);
    snprintf(b, sizeof b, "%llu", (unsigned long long)other);
    return differ(s, what, a, b);
}

/* A recv is compared as the send it waits for. */
static int compared_kind(const ls__header *header) {
    return header->kind == LS__RECV ? LS__SEND : header->kind;
}

static const char *count_name(const ls__header *header) {
    return header->kind == LS__ALLOC ? "bytes" : header->counts ? "sum of counts" : "count";
}

/* A sum of products with odd numbers: one field's difference always shows, and none of several fields
 * that a program can make cancels out. */
uint64_t ls__header_identity(const ls__header *h) {
    uint64_t what = (uint64_t)h->magic | (uint64_t)compared_kind(h) << 32 |
                    (uint64_t)h->dtype << 48 | (uint64_t)h->op << 56;
    return what * 0x9e3779b97f4a7c15 + h->group * 0xc2b2ae3d27d4eb4f +
           h->sequence * 0x165667b19e3779f9 + h->count * 0xd6e8feb86659fd93 +
           h->root * 0xa0761d6478bd642f + h->counts * 0xe7037ed1a0b428db;
}

ls_status ls__header_compare(const ls__header *mine, int my_rank, const ls__header *other,
                             int other_rank) {
    sides s = {.mine = mine, .other = other, .my_rank = my_rank, .other_rank = other_rank};
    if (other->magic != LS__HEADER_MAGIC)
        return ls__fail(LS_ERR_MISMATCH,
                        "%s #%llu on rank %d: what rank %d sent is no operation of this version "
                        "(magic 0x%08x, want 0x%08x); all ranks must run the same version",
                        ls__kind_name(mine->kind), (unsigned long long)mine->sequence, my_rank,
                        other_rank, other->magic, LS__HEADER_MAGIC);
    if (mine->group != other->group)
        return differ_number(&s, "group", mine->group, other->group);
    if (compared_kind(mine) != compared_kind(other))
        return differ(&s, "operation", ls__kind_name(mine->kind), ls__kind_name(other->kind));
    if (mine->sequence != other->sequence)
        return differ_number(&s, "sequence number", mine->sequence, other->sequence);
    if (mine->dtype != other->dtype)
        return differ(&s, "dtype", ls_dtype_name(mine->dtype), ls_dtype_name(other->dtype));
    if (mine->op != other->op)
        return differ(&s, "reduction", ls__op_name(mine->op), ls__op_name(other->op));
    if ((mine->counts != 0) != (other->counts != 0))
        return differ(&s, "form", mine->counts ? "a count for each rank" : "one count for all",
                      other->counts ? "a count for each rank" : "one count for all");
    if (mine->count != other->count)
        return differ_number(&s, count_name(mine), mine->count, other->count);
    if (mine->counts != other->counts)
        return differ_number(&s, "hash of the counts of all ranks", mine->counts, other->counts);
    if (mine->root != other->root)
        return differ_number(&s, compared_kind(mine) == LS__SEND ? "receiver" : "root", mine->root,
                             other->root);
    return LS_OK;
}

void ls__sendrecv_split(const ls__operation *operation, int rank, ls__operation *send,
                        ls__operation *recv) {
    *send = *recv = *operation;
    send->header.kind = LS__SEND;
    recv->header.kind = LS__RECV;
    recv->header.sequence = operation->recv_sequence;
    recv->header.root = (uint32_t)rank;
    recv->header.count = recv->count = operation->recv_count;
    recv->root = operation->from;
}
