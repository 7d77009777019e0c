/* Inside the tcp transport: one connection for each pair of ranks, one thread, poll.
 *
 *   socket.c      addresses, sockets and bounded waits for one of them
 *   interface.c   where other ranks reach this one
 *   auth.c        the proof that both ends know the job's token
 *   lobby.c       the accepting side of the handshake, many strangers at a time
 *   dial.c        the connecting side
 *   rendezvous.c  rank 0 collects everybody, the others find it; mesh.c connects all pairs
 *   control.c     the heartbeat's connections; beside.c makes them where ranks are joined otherwise
 *   stream.c      frames on one connection; frames.c what each means to the operation under way
 *   drive.c       moves all connections until an operation is done
 *   point.c       send, recv, sendrecv; the collectives are those of src/comm/mesh
 *   split.c       connections of their own for some of the ranks
 *   tcp.c         open, run, abort, close */
#ifndef LS_COMM_TCP_TCP_H
#define LS_COMM_TCP_TCP_H

#include "base/clock.h"
#include "base/error.h"
#include "comm/heartbeat.h"
#include "comm/mesh/mesh.h"
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
    LS__TCP_VERSION = 3,
    LS__TCP_HOST_BYTES = 64,
    LS__TCP_BUFFER_BYTES = 8192,
    LS__TCP_FRAME_BYTES = 128 * 1024, /* payload of one DATA frame at most */
    LS__TCP_EAGER_BYTES = 64 * 1024,  /* a longer send waits for its recv */
    LS__TCP_INBOX_BYTES = 16 << 20,   /* sends a peer may be ahead of this rank's recvs */
    LS__TCP_REASON_BYTES = 512,
    LS__TCP_KEY_BYTES = 32,
};

/* --- socket.c: addresses and sockets --- */

typedef struct ls__tcp_address {
    struct sockaddr_storage raw;
    socklen_t bytes;
} ls__tcp_address;

enum { LS__TCP_ADDRESSES = 16, LS__TCP_ADDRESS_TEXT = 64 };

/* "127.0.0.1:29500", "[::1]:29500" */
LS_SHARED void ls__tcp_address_text(const ls__tcp_address *address,
                                    char text[LS__TCP_ADDRESS_TEXT]);
LS_SHARED bool ls__tcp_address_is_loopback(const ls__tcp_address *address);

/* What the user has given the place of a meeting as, for messages. */
typedef struct ls__tcp_names {
    const char *address; /* "MASTER_ADDR" */
    const char *port;    /* "MASTER_PORT" */
    const char *first;   /* who listens there: "rank 0" */
    const char *all;     /* who meet there: "ranks" */
} ls__tcp_names;
LS_SHARED extern const ls__tcp_names ls__tcp_names_of_ranks;

/* The addresses of a host name, LS__TCP_ADDRESSES at most. */
LS_SHARED ls_status ls__tcp_resolve(const ls__tcp_names *names, const char *name, int port,
                                    ls__tcp_address *addresses, size_t *count);
/* Listens on exactly `address` (port 0: any free one; *address then holds it). */
LS_SHARED ls_status ls__tcp_listen(const ls__tcp_names *names, ls__tcp_address *address,
                                   int backlog, int *fd);
/* Options of every connection: no delay, and an end when it is idle and the other host has vanished. */
LS_SHARED void ls__tcp_set_options(int fd);
/* A connected socket, or -1 with *error the errno. */
int ls__tcp_connect(const ls__tcp_address *address, uint64_t deadline, int *error);
/* Milliseconds for poll(), rounded up. */
int ls__tcp_poll_ms(uint64_t deadline);
/* All `bytes` bytes; 1 done, 0 the peer closed, -1 errno (ETIMEDOUT at the deadline). */
int ls__tcp_write_all(int fd, const void *data, size_t bytes, uint64_t deadline);
int ls__tcp_read_all(int fd, void *data, size_t bytes, uint64_t deadline);
/* close() that keeps errno and takes -1. */
LS_SHARED void ls__tcp_close_fd(int fd);
/* "1, 2, 5"; what does not fit becomes "..." */
void ls__tcp_rank_list(char *text, size_t bytes, int size, bool (*has)(const void *, int),
                       const void *context);

/* --- interface.c --- */

