/* A world of one: nobody to talk to, but everything works. */
#include "base/error.h"
#include "comm/memory.h"
#include "comm/reduce.h"
#include "comm/transport.h"

#include <stdlib.h>
#include <string.h>

typedef struct block {
    void *memory;
    size_t bytes;
    struct block *next;
} block;

typedef struct self {
    ls__transport base;
    block *blocks; /* of ls_group_alloc */
} self;

static void copy(const ls__operation *op) {
    if (op->count > 0 && op->recv != op->send)
        memcpy(op->recv, op->send, op->count * ls_dtype_size(op->dtype));
}

static void all_reduce(const ls__operation *op) {
    double total = op->header.weight;
    if (op->weighted && op->total)
        *op->total = total;
    if (op->count == 0)
        return;
    if (op->weighted && total == 0) {
        memset(op->recv, 0, op->count * ls_dtype_size(op->dtype));
        return;
    }
    double scale = ls__reduce_scale(op->op, 1, op->weighted, total);
    if (scale != 1)
        ls__reduce(op->recv, &op->send, 1, op->count, op->dtype, op->op, scale);
    else
        copy(op);
}

static ls_status allocate(self *s, const ls__operation *op) {
    block *b = calloc(1, sizeof *b);
    if (!b)
        return ls__operation_fail(LS_ERR_MEMORY, op, 0, "no memory");
    if (ls__memory_map(&b->memory, op->bytes) != LS_OK) {
        free(b);
        return ls__operation_fail(LS_ERR_MEMORY, op, 0, "%s", ls_error_text());
    }
    b->bytes = op->bytes;
    b->next = s->blocks;
    s->blocks = b;
    *op->memory = b->memory;
    return LS_OK;
}

static ls_status release(self *s, const ls__operation *op) {
    if (!*op->memory)
        return LS_OK;
    for (block **link = &s->blocks; *link; link = &(*link)->next) {
        block *b = *link;
        if (b->memory != *op->memory)
            continue;
        *link = b->next;
        ls__memory_unmap(b->memory, b->bytes);
        free(b);
        return LS_OK;
    }
    return ls__operation_fail(LS_ERR_ARGUMENT, op, 0, "%p was not given by ls_group_alloc",
                              *op->memory);
}

static ls_status run(ls__transport *transport, ls__operation *op) {
    self *s = (self *)transport;
    op->times.ready_ns = op->times.begin_ns;
    op->times.last_rank = 0;
    switch (ls__operation_step(op)) {
    case LS__ALL_REDUCE:
    case LS__REDUCE:
    case LS__REDUCE_SCATTER:
        all_reduce(op);
        return LS_OK;
    case LS__ALL_GATHER:
    case LS__GATHER:
    case LS__SCATTER:
    case LS__ALL_TO_ALL:
    case LS__ALL_TO_ALL_V:
    case LS__SENDRECV:
        copy(op);
        return LS_OK;
    case LS__ALLOC:
        return allocate(s, op);
    case LS__FREE:
        return release(s, op);
    default: /* send and recv have no peer to go to: group.c refused them */
        return LS_OK;
    }
}

static void close_self(ls__transport *transport) {
    self *s = (self *)transport;
    while (s->blocks) {
        block *b = s->blocks;
        s->blocks = b->next;
        ls__memory_unmap(b->memory, b->bytes);
        free(b);
    }
    free(s);
}

static void abort_self(ls__transport *transport, ls_status status, const char *reason) {
    (void)status;
    (void)transport;
    (void)reason;
}

static ls_status split(ls__transport *transport, int color, int key, uint64_t deadline,
                       ls__transport **part) {
    (void)transport;
    (void)key;
    (void)deadline;
    *part = NULL;
    const ls__job_place alone = {.world_size = 1};
    return color < 0 ? LS_OK : ls__self_open(part, &alone);
}

static const ls__transport_table table = {"self", run, close_self, abort_self, split, NULL};

ls_status ls__self_open(ls__transport **transport, const ls__job_place *place) {
    self *s = calloc(1, sizeof *s);
    if (!s)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    s->base = (ls__transport){.table = &table, .rank = place->rank, .size = place->world_size};
    *transport = &s->base;
    return LS_OK;
}
