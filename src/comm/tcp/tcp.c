/* The transport's life: open, run one operation after another, abort, close. */
#include "comm/tcp/tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { LINGER_MS = 200 };

static ls_status dispatch(ls__tcp *tcp, ls__operation *operation) {
    switch (ls__operation_step(operation)) {
    case LS__SEND:
        return ls__tcp_send(tcp, operation);
    case LS__RECV:
        return ls__tcp_recv(tcp, operation);
    case LS__SENDRECV:
        return ls__tcp_sendrecv(tcp, operation);
    default:
        return ls__mesh_run(&tcp->mesh, operation);
    }
}

static void begin(ls__mesh *mesh, const ls__operation *operation) {
    ls__tcp *tcp = (ls__tcp *)mesh;
    tcp->awaited = mesh->base.size - 1;
    for (int rank = 0; rank < mesh->base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        peer->base.weight = operation->header.weight;
        if (peer->fd < 0)
            continue;
        peer->expect = LS__TCP_EXPECT_BEGIN;
        ls__tcp_queue(peer, LS__TCP_BEGIN, &operation->header, sizeof operation->header, NULL, 0);
    }
}

static ls_status drive(ls__mesh *mesh, ls__operation *operation) {
    return ls__tcp_drive((ls__tcp *)mesh, operation);
}

static void name_peer(const ls__mesh *mesh, int rank, char text[LS__MESH_NAME_BYTES]) {
    const ls__tcp_peer *peer = (const ls__tcp_peer *)mesh->peer[rank];
    snprintf(text, LS__MESH_NAME_BYTES, "rank %d (host %s, pid %lld)",
             ls__name_of(&mesh->base, rank), peer->host, (long long)peer->pid);
}

static const ls__mesh_table mesh_table = {.begin = begin, .drive = drive, .name = name_peer};

/* The reason that peers are told; the first one stays. */
static void set_reason(ls__tcp *tcp, const char *reason) {
    pthread_mutex_lock(&tcp->reason_lock);
    if (tcp->reason[0] == '\0')
        snprintf(tcp->reason, sizeof tcp->reason, "%.*s", (int)sizeof tcp->reason - 1,
                 *reason ? reason : "no reason given");
    pthread_mutex_unlock(&tcp->reason_lock);
}

static void reset_peers(ls__tcp *tcp) {
    ls__mesh_reset(&tcp->mesh);
    for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        peer->expect = LS__TCP_NOTHING;
        peer->left = peer->awaits_want = peer->owes_want = false;
    }
}

/* The operation failed: peers are told at once, whatever the caller does next. */
static void give_up(ls__tcp *tcp, ls_status status, const char *text) {
    char reason[LS__TCP_REASON_BYTES];
    atomic_store(&tcp->aborted, true);
    set_reason(tcp, tcp->heard[0] ? tcp->heard : text); /* the first cause is passed on as it is */
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
    operation->times.last_rank = tcp->mesh.base.size == 1 ? 0 : -1;
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

static void abort_tcp(ls__transport *transport, ls_status status, const char *reason) {
    ls__tcp *tcp = (ls__tcp *)transport;
    const uint64_t one = 1;
    set_reason(tcp, reason);
    atomic_store(&tcp->aborted, true);
    ssize_t written = write(tcp->wake_fd, &one, sizeof one); /* run may sleep in poll */
    (void)written; /* it cannot fail: the counter is far from full */
    pthread_mutex_lock(&tcp->lock);
    give_up(tcp, status, reason);
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
    for (int rank = 0; tcp->peer && rank < tcp->mesh.base.size; rank++)
        free_peer(tcp->peer[rank]);
    ls__mesh_free_all(&tcp->mesh);
    ls__tcp_close_fd(tcp->wake_fd);
    pthread_mutex_destroy(&tcp->lock);
    pthread_mutex_destroy(&tcp->reason_lock);
    free(tcp->peer);
    free(tcp->polls);
    free(tcp->mesh.peer);
    free(tcp);
}

/* Bytes that the peer's machine has not taken yet; 0 also when it takes none any more. */
static int unsent_bytes(const ls__tcp_peer *peer) {
    struct pollfd look = {.fd = peer->fd};
    int bytes = 0;
    bool over = peer->fd < 0 || poll(&look, 1, 0) != 0 || ioctl(peer->fd, SIOCOUTQ, &bytes) != 0;
    return over ? 0 : bytes;
}

/* After a failure peers may still send, or read nothing for a moment: a close in the middle of that would be a reset,
 * and this rank's reason would be lost with what is behind it. */
static void linger(const ls__tcp *tcp) {
    const uint64_t until = ls__now_ns() + LINGER_MS * UINT64_C(1000000);
    for (bool busy = true; busy && ls__now_ns() < until;) {
        busy = false;
        for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
            if (unsent_bytes(tcp->peer[rank]) == 0)
                continue;
            drain(tcp->peer[rank]->fd);
            busy = true;
        }
        if (busy)
            usleep(1000);
    }
}

