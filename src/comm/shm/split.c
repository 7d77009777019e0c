/* A segment of its own for some of the ranks. The first rank of a part makes it, nameless as the job's, and
 * the others open it through /proc/PID/fd: all were started by the same user on the same machine. So a part has
 * slots, bells, staging, mailboxes and an allocator that nobody else touches, and closing it gives everything
 * back.
 *
 * What the launcher tells about dead ranks stands in the job's segment, which parts look at, too. */
#include "base/clock.h"
#include "base/error.h"
#include "comm/shm/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct seat {
    int32_t color, key;
} seat;

typedef struct offer {
    int32_t status, pid, fd;
} offer;

static ls_status show(ls__shm *shm, const void *mine, void *all, size_t bytes, uint64_t deadline) {
    ls__operation gather = {.header = {.magic = LS__HEADER_MAGIC,
                                       .kind = LS__SPLIT,
                                       .dtype = LS_U8,
                                       .sequence = ++shm->splits,
                                       .count = bytes},
                            .step = LS__ALL_GATHER,
                            .send = mine,
                            .recv = all,
                            .count = bytes,
                            .dtype = LS_U8,
                            .deadline = deadline};
    gather.times.begin_ns = ls__now_ns();
    gather.times.last_rank = -1;
    return shm->base.table->run(&shm->base, &gather);
}

/* The members of a rank's part in their order, as ranks of the parent; returns how many. */
static int list_members(const seat *all, int size, int color, int *member) {
    int count = 0;
    for (int r = 0; r < size; r++) {
        if (all[r].color != color)
            continue;
        int at = count++;
        for (; at > 0 && all[member[at - 1]].key > all[r].key; at--)
            member[at] = member[at - 1];
        member[at] = r;
    }
    return count;
}

static ls_status open_offered(const ls__shm *shm, const offer *given, int from, int *fd) {
    char path[48];
    if (given->status != LS_OK)
        return ls__fail((ls_status)given->status, "rank %d could not make the memory of its part",
                        ls__name_of(&shm->base, from));
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)given->pid, (int)given->fd);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno,
                              "cannot open %s, the memory that rank %d made; /proc must show the "
                              "processes of this user",
                              path, ls__name_of(&shm->base, from));
    return LS_OK;
}

/* Everyone has its descriptor, or nobody goes on. */
static ls_status agree(ls__shm *shm, offer *offers, ls_status mine, uint64_t deadline) {
    char text[512];
    snprintf(text, sizeof text, "%s", mine == LS_OK ? "" : ls_error_text());
    const offer outcome = {.status = (int32_t)mine};
    LS_TRY(show(shm, &outcome, offers, sizeof *offers, deadline));
    if (mine != LS_OK)
        return ls__fail(mine, "%s", text);
    for (int r = 0; r < shm->base.size; r++)
        if (offers[r].status != LS_OK)
            return ls__fail((ls_status)offers[r].status, "rank %d cannot join its part",
                            ls__name_of(&shm->base, r));
    return LS_OK;
}

/* What this rank has to know of its part before it joins. */
typedef struct plan {
    int *member; /* (size of the parent) ranks of the parent */
    int count, rank;
    bool shares; /* it has company, so there is memory to share */
} plan;

/* *fd: the segment of this rank's part, open. Collective over the parent. */
static ls_status get_segment(ls__shm *shm, const plan *p, offer *offers, uint64_t deadline,
                             int *fd) {
    ls_status status = LS_OK;
    const bool leads = p->shares && p->rank == 0;
    if (leads)
        status = ls__segment_create(fd, p->count);
    const offer mine = {.status = (int32_t)status, .pid = (int32_t)getpid(), .fd = *fd};
    char text[512];
    snprintf(text, sizeof text, "%s", status == LS_OK ? "" : ls_error_text());
    LS_TRY(show(shm, &mine, offers, sizeof mine, deadline));
    if (status != LS_OK)
        status = ls__fail(status, "%s", text);
    else if (p->shares && !leads)
        status = open_offered(shm, &offers[p->member[0]], p->member[0], fd);
    return agree(shm, offers, status, deadline);
}

/* Slots of the job's segment, for what the launcher says. */
static ls_status know_roots(const ls__shm *shm, const plan *p, ls__shm *part) {
    part->root_slot = calloc((size_t)p->count, sizeof *part->root_slot);
    if (!part->root_slot)
        return ls__fail(LS_ERR_MEMORY, "no memory for a group of %d ranks", p->count);
    for (int i = 0; i < p->count; i++)
        part->root_slot[i] = shm->root_slot ? shm->root_slot[p->member[i]] : p->member[i];
    part->root = shm->root;
    part->crowded = shm->crowded; /* the job's ranks share the cores, not only this part's */
    return LS_OK;
}

static ls_status join(const ls__shm *shm, const plan *p, int fd, uint64_t deadline,
                      ls__transport **part) {
    ls__job_place place = shm->place;
    const uint64_t now = ls__now_ns();
    place.rank = p->rank;
    place.world_size = p->count;
    place.heartbeat = NULL; /* it knows ranks by their names, which the part gets later */
    place.timeout_s = deadline > now ? (double)(deadline - now) * 1e-9 : 0;
    if (!p->shares)
        return ls__self_open(part, &place);
    LS_TRY(ls__shm_open(part, &place, fd));
    ls_status status = know_roots(shm, p, (ls__shm *)*part);
    if (status != LS_OK) {
        (*part)->table->close(*part);
        *part = NULL;
    }
    return status;
}

ls_status ls__shm_split(ls__transport *transport, int color, int key, uint64_t deadline,
                        ls__transport **part) {
    ls__shm *shm = (ls__shm *)transport;
    const size_t size = (size_t)transport->size;
    const seat mine = {.color = color, .key = key};
    seat *seats = calloc(size, sizeof *seats);
    offer *offers = calloc(size, sizeof *offers);
    plan p = {.member = calloc(size, sizeof *p.member)};
    int fd = -1;
    ls_status status;
    *part = NULL;
    if (!seats || !offers || !p.member)
        LS_TRY_OUT(ls__fail(LS_ERR_MEMORY, "no memory for a group of %zu ranks", size));
    LS_TRY_OUT(show(shm, &mine, seats, sizeof mine, deadline));
    if (color >= 0)
        p.count = list_members(seats, transport->size, color, p.member);
    p.shares = p.count > 1;
    while (p.count > 0 && p.member[p.rank] != transport->rank)
        p.rank++;
    LS_TRY_OUT(get_segment(shm, &p, offers, deadline, &fd));
    if (p.count > 0)
        status = join(shm, &p, fd, deadline, part);
out:
    if (fd >= 0)
        close(fd);
    free(seats);
    free(offers);
    free(p.member);
    return status;
}