/* The address of LOCKSTEP_INTERFACE, or of this rank's end of the connection `fd`; its port is 0. */
ls_status ls__tcp_own_address(const ls__job_place *place, int fd, ls__tcp_address *address);

/* Where others are to call: LOCKSTEP_INTERFACE, or how this machine reaches the one where srun runs, or what its name
 * stands for; its port is 0. meet.c */
LS_SHARED ls_status ls__tcp_find_address(const ls__job_place *place, ls__tcp_address *address);

/* --- auth.c: the handshake's messages. Layouts stay the same in all versions. --- */

enum { LS__TCP_RENDEZVOUS = 1, LS__TCP_MESH = 2, LS__TCP_CONTROL = 3, LS__TCP_LAUNCHER = 4 };

typedef struct ls__tcp_hello { /* 64 bytes on the wire */
    char magic[8];
    uint32_t order; /* LS__TCP_ORDER in the sender's byte order */
    uint32_t version;
    uint32_t role; /* what the connecting side wants */
    uint32_t rank; /* the sender's */
    uint32_t world;
    uint32_t target; /* the rank the connecting side wants to reach */
    unsigned char nonce[32];
} ls__tcp_hello;

enum { LS__TCP_ORDER = 0x01020304 };

/* What one rank tells about itself; also the row of rank 0's table. 112 bytes on the wire. */
typedef struct ls__tcp_card {
    char host[LS__TCP_HOST_BYTES];
    int64_t pid;
    uint32_t family; /* 4 or 6; 0: does not listen */
    uint32_t port;
    uint32_t scope; /* of a link-local IPv6 address */
    uint32_t reserved[3];
    unsigned char ip[16];
} ls__tcp_card;

typedef struct ls__tcp_proof {
    unsigned char mac[32];
} ls__tcp_proof;

typedef struct ls__tcp_verdict {
    ls__tcp_proof proof;
    uint32_t status; /* LS_OK or LS_ERR_AUTH */
    uint32_t reserved;
} ls__tcp_verdict;

/* token NULL: a public key, good for loopback only. */
LS_SHARED ls_status ls__tcp_key(const char *token, unsigned char key[LS__TCP_KEY_BYTES]);
/* Another key, good for those who know `key` and the nonce. */
LS_SHARED void ls__tcp_derive_key(const unsigned char key[LS__TCP_KEY_BYTES],
                                  const unsigned char nonce[LS__TCP_KEY_BYTES],
                                  unsigned char derived[LS__TCP_KEY_BYTES]);
LS_SHARED void ls__tcp_nonce(unsigned char nonce[LS__TCP_KEY_BYTES]);
void ls__tcp_hello_make(ls__tcp_hello *hello, int role, int rank, int world, int target);
bool ls__tcp_hello_is_ours(const ls__tcp_hello *hello);
/* The proof of the connecting side covers its card; the accepting side's has card NULL. */
void ls__tcp_prove(ls__tcp_proof *proof, const unsigned char *key, const ls__tcp_hello *dialer,
                   const ls__tcp_hello *listener, const ls__tcp_card *card);
bool ls__tcp_proof_equal(const ls__tcp_proof *a, const ls__tcp_proof *b);
/* The differences that end a job: byte order, version, world size. `who` for the message. */
LS_SHARED ls_status ls__tcp_hello_compare(const ls__tcp_hello *mine, const ls__tcp_hello *other,
                                          const char *who);
ls_status ls__tcp_card_make(ls__tcp_card *card, const ls__tcp_address *listener);
ls_status ls__tcp_card_address(const ls__tcp_card *card, ls__tcp_address *address);

/* --- joining: what open needs until everybody is connected --- */

typedef struct ls__tcp_join {
    const ls__job_place *place;
    const char *address; /* MASTER_ADDR, or where launchers meet; NULL: `table` has all there is */
    int port;
    const ls__tcp_names *names; /* of these two */
    bool has_token;
    unsigned char key[LS__TCP_KEY_BYTES];
    uint64_t deadline, next_log;
    double log_pause_s; /* twice as long each time */
    int gone; /* rank 0: the first rank that left and is given until `gone_until` to come back; -1: none */
    uint64_t gone_until;
    int rank, world;
    int listener;   /* -1: none; rank 0's may be open already */
    bool connected; /* `fd` and `table` are complete: there is nobody to be found */
    int *fd;        /* (world) connection to each rank, -1: none */
    struct ls__tcp_control *control; /* NULL: no heartbeat over these connections */
    ls__tcp_card *table;             /* (world) */
} ls__tcp_join;

