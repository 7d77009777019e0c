/* Joining and leaving the segment, and the table of the transport. */
#include "base/clock.h"
#include "base/error.h"
#include "comm/heartbeat.h"
#include "comm/shm/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static ls_status run_kind(ls__shm *shm, ls__operation *operation) {
    switch (ls__operation_step(operation)) {
    case LS__ALL_REDUCE:
        return ls__shm_all_reduce(shm, operation);
    case LS__REDUCE_SCATTER:
        return ls__shm_reduce_scatter(shm, operation);
    case LS__REDUCE:
        return ls__shm_reduce(shm, operation);
    case LS__ALL_GATHER:
    case LS__GATHER:
        return ls__shm_gather(shm, operation);
    case LS__SCATTER:
        return ls__shm_scatter(shm, operation);
    case LS__ALL_TO_ALL:
        return ls__shm_all_to_all(shm, operation);
    case LS__ALL_TO_ALL_V:
        return ls__shm_all_to_all_v(shm, operation);
    case LS__BROADCAST:
        return ls__shm_broadcast(shm, operation);
    case LS__BARRIER:
        LS_TRY(ls__shm_meet(shm, operation));
        ls__shm_ends_when_ready(operation);
        return LS_OK;
    case LS__SEND:
        return ls__shm_send(shm, operation);
    case LS__RECV:
        return ls__shm_recv(shm, operation);
    case LS__SENDRECV:
        return ls__shm_sendrecv(shm, operation);
    case LS__ALLOC:
        return ls__shm_alloc(shm, operation);
    case LS__FREE:
        return ls__shm_free(shm, operation);
    case LS__SPLIT: /* its step is an all_gather */
        break;
    }
    return ls__operation_fail(LS_ERR_UNSUPPORTED, operation, ls__own_name(&shm->base),
                              "unknown operation");
}

static ls_status run(ls__transport *transport, ls__operation *operation) {
    ls__shm *shm = (ls__shm *)transport;
    ls__shm_show_doing(shm, operation);
    ls_status status = run_kind(shm, operation);
    ls__shm_show_doing(shm, NULL);
    return status;
}

static void abort_shm(ls__transport *transport, ls_status status, const char *reason) {
    ls__shm *shm = (ls__shm *)transport;
    ls__shm_slot *slot = ls__shm_my_slot(shm);
    if (!atomic_exchange(&slot->own_written, 1)) {
        snprintf(slot->own_reason, sizeof slot->own_reason, "%s", reason);
        atomic_store(&slot->own_status, (uint32_t)status);
        uint32_t none = 0;
        atomic_compare_exchange_strong(&shm->control->aborted, &none,
                                       (uint32_t)(shm->base.rank + 1));
    }
    ls__shm_ring_everyone(shm->control);
}

static void close_shm(ls__transport *transport) {
    ls__shm *shm = (ls__shm *)transport;
    atomic_store(&ls__shm_my_slot(shm)->left, 1);
    ls__shm_ring_everyone(shm->control);
    ls__shm_unmap_regions(shm);
    munmap(shm->control, shm->mapped);
    close(shm->fd);
    free(shm->root_slot);
    free(shm);
}

static const ls__transport_table table = {"shm",     run,           close_shm,
                                          abort_shm, ls__shm_split, ls__shm_explain};

/* Whether ranks outnumber the cores that they may use together; each has said which at joining. A rank
 * bound to a core of its own sees only that one, so no rank can tell by itself. */
static bool is_crowded(const ls__shm *shm) {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int r = 0; r < shm->base.size; r++)
        CPU_OR(&all, &all, &shm->control->slot[r].cores);
    return CPU_COUNT(&all) < shm->base.size;
}

/* Of the caches that cores share, where the system tells; else a usual one. */
static size_t cache_bytes(void) {
    long bytes = -1;
#ifdef _SC_LEVEL3_CACHE_SIZE
    bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : (size_t)32 << 20;
}

/* Takes slot `rank`; two processes with one rank would both write there. */
static ls_status claim_slot(ls__shm *shm) {
    ls__shm_slot *slot = ls__shm_my_slot(shm);
    uint32_t none = 0, pid = (uint32_t)getpid();
    atomic_store(&slot->start_time, ls__process_start_time(pid));
    if (!atomic_compare_exchange_strong(&slot->pid, &none, pid))
        return ls__fail(
            LS_ERR_STATE,
            "rank %d of this job is already taken by pid %u; a process can join a job once",
            shm->base.rank, none);
    if (sched_getaffinity(0, sizeof slot->cores, &slot->cores))
        CPU_ZERO(&slot->cores); /* then it counts as crowded */
    return LS_OK;
}

/* Waits until all ranks are there. */
static ls_status wait_for_all(ls__shm *shm, double timeout_s) {
    ls__operation join = {.header = {.magic = LS__HEADER_MAGIC, .kind = LS__BARRIER, .group = 1}};
    join.times.begin_ns = ls__now_ns();
    join.times.last_rank = -1;
    join.deadline = ls__deadline_ns(timeout_s);
    join.paused_ns = ls__heartbeat_paused_ns(shm->base.heartbeat);
    ls_status status = run(&shm->base, &join);
    if (status != LS_OK) {
        ls__fail_context(status, "joining the job");
        abort_shm(&shm->base, status, ls_error_text());
    }
    return status;
}

ls_status ls__shm_open(ls__transport **transport, const ls__job_place *place, int segment_fd) {
    ls_status status;
    ls__shm *shm = calloc(1, sizeof *shm);
    if (!shm)
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    shm->base = (ls__transport){.table = &table,
                                .rank = place->rank,
                                .size = place->world_size,
                                .board = place->board,
                                .heartbeat = place->heartbeat};
    shm->crowded = true; /* until all have come */
    shm->cache_bytes = cache_bytes();
    shm->arrivals = LS__SHM_FIRST_ARRIVAL;
    shm->fd = fcntl(segment_fd, F_DUPFD_CLOEXEC, 0);
    if (shm->fd < 0) {
        status = ls__fail_errno(LS_ERR_ARGUMENT, errno, "LOCKSTEP_SHM_FD=%d", segment_fd);
        goto out;
    }
    LS_TRY_OUT(ls__cpu_level_choose(getenv("LOCKSTEP_CPU"), &shm->level));
    LS_TRY_OUT(ls__shm_map(shm->fd, &shm->control, &shm->mapped));
    if ((int)shm->control->ranks != place->world_size) {
        status =
            ls__fail(LS_ERR_ARGUMENT, "WORLD_SIZE is %d, but the shared memory is for %u ranks",
                     place->world_size, shm->control->ranks);
        goto out;
    }
    shm->root = shm->control;
    shm->place = *place;
    LS_TRY_OUT(claim_slot(shm));
    status = wait_for_all(shm, place->timeout_s);
    if (status != LS_OK) {
        close_shm(&shm->base);
        return status;
    }
    shm->crowded = is_crowded(shm);
    *transport = &shm->base;
    return LS_OK;
out:
    if (shm->control)
        munmap(shm->control, shm->mapped);
    if (shm->fd >= 0)
        close(shm->fd);
    free(shm);
    return status;
}
