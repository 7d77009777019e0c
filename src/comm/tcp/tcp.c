/* The transport's life: open, run one operation after another, abort, close. */
#include "comm/tcp/tcp.h"

#include "comm/memory.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CHUNK_BYTES = 256 * 1024, SMALLEST_CHUNK = 16 * 1024, SCRATCH_BYTES = 64 << 20 };

static ls_status dispatch(ls__tcp *tcp, ls__operation *operation) {
    switch ((ls__kind)operation->header.kind) {
    case LS__ALL_REDUCE:
        return ls__tcp_all_reduce(tcp, operation);
    case LS__REDUCE_SCATTER:
        return ls__tcp_reduce_scatter(tcp, operation);
    case LS__REDUCE:
        return ls__tcp_all_reduce(tcp, operation);
    case LS__ALL_GATHER:
    case LS__GATHER:
        return ls__tcp_gather(tcp, operation);
    case LS__SCATTER:
        return ls__tcp_scatter(tcp, operation);
    case LS__ALL_TO_ALL:
        return ls__tcp_all_to_all(tcp, operation);
    case LS__ALL_TO_ALL_V:
        return ls__tcp_all_to_all_v(tcp, operation);
    case LS__BROADCAST:
        return ls__tcp_broadcast(tcp, operation);
    case LS__BARRIER:
        return ls__tcp_barrier(tcp, operation);
    case LS__SEND:
        return ls__tcp_send(tcp, operation);
    case LS__RECV:
        return ls__tcp_recv(tcp, operation);
    case LS__SENDRECV:
        return ls__tcp_sendrecv(tcp, operation);
    case LS__ALLOC:
        return ls__tcp_alloc(tcp, operation);
    case LS__FREE:
        return ls__tcp_free(tcp, operation);
    }
    return ls__fail(LS_ERR_UNSUPPORTED, "tcp: no operation %d", operation->header.kind);
}

/* The reason that peers are told; the first one stays. */
static void set_reason(ls__tcp *tcp, const char *reason) {
    pthread_mutex_lock(&tcp->reason_lock);
    if (tcp->reason[0] == '\0')
        snprintf(tcp->reason, sizeof tcp->reason, "%.*s", (int)sizeof tcp->reason - 1,
                 *reason ? reason : "no reason given");
    pthread_mutex_unlock(&tcp->reason_lock);
}

static void reset_peers(ls__tcp *tcp) {
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        peer->expect = LS__TCP_NOTHING;
        peer->left = peer->awaits_want = peer->owes_want = false;
        peer->in[0] = peer->in[1] = peer->out[0] = peer->out[1] = (ls__tcp_lane){0};
    }
}

/* The operation failed: peers are told at once, whatever the caller does next. */
static void give_up(ls__tcp *tcp, ls_status status, const char *text) {
    char reason[LS__TCP_REASON_BYTES];
    atomic_store(&tcp->aborted, true);
    set_reason(tcp, text);
    snprintf(reason, sizeof reason, "%s", tcp->reason); /* never changes again */
    ls__tcp_settle(tcp);
    ls__tcp_goodbye(tcp, status, reason);
}

static ls_status run(ls__transport *transport, ls__operation *operation) {
    ls__tcp *tcp = (ls__tcp *)transport;
    pthread_mutex_lock(&tcp->lock);
    tcp->started_ns = ls__now_ns();
    tcp->arrived = tcp->awaited = 0;
    tcp->has_waited = false;
    operation->times.last_rank = tcp->base.size == 1 ? 0 : -1;
    reset_peers(tcp);
    ls_status status = dispatch(tcp, operation);
    if (status != LS_OK && status != LS_ERR_ARGUMENT) {
        char text[1024];
        snprintf(text, sizeof text, "%s", ls_error_text());
        give_up(tcp, status, text);
        ls__fail(status, "%s", text);
    }
    pthread_mutex_unlock(&tcp->lock);
    return status;
}

static void abort_tcp(ls__transport *transport, const char *reason) {
    ls__tcp *tcp = (ls__tcp *)transport;
    const uint64_t one = 1;
    set_reason(tcp, reason);
    atomic_store(&tcp->aborted, true);
    ssize_t written = write(tcp->wake_fd, &one, sizeof one); /* run may sleep in poll */
    (void)written; /* it cannot fail: the counter is far from full */
    pthread_mutex_lock(&tcp->lock);
    give_up(tcp, LS_ERR_PEER, reason);
    pthread_mutex_unlock(&tcp->lock);
}

/* What lies unread would turn the close into a reset, which may overtake the goodbye. */
static void drain(int fd) {
    char sink[4096];
    for (int i = 0; i < 1024 && recv(fd, sink, sizeof sink, MSG_DONTWAIT) > 0; i++)
        ;
}

static void free_peer(ls__tcp_peer *peer) {
    if (!peer)
        return;
    if (peer->fd >= 0)
        drain(peer->fd);
    ls__tcp_close_fd(peer->fd);
    free(peer->filling);
    for (ls__tcp_message *message; (message = ls__tcp_inbox_pop(peer));)
        free(message);
    free(peer);
}