void ls__tcp_log(const ls__job_place *place, ls_log_level level, const char *format, ...)
    LS_PRINTF(3, 4);
/* True every few seconds. */
bool ls__tcp_log_due(ls__tcp_join *join);

typedef struct ls__tcp_guest {
    int fd;
    ls__tcp_address from;
    bool greeted;
    uint64_t deadline;
    size_t got;
    ls__tcp_hello theirs, mine;
    struct {
        ls__tcp_proof proof;
        ls__tcp_card card;
    } credentials;
} ls__tcp_guest;

/* Those who connected to a listener and have not yet proved who they are. */
typedef struct ls__tcp_lobby {
    ls__tcp_join *join;
    int role;
    int size; /* slots */
    ls__tcp_guest *guest;
    int refused;           /* in this minute */
    uint64_t refused_from; /* when it began */
    int error_number;      /* errno: nobody could be let in */
} ls__tcp_lobby;

/* Slots for the open files that the limit leaves (poll takes no longer list than that, either); an error
 * where they do not suffice for a connection to every rank. */
ls_status ls__tcp_slots(const ls__tcp_join *join, int *slots);
LS_SHARED ls_status ls__tcp_lobby_open(ls__tcp_lobby *lobby, ls__tcp_join *join, int role);
LS_SHARED void ls__tcp_lobby_close(ls__tcp_lobby *lobby);
/* Fills lobby->size + 1 pollfds. */
LS_SHARED void ls__tcp_lobby_poll(const ls__tcp_lobby *lobby, struct pollfd *polls);
/* Why nobody could be let in, told once: a start ends with it, who lives longer goes on. */
LS_SHARED ls_status ls__tcp_lobby_status(ls__tcp_lobby *lobby);
/* Serves what poll reported. True: *guest has proved itself, its fd now belongs to the caller; call
 * again until false. */
LS_SHARED bool ls__tcp_lobby_serve(ls__tcp_lobby *lobby, struct pollfd *polls,
                                   ls__tcp_guest *guest);

/* Connects to one of the addresses as `role`, retrying until the deadline; *reached gets the address
 * of this end. When join->listener is -1 a listener is opened on that address first. */
LS_SHARED ls_status ls__tcp_dial(ls__tcp_join *join, int role, int target, int *fd);

/* The connecting side's part of one handshake, on a connection that stands. LS_ERR_PEER: it was cut short, which
 * the other end's start or a stranger may explain; anything else is final. */
ls_status ls__tcp_handshake(ls__tcp_join *join, int role, int target, int fd);

/* Messages between rank 0 and the others while they join. */
enum { LS__TCP_TABLE = 1, LS__TCP_DONE, LS__TCP_GO, LS__TCP_FAIL, LS__TCP_BEAT };
typedef struct ls__tcp_note {
    uint32_t kind, status, bytes, reserved;
} ls__tcp_note;

ls_status ls__tcp_note_send(ls__tcp_join *join, int rank, int kind, ls_status status,
                            const void *body, size_t bytes);
/* Reads a note that must be `kind`; LS__TCP_FAIL becomes this rank's error. */
ls_status ls__tcp_note_recv(ls__tcp_join *join, int rank, int kind, void *body, size_t bytes);
/* On rank 0: a guest that has proved itself becomes the rank it says it is, or is told why not; then its
 * connection is closed. */
ls_status ls__tcp_admit(ls__tcp_join *join, ls__tcp_guest *guest);
/* Connects everybody: join->fd and join->table are complete on success. */
ls_status ls__tcp_rendezvous(ls__tcp_join *join);
/* Ranks above 0: the connections among themselves. */
ls_status ls__tcp_mesh(ls__tcp_join *join);

/* --- control.c: the heartbeat's connections --- */

