/* libFuzzer target: how ranks of the tcp transport meet. Any bytes as what a stranger says to the lobby of
 * rank 0, and as what answers a rank that connects; with the right proof put in where the first byte says so,
 * since no fuzzer finds one, so that what comes after the proof is reached as well. */
#include "comm/tcp/tcp.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { WORLD = 3, TABLE_BYTES = WORLD * sizeof(ls__tcp_card) };
enum { KNOWS_TOKEN = 1, ANSWERS = 2, GARBLES_HELLO = 4, IS_CONTROL = 8, IS_MESH = 16 };

static void require(bool holds) {
    if (!holds)
        abort();
}

/* --- nonces: the same every time, so that both sides' hellos are known beforehand ------------------------ */

static const char *random_name(void) {
    return "constant";
}

static uint32_t random_word(void) {
    return 7;
}

static void random_bytes(void *const buffer, const size_t bytes) {
    memset(buffer, 7, bytes);
}

static randombytes_implementation constant = {
    .implementation_name = random_name, .random = random_word, .buf = random_bytes};

/* --- the input, piece by piece ---------------------------------------------------------------------------- */

typedef struct input {
    const uint8_t *at;
    size_t left;
    unsigned flags;
} input;

/* Up to `bytes` bytes of it over what *to holds already. */
static size_t read_over(input *in, void *to, size_t bytes) {
    size_t n = in->left < bytes ? in->left : bytes;
    memcpy(to, in->at, n);
    in->at += n;
    in->left -= n;
    return n;
}

typedef struct connection {
    int ours, theirs;
} connection;