static void free_all(ls__tcp *tcp) {
    for (int rank = 0; tcp->peer && rank < tcp->base.size; rank++)
        free_peer(tcp->peer[rank]);
    while (tcp->memory) {
        ls__tcp_memory *block = tcp->memory;
        tcp->memory = block->next;
        ls__memory_unmap(block->memory, block->bytes);
        free(block);
    }
    ls__tcp_close_fd(tcp->wake_fd);
    pthread_mutex_destroy(&tcp->lock);
    pthread_mutex_destroy(&tcp->reason_lock);
    free(tcp->peer);
    free(tcp->polls);
    free(tcp->sources);
    free(tcp->weights);
    free(tcp->scratch);
    free(tcp);
}

static void close_tcp(ls__transport *transport) {
    ls__tcp *tcp = (ls__tcp *)transport;
    pthread_mutex_lock(&tcp->lock);
    ls__tcp_goodbye(tcp, LS_OK, "");
    pthread_mutex_unlock(&tcp->lock);
    free_all(tcp);
}

static const ls__transport_table table = {"tcp", run, close_tcp, abort_tcp};

/* --- open -------------------------------------------------------------------------------------- */

static ls_status add_peers(ls__tcp *tcp) {
    for (int rank = 0; rank < tcp->base.size; rank++) {
        tcp->peer[rank] = calloc(1, sizeof *tcp->peer[rank]);
        if (!tcp->peer[rank])
            return ls__fail(LS_ERR_MEMORY, "no memory for %d connections", tcp->base.size);
        tcp->peer[rank]->fd = -1;
        tcp->peer[rank]->rank = rank;
    }
    return LS_OK;
}

/* The connections and names that the rendezvous has found. */
static void take_over(ls__tcp *tcp, ls__tcp_join *join) {
    for (int rank = 0; rank < tcp->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        peer->fd = join->fd[rank];
        join->fd[rank] = -1;
        peer->pid = join->table[rank].pid;
        memcpy(peer->host, join->table[rank].host, sizeof peer->host);
    }
}

/* Scratch for one chunk a peer: 256 KiB each, less in worlds of more than 256. */
static size_t choose_chunk(int size) {
    size_t chunk = SCRATCH_BYTES / (size_t)size / 64 * 64;
    return chunk > CHUNK_BYTES ? CHUNK_BYTES : chunk < SMALLEST_CHUNK ? SMALLEST_CHUNK : chunk;
}

static ls_status make(ls__tcp **made, int rank, int size) {
    ls__tcp *tcp = calloc(1, sizeof *tcp);
    const size_t n = (size_t)size;
    *made = NULL;
    if (!tcp)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    tcp->base = (ls__transport){.table = &table, .rank = rank, .size = size};
    pthread_mutex_init(&tcp->lock, NULL);
    pthread_mutex_init(&tcp->reason_lock, NULL);
    tcp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tcp->chunk = choose_chunk(size);
    tcp->peer = calloc(n, sizeof(ls__tcp_peer *));
    tcp->polls = calloc(n + 1, sizeof *tcp->polls);
    tcp->sources = calloc(n, sizeof(void *));
    tcp->weights = calloc(n, sizeof *tcp->weights);
    tcp->scratch = aligned_alloc(64, n * tcp->chunk);
    ls_status status = LS_OK;
    if (tcp->wake_fd < 0)
        status = ls__fail_errno(LS_ERR_SYSTEM, errno, "eventfd");
    else if (!tcp->peer || !tcp->polls || !tcp->sources || !tcp->weights || !tcp->scratch)
        status = ls__fail(LS_ERR_MEMORY, "no memory for a job of %d ranks", size);
    if (status == LS_OK)
        *made = tcp;
    else
        free_all(tcp);
    return status;
}

static void free_join(ls__tcp_join *join) {
    for (int rank = 0; join->fd && rank < join->world; rank++)
        ls__tcp_close_fd(join->fd[rank]);
    free(join->fd);
    free(join->table);
}

static ls_status prepare_join(ls__tcp_join *join, const char *token) {
    const size_t n = (size_t)join->world;
    int seats;
    if (join->world > 1)
        LS_TRY(ls__tcp_seats(join, &seats));
    join->has_token = token && *token;
    LS_TRY(ls__tcp_key(join->has_token ? token : NULL, join->key));
    join->fd = calloc(n, sizeof *join->fd);
    join->table = calloc(n, sizeof *join->table);
    if (!join->fd || !join->table) {
        free(join->fd);
        join->fd = NULL;
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %d ranks", join->world);
    }
    for (int rank = 0; rank < join->world; rank++)
        join->fd[rank] = -1;
    return LS_OK;
}

ls_status ls__tcp_open(ls__transport **transport, const ls__job_place *place, const char *address,
                       int port, const char *token) {
    ls__tcp_join join = {.place = place,
                         .address = address,
                         .port = port,
                         .deadline = ls__deadline_ns(place->timeout_s),
                         .rank = place->rank,
                         .world = place->world_size,
                         .listener = -1};
    ls__tcp *tcp = NULL;
    ls_status status;
    *transport = NULL;
    /* All memory first: whoever lacks it never joins, rather than failing when all have joined. */
    LS_TRY_OUT(prepare_join(&join, token));
    LS_TRY_OUT(make(&tcp, join.rank, join.world));
    LS_TRY_OUT(add_peers(tcp));
    if (join.world > 1)
        LS_TRY_OUT(ls__tcp_rendezvous(&join));
    take_over(tcp, &join);
    *transport = &tcp->base;
    tcp = NULL;
out:
    if (tcp)
        free_all(tcp);
    free_join(&join);
    return status;
}