ls_status ls__tcp_control_create(struct ls__tcp_control **control, int rank, int size);
/* Rank 0's side and the others' of making them. */
ls_status ls__tcp_control_collect(ls__tcp_join *join);
ls_status ls__tcp_control_dial(ls__tcp_join *join);
/* `fd` becomes the connection to `rank`: on rank 0 any other, elsewhere 0. */
void ls__tcp_control_adopt(struct ls__tcp_control *control, int rank, int fd);
/* What the heartbeat calls. */
ls__heartbeat_link ls__tcp_control_link(struct ls__tcp_control *control);
/* The heartbeat takes it over. */
void ls__tcp_control_start(struct ls__tcp_control *control, ls__heartbeat *heartbeat);
void ls__tcp_control_free(struct ls__tcp_control *control);

/* --- stream.c: frames on one connection --- */

enum {
    LS__TCP_BEGIN = 0x4c530001, /* a collective begins: ls__header */
    LS__TCP_DATA,               /* payload of the operation both ends are in */
    LS__TCP_SEND,               /* ls__header and the whole payload of a small send */
    LS__TCP_OFFER,              /* ls__header of a large send, whose payload waits for ... */
    LS__TCP_WANT,               /* ... this answer of its recv */
    LS__TCP_REFUSE,             /* ls__header of the one who refuses, and the one refused */
    LS__TCP_GOODBYE,            /* the last frame: a byte of ls_status, text and its NUL */
    LS__TCP_OFFER_BOTH,         /* OFFER of a sendrecv, which receives meanwhile: it may wait */
};

typedef struct ls__tcp_frame {
    uint32_t type, bytes;
} ls__tcp_frame;

typedef struct ls__tcp_message {
    struct ls__tcp_message *next;
    ls__header header;
    bool offered; /* a large one that came early: its payload is still to be asked for */
    size_t bytes;
    char data[];
} ls__tcp_message;

/* What the operation still wants to read from a peer. */
typedef enum ls__tcp_expect {
    LS__TCP_NOTHING = 0,
    LS__TCP_ANY,            /* nothing, but early sends may be taken in */
    LS__TCP_EXPECT_BEGIN,   /* the header of this collective, then the lanes */
    LS__TCP_EXPECT_DATA,    /* the lanes */
    LS__TCP_EXPECT_MESSAGE, /* SEND or OFFER */
} ls__tcp_expect;

typedef struct ls__tcp_peer {
    ls__mesh_peer base;
    int fd; /* -1: this rank itself */
    int rank;
    int64_t pid;
    char host[LS__TCP_HOST_BYTES];

    /* incoming */
    ls__tcp_expect expect;
    bool awaits_want; /* and the answer to this rank's OFFER */
    bool left;        /* what comes next is for a later operation: not looked at in this one */
    bool frame_open;
    ls__tcp_frame frame;
    size_t frame_left; /* bytes of its body not yet taken */
    size_t buffer_at, buffer_end;
    unsigned char buffer[LS__TCP_BUFFER_BYTES];
    ls__tcp_message *filling; /* an early send whose payload is arriving in `fill` */
    ls__mesh_lane fill;
    ls__tcp_message *inbox, **inbox_end;
    size_t inbox_bytes;

    /* outgoing: the frame under way, then what is left of the lanes */
    unsigned char head[192];
    size_t head_at, head_bytes;
    ls__mesh_lane body;
    bool owes_want; /* the answer to an OFFER goes out when no other frame is in its middle */
    uint64_t owed_sequence;
} ls__tcp_peer;

/* 1 done, 0 not now, -1 error in errno (ECONNRESET also for a peaceful end of the stream). */
int ls__tcp_need(ls__tcp_peer *peer, size_t bytes);
/* The next frame's head, validated: 2 when it is no frame at all. */
int ls__tcp_peek(ls__tcp_peer *peer);
/* Takes `bytes` bytes of the open frame that ls__tcp_need has made available. */
void ls__tcp_take(ls__tcp_peer *peer, void *data, size_t bytes);
/* Up to `bytes` bytes of the open frame's body: the count, 0 not now, -1 */
ssize_t ls__tcp_take_some(ls__tcp_peer *peer, char *to, size_t bytes);
/* Body bytes straight into a lane: 1 the frame's share is there, 0 not now, -1. */
int ls__tcp_take_lane(ls__tcp_peer *peer, ls__mesh_lane *lane);
/* Puts a frame with up to 160 bytes of body behind those queued, followed by `body`. */
void ls__tcp_queue(ls__tcp_peer *peer, uint32_t type, const void *data, size_t bytes,
                   const void *body, size_t body_bytes);
