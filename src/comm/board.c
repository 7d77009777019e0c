#include "comm/board.h"

#include "base/clock.h"
#include "comm/memory.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { VERSION = 3 };
static const uint64_t MAGIC = 0x314452414f42534c; /* "LSBOARD1" */

typedef struct head {
    uint64_t magic;
    uint32_t version, ranks;
    uint64_t slot_bytes;
} head;

static size_t slots_offset(void) {
    const size_t alignment = _Alignof(ls__board_slot);
    return (sizeof(head) + alignment - 1) / alignment * alignment;
}

static size_t board_bytes(int ranks) {
    return ls__memory_pages(slots_offset() + (size_t)ranks * sizeof(ls__board_slot));
}

ls_status ls__board_create(ls__board *board, int ranks, int *fd) {
    *board = (ls__board){.ranks = ranks, .rank = -1};
    *fd = -1;
    size_t bytes = board_bytes(ranks);
    int new_fd = memfd_create("lockstep-board", MFD_CLOEXEC);
    if (new_fd < 0)
        return ls__fail_errno(LS_ERR_SYSTEM, errno, "cannot create the job's board");
    void *p = MAP_FAILED;
    int error = ftruncate(new_fd, (off_t)bytes) ? errno : 0;
    if (!error)
        error = posix_fallocate(new_fd, 0, (off_t)bytes); /* no fault later */
    if (!error) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, new_fd, 0);
        error = p == MAP_FAILED ? errno : 0;
    }
    if (error) {
        close(new_fd);
        return ls__fail_errno(LS_ERR_MEMORY, error, "cannot reserve the board of %d ranks", ranks);
    }
    *(head *)p = (head){.magic = MAGIC,
                        .version = VERSION,
                        .ranks = (uint32_t)ranks,
                        .slot_bytes = sizeof(ls__board_slot)};
    board->mapped = bytes;
    board->slot = (ls__board_slot *)(void *)((char *)p + slots_offset());
    *fd = new_fd;
    return LS_OK;
}

static bool map_shared(ls__board *board, int fd) {
    struct stat about;
    size_t bytes = board_bytes(board->ranks);
    if (fd < 0 || fstat(fd, &about) != 0 || about.st_size < (off_t)bytes)
        return false;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return false;
    const head *h = p;
    if (h->magic != MAGIC || h->version != VERSION || h->ranks != (uint32_t)board->ranks ||
        h->slot_bytes != sizeof(ls__board_slot)) {
        munmap(p, bytes);
        return false;
    }
    board->mapped = bytes;
    board->slot = (ls__board_slot *)(void *)((char *)p + slots_offset());
    return true;
}

/* Free, or of a process that left or ended: a script may run one program after another as a rank. */
static bool is_free(const ls__board_slot *slot, uint32_t pid) {
    return !pid || atomic_load(&slot->left) || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
}

static int64_t clock_offset(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - (int64_t)ls__now_ns();
}

/* The slot becomes this process's. */
static void take_slot(ls__board_slot *slot) {
    char name[LS__FLIGHT_NAME_BYTES] = "?";
    atomic_store(&slot->pid, 0);
    memset(slot, 0, sizeof *slot);
    (void)gethostname(name, sizeof name - 1);
    ls__flight_copy_text(slot->host, sizeof slot->host, name, sizeof name);
    atomic_store(&slot->clock_offset_ns, clock_offset());
    atomic_store(&slot->pid, (uint32_t)getpid());
}

ls_status ls__board_join(ls__board *board, int fd, int rank, int ranks, const char *folder) {
    *board = (ls__board){.ranks = ranks, .rank = rank};
    if (map_shared(board, fd)) {
        ls__board_slot *slot = &board->slot[rank];
        if (is_free(slot, atomic_load(&slot->pid))) {
            board->mine = slot;
            take_slot(slot);
            return LS_OK;
        }
        ls__board_close(board, false);
    }
    *board = (ls__board){.ranks = ranks, .rank = rank};
    board->mine = aligned_alloc(_Alignof(ls__board_slot), sizeof *board->mine);
    board->folder = folder ? strdup(folder) : NULL;
    if (!board->mine || (folder && !board->folder)) {
        ls__board_close(board, false);
        return ls__fail(LS_ERR_MEMORY, "no memory for a job");
    }
    take_slot(board->mine);
    return LS_OK;
}

void ls__board_mark_absent(ls__board *board, int rank) {
    if (board->mapped && !atomic_load(&board->slot[rank].pid))
        atomic_store(&board->slot[rank].absent, 1);
}

bool ls__board_is_absent(const ls__board *board, int rank) {
    return board && board->mapped && rank >= 0 && rank < board->ranks &&
           atomic_load(&board->slot[rank].absent) && !atomic_load(&board->slot[rank].pid);
}

/* Nothing depends on the file: a folder that cannot be written costs the record, no more. */
static void write_record(ls__board *board) {
    ls__flight_record record;
    char line[1200];
    if (!board->folder)
        return;
    ls__board_read(board, board->rank, ls__now_ns(), &record);
    if (ls__flight_write(board->folder, &record) == LS_OK || !board->log)
        return;
    snprintf(line, sizeof line, "rank %d: LOCKSTEP_FLIGHT: %.1100s", board->rank, ls_error_text());
    board->log(board->log_context, LS_LOG_WARNING, line);
    board->log = NULL; /* the end would say it again */
}

void ls__board_fail(ls__board *board, const char *text) {
    if (!board || !ls__flight_fail(&board->mine->flight, text))
        return;
    write_record(board);
    ls__error_set("%s", text);
}

void ls__board_close(ls__board *board, bool leaves) {
    if (board->mine && leaves) {
        atomic_store(&board->mine->left, 1);
        write_record(board);
    }
    if (board->mapped)
        munmap((char *)board->slot - slots_offset(), board->mapped);
    else
        free(board->mine);
    free(board->folder);
    *board = (ls__board){.rank = -1};
}

bool ls__board_read_phase(const ls__board_slot *slot, char phase[LS__FLIGHT_NAME_BYTES],
                          uint64_t *since_ns, uint64_t *extra_ns) {
    uint64_t words[LS__BOARD_PHASE_WORDS];
    char raw[LS__FLIGHT_NAME_BYTES];
    uint32_t version = atomic_load(&slot->phase_version);
    for (int i = 0; i < LS__BOARD_PHASE_WORDS; i++)
        words[i] = atomic_load(&slot->phase[i]);
    uint64_t since = atomic_load(&slot->phase_since_ns), extra = atomic_load(&slot->phase_extra_ns);
    if ((version & 1) || atomic_load(&slot->phase_version) != version)
        return false;
    memcpy(raw, words, sizeof raw);
    ls__flight_copy_text(phase, LS__FLIGHT_NAME_BYTES, raw, sizeof raw);
    *since_ns = since;
    *extra_ns = extra;
    return true;
}

void ls__board_read(const ls__board *board, int rank, uint64_t taken_ns,
                    ls__flight_record *record) {
    const ls__board_slot *slot = board->mapped ? &board->slot[rank] : board->mine;
    *record = (ls__flight_record){.rank = rank, .world_size = board->ranks, .taken_ns = taken_ns};
    record->pid = atomic_load(&slot->pid);
    record->left = atomic_load(&slot->left);
    record->clock_offset_ns = atomic_load(&slot->clock_offset_ns);
    ls__flight_copy_text(record->host, sizeof record->host, slot->host, sizeof slot->host);
    uint64_t extra;
    (void)ls__board_read_phase(slot, record->phase, &record->phase_ns, &extra);
    ls__flight_read(&slot->flight, record);
}
