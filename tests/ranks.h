/* Real ranks for tests: forks n processes with a fresh segment (shm) or a free port (tcp) and the
 * variables a launcher sets, runs a function in each, and reaps them within a time limit.
 *
 *     static void body(int rank, ls_job *job, void *context) { CHECK(...); }
 *     assert_int_equal(ranks_run(4, "shm", body, NULL), 0);
 *
 * In a rank use CHECK, never cmocka's assert_*: those would go on with the parent's next test. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "base/clock.h"
#include "comm/board.h"
#include "comm/shm/segment.h"

#include <arpa/inet.h>
#include <lockstep/group.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 16 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: rank %s: %s is false; last error: %s\n", __FILE__, __LINE__,   \
                    getenv("RANK") ? getenv("RANK") : "?", #condition, ls_error_text());           \
            fflush(stderr);                                                                        \
            _exit(99);                                                                             \
        }                                                                                          \
    } while (0)

#define CHECK_OK(call) CHECK((call) == LS_OK)

/* The transport a test program runs on: LOCKSTEP_TEST_TRANSPORT, so that one program serves all. */
static inline const char *ranks_transport(void) {
    const char *transport = getenv("LOCKSTEP_TEST_TRANSPORT");
    return transport && *transport ? transport : "shm";
}

/* The thread sanitizer sees the threads of one process: more processes only take longer. */
#if defined(__SANITIZE_THREAD__)
static const int ranks_worlds[] = {1, 2, 3};
#else
static const int ranks_worlds[] = {1, 2, 3, 4, 5, 7, 8};
#endif
enum { RANKS_WORLDS = sizeof ranks_worlds / sizeof ranks_worlds[0] };

/* `job` is NULL where the test asked for ranks that join by themselves. */
typedef void (*ranks_body)(int rank, ls_job *job, void *context);

/* What a rank leaves for the parent to look at. */
typedef struct ranks_report {
    ls_status status;
    char text[1024];
    uint64_t at_ns;
    uint64_t value;
    bool reached; /* a mark to wait for, see ranks_await */
} ranks_report;

typedef struct ranks {
    int size;
    const char *transport; /* "shm" or "tcp" */
    ranks_body body;
    void *context;
    const char *timeout;   /* LOCKSTEP_TIMEOUT; NULL: "20" */
    const char *heartbeat; /* LOCKSTEP_HEARTBEAT; NULL: the default */
    double limit_s;        /* after which all are killed; 0: 60 */
    bool no_job;           /* the body calls ls_job_init itself, or not */
    bool watch;            /* shm: tell the segment when a rank is killed, as the launcher does */
    /* filled by ranks_start and ranks_wait */
    pid_t pid[RANKS_MAX];
    int wait_status[RANKS_MAX]; /* as waitpid gives it */
    bool ended[RANKS_MAX];
    bool overrun;
    int fd, board_fd; /* shm: as a launcher makes them; -1: none */
    ls__board board;
    uint64_t start_ns;
    ranks_report *report; /* shared with the ranks, one for each */
} ranks;

/* The report of the calling rank; set in the child. */
static ranks_report *my_report;

static inline void ranks_note(ls_status status) {
    my_report->status = status;
    snprintf(my_report->text, sizeof my_report->text, "%s", ls_error_text());
    my_report->at_ns = ls__now_ns();
}

static inline int ranks_free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        abort();
    close(fd);
    return ntohs(address.sin_port);
}

static inline void ranks_setenv(const char *name, long value) {
    char text[24];
    snprintf(text, sizeof text, "%ld", value);
    setenv(name, text, 1);
}

static inline void ranks_child(ranks *r, int rank, int port) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ranks_setenv("RANK", rank);
    ranks_setenv("WORLD_SIZE", r->size);
    ranks_setenv("LOCAL_RANK", rank);
    ranks_setenv("LOCAL_WORLD_SIZE", r->size);
    setenv("LOCKSTEP_TRANSPORT", r->transport, 1);
    setenv("LOCKSTEP_TIMEOUT", r->timeout ? r->timeout : "20", 1);
    if (r->heartbeat)
        setenv("LOCKSTEP_HEARTBEAT", r->heartbeat, 1);
    if (r->fd >= 0) {
        ranks_setenv("LOCKSTEP_SHM_FD", r->fd);
        ranks_setenv("LOCKSTEP_BOARD_FD", r->board_fd);
    } else {
        setenv("MASTER_ADDR", "127.0.0.1", 1);
        ranks_setenv("MASTER_PORT", port);
    }
    my_report = &r->report[rank];
    ls_job *job = NULL;
    if (!r->no_job)
        CHECK_OK(ls_job_init(&job, NULL));
    r->body(rank, job, r->context);
    ls_job_finish(job);
    exit(0); /* and not _exit: the leak check of the address sanitizer runs at exit */
}

