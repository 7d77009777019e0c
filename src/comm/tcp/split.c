/* Connections of their own for some of the ranks. Everyone opens a listener where its peers reach it and shows
 * it to all over the connections there are; the first rank of each part then is to its part what rank 0 is to
 * a job. The proof is made with a key of the part's own, derived from the job's by a nonce of that rank, so a
 * connection of one group is none of another's. */
#include "comm/tcp/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

typedef struct seat {
    int32_t color, key;
    unsigned char nonce[LS__TCP_KEY_BYTES];
    ls__tcp_card card;
} seat;

/* Where the others reach this rank, with a port of its own. */
static ls_status open_listener(const ls__tcp *tcp, ls__tcp_address *address, int *listener) {
    const ls__tcp_peer *peer = tcp->peer[tcp->mesh.base.rank == 0 ? 1 : 0];
    LS_TRY(ls__tcp_own_address(&tcp->place, peer->fd, address));
    return ls__tcp_listen(&ls__tcp_names_of_ranks, address, tcp->mesh.base.size + 16, listener);
}

static ls_status show(ls__tcp *tcp, const seat *mine, seat *all, uint64_t deadline) {
    return ls__transport_gather(&tcp->mesh.base, ++tcp->splits, mine, all, sizeof *mine, deadline);
}

/* Rank and world size in the part; returns the parent's rank of its first. */
static int find_place(const seat *all, int size, int me, int *rank, int *world) {
    int first = -1;
    *rank = *world = 0;
    for (int r = 0; r < size; r++) {
        if (all[r].color != all[me].color)
            continue;
        ++*world;
        *rank += all[r].key < all[me].key || (r < me && all[r].key == all[me].key);
        if (first < 0 || all[r].key < all[first].key)
            first = r;
    }
    return first;
}

static ls_status join_part(ls__tcp *tcp, const seat *all, int *listener, uint64_t deadline,
                           ls__transport **part) {
    char text[LS__TCP_ADDRESS_TEXT], host[LS__TCP_ADDRESS_TEXT];
    ls__tcp_address address;
    ls__job_place place = tcp->place;
    const int first =
        find_place(all, tcp->mesh.base.size, tcp->mesh.base.rank, &place.rank, &place.world_size);
    if (place.world_size == 1)
        return ls__self_open(part, &place);
    LS_TRY(ls__tcp_card_address(&all[first].card, &address));
    ls__tcp_address_text(&address, text);
    /* "10.0.0.1:29500", "[fe80::1%eth0]:29500" */
    const bool is_six = text[0] == '[';
    memcpy(host, text + is_six, sizeof host - 1);
    *strrchr(host, is_six ? ']' : ':') = '\0';
    ls__tcp_join join = {.place = &place,
                         .names = &ls__tcp_names_of_ranks,
                         .address = host,
                         .port = (int)all[first].card.port,
                         .has_token = tcp->has_token,
                         .deadline = deadline,
                         .rank = place.rank,
                         .world = place.world_size,
                         .listener = -1};
    ls__tcp_derive_key(tcp->key, all[first].nonce, join.key);
    if (place.rank == 0) {
        join.listener = *listener;
        *listener = -1;
    }
    return ls__tcp_open_join(part, &join);
}

ls_status ls__tcp_split(ls__transport *transport, int color, int key, uint64_t deadline,
                        ls__transport **part) {
    ls__tcp *tcp = (ls__tcp *)transport;
    seat mine = {.color = color, .key = key}, *all = calloc((size_t)transport->size, sizeof *all);
    ls__tcp_address address;
    int listener = -1;
    ls_status status;
    *part = NULL;
    ls__tcp_nonce(mine.nonce);
    if (!all)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job of %d ranks", transport->size);
    if (transport->size > 1) {
        LS_TRY_OUT(open_listener(tcp, &address, &listener));
        LS_TRY_OUT(ls__tcp_card_make(&mine.card, &address));
    }
    LS_TRY_OUT(show(tcp, &mine, all, deadline));
    if (color >= 0 && transport->size > 1)
        status = join_part(tcp, all, &listener, deadline, part);
    else if (color >= 0)
        status = ls__self_open(part, &tcp->place);
out:
    ls__tcp_close_fd(listener);
    free(all);
    return status;
}