static void close_tcp(ls__transport *transport) {
    ls__tcp *tcp = (ls__tcp *)transport;
    pthread_mutex_lock(&tcp->lock);
    ls__tcp_goodbye(tcp, LS_OK, "");
    pthread_mutex_unlock(&tcp->lock);
    if (atomic_load(&tcp->aborted))
        linger(tcp);
    free_all(tcp);
}

static const ls__transport_table table = {"tcp",     run,           close_tcp,
                                          abort_tcp, ls__tcp_split, ls__mesh_explain};

/* --- open -------------------------------------------------------------------------------------- */

static ls_status add_peers(ls__tcp *tcp) {
    for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
        tcp->peer[rank] = calloc(1, sizeof *tcp->peer[rank]);
        if (!tcp->peer[rank])
            return ls__fail(LS_ERR_MEMORY, "no memory for %d connections", tcp->mesh.base.size);
        tcp->peer[rank]->fd = -1;
        tcp->peer[rank]->rank = rank;
        tcp->peer[rank]->base.self = rank == tcp->mesh.base.rank;
        tcp->mesh.peer[rank] = &tcp->peer[rank]->base;
    }
    return LS_OK;
}

/* The connections and names that the rendezvous has found. */
static void take_over(ls__tcp *tcp, ls__tcp_join *join) {
    for (int rank = 0; rank < tcp->mesh.base.size; rank++) {
        ls__tcp_peer *peer = tcp->peer[rank];
        peer->fd = join->fd[rank];
        join->fd[rank] = -1;
        peer->pid = join->table[rank].pid;
        memcpy(peer->host, join->table[rank].host, sizeof peer->host);
    }
    tcp->mesh.base.board = join->place->board;
    tcp->mesh.base.heartbeat = join->place->heartbeat;
}

static ls_status make(ls__tcp **made, int rank, int size) {
    ls__tcp *tcp = calloc(1, sizeof *tcp);
    const size_t n = (size_t)size;
    *made = NULL;
    if (!tcp)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    tcp->mesh.base =
        (ls__transport){.table = &table, .rank = rank, .size = size, .grain = 512 * 1024};
    tcp->mesh.table = &mesh_table;
    pthread_mutex_init(&tcp->lock, NULL);
    pthread_mutex_init(&tcp->reason_lock, NULL);
    tcp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    tcp->peer = calloc(n, sizeof(ls__tcp_peer *));
    tcp->polls = calloc(n + 1, sizeof *tcp->polls);
    tcp->mesh.peer = calloc(n, sizeof(ls__mesh_peer *));
    ls_status status = ls__mesh_make(&tcp->mesh);
    if (status == LS_OK && tcp->wake_fd < 0)
        status = ls__fail_errno(LS_ERR_SYSTEM, errno, "eventfd");
    if (!tcp->peer || !tcp->polls || !tcp->mesh.peer)
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
    ls__tcp_control_free(join->control);
    free(join->fd);
    free(join->table);
}

static ls_status prepare_join(ls__tcp_join *join) {
    const size_t n = (size_t)join->world;
    int slots;
    if (join->world > 1)
        LS_TRY(ls__tcp_slots(join, &slots));
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

ls_status ls__tcp_open_join(ls__transport **transport, ls__tcp_join *join) {
    ls__tcp *tcp = NULL;
    ls_status status;
    *transport = NULL;
    /* All memory first: whoever lacks it never joins, rather than failing when all have joined. */
    if (!join->connected)
        LS_TRY_OUT(prepare_join(join));
    LS_TRY_OUT(make(&tcp, join->rank, join->world));
    LS_TRY_OUT(add_peers(tcp));
    if (join->world > 1 && !join->connected)
        LS_TRY_OUT(ls__tcp_rendezvous(join));
    take_over(tcp, join);
    tcp->place = *join->place;
    tcp->has_token = join->has_token;
    memcpy(tcp->key, join->key, sizeof tcp->key);
    if (join->control && join->world > 1 && join->place->heartbeat) {
        ls__tcp_control_start(join->control, join->place->heartbeat);
        join->control = NULL;
    }
    *transport = &tcp->mesh.base;
    tcp = NULL;
out:
    if (tcp)
        free_all(tcp);
    free_join(join);
    return status;
}

ls_status ls__tcp_open(ls__transport **transport, const ls__job_place *place, const char *address,
                       int port, const char *token) {
    return ls__tcp_open_named(transport, place, &ls__tcp_names_of_ranks, address, port, token);
}

ls_status ls__tcp_open_named(ls__transport **transport, const ls__job_place *place,
                             const ls__tcp_names *names, const char *address, int port,
                             const char *token) {
    ls__tcp_join join = {.place = place,
                         .names = names,
                         .address = address,
                         .port = port,
                         .has_token = token && *token,
                         .deadline = ls__deadline_ns(place->timeout_s),
                         .rank = place->rank,
                         .world = place->world_size,
                         .listener = place->listens ? place->listener : -1};
    *transport = NULL;
    LS_TRY(ls__tcp_key(join.has_token ? token : NULL, join.key));
    LS_TRY(ls__tcp_control_create(&join.control, join.rank, join.world));
    return ls__tcp_open_join(transport, &join);
}