static inline void ranks_start(ranks *r) {
    int port = 0;
    r->fd = r->board_fd = -1;
    if (strcmp(r->transport, "tcp") == 0)
        port = ranks_free_port();
    else if (ls__segment_create(&r->fd, r->size) != LS_OK ||
             ls__board_create(&r->board, r->size, &r->board_fd) != LS_OK)
        abort();
    r->report = mmap(NULL, sizeof(ranks_report) * RANKS_MAX, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r->report == MAP_FAILED)
        abort();
    r->start_ns = ls__now_ns();
    fflush(NULL);
    for (int rank = 0; rank < r->size; rank++) {
        r->ended[rank] = false;
        r->pid[rank] = fork();
        if (r->pid[rank] == 0)
            ranks_child(r, rank, port);
    }
}

/* Waits until rank `rank` has set my_report->reached; false after 20 s. */
static inline bool ranks_await(ranks *r, int rank) {
    for (int i = 0; i < 20000; i++) {
        if (((volatile ranks_report *)r->report)[rank].reached)
            return true;
        usleep(1000);
    }
    return false;
}

static inline void ranks_tell(ranks *r, int rank) {
    if (!r->watch || r->fd < 0 || !WIFSIGNALED(r->wait_status[rank]))
        return;
    char reason[80];
    int number = WTERMSIG(r->wait_status[rank]);
    snprintf(reason, sizeof reason, "was killed by signal %d (%s)", number, strsignal(number));
    ls__segment_abort(r->fd, rank, reason);
}

/* Reaps all ranks, killing what outlives the limit. Returns how many did not exit with 0. The reports
 * stay readable until ranks_free. */
static inline int ranks_wait(ranks *r) {
    double limit_s = r->limit_s > 0 ? r->limit_s : 60;
    int left = r->size, failed = 0;
    for (int rank = 0; rank < r->size; rank++)
        left -= r->ended[rank];
    while (left > 0) {
        for (int rank = 0; rank < r->size; rank++) {
            if (r->ended[rank] || waitpid(r->pid[rank], &r->wait_status[rank], WNOHANG) <= 0)
                continue;
            r->ended[rank] = true;
            left--;
            ranks_tell(r, rank);
        }
        if (!r->overrun && (double)(ls__now_ns() - r->start_ns) * 1e-9 > limit_s) {
            r->overrun = true;
            for (int rank = 0; rank < r->size; rank++)
                if (!r->ended[rank])
                    kill(r->pid[rank], SIGKILL);
        }
        if (left > 0)
            usleep(1000);
    }
    for (int rank = 0; rank < r->size; rank++)
        failed += !WIFEXITED(r->wait_status[rank]) || WEXITSTATUS(r->wait_status[rank]) != 0;
    if (r->fd >= 0) {
        close(r->fd);
        close(r->board_fd);
        ls__board_close(&r->board, false);
    }
    r->fd = -1;
    return failed;
}

static inline void ranks_free(ranks *r) {
    munmap(r->report, sizeof(ranks_report) * RANKS_MAX);
    r->report = NULL;
}

static inline int ranks_run_all(ranks *r) {
    ranks_start(r);
    int failed = ranks_wait(r);
    ranks_free(r);
    return failed;
}

/* All of it for tests that only need "every rank succeeds". */
static inline int ranks_run(int size, const char *transport, ranks_body body, void *context) {
    ranks r = {.size = size, .transport = transport, .body = body, .context = context};
    return ranks_run_all(&r);
}

/* The same where the body joins the job and leaves it; its `job` is NULL. */
static inline int ranks_run_no_job(int size, const char *transport, ranks_body body,
                                   void *context) {
    ranks r = {
        .size = size, .transport = transport, .body = body, .context = context, .no_job = true};
    return ranks_run_all(&r);
}

#endif
