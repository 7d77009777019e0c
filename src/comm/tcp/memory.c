/* ls_group_alloc over tcp: private memory, but on all ranks or none. One byte and a header a peer. */
#include "comm/tcp/tcp.h"

#include "comm/memory.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everyone says whether it has the memory: one byte a rank in `has`. */
static ls_status agree(ls__tcp *tcp, ls__operation *op, bool has) {
    char *flags = tcp->scratch;
    char text[512];
    snprintf(text, sizeof text, "%s", has ? "" : ls_error_text());
    ls__tcp_begin(tcp, op);
    flags[tcp->base.rank] = has;
    for (int rank = 0; rank < tcp->base.size; rank++) {
        if (tcp->peer[rank]->fd < 0)
            continue;
        tcp->peer[rank]->out[0] = ls__tcp_lane_of(flags, (size_t)tcp->base.rank, 1);
        tcp->peer[rank]->in[0] = ls__tcp_lane_of(flags, (size_t)rank, 1);
    }
    LS_TRY(ls__tcp_drive(tcp, op));
    /* Failing breaks the group and the peers hear of it. One more round, whatever comes of it, so that
     * all have read all flags by then and everyone's error is this one. */
    if (memchr(flags, 0, (size_t)tcp->base.size)) {
        ls__tcp_begin(tcp, op);
        (void)ls__tcp_drive(tcp, op);
    }
    if (!has)
        return ls__operation_fail(LS_ERR_MEMORY, op, tcp->base.rank, "%s", text);
    for (int rank = 0; rank < tcp->base.size; rank++)
        if (!flags[rank])
            return ls__operation_fail(LS_ERR_MEMORY, op, tcp->base.rank,
                                      "rank %d (host %s, pid %lld) has no memory for %zu bytes",
                                      rank, tcp->peer[rank]->host, (long long)tcp->peer[rank]->pid,
                                      op->bytes);
    return LS_OK;
}

ls_status ls__tcp_alloc(ls__tcp *tcp, ls__operation *op) {
    ls__tcp_memory *block = calloc(1, sizeof *block);
    bool has = block && ls__memory_map(&block->memory, op->bytes) == LS_OK;
    ls_status status = agree(tcp, op, has);
    if (status != LS_OK || !has) { /* without it agree has failed */
        if (has)
            ls__memory_unmap(block->memory, op->bytes);
        free(block);
        return status;
    }
    block->bytes = op->bytes;
    block->next = tcp->memory;
    tcp->memory = block;
    *op->memory = block->memory;
    return LS_OK;
}

ls_status ls__tcp_free(ls__tcp *tcp, ls__operation *op) {
    LS_TRY(ls__tcp_barrier(tcp, op));
    if (!*op->memory)
        return LS_OK;
    for (ls__tcp_memory **link = &tcp->memory; *link; link = &(*link)->next) {
        ls__tcp_memory *block = *link;
        if (block->memory != *op->memory)
            continue;
        *link = block->next;
        ls__memory_unmap(block->memory, block->bytes);
        free(block);
        return LS_OK;
    }
    return ls__operation_fail(LS_ERR_ARGUMENT, op, tcp->base.rank,
                              "%p was not given by ls_group_alloc", *op->memory);
}
