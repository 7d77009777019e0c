/* The proof that both ends know the job's token.
 *
 * Each side sends a fresh nonce in its hello; the connecting side then sends
 * MAC(key, "dialer", both hellos, its card), the accepting side MAC(key, "listener", both hellos).
 * The hellos hold role, ranks and world size, so a proof is good for this connection only. What
 * follows on the connection is neither encrypted nor signed: that is for the network to do. */
#include "comm/tcp/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

static const char hello_magic[8] = {'L', 'O', 'C', 'K', 'S', 'T', 'E', 'P'};

_Static_assert(sizeof(ls__tcp_hello) == 64, "hello travels as it lies in memory");
_Static_assert(sizeof(ls__tcp_card) == 112, "card travels as it lies in memory");
_Static_assert(sizeof(ls__tcp_proof) == crypto_generichash_BYTES, "one hash");

ls_status ls__tcp_key(const char *token, unsigned char key[LS__TCP_KEY_BYTES]) {
    static const char public_token[] = "lockstep: no token, loopback only";
    if (sodium_init() < 0)
        return ls__fail(LS_ERR_SYSTEM, "libsodium finds no source of random numbers");
    if (!token)
        token = public_token;
    crypto_generichash(key, LS__TCP_KEY_BYTES, (const unsigned char *)token, strlen(token), NULL,
                       0);
    return LS_OK;
}

void ls__tcp_derive_key(const unsigned char key[LS__TCP_KEY_BYTES],
                        const unsigned char nonce[LS__TCP_KEY_BYTES],
                        unsigned char derived[LS__TCP_KEY_BYTES]) {
    crypto_generichash(derived, LS__TCP_KEY_BYTES, nonce, LS__TCP_KEY_BYTES, key,
                       LS__TCP_KEY_BYTES);
}

void ls__tcp_nonce(unsigned char nonce[LS__TCP_KEY_BYTES]) {
    randombytes_buf(nonce, LS__TCP_KEY_BYTES);
}

void ls__tcp_hello_make(ls__tcp_hello *hello, int role, int rank, int world, int target) {
    memset(hello, 0, sizeof *hello);
    memcpy(hello->magic, hello_magic, sizeof hello_magic);
    hello->order = LS__TCP_ORDER;
    hello->version = LS__TCP_VERSION;
    hello->role = (uint32_t)role;
    hello->rank = (uint32_t)rank;
    hello->world = (uint32_t)world;
    hello->target = (uint32_t)target;
    randombytes_buf(hello->nonce, sizeof hello->nonce);
}

bool ls__tcp_hello_is_ours(const ls__tcp_hello *hello) {
    return memcmp(hello->magic, hello_magic, sizeof hello_magic) == 0;
}

void ls__tcp_prove(ls__tcp_proof *proof, const unsigned char *key, const ls__tcp_hello *dialer,
                   const ls__tcp_hello *listener, const ls__tcp_card *card) {
    static const unsigned char label[2][16] = {"listener", "dialer"};
    crypto_generichash_state state;
    crypto_generichash_init(&state, key, LS__TCP_KEY_BYTES, sizeof proof->mac);
    crypto_generichash_update(&state, label[card != NULL], sizeof label[0]);
    crypto_generichash_update(&state, (const unsigned char *)dialer, sizeof *dialer);
    crypto_generichash_update(&state, (const unsigned char *)listener, sizeof *listener);
    if (card)
        crypto_generichash_update(&state, (const unsigned char *)card, sizeof *card);
    crypto_generichash_final(&state, proof->mac, sizeof proof->mac);
}

bool ls__tcp_proof_equal(const ls__tcp_proof *a, const ls__tcp_proof *b) {
    return sodium_memcmp(a->mac, b->mac, sizeof a->mac) == 0;
}

ls_status ls__tcp_hello_compare(const ls__tcp_hello *mine, const ls__tcp_hello *other,
                                const char *who) {
    if (other->order != mine->order)
        return ls__fail(LS_ERR_MISMATCH,
                        "%s has another byte order than rank %u; all ranks of a job must run on "
                        "machines of one byte order",
                        who, mine->rank);
    if (other->version != mine->version)
        return ls__fail(LS_ERR_MISMATCH,
                        "%s speaks protocol version %u, rank %u version %u; use the same release "
                        "of Lockstep on all ranks",
                        who, other->version, mine->rank, mine->version);
    if (other->world != mine->world)
        return ls__fail(LS_ERR_MISMATCH,
                        "%s has WORLD_SIZE=%u, rank %u has WORLD_SIZE=%u; set the same on all "
                        "ranks",
                        who, other->world, mine->rank, mine->world);
    return LS_OK;
}

ls_status ls__tcp_card_make(ls__tcp_card *card, const ls__tcp_address *listener) {
    char host[LS__TCP_HOST_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "gethostname");
    memset(card, 0, sizeof *card);
    memcpy(card->host, host, sizeof host - 1);
    card->pid = getpid();
    if (!listener)
        return LS_OK;
    if (listener->raw.ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)&listener->raw;
        card->family = 6;
        card->port = ntohs(a->sin6_port);
        card->scope = a->sin6_scope_id;
        memcpy(card->ip, &a->sin6_addr, 16);
    } else {
        const struct sockaddr_in *a = (const struct sockaddr_in *)&listener->raw;
        card->family = 4;
        card->port = ntohs(a->sin_port);
        memcpy(card->ip, &a->sin_addr, 4);
    }
    return LS_OK;
}

ls_status ls__tcp_card_address(const ls__tcp_card *card, ls__tcp_address *address) {
    memset(address, 0, sizeof *address);
    if (card->port == 0 || card->port > 65535 || (card->family != 4 && card->family != 6))
        return ls__fail(LS_ERR_FORMAT,
                        "the table of ranks holds an address of family %u with port %u, want 4 or "
                        "6 with port 1 to 65535",
                        card->family, card->port);
    if (card->family == 6) {
        struct sockaddr_in6 *a = (struct sockaddr_in6 *)&address->raw;
        a->sin6_family = AF_INET6;
        a->sin6_port = htons((uint16_t)card->port);
        a->sin6_scope_id = card->scope;
        memcpy(&a->sin6_addr, card->ip, 16);
        address->bytes = sizeof *a;
    } else {
        struct sockaddr_in *a = (struct sockaddr_in *)&address->raw;
        a->sin_family = AF_INET;
        a->sin_port = htons((uint16_t)card->port);
        memcpy(&a->sin_addr, card->ip, 4);
        address->bytes = sizeof *a;
    }
    return LS_OK;
}
