/* lockstep doctor: each transport's means, tried for real. */
#include "cli/doctor.h"

#include "base/clock.h"
#include "base/futex.h"
#include "comm/shm/segment.h"
#include "comm/transport.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEGMENT_BYTES = 1 << 20 };

/* The other process of the trial: writes into the memory and wakes its parent. */
static _Noreturn void write_and_wake(_Atomic uint32_t *word) {
    memset((char *)word + 4096, 7, SEGMENT_BYTES - 4096);
    *word = 1;
    ls__futex_wake_all(word);
    _exit(0);
}

/* A mapped segment that another process fills and that its futex wakes us in. Returns what failed, or
 * NULL. */
static const char *try_segment(void) {
    int fd = memfd_create("lockstep-doctor", MFD_CLOEXEC);
    if (fd < 0)
        return "memfd_create";
    const char *failed = NULL;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, SEGMENT_BYTES) != 0)
        failed = "ftruncate of a memfd";
    else
        memory = mmap(NULL, SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!failed && memory == MAP_FAILED)
        failed = "mmap of a memfd";
    pid_t child = failed ? -1 : fork();
    if (child == 0)
        write_and_wake(memory);
    if (!failed && child < 0)
        failed = "fork";
    if (!failed) {
        uint64_t deadline = ls__deadline_ns(2);
        _Atomic uint32_t *word = memory;
        while (*word == 0 && ls__futex_wait(word, 0, deadline))
            continue;
        waitpid(child, NULL, 0);
        if (*word != 1 || ((char *)memory)[SEGMENT_BYTES - 1] != 7)
            failed = "waiting for another process on a futex";
    }
    if (memory != MAP_FAILED)
        munmap(memory, SEGMENT_BYTES);
    close(fd);
    return failed;
}

/* Passing a descriptor through a Unix socket, as ranks do that no launcher started. */
static const char *try_passing(void) {
    int pair[2], sent = memfd_create("lockstep-doctor", MFD_CLOEXEC);
    if (sent < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        if (sent >= 0)
            close(sent);
        return "a pair of Unix sockets";
    }
    char byte = 0;
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &data,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &sent, sizeof sent);
    int received = -1;
    if (sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC) == 1 &&
        (header = CMSG_FIRSTHDR(&message)) && header->cmsg_type == SCM_RIGHTS)
        memcpy(&received, CMSG_DATA(header), sizeof received);
    close(sent);
    close(pair[0]);
    close(pair[1]);
    if (received < 0)
        return "SCM_RIGHTS";
    close(received);
    return NULL;
}

static void find_shm(ls__findings *findings) {
    const char *failed = try_segment();
    int fd = -1;
    if (failed)
        ls__findings_fault(findings, LS__FINDING_BROKEN,
                           "ranks of one machine need it: is there a sandbox (seccomp) around?",
                           "shm", "%s does not work", failed);
    else if (ls__segment_create(&fd, 2) != LS_OK)
        ls__findings_fault(findings, LS__FINDING_BROKEN,
                           "ranks of one machine need it: is there memory left?", "shm", "%s",
                           ls_error_text());
    else
        ls__findings_add(findings, "shm", "works (memfd, mmap, futex between processes)");
    if (fd >= 0)
        close(fd);
}

#ifdef LOCKSTEP_WITH_TCP
static void find_tcp(ls__findings *findings) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 1) != 0)
        ls__findings_fault(findings, LS__FINDING_MISSING,
                           "bring the interface up: ip link set lo up", "tcp",
                           "built in; cannot listen on 127.0.0.1: %s", strerror(errno));
    else
        ls__findings_add(findings, "tcp", "built in; loopback works");
    if (fd >= 0)
        close(fd);
}
#else
static void find_tcp(ls__findings *findings) {
    ls__findings_fault(findings, LS__FINDING_MISSING, "install libsodium-dev and build again",
                       "tcp", "not built in");
}
#endif

/* In a process of its own, because two MPI libraries do not get along in one. False: `text` says why. */
static bool try_mpi(const char *which, char *text, size_t bytes) {
    int ends[2], status = 1;
    text[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    const pid_t child = fork();
    if (child == 0) {
        const bool works = ls__mpi_describe(which, text, bytes) == LS_OK;
        const char *words = works ? text : ls_error_text();
        _exit(write(ends[1], words, strlen(words)) < 0 || !works);
    }
    close(ends[1]);
    ssize_t n = child > 0 ? read(ends[0], text, bytes - 1) : 0;
    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void find_mpi(ls__findings *findings, const char *which, const char *name,
                     const char *package) {
    char text[512];
    if (try_mpi(which, text, sizeof text))
        ls__findings_add(findings, name, "%s", text);
    else if (strstr(text, "No such file"))
        ls__findings_fault(findings, LS__FINDING_MISSING, package, name, "no module");
    else
        ls__findings_fault(findings, LS__FINDING_MISSING, package, name, "%s", text);
}

void ls__doctor_transports(ls__findings *findings) {
    findings->section = "Transports";
    find_shm(findings);
    const char *failed = try_passing();
    if (failed)
        ls__findings_fault(findings, LS__FINDING_MISSING,
                           "only ranks that no launcher started need it", "descriptor passing",
                           "%s does not work", failed);
    else
        ls__findings_add(findings, "descriptor passing", "works");
    find_tcp(findings);
    find_mpi(findings, "openmpi", "mpi, OpenMPI",
             "for ranks under its mpirun: install libopenmpi-dev and build again");
    find_mpi(findings, "mpich", "mpi, MPICH",
             "for ranks under its mpirun: install libmpich-dev and build again");
}