bool ls__tcp_has_out(const ls__tcp_peer *peer);
/* Writes what the socket takes. */
int ls__tcp_flush(ls__tcp_peer *peer);
/* Drops what is queued but not begun; true when the stream stands between two frames. */
bool ls__tcp_at_boundary(ls__tcp_peer *peer);

/* --- the transport --- */

typedef struct ls__tcp {
    ls__mesh mesh;
    ls__tcp_peer **peer;  /* (size) */
    struct pollfd *polls; /* (size + 1), the last is wake_fd */

    uint64_t started_ns; /* this operation */
    int arrived;         /* headers of it received */
    int awaited;     /* headers without which no payload is read: nobody's data are touched before
                            all agree on the operation */
    bool has_waited; /* this operation has slept at least once */

    pthread_mutex_t lock; /* held by run, close and the sending part of abort */
    int wake_fd;          /* eventfd: abort wakes run */
    _Atomic bool aborted;
    pthread_mutex_t reason_lock;
    char reason[LS__TCP_REASON_BYTES];
    char heard
        [LS__TCP_REASON_BYTES]; /* the reason of the peer that ended this operation; "": none */
    bool said_goodbye;

    /* what split.c joins by */
    ls__job_place place;
    bool has_token;
    unsigned char key[LS__TCP_KEY_BYTES];
    uint64_t splits;
} ls__tcp;

/* Connects the ranks that `join` describes; address, port, deadline, ranks and proof are set. Or takes over
 * connections that stand (join->connected). What join points to is taken over, also on failure. */
/* ls__tcp_open of an address that messages are to call something else. */
ls_status ls__tcp_open_named(ls__transport **transport, const ls__job_place *place,
                             const ls__tcp_names *names, const char *address, int port,
                             const char *token);
ls_status ls__tcp_open_join(ls__transport **transport, ls__tcp_join *join);
ls_status ls__tcp_split(ls__transport *transport, int color, int key, uint64_t deadline,
                        ls__transport **part);

/* Moves everything the peers' states ask for; returns when nothing is wanted any more. */
ls_status ls__tcp_drive(ls__tcp *tcp, ls__operation *operation);
/* "; not arrived yet: ranks 1, 3" of the collective under way, or "" */
void ls__tcp_list_missing(const ls__tcp *tcp, char *text, size_t bytes);
/* frames.c: reads what `peer` has for this operation; stops when nothing more is wanted or there. */
ls_status ls__tcp_read_peer(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer);
bool ls__tcp_wants(const ls__tcp *tcp, const ls__tcp_peer *peer);
/* Nothing is wanted from `peer` any more, but it has something: does it give up? */
ls_status ls__tcp_watch(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer);
/* Another rank has told, past its data, that it gave this operation up: this rank's error. */
ls_status ls__tcp_gave_up(ls__tcp *tcp, const ls__operation *operation, const ls__failure *failure);
/* `peer` takes no more data: why? Its last frames may tell. Always an error. */
ls_status ls__tcp_last_words(ls__tcp *tcp, ls__operation *operation, ls__tcp_peer *peer);
/* Asks for the payload of an offer that is the message awaited. */
void ls__tcp_accept(ls__tcp_peer *peer, const ls__header *offer);
/* Takes the oldest early send out of the inbox; the caller frees it. NULL: none. */
ls__tcp_message *ls__tcp_inbox_pop(ls__tcp_peer *peer);
void ls__tcp_inbox_push(ls__tcp_peer *peer, ls__tcp_message *message);
/* `peer` and this rank are in different operations: tells it so, returns LS_ERR_MISMATCH. */
ls_status ls__tcp_compare(ls__tcp *tcp, const ls__operation *operation, ls__tcp_peer *peer,
                          const ls__header *theirs);
/* Frames begun are finished if that is quick, the rest is dropped: after a failed operation. */
void ls__tcp_settle(ls__tcp *tcp);
/* Sends `reason` as the last frame to everyone, where the stream allows it; the lock is held. */
void ls__tcp_goodbye(ls__tcp *tcp, ls_status status, const char *reason);

ls_status ls__tcp_send(ls__tcp *tcp, ls__operation *operation);
ls_status ls__tcp_recv(ls__tcp *tcp, ls__operation *operation);
ls_status ls__tcp_sendrecv(ls__tcp *tcp, ls__operation *operation);

#endif
