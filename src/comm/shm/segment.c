#include "comm/shm/segment.h"

#include "base/futex.h"
#include "comm/memory.h"
#include "comm/shm/layout.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t SEGMENT_MAGIC = 0x3147455350455453; /* "STEPSEG1" */

size_t ls__shm_staging_offset(int ranks) {
    return ls__memory_pages(sizeof(ls__shm_control) + (size_t)ranks * sizeof(ls__shm_slot));
}

size_t ls__shm_mailbox_offset(int ranks) {
    return ls__shm_staging_offset(ranks) + (size_t)ranks * 2 * LS__SHM_HALF_BYTES;
}

size_t ls__shm_control_bytes(int ranks) {
    size_t boxes = (size_t)ranks * (size_t)ranks * sizeof(ls__shm_mailbox);
    return ls__memory_pages(ls__shm_mailbox_offset(ranks) + boxes);
}

ls_status ls__segment_check(int ranks) {
    if (ranks >= 1 && ranks <= LS__SHM_RANKS_MAX)
        return LS_OK;
    return ls__fail(LS_ERR_ARGUMENT, "shared memory for %d ranks; want 1 to %d", ranks,
                    LS__SHM_RANKS_MAX);
}

ls_status ls__segment_create(int *fd, int ranks) {
    *fd = -1;
    LS_TRY(ls__segment_check(ranks));
    int new_fd = memfd_create("lockstep", MFD_CLOEXEC);
    if (new_fd < 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "cannot create shared memory");
    size_t bytes = ls__shm_control_bytes(ranks);
    /* Slots and staging are reserved now: no fault later. The mailboxes are many and mostly unused;
     * their pages come when they are first written. */
    int error = ftruncate(new_fd, (off_t)bytes) ? errno : 0;
    if (!error)
        error = posix_fallocate(new_fd, 0, (off_t)ls__shm_mailbox_offset(ranks));
    ls__shm_control *control = MAP_FAILED;
    if (!error) {
        control = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, new_fd, 0);
        error = control == MAP_FAILED ? errno : 0;
    }
    if (error) {
        close(new_fd);
        return ls__fail_errno(error == ENOSPC || error == ENOMEM ? LS_ERR_MEMORY : LS_ERR_SYSTEM,
                              error, "cannot reserve shared memory for %d ranks", ranks);
    }
    control->version = LS__SHM_VERSION;
    control->ranks = (uint32_t)ranks;
    atomic_store(&control->rung, LS__SHM_FIRST_ARRIVAL);
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < 2; i++)
            atomic_store(&control->slot[r].arrival[i].stamp, LS__SHM_FIRST_ARRIVAL);
    control->magic = SEGMENT_MAGIC;
    munmap(control, bytes);
    *fd = new_fd;
    return LS_OK;
}

ls_status ls__shm_map(int fd, ls__shm_control **control, size_t *mapped) {
    struct stat about;
    if (fstat(fd, &about))
        return ls__fail_errno(LS_ERR_ARGUMENT, errno,
                              "LOCKSTEP_SHM_FD names no shared memory of a job");
    if (about.st_size < (off_t)sizeof(ls__shm_control))
        return ls__fail(LS_ERR_ARGUMENT,
                        "LOCKSTEP_SHM_FD names no shared memory of a job: %lld bytes",
                        (long long)about.st_size);
    ls__shm_control *head = mmap(NULL, sizeof *head, PROT_READ, MAP_SHARED, fd, 0);
    if (head == MAP_FAILED)
        return ls__fail_errno(LS_ERR_ARGUMENT, errno,
                              "what LOCKSTEP_SHM_FD names cannot be mapped");
    uint64_t magic = head->magic;
    uint32_t version = head->version, ranks = head->ranks;
    munmap(head, sizeof *head);
    if (magic != SEGMENT_MAGIC || version != LS__SHM_VERSION || ranks < 1 ||
        ranks > LS__SHM_RANKS_MAX || about.st_size < (off_t)ls__shm_control_bytes((int)ranks))
        return ls__fail(
            LS_ERR_ARGUMENT,
            "LOCKSTEP_SHM_FD names no shared memory of this version (magic %016llx, version %u, "
            "want %u); use the launcher of the same version",
            (unsigned long long)magic, version, LS__SHM_VERSION);
    size_t bytes = ls__shm_control_bytes((int)ranks);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "cannot map the job's shared memory");
    *control = p;
    *mapped = bytes;
    return LS_OK;
}

void ls__shm_ring(ls__shm_bell *bell) {
    atomic_fetch_add(&bell->bell, 1);
    /* A sleeper counts itself before the kernel compares `bell`: either it is seen here, or the kernel
     * sees the new value. Both orders need the sequential consistency of these operations. */
    if (atomic_load(&bell->sleepers) > 0)
        ls__futex_wake_all(&bell->bell);
}

void ls__shm_ring_everyone(ls__shm_control *control) {
    ls__shm_ring(&control->all);
    for (uint32_t r = 0; r < control->ranks; r++)
        ls__shm_ring(&control->slot[r].mail);
}

ls_status ls__segment_abort(int fd, int rank, const char *reason) {
    ls__shm_control *control;
    size_t mapped;
    LS_TRY(ls__shm_map(fd, &control, &mapped));
    if (rank < 0 || rank >= (int)control->ranks) {
        int ranks = (int)control->ranks;
        munmap(control, mapped);
        return ls__fail(LS_ERR_ARGUMENT, "rank is %d, want 0 to %d", rank, ranks - 1);
    }
    ls__shm_slot *slot = &control->slot[rank];
    if (!atomic_exchange(&slot->told_written, 1)) {
        snprintf(slot->told_reason, sizeof slot->told_reason, "%s", reason);
        atomic_store(&slot->told_written, LS__SHM_WRITTEN);
    }
    uint32_t none = 0;
    atomic_compare_exchange_strong(&control->aborted, &none, (uint32_t)(rank + 1) | LS__SHM_TOLD);
    ls__shm_ring_everyone(control);
    munmap(control, mapped);
    return LS_OK;
}
