/* The queue of a group: operations run one after the other, in the order they were submitted. */
#ifndef LS_COMM_WORK_H
#define LS_COMM_WORK_H

#include "comm/board.h"
#include "comm/transport.h"
#include <pthread.h>
#include <stdatomic.h>

enum { LS__TEXT_BYTES = 1024 };

struct ls_work {
    ls__operation operation;
    ls_group *group;
    struct ls_work *next;
    bool blocking; /* run by the thread that waits for it, never by the group's own */
    atomic_bool done;
    ls_status status;
    char text[LS__TEXT_BYTES]; /* error text, for the thread that waits */
};

struct ls_group {
    ls__transport *transport; /* owned; NULL once the group has ended */
    uint64_t id;              /* equal on all ranks; 1: the world */
    char name[LS__FLIGHT_NAME_BYTES];
    ls__group_label label;
    int *names; /* (size) the world's number of each rank, owned; NULL: the world itself */
    /* The groups of a job: the world, and all that were made of it and of each other. */
    struct ls_group *world;
    struct ls_group *next; /* after the world, newest first; guarded by the world's lock */
    /* 1 here, 0 in a process forked from this one: a page that the kernel wipes. A child has copies of
     * the connections and the counters; what it sent or took would be missing in the parent. */
    const uint32_t *at_home;
    ls__board *board; /* the job's, where operations are noted; NULL: nowhere */
    double timeout_s;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    ls_work *first, *last; /* not yet begun */
    bool running;          /* somebody is inside transport->run */
    int waiting;           /* threads that sleep until their operation is done or first */
    bool stop;
    bool ended;      /* its transport is gone; the rest stays until nobody holds it */
    int holders;     /* started works, and who called ls__group_hold */
    bool has_thread; /* the group's own, made at the first started operation */
    pthread_t thread;
    ls_status broken; /* LS_OK while the group works */
    char broken_text[LS__TEXT_BYTES];
    uint64_t splits;           /* how many were made of it */
    uint64_t collectives;      /* how many operations were submitted */
    uint64_t *sent, *received; /* the same for each peer */
};

/* Takes the transport over, also on failure. */
ls_status ls__group_create(ls_group **group, ls__transport *transport, double timeout_s,
                           ls__board *board);
/* Runs what was started, then ends the transport; the world ends the groups that are left before itself.
 * What holds the group (hold.h) frees it in the end. NULL is allowed, and a group that has ended. */
void ls__group_destroy(ls_group *group);
/* `group`, made of `parent`, becomes one of the job's; takes `names` over. */
void ls__group_adopt(const ls_group *parent, ls_group *group, uint64_t id, const char *name,
                     int *names);
/* The number of the split of `group` that has just succeeded: 1, 2, ... */
uint64_t ls__group_count_split(ls_group *group);

/* Numbers the operation (header.sequence), runs it in its turn and returns its status. What it holds
 * afterwards is nobody's. */
ls_status ls__work_run(ls_group *group, ls__operation *operation);
/* The same for a copy of it, but returns at once; *work is for ls_work_wait. */
ls_status ls__work_start(ls_group *group, const ls__operation *operation, ls_work **work);

#endif