static connection open_connection(void) {
    int pair[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    return (connection){pair[0], pair[1]};
}

static void say(const connection *c, const void *data, size_t bytes) {
    (void)send(c->theirs, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ls__tcp_join make_join(const ls__job_place *place, int rank, int fd[WORLD],
                              ls__tcp_card table[WORLD]) {
    ls__tcp_join join = {.place = place,
                         .names = &ls__tcp_names_of_ranks,
                         .rank = rank,
                         .world = WORLD,
                         .listener = -1,
                         .fd = fd,
                         .table = table,
                         .deadline = ls__deadline_ns(10)};
    memset(join.key, 1, sizeof join.key);
    for (int r = 0; r < WORLD; r++)
        fd[r] = -1;
    memset(table, 0, WORLD * sizeof *table);
    return join;
}

static void close_all(const int fd[WORLD]) {
    for (int r = 0; r < WORLD; r++)
        ls__tcp_close_fd(fd[r]);
}

static int role_of(const input *in) {
    return in->flags & IS_CONTROL ? LS__TCP_CONTROL
           : in->flags & IS_MESH  ? LS__TCP_MESH
                                  : LS__TCP_RENDEZVOUS;
}

/* --- rank 0, and whoever connects -------------------------------------------------------------------------- */

/* True when the lobby takes the guest for a rank. */
static bool serve(ls__tcp_lobby *lobby, ls__tcp_guest *guest) {
    struct pollfd polls[256];
    require(lobby->size < 256);
    ls__tcp_lobby_poll(lobby, polls);
    (void)poll(polls, (nfds_t)lobby->size + 1, 0);
    return ls__tcp_lobby_serve(lobby, polls, guest);
}

static bool pass_lobby(ls__tcp_lobby *lobby, const connection *c, input *in, ls__tcp_guest *guest) {
    ls__tcp_hello hello;
    struct {
        ls__tcp_proof proof;
        ls__tcp_card card;
    } credentials;
    ls__tcp_hello_make(&hello, role_of(in), 1, WORLD, 0);
    if (in->flags & GARBLES_HELLO)
        read_over(in, &hello, sizeof hello);
    memset(&credentials, 0, sizeof credentials);
    say(c, &hello, sizeof hello);
    if (serve(lobby, guest))
        return true; /* before it has proved anything: the caller objects */
    read_over(in, &credentials, sizeof credentials);
    if (in->flags & KNOWS_TOKEN) {
        ls__tcp_hello answer;
        ls__tcp_hello_make(&answer, lobby->role, 0, WORLD, (int)(hello.rank & INT32_MAX));
        ls__tcp_prove(&credentials.proof, lobby->join->key, &hello, &answer, &credentials.card);
    }
    say(c, &credentials, sizeof credentials);
    say(c, in->at, in->left);
    shutdown(c->theirs, SHUT_WR);
    return serve(lobby, guest);
}

/* After it was let in: what it says to rank 0 until the job begins. */
static void lead(ls__tcp_join *join) {
    for (int r = 1; r < WORLD; r++) {
        if (join->fd[r] >= 0)
            (void)ls__tcp_note_recv(join, r, LS__TCP_DONE, NULL, 0);
    }
}

static void fuzz_lobby(input *in) {
    static const ls__job_place place = {.timeout_s = 10};
    int fd[WORLD];
    ls__tcp_card table[WORLD];
    ls__tcp_join join = make_join(&place, 0, fd, table);
    ls__tcp_lobby lobby;
    ls__tcp_guest guest;
    require(ls__tcp_lobby_open(&lobby, &join, LS__TCP_RENDEZVOUS) == LS_OK);
    connection c = open_connection();
    lobby.guest[0] = (ls__tcp_guest){.fd = c.ours, .deadline = ls__deadline_ns(10)};
    const bool in_now = pass_lobby(&lobby, &c, in, &guest);
    require(!in_now || in->flags & KNOWS_TOKEN);
    if (in_now && ls__tcp_admit(&join, &guest) == LS_OK) {
        require(guest.theirs.rank > 0 && guest.theirs.rank < WORLD);
        lead(&join);
    }
    ls__tcp_lobby_close(&lobby);
    close_all(fd);
    close(c.theirs);
}

/* --- a rank that connects, and whatever answers ------------------------------------------------------------ */

static void answer(const ls__tcp_join *join, const connection *c, input *in, int role) {
    ls__tcp_hello asked, hello;
    ls__tcp_verdict verdict = {.status = LS_OK};
    ls__tcp_hello_make(&asked, role, join->rank, WORLD, 0);
    ls__tcp_hello_make(&hello, role, 0, WORLD, join->rank);
    if (in->flags & GARBLES_HELLO)
        read_over(in, &hello, sizeof hello);
    if (in->flags & KNOWS_TOKEN)
        ls__tcp_prove(&verdict.proof, join->key, &asked, &hello, NULL);
    else
        read_over(in, &verdict, sizeof verdict);
    say(c, &hello, sizeof hello);
    say(c, &verdict, sizeof verdict);
    say(c, in->at, in->left);
    shutdown(c->theirs, SHUT_WR);
}

/* What rank 0 may send then: the table, whose addresses are connected to, and the word to go. */
static void follow(ls__tcp_join *join) {
    ls__tcp_address address;
    if (ls__tcp_note_recv(join, 0, LS__TCP_TABLE, join->table, TABLE_BYTES) != LS_OK)
        return;
    for (int r = 0; r < WORLD; r++) {
        char text[LS__TCP_ADDRESS_TEXT];
        if (ls__tcp_card_address(&join->table[r], &address) == LS_OK)
            ls__tcp_address_text(&address, text);
    }
    (void)ls__tcp_note_recv(join, 0, LS__TCP_GO, NULL, 0);
}

static void fuzz_dialer(input *in) {
    static const ls__job_place place = {.timeout_s = 10};
    int fd[WORLD];
    ls__tcp_card table[WORLD];
    ls__tcp_join join = make_join(&place, WORLD - 1, fd, table);
    const int role = role_of(in);
    connection c = open_connection();
    answer(&join, &c, in, role);
    ls_status status = ls__tcp_handshake(&join, role, 0, c.ours);
    require(status != LS_OK || in->flags & KNOWS_TOKEN);
    require(status == LS_OK || ls_error_text()[0]);
    fd[0] = c.ours;
    if (status == LS_OK)
        follow(&join);
    close_all(fd);
    close(c.theirs);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static bool is_constant;
    if (!is_constant)
        randombytes_set_implementation(&constant);
    is_constant = true;
    if (size == 0)
        return 0;
    input in = {.at = bytes + 1, .left = size - 1, .flags = bytes[0]};
    if (in.flags & ANSWERS)
        fuzz_dialer(&in);
    else
        fuzz_lobby(&in);
    return 0;
}
